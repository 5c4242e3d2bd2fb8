"""The time in which a DataLoader starts its workers: a region, as torch has one for each batch."""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any

from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.model import Trace

STARTS_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__init__"
"""Named as torch names the region in which the loop waits for a batch."""


class WorkerStarts:
    """Marks what ``iter(loader)`` takes where it starts processes: input pipeline, not Python."""

    loses = "no word on how long DataLoader workers took to start"

    def __init__(self, context: Context) -> None:
        self._begin: _InRegion | None = None

    def start(self) -> None:
        """Open the region around every start of workers from now on."""
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        plain = kind.__dict__.get("__init__")
        if self._begin is None and isinstance(plain, FunctionType):
            self._begin = kind.__init__ = _InRegion(plain)

    def stop(self) -> None:
        """The class as torch has it, or as the user has made it meanwhile."""
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        begin, self._begin = self._begin, None
        if begin is None:
            return
        begin.ended = True
        if kind.__dict__.get("__init__") is begin:
            kind.__init__ = begin.plain

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        return {}


class _InRegion:
    """An ``__init__`` whose every call is a region on the trace, with no frame of ours around it.

    A frame would be where the warnings of torch's own ``__init__`` point to (they name its caller),
    and would stand in the traceback of its errors. Instead the bound method holds the region. It is
    freed, and torch ends the region, as soon as the call is over, however that ended.
    """

    def __init__(self, plain: FunctionType) -> None:
        self.plain = plain
        self.ended = False

    def __get__(self, iterator: Any, kind: type | None = None) -> Any:
        if iterator is None or self.ended:
            return self.plain.__get__(iterator, kind)
        from torch._C._autograd import _record_function_with_args_enter

        begin: Any = partial(self.plain, iterator)
        # No local name holds the region: an interrupt's traceback would keep it open.
        begin.region = _record_function_with_args_enter(STARTS_WORKERS)
        return begin

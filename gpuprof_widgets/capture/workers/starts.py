"""The time in which a DataLoader starts its workers: a region, as torch has one for each batch."""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.capture.loop.steps import in_region
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.model import Trace

STARTS_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__init__"
"""Named as torch names the region in which the loop waits for a batch."""


class WorkerStarts:
    """Marks what ``iter(loader)`` takes where it starts processes: input pipeline, not Python."""

    loses = "no word on how long DataLoader workers took to start"

    def __init__(self, context: Context) -> None:
        self._plain: Any = None

    def start(self) -> None:
        """Open the region around every start of workers from now on."""
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        if self._plain is None:
            self._plain = kind.__init__
            kind.__init__ = in_region(kind.__init__, STARTS_WORKERS)

    def stop(self) -> None:
        """The class as torch has it."""
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        if self._plain is not None:
            kind.__init__, self._plain = self._plain, None

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        return {}

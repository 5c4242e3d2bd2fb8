"""What a part of a recording is, and what it may know of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuprof_widgets.capture.cell import CellCode
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace


@dataclass(frozen=True)
class Context:
    """What the parts may need to know of the run: its options, its label and the user's names.

    ``cell_labels`` names the notebook's cells by the files of their code; empty in a script.
    ``code`` is the cell, with the rewrites that were applied to it; None in a script.
    ``shared`` is what the parts of one topic tell each other.
    """

    options: Options
    label: str
    namespace: Mapping[str, Any]
    cell_labels: Mapping[str, str]
    code: CellCode | None = None
    shared: dict[str, Any] = field(default_factory=dict)


class Part(Protocol):
    """One topic of a recording.

    ``start`` comes before torch.profiler starts, ``stop`` after it has stopped and after every
    failure: it takes out whatever ``start`` put in, and may be called twice. Both may come several
    times, once for each recorded window, and ``refine`` once with the trace of each. A part whose
    class sets ``starts_before_loop`` starts once, before anything else: where only some steps of a
    loop are recorded, before the loop. The others are asked once, at the end.
    """

    @property
    def loses(self) -> str:
        """What a profile lacks without it, for the note that says so: "no cell lines"."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def refine(self, trace: Trace) -> Trace:
        """The trace with what this part knows."""

    def notes(self) -> list[str]:
        """What was lost or not measured, one sentence each."""

    def metadata(self) -> dict[str, Any]:
        """What the profile's metadata gets, as JSON can hold it."""

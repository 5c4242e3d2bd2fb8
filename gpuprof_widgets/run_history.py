"""`gpuprof_widgets.history`: the last runs of each cell of this process, to compare a run with.

The module is not called ``history``: importing a submodule binds its name in the package, and
``gpuprof_widgets.history`` is the `History`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from gpuprof_widgets.analyses.columns import format_ns
from gpuprof_widgets.analyses.compare.tables import Earlier
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.options import OPTIONS
from gpuprof_widgets.profiles import Profile

RUNS_PER_CELL = 10
MOST_RUNS = 100
MOST_SLICES = 1_000_000
"""Of all runs but the last two, together: about 200 MB."""

_NUMBER = re.compile(r"\[\d+\]")


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """One recorded run: its ``profile``, and whether it is the ``first`` of its cell.

    Runs of the same cell have the same ``cell``: the front end's id of the cell, which stays when
    the cell is edited; where there is none its code, or the label of a block. The number beside it
    counts the runs of one execution of the cell, as those of a loop.
    """

    profile: Profile
    cell: tuple[str, int]
    first: bool

    @cached_property
    def ended(self) -> str:
        """Why the run has no time to compare, "" for one that reached its end."""
        if self.profile.metadata.get("interrupted"):
            return "interrupted"
        error = str(self.profile.metadata.get("error") or "").partition(":")[0]
        if error:
            return f"raised {error}"
        return "" if len(self.profile.trace) else "no trace"

    @cached_property
    def time_ns(self) -> int:
        """How long the median step took, or the run if it has no steps."""
        durations = steps(self.profile)["dur_ns"]
        return int(np.median(durations)) if len(durations) else self.profile.trace.span_ns

    @property
    def per(self) -> str:
        """Whether ``time_ns`` is that of a "step" or of the "run"."""
        return "step" if len(steps(self.profile)) else "run"

    def __repr__(self) -> str:
        label = str(self.profile.metadata.get("label") or "unnamed")
        return f"<Run {label!r}: {self.ended or f'{format_ns(self.time_ns)} per {self.per}'}>"


class History(Sequence[Run]):
    """The runs of this process, the oldest first.

    It keeps the last 10 runs of each cell, 100 in all, and of these as many as have up to a million
    slices together. The last two are kept whatever their size.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._cells: set[tuple[str, int]] = set()
        self._turns: Counter[tuple[str, int | None]] = Counter()

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> list[Run]: ...
    def __getitem__(self, place: int | slice) -> Run | list[Run]:
        return self._runs[place]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._runs)) or "<History of no runs>"

    def clear(self) -> None:
        """Forget all runs, and free their profiles."""
        self._runs.clear()
        self._cells.clear()
        self._turns.clear()

    def add(self, profile: Profile, *, cell_id: str = "", execution: int | None = None) -> Run:
        """Keep a run.

        ``cell_id`` is the front end's id of the cell. ``execution`` numbers the executions of
        cells; runs without it are of different executions.
        """
        label = _NUMBER.sub("", str(profile.metadata.get("label") or ""))
        name = cell_id or str(profile.metadata.get("cell_source") or label)
        if execution is None or all(other != execution for _, other in self._turns):
            self._turns.clear()  # another execution, or none that has several runs
        cell = (name, self._turns[name, execution])
        self._turns[name, execution] += 1
        run = Run(profile, cell, first=cell not in self._cells)
        self._cells.add(cell)
        kept, slices = [run], 0
        for other in reversed(self._runs[1 - MOST_RUNS :]):
            slices += len(other.profile.trace)
            of_cell = sum(later.cell == other.cell for later in kept)
            if len(kept) == 1 or (slices <= MOST_SLICES and of_cell < RUNS_PER_CELL):
                kept.append(other)
        self._runs = kept[::-1]
        return run

    def compare(self, run: Run | None = None) -> Comparison:
        """Compare a run (b), by default the last one, with the previous run of its cell (a).

        The times of earlier runs of a's code tell noise from change. Raises an `OptionError` if
        there is nothing to compare with.
        """
        if run is None and not self._runs:
            raise OptionError("there is nothing to compare: the history has no runs")
        b = run or self._runs[-1]
        if b.ended:
            raise OptionError(f"this run ({b.ended}) has nothing to compare: it is shown by itself")
        earlier_runs = self._runs[: self._runs.index(b)] if b in self._runs else []
        before = [other for other in earlier_runs if other.cell == b.cell and not other.ended]
        if not before:
            raise OptionError(
                "there is nothing to compare with yet: the history has no earlier run of this cell "
                "that reached its end. Where the front end does not say which cell runs, an edited "
                "cell is another one: compare(before, after) compares any two profiles"
            )
        a = before[-1]
        of_code = [other for other in before if _recording(other) == _recording(a)]
        # The first run of any code pays for its warm-up; a step is no measure of a whole run.
        times = tuple(other.time_ns for other in of_code[1:-1] if other.per == a.per == b.per)
        return Comparison(a.profile, b.profile, earlier=Earlier(times, a_is_first=a.first))


def _recording(run: Run) -> tuple[str, dict[str, Any]]:
    """Return the code of a run and the options of its recording, but not those of its output."""
    options = dict(run.profile.metadata.get("options") or {})
    return str(run.profile.metadata.get("cell_source") or ""), {
        name: value for name, value in options.items() if OPTIONS[name].group != "output"
    }


history = History()
"""The last runs of each cell that this process recorded."""

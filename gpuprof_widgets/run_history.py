"""`gpuprof_widgets.history`: the runs that this process recorded, for comparing and for a glance.

The module is not called ``history``: importing a submodule binds its name in the package, and
``gpuprof_widgets.history`` is the `History`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import format_ns, format_share
from gpuprof_widgets.analyses.compare.measured import busy_ns
from gpuprof_widgets.analyses.compare.tables import Earlier
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.options import OPTIONS
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.schema import GPU_TRACKS
from gpuprof_widgets.views.table import Column, Table
from gpuprof_widgets.views.table_renderers import html_table, listed, shortened, text_table

MOST_RUNS = 100
"""Runs whose figures are kept."""
MOST_PROFILES = 20
MOST_SLICES = 1_000_000
"""Of the profiles that are kept, all together: about 200 MB."""

ALIKE = 0.6
"""Share of words and signs that two sources have in common if both are of one cell, where the
front end does not say which cell runs."""

SPARKS = "▁▂▃▄▅▆▇█"
UNFINISHED = "×"
"""Stands in a sparkline for a run that did not reach its end."""
SPARKLINE_RUNS = 24
SOURCE_WIDTH = 32

_NUMBER = re.compile(r"\[\d+\]")
_WORDS = re.compile(r"\w+|\S")


@dataclass(frozen=True)
class Figures:
    """How long a run took: ``time_ns`` is the median of its ``steps``, or the span without steps.

    ``span_ns`` is the length of the trace. ``gpu_busy_ns`` is the time in which any GPU was busy;
    it is -1 without a GPU.
    """

    time_ns: int
    steps: int
    span_ns: int
    gpu_busy_ns: int

    @classmethod
    def of(cls, profile: Profile) -> Figures:
        """Return the figures of a profile."""
        durations = steps(profile)["dur_ns"]
        span = profile.trace.span_ns
        has_gpu = bool(profile.trace.tracks["kind"].isin(GPU_TRACKS).any())
        return cls(
            time_ns=int(np.median(durations)) if len(durations) else span,
            steps=len(durations),
            span_ns=span,
            gpu_busy_ns=busy_ns(profile) if has_gpu else -1,
        )

    @property
    def per(self) -> str:
        """Whether ``time_ns`` is that of a "step" or of the "run"."""
        return "step" if self.steps else "run"


class Run:
    """One recorded run: its ``number`` (the first is 1), and what is known of it.

    Runs of the same cell have the same number in ``cell``. ``profile`` is None once the history has
    freed it; ``figures`` stay.
    """

    def __init__(self, number: int, profile: Profile, cell_id: str, execution: int) -> None:
        self.number = self.cell = number
        self.cell_id = cell_id
        self.execution = execution
        self.turn = 0
        self.profile: Profile | None = profile
        self.metadata = {
            key: profile.metadata.get(key) for key in ("label", "cell_source", "options", "created")
        }
        self.ended = _ending(profile)

    @property
    def label(self) -> str:
        """The name of the run, or the number of its cell."""
        return str(self.metadata["label"] or "unnamed")

    @property
    def source(self) -> str:
        """The code of the cell or line; "" for a block of code."""
        return str(self.metadata["cell_source"] or "")

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that it was recorded with."""
        return self.metadata["options"] or {}

    @cached_property
    def figures(self) -> Figures:
        """How long it took."""
        if self.profile is None:  # `let_go` has kept them
            raise AssertionError("a run lost its figures")
        return Figures.of(self.profile)

    def let_go(self) -> None:
        """Free the profile, but keep its figures."""
        if self.profile is not None:
            _ = self.figures
            self.profile = None

    def __repr__(self) -> str:
        time = f"{format_ns(self.figures.time_ns)} per {self.figures.per}"
        return f"<Run {self.number}: {self.label!r}, {self.ended or time}>"


def _ending(profile: Profile) -> str:
    """Return why a run has no time to compare, "" for one that reached its end."""
    if profile.metadata.get("interrupted"):
        return "interrupted"
    error = str(profile.metadata.get("error") or "").partition(":")[0]
    if error:
        return f"raised {error}"
    return "" if len(profile.trace) else "no trace"


class History(Sequence[Run]):
    """The runs of this process, the oldest first; it displays as a table with a row per cell.

    It keeps the figures of the last 100 runs. It keeps up to 20 profiles with up to a million
    slices together, and frees the oldest ones first, but the last run of each cell after all
    others. The profile recorded last is kept whatever its size.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._recorded = 0

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> list[Run]: ...
    def __getitem__(self, place: int | slice) -> Run | list[Run]:
        return self._runs[place]

    def clear(self) -> None:
        """Forget all runs, and free their profiles."""
        self._runs.clear()

    def add(self, profile: Profile, *, cell_id: str = "", execution: int | None = None) -> Run:
        """Keep a run.

        ``cell_id`` is the front end's id of the cell, which does not change when the cell is
        edited. ``execution`` numbers the executions of cells; None gives the run a number of its
        own.
        """
        self._recorded += 1
        own = -self._recorded
        run = Run(self._recorded, profile, cell_id, own if execution is None else execution)
        run.turn = sum(
            other.execution == run.execution
            and (other.cell_id, other.source, _place(other)) == (cell_id, run.source, _place(run))
            for other in self._runs
        )
        previous = self._of_same_cell(run)
        if previous is not None:
            run.cell = previous.cell
        self._runs.append(run)
        self._keep_within_bounds()
        return run

    def _of_same_cell(self, run: Run) -> Run | None:
        """Return the last run of the same code in another execution of the cell, or of the likest.

        Of code that was recorded several times in one execution, as in a loop, each turn has its
        own counterpart.
        """
        known = [
            other
            for other in reversed(self._runs)
            if other.execution != run.execution and _may_be_of_one_cell(other, run)
        ]
        if run.cell_id and known:
            known = [other for other in known if other.execution == known[0].execution]
        likest = max(known, key=lambda other: _likeness(other, run), default=None)
        if likest is None or (not run.cell_id and _likeness(likest, run) < ALIKE):
            return None
        return likest

    def _keep_within_bounds(self) -> None:
        del self._runs[:-MOST_RUNS]
        kept = [run for run in self._runs if run.profile is not None]
        # The last run of a cell is kept for longer than those before it.
        last = {run.cell: run.number for run in kept}
        kept.sort(key=lambda run: (run.number == last[run.cell], run.number))
        slices = sum(len(run.profile.trace) for run in kept if run.profile is not None)
        for number, run in enumerate(kept[:-1]):
            if len(kept) - number <= MOST_PROFILES and slices <= MOST_SLICES:
                break
            slices -= len(run.profile.trace) if run.profile is not None else 0
            run.let_go()

    def of_cell(self, run: Run) -> list[Run]:
        """Return the runs of this run's cell that reached their end, the oldest first."""
        return [other for other in self._runs if other.cell == run.cell and not other.ended]

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
        before = [other for other in self.of_cell(b) if other.number < b.number]
        if not before:
            raise OptionError(
                "there is nothing to compare with yet: the history has no earlier run of this cell "
                "that reached its end; the next one is compared with this one"
            )
        a = before[-1]
        if a.profile is None or b.profile is None:
            raise OptionError(
                f"the profile of run {(a if a.profile is None else b).number} is no longer kept: "
                "it was too large, or too many came after it"
            )
        of_code = [other for other in before if _is_same_code(other, a)]
        # The first run of any code pays for its warm-up; a step is no measure of a whole run.
        earlier = tuple(
            other.figures.time_ns
            for other in of_code[1:-1]
            if other.figures.per == a.figures.per == b.figures.per
        )
        is_first = a.number == a.cell
        return Comparison(a.profile, b.profile, earlier=Earlier(earlier, a_is_first=is_first))

    def table(self) -> pd.DataFrame:
        """Return one row per run.

        Columns: ``run``, ``cell`` (the same for runs of one cell), ``label``, ``created``,
        ``ended`` (how it ended, "" if it reached its end), ``time_ns`` (of the median step, or of
        the run), ``per`` ("step" or "run"), ``steps``, ``span_ns``, ``gpu_busy_ns`` (-1 without a
        GPU), ``change`` (from the cell's previous run, as a share of its time; NaN without one),
        ``kept`` (whether its profile is still there), ``source``.
        """
        rows = [
            {
                "run": run.number,
                "cell": run.cell,
                "label": run.label,
                "created": str(run.metadata["created"] or ""),
                "ended": run.ended,
                "time_ns": run.figures.time_ns,
                "per": run.figures.per,
                "steps": run.figures.steps,
                "span_ns": run.figures.span_ns,
                "gpu_busy_ns": run.figures.gpu_busy_ns,
                "change": self._change(run),
                "kept": run.profile is not None,
                "source": run.source,
            }
            for run in self._runs
        ]
        return pd.DataFrame(rows, columns=list(_COLUMNS))

    def _change(self, run: Run) -> float:
        """Return the share by which a run took longer than the one before it; NaN for none."""
        before = [other for other in self.of_cell(run) if other.number < run.number]
        if run.ended or not before or before[-1].figures.per != run.figures.per:
            return float("nan")
        return run.figures.time_ns / max(before[-1].figures.time_ns, 1) - 1

    def _shown(self) -> Table:
        """Return one row per cell, that of the last run first."""
        last = {run.cell: run for run in self._runs}
        newest = sorted(last.values(), key=lambda run: run.number, reverse=True)
        rows = pd.DataFrame([self._row(run) for run in newest], columns=list(_SHOWN))
        columns = tuple(Column(key, label) for key, label in _SHOWN.items())
        unfinished = any(run.ended for run in self._runs)
        notes = (f"{UNFINISHED} did not reach its end, or has no trace.",) if unfinished else ()
        title = "Recorded runs by cell, the latest first"
        table = Table(title, columns, rows, notes=notes, expendable=("gpu_busy", "runs"))
        return listed(table, len(rows))

    def _row(self, run: Run) -> dict[str, str]:
        runs = [other for other in self._runs if other.cell == run.cell]
        change = self._change(run)
        figures = run.figures
        per = " per step" if figures.steps else ""
        busy = figures.gpu_busy_ns / max(figures.span_ns, 1)
        return {
            "name": _title(run),
            "runs": f"{len(runs):,}",
            "times": sparkline(runs[-SPARKLINE_RUNS:]),
            "last": run.ended or f"{format_ns(figures.time_ns)}{per}",
            "change": "" if np.isnan(change) else _signed_share(change),
            "gpu_busy": format_share(busy) if figures.gpu_busy_ns >= 0 else "",
        }

    def __repr__(self) -> str:
        return "\n".join(text_table(self._shown())) if self._runs else "<History of no runs>"

    def _repr_html_(self) -> str:
        return html_table(self._shown()) if self._runs else "<div>The history has no runs.</div>"


_COLUMNS = (
    *("run", "cell", "label", "created", "ended", "time_ns", "per", "steps"),
    *("span_ns", "gpu_busy_ns", "change", "kept", "source"),
)
_SHOWN = {
    "name": "Cell",
    "runs": "Runs",
    "times": "Time of each",
    "last": "Last",
    "change": "Change",
    "gpu_busy": "GPU busy",
}


def _may_be_of_one_cell(a: Run, b: Run) -> bool:
    """Whether two runs can be of one cell: the same turn, of code both, or of one block."""
    if a.cell_id != b.cell_id or a.turn != b.turn or bool(a.source) != bool(b.source):
        return False
    return bool(a.source) or _place(a) == _place(b)


def _place(run: Run) -> str:
    """Return the label without the number of its cell: each execution has another one."""
    return _NUMBER.sub("", run.label)


def _likeness(a: Run, b: Run) -> float:
    """Return the share of words and signs that the code of two runs has in common, 1 for all."""
    words = [Counter(_WORDS.findall(run.source)) for run in (a, b)]
    size = words[0].total() + words[1].total()
    return 2 * (words[0] & words[1]).total() / size if size else 1.0


def _is_same_code(a: Run, b: Run) -> bool:
    """Whether two runs are of one code and were recorded alike, however they were shown."""
    options = [
        {name: value for name, value in run.options.items() if OPTIONS[name].group != "output"}
        for run in (a, b)
    ]
    return a.source == b.source and options[0] == options[1]


def _title(run: Run) -> str:
    """Return the label with the first line of code."""
    lines = (line.strip() for line in run.source.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return f"{run.label}: {shortened(first, SOURCE_WIDTH)}" if first else run.label


def _signed_share(change: float) -> str:
    sign = "−" if change < 0 else "+"
    return f"{sign}{format_share(abs(change))}"


def sparkline(runs: Sequence[Run]) -> str:
    """Return a bar per run, as high as its share of the longest; the bars begin at zero.

    Runs that did not reach their end have a mark instead. So have runs that are timed per step if
    the last run is timed as a whole, or the other way round.
    """
    per = runs[-1].figures.per
    times = [run.figures.time_ns for run in runs if not run.ended and run.figures.per == per]
    longest = max(times, default=0)
    return "".join(
        UNFINISHED if run.ended or run.figures.per != per else _spark(run.figures.time_ns, longest)
        for run in runs
    )


def _spark(time_ns: int, longest: int) -> str:
    height = -(-time_ns * len(SPARKS) // max(longest, 1))  # rounded up: the least bar is seen
    return SPARKS[max(height, 1) - 1]


history = History()
"""The runs that this process recorded."""

"""`Comparison`: two runs side by side, with tables, findings and a linked page.

The module is not called ``compare``: importing a submodule binds its name in the package, and
``gpuprof_widgets.compare`` is the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpuprof_widgets import runtime_carrier
from gpuprof_widgets.analyses.compare import lines, tables
from gpuprof_widgets.analyses.compare.sentences import comparison_findings
from gpuprof_widgets.analyses.compare.tables import NO_OTHERS, Earlier, Runs
from gpuprof_widgets.analyses.findings.finding import Findings
from gpuprof_widgets.analyses.reasons import warned
from gpuprof_widgets.trace.model import Record

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Run ``a`` (before) against run ``b`` (after); every difference is b minus a.

    ``per`` is "step" or "run". By default it is "step" if both runs have steps. Per step, only the
    time within steps counts, so runs of different lengths can be compared.

    Each table has columns that name its rows, and most have these:

    - ``matched``: how the row's two sides were paired: "name", "similar" (equal but for numbers,
      hashes and template arguments), or "" (only one run has the row);
    - ``change``: "added", "gone", "more", "less", "same" or "noise". It is "noise" if the medians
      over the steps are no further apart than ``spread_ns``; with four or more steps in each run,
      the steps of the two runs also have to overlap;
    - ``calls_a``, ``calls_b``, ``calls_delta``, ``a_ns``, ``b_ns``, ``delta_ns`` (ns, self times):
      the average per step, or the sum of the run;
    - ``share``: the difference as a share of the total of a;
    - ``median_a_ns``, ``median_b_ns``: over the steps; ``spread_ns``: the interquartile range over
      the steps of the run in which it is larger, or the whole range where that is 0. All three are
      NaN if whole runs are compared, or if a run has fewer than two steps;
    - ``total_a_ns``, ``total_b_ns``: exact sums of what is compared.

    Rows are sorted by how much they moved the total, and their differences add up to its
    difference. A cell that ran again under another number counts as the same cell, such as
    ``Cell [3 → 4]``.

    ``earlier``: how long other runs of a's code took, from which `findings` tells what is noise
    (`gpuprof_widgets.history` fills it in).
    """

    a: Record
    b: Record
    per: str | None = None
    earlier: Earlier = NO_OTHERS

    @cached_property
    def _runs(self) -> Runs:
        return Runs.of(self.a, self.b, self.per, self.earlier)

    def ops(self, *, measure: str | None = None) -> pd.DataFrame:
        """One row per op, annotation and runtime call: ``name``, ``category`` and the numbers.

        ``measure`` is "device_self" (the GPU time that it launched) or "cpu_self"; by default it is
        the GPU's if both runs have GPU time. ``name_a`` and ``name_b`` are the names in each run.
        """
        return warned(tables.ops(self._runs, measure))

    def kernels(self) -> pd.DataFrame:
        """One row per kernel, copy and memset: ``name``, ``category`` and the numbers."""
        return warned(tables.kernels(self._runs))

    def modules(self, *, measure: str | None = None) -> pd.DataFrame:
        """One row per module: ``name``, ``detail`` (its class) and the numbers.

        Times include the forward and the backward pass. ``measure``: as for `ops`.
        """
        return warned(tables.modules(self._runs, measure))

    def lines(self, *, measure: str | None = None) -> pd.DataFrame:
        """One row per line: ``cell``, ``code``, ``line_a``, ``line_b`` and the numbers.

        Lines of equal text are matched wherever they stand, lines without a text (of a redacted
        profile) by their number. ``line_a`` or ``line_b`` is -1 if the run has no such line: an
        edited line is two rows. A line's self time includes its waits for the GPU. ``measure``: as
        for `ops`.
        """
        return warned(lines.lines(self._runs, measure))

    def source(self) -> pd.DataFrame:
        """One row per line of the cells that both runs have, in the order of the text.

        Columns: ``cell`` (b's, else a's), ``line_a``, ``line_b`` (-1 if a run has no such line),
        ``code``, ``source`` ("same", "added", "gone"), ``a_ns``, ``b_ns`` (wall self times as in
        `lines`, NaN if the line did not run) and ``delta_ns``.
        """
        return warned(lines.source(self._runs))

    def functions(self) -> pd.DataFrame:
        """One row per Python function (see `python_time`): ``name`` and the numbers, per run.

        ``name_a`` and ``name_b`` are the function's place in each run, such as
        ``src/train.py(12): step``. If a sampler recorded either run, there are no columns of calls.
        What two recorders saw is not compared: each slows functions down in its own way.
        """
        return warned(tables.functions(self._runs))

    def breakdown(self) -> pd.DataFrame:
        """One row per class of time (``class``, ``state``) and the numbers, all GPUs together."""
        return warned(tables.classes(self._runs))

    def steps(self) -> pd.DataFrame:
        """One row per pair of steps, in order; without steps, one row for the two runs.

        Columns (ns): ``step_a``, ``step_b`` (-1: none), ``change``, ``a_ns``, ``b_ns``,
        ``delta_ns``, ``gpu_busy_a_ns``, ``gpu_busy_b_ns``.
        """
        return warned(tables.steps(self._runs))

    def call_tree(self, *, source: str | None = None) -> pd.DataFrame:
        """One row per call path in either run: what the differential flame graph draws.

        ``source``: as for `Profile.call_tree`; by default "ops" if both runs have ops, else the
        source of a's flame graph.

        Times are sums over the whole runs (ns). Columns: ``node``, ``parent``, ``depth``, ``name``,
        ``category``, ``calls_a``, ``calls_b``, ``a_ns``, ``b_ns``, ``delta_ns``, ``self_a_ns``,
        ``self_b_ns``, ``device_a_ns``, ``device_b_ns``, ``width_ns``.
        """
        return warned(lines.paired_tree(self._runs.a, self._runs.b, source=source))

    def findings(self) -> Findings:
        """Return what differs, in sentences: first the whole run, then what made the difference."""
        return Findings(comparison_findings(self._runs))

    def report(self) -> str:
        """Return the comparison as one HTML page that needs no network.

        It has both timelines, the differential flame graph and the tables.
        """
        from gpuprof_widgets.views import comparison

        return comparison.standalone_html(self._runs)

    def show(self) -> None:
        """Show the comparison below the cell; outside a notebook, print findings and tables."""
        from gpuprof_widgets.views import comparison

        runtime_carrier.show(
            lambda embed: comparison.outputs(self._runs, embed_runtime=embed),
            lambda: comparison.static_text(self._runs),
        )

    def _ipython_display_(self) -> None:
        """Show a comparison that is a cell's last value."""
        self.show()

    def __repr__(self) -> str:
        per = "run" if self._runs.steps is None else "step"
        return f"<Comparison of {_name(self.a)} and {_name(self.b)} per {per}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Findings and tables, as text and as HTML without script (`show` has the live views)."""
        from gpuprof_widgets.views.comparison import static_bundle

        return static_bundle(self._runs)


def _name(record: Record) -> str:
    return repr(str(record.metadata.get("label") or record.metadata.get("source") or "unnamed"))

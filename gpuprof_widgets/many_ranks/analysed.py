"""`AnalysedRanks`: the ranks of one run on one clock, with the comparisons as methods."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Findings
from gpuprof_widgets.analyses.quantity import format_count, format_ns
from gpuprof_widgets.analyses.ranks import findings as rules
from gpuprof_widgets.analyses.ranks.alignment import alignment, clocks_differ, one_host
from gpuprof_widgets.analyses.ranks.functions import functions
from gpuprof_widgets.analyses.ranks.matching import matched
from gpuprof_widgets.analyses.ranks.steps import steps_of
from gpuprof_widgets.analyses.ranks.stragglers import stragglers
from gpuprof_widgets.analyses.ranks.waiting import collectives_of, waiting, who_waits_for_whom
from gpuprof_widgets.analyses.table_with_reason import LACKS, with_reasons
from gpuprof_widgets.many_ranks.files import Job

NOTHING = "no rank has GPU work or CPU ops: there is nothing to break down"
CALLS_ALONE = (
    "these files hold Python calls alone, which say how long and not when: see the table functions"
)


@with_reasons
@dataclass(frozen=True, eq=False, repr=False)
class AnalysedRanks:
    """What is asked of the ranks of one run: each answer is a table, times in ns."""

    job: Job

    @property
    def numbers(self) -> list[int]:
        """The ranks that there are."""
        return [rank.rank for rank in self.job.ranks]

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was odd about the files, and what was done about the clocks, one line each."""
        return (*self.job.notes, *self._clock_notes())

    def breakdown(self) -> pd.DataFrame:
        """One row per rank, GPU, step and class of time; the classes add up to the span.

        The columns are those of `Profile.breakdown`; ``step`` -1 is the whole trace.
        """
        tables = [rank.breakdown for rank in self.job.ranks if len(rank.breakdown)]
        if not tables:
            return self._with_reason(self.job.ranks[0].breakdown.copy(), NOTHING)
        return pd.concat(tables, ignore_index=True)

    def steps(self) -> pd.DataFrame:
        """One row per step and rank: its length, and what of it was not waiting for other ranks.

        Columns (ns): ``step``, ``rank``, ``start_ns``, ``end_ns``, ``dur_ns``, ``waited_ns``,
        ``own_ns``, ``imbalance`` (own time over the median of the ranks, less 1), ``compute_ns``,
        ``gpu_busy_ns``. Without marked steps the whole run is step -1.
        """
        return self._with_reason(
            steps_of(self.job.timed, self._waiting, self._alignment, self._origin_ns)
        )

    def stragglers(self) -> pd.DataFrame:
        """One row per rank, the one that delayed the others most first.

        Columns (times in ns): ``rank``, ``collectives``, ``last`` (in how many it came last),
        ``delay_ns`` (after the second last, in all) = ``compute_ns`` + ``input_ns`` + ``idle_ns``
        (what it did more than others meanwhile), ``caused_wait_ns``, ``waited_ns``,
        ``transfer_ns``.
        """
        return self._with_reason(stragglers(self.job.timed, self._waiting))

    def collectives(self, *, per_rank: bool = False) -> pd.DataFrame:
        """One row per collective over all ranks, in order of time.

        Columns (ns): ``collective``, ``name``, ``backend``, ``dtype``, ``bytes``, ``group``,
        ``ranks``, ``present``, ``start_ns``, ``latest_ns`` (the last rank begins), ``end_ns``,
        ``skew_ns`` (latest less first start), ``transfer_ns`` (end less latest start),
        ``waited_ns``, ``first_rank``, ``last_rank``, ``delay_ns``, ``algorithm_bytes_per_s``,
        ``bus_bytes_per_s`` (of the transfer). ``per_rank``: one row per collective and rank
        instead, whose ``dur_ns`` is ``wait_ns`` + ``transfer_ns`` exactly.
        """
        table = self._waiting if per_rank else self._collectives
        return self._with_reason(table.copy(), self._why_no_collectives)

    def waits(self) -> pd.DataFrame:
        """Who waits for whom: one row per pair, the longest first.

        Columns: ``rank``, ``waits_for``, ``collectives``, ``wait_ns``, ``share`` (of all waiting).
        """
        why = "no rank waited for another" if len(self._waiting) else self._why_no_collectives
        return self._with_reason(who_waits_for_whom(self._waiting), why)

    def alignment(self) -> pd.DataFrame:
        """One row per rank: how far its clock is from the first one's, told by common ends.

        Columns (ns): ``rank``, ``host``, ``collectives``, ``offset_ns``, ``spread_ns``,
        ``impossible``, ``shift_ns`` (what its times were moved by; 0 where the clocks agree).
        """
        return self._with_reason(self._alignment.copy())

    def functions(self) -> pd.DataFrame:
        """One row per Python function, that in whose self time the ranks differ most first.

        Columns (ns): ``file``, ``line``, ``name``, ``ranks`` (that ran it), ``self_spread_ns``
        (slowest less fastest rank), ``slowest_rank``, ``fastest_rank``, ``total_spread_ns``; then
        ``rank0_self_ns``, ... and ``rank0_total_ns``, ... of each rank that ran under cProfile.
        """
        return self._functions.copy()

    def findings(self, **limits: float) -> Findings:
        """Who is waited for, in sentences with numbers, the costliest first.

        Their ranges are on the common clock. ``limits``: ``straggler_share``,
        ``rank_waiting_share``, ``rank_function_share``; see docs/findings.md.
        """
        return Findings(one.finding for one in self._rank_findings(**limits))

    @property
    def span_ns(self) -> int:
        """From the first begin to the last end of any rank; 0 of Python calls alone."""
        return max((end for _, end in self._spans), default=0) - self._origin_ns

    @cached_property
    def _functions(self) -> pd.DataFrame:
        return functions(self.job.ranks)

    @cached_property
    def _matched(self) -> pd.DataFrame:
        return matched(self.job.timed)

    @cached_property
    def _alignment(self) -> pd.DataFrame:
        return alignment(self.job.timed, self._matched)

    @cached_property
    def _waiting(self) -> pd.DataFrame:
        return waiting(self._matched, self._alignment, self._origin_ns)

    @cached_property
    def _collectives(self) -> pd.DataFrame:
        return collectives_of(self._waiting)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """Begin and end of every rank, ns since the epoch, on the aligned clocks."""
        shifts = self._alignment["shift_ns"].tolist()
        pairs = zip(self.job.timed, shifts, strict=True)
        return [(rank.start_ns + shift, rank.end_ns + shift) for rank, shift in pairs]

    @property
    def _origin_ns(self) -> int:
        return min((start for start, _ in self._spans), default=0)

    def _rank_findings(self, **limits: float) -> list[rules.RankFinding]:
        compared = rules.Compared(
            stragglers=self.stragglers(),
            collectives=self._collectives,
            waiting=self._waiting,
            breakdown=self.breakdown(),
            functions=self._functions,
            span_ns=self.span_ns,
        )
        return rules.findings(compared, **limits)

    @property
    def _why_no_collectives(self) -> str:
        """As no two ranks have one in common; what one rank's trace says of that."""
        said = next((f" ({rank.lacks})" for rank in self.job.timed if rank.lacks), "")
        return f"no collective of two ranks was found{said}"

    def _with_reason(self, table: pd.DataFrame, why: str = "") -> pd.DataFrame:
        """Say why a table of times has no rows: no rank may have a timeline at all."""
        if not len(table):
            table.attrs[LACKS] = why if self.job.timed else CALLS_ALONE
        return table

    def _clock_notes(self) -> list[str]:
        table = self._alignment
        if len(table) < 2:
            return []
        if not int(table["collectives"].sum()):
            return ["no collective of two ranks was found: the clocks are taken as they are"]
        if clocks_differ(table):
            offsets = dict(zip(self.numbers, table["offset_ns"].tolist(), strict=True))
            far = max(offsets, key=lambda rank: abs(offsets[rank]))
            by = format_ns(abs(offsets[far]))
            return [
                f"the clocks differ (rank {far}'s by {by}): they were aligned by the "
                f"ends of {format_count(int(table['collectives'].max()), 'collective')}, which "
                f"then coincide within {format_ns(int(table['spread_ns'].max()))}"
            ]
        apart = format_ns(int(table["offset_ns"].abs().max()))
        why = "the ranks ran on one host, and " if one_host(table) else ""
        return [f"{why}the ends of their collectives lie {apart} apart: no clock was moved"]

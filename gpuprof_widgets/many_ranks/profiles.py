"""`ranks(...)` and the `RankProfiles` that it returns: tables, the page, each rank's profile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from gpuprof_widgets import runtime_carrier
from gpuprof_widgets.analyses.collectives import ranks_text
from gpuprof_widgets.analyses.columns import format_count, format_ns
from gpuprof_widgets.analyses.findings.finding import Findings
from gpuprof_widgets.analyses.ranks import findings as rules
from gpuprof_widgets.analyses.ranks.matching import alignment, clocks_differ, matched, one_host
from gpuprof_widgets.analyses.ranks.tables import (
    collectives_of,
    function_times,
    functions,
    overview,
    steps_of,
    stragglers,
    waiting,
    who_waits_for_whom,
)
from gpuprof_widgets.analyses.reasons import LACKS
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.many_ranks.files import Job, Paths, job, left_out, readable, trace_files
from gpuprof_widgets.many_ranks.reading import MOST_SLICES, light_records, read
from gpuprof_widgets.profiles import Profile, load

if TYPE_CHECKING:
    from gpuprof_widgets.explorer import Explorer
    from gpuprof_widgets.views.ranks_page import RanksTables
    from gpuprof_widgets.views.side_by_side import Heading, Row

BUSY = "computing or moving data"
"""The work of a busy GPU that is not waiting in a collective for the last rank."""

TIMELINES = 16
"""Ranks that the page shows where no others are asked for: more would have a few pixels each."""

NOTHING = "no rank has GPU work or CPU ops: there is nothing to break down"
CALLS_ALONE = (
    "these files hold Python calls alone: how long they took, not when; see the table functions"
)


def ranks(paths_or_directory: Paths, *, cluster: Any = None) -> RankProfiles:
    """Compare the ranks of one distributed run: who was late, who waited, who moved data.

    ``paths_or_directory`` is the folder with the traces of all ranks, a glob
    (``"run.rank*.gpuprof"``), or the paths of the files. URLs work as well
    (``"s3://bucket/run/"``). The files are saved profiles, or of any format that `load` opens. The
    rank is read from the trace, else from the file's name. cProfile files have no timestamps, so
    they only support `RankProfiles.functions`.

    In a folder or a glob, files that cannot be read are left out, and `RankProfiles.notes` says so.
    In a list, all files have to be readable. Raises a `TraceError` if they are not, if none can be
    read, or if the files are not of one run.

    Large files are read in up to four processes, and only a few tables of each are kept. With
    ``cluster``, the workers of a Dask cluster read and reduce the files; they have to see them at
    the same paths. It is a ``distributed.Client``, a Dask cluster or the address of a scheduler
    (``pip install "gpuprof-widgets[dask]"``).
    """
    files = trace_files(paths_or_directory)
    one_by_one = not isinstance(paths_or_directory, str | os.PathLike)
    parts, notes = readable(files, read(files, cluster), all_of_them=one_by_one)
    return RankProfiles(job(parts, [*left_out(paths_or_directory), *notes]))


@dataclass(frozen=True, eq=False, repr=False)
class RankProfiles:
    """The ranks of one run on one clock, which starts (0 ns) with the first of their traces.

    Each table is a method, its times in ns; an empty one says why in ``attrs["lacks"]``. ``notes``
    lists what is odd: missing ranks, copies, clocks that differ. ``ranks[3]`` reads the profile of
    rank 3 from its file again. A `RankProfiles` never changes.
    """

    job: Job

    @property
    def numbers(self) -> list[int]:
        """The numbers of the ranks."""
        return [rank.rank for rank in self.job.ranks]

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is odd about the files, and whether clocks were aligned, one line each."""
        table = self._alignment
        if len(table) < 2:
            return self.job.notes
        if not int(table["collectives"].sum()):
            note = "no collective of two ranks was found: the clocks are taken as they are"
        elif clocks_differ(table):
            offsets = dict(zip(self.numbers, table["offset_ns"].tolist(), strict=True))
            far = max(offsets, key=lambda rank: abs(offsets[rank]))
            by = format_ns(abs(offsets[far]))
            note = (
                f"the clocks differ (rank {far}'s by {by}): they were aligned by the "
                f"ends of {format_count(int(table['collectives'].max()), 'collective')}, which "
                f"then coincide within {format_ns(int(table['spread_ns'].max()))}"
            )
        else:
            apart = format_ns(int(table["offset_ns"].abs().max()))
            why = "the ranks ran on one host, and " if one_host(table) else ""
            note = f"{why}the ends of their collectives lie {apart} apart: no clock was moved"
        return (*self.job.notes, note)

    def breakdown(self) -> pd.DataFrame:
        """One row per rank, GPU, step and class of time; the classes add up to the span.

        The columns are those of `Profile.breakdown`; ``step`` -1 is the whole trace.
        """
        tables = [rank.breakdown for rank in self.job.ranks if len(rank.breakdown)]
        if not tables:
            return self._with_reason(self.job.ranks[0].breakdown.copy(), NOTHING)
        return pd.concat(tables, ignore_index=True)

    def steps(self) -> pd.DataFrame:
        """One row per step and rank: its length, and its part without waiting for other ranks.

        Columns (ns): ``step``, ``rank``, ``start_ns``, ``end_ns``, ``dur_ns``, ``waited_ns``,
        ``own_ns``, ``imbalance`` (own time divided by the median of the ranks, minus 1),
        ``compute_ns``, ``gpu_busy_ns``. Without marked steps the whole run is step -1.
        """
        return self._with_reason(
            steps_of(self.job.timed, self._waiting, self._alignment, self._origin_ns)
        )

    def stragglers(self) -> pd.DataFrame:
        """One row per rank; the rank that delayed the others most comes first.

        Columns (times in ns): ``rank``, ``collectives``, ``last`` (how often it came last),
        ``delay_ns`` (by how much it came after the second to last rank, in total), ``compute_ns``,
        ``input_ns``, ``idle_ns`` (how it spent the delay; they add up to it), ``caused_wait_ns``,
        ``waited_ns``, ``transfer_ns``.
        """
        return self._with_reason(stragglers(self.job.timed, self._waiting))

    def collectives(self, *, per_rank: bool = False) -> pd.DataFrame:
        """One row per collective over all ranks, in order of time.

        Columns (ns): ``collective``, ``name``, ``backend``, ``dtype``, ``bytes``, ``group``,
        ``ranks``, ``present``, ``start_ns``, ``latest_ns`` (when the last rank begins), ``end_ns``,
        ``skew_ns`` (latest minus first start), ``transfer_ns`` (end minus latest start),
        ``waited_ns``, ``first_rank``, ``last_rank``, ``delay_ns``, ``algorithm_bytes_per_s``,
        ``bus_bytes_per_s`` (of the transfer).

        ``per_rank`` returns one row per collective and rank instead, whose ``dur_ns`` is exactly
        ``wait_ns`` + ``transfer_ns``.
        """
        table = self._waiting if per_rank else self._collectives
        return self._with_reason(table.copy(), self._why_no_collectives)

    def waits(self) -> pd.DataFrame:
        """Who waits for whom: one row per pair of ranks, the longest wait first.

        Columns: ``rank``, ``waits_for``, ``collectives``, ``wait_ns``, ``share`` (of all waiting).
        """
        why = "no rank waited for another" if len(self._waiting) else self._why_no_collectives
        return self._with_reason(who_waits_for_whom(self._waiting), why)

    def alignment(self) -> pd.DataFrame:
        """One row per rank: its clock's offset from the first rank's, by the ends of collectives.

        Columns (ns): ``rank``, ``host``, ``collectives``, ``offset_ns``, ``spread_ns``,
        ``impossible`` (collectives that would have ended before some rank began), ``shift_ns`` (by
        which its times were moved; 0 if the clocks agree).
        """
        return self._with_reason(self._alignment.copy())

    def functions(self) -> pd.DataFrame:
        """One row per Python function; those whose self times differ most by rank come first.

        Columns (ns): ``file``, ``line``, ``name``, ``ranks`` (how many ran it), ``self_spread_ns``
        (slowest minus fastest rank), ``slowest_rank``, ``fastest_rank``, ``total_spread_ns``; then
        ``rank0_self_ns``, ... and ``rank0_total_ns``, ... for each rank that has any.
        """
        return self._functions.copy()

    def findings(self, **limits: float) -> Findings:
        """Return which ranks are waited for, in sentences with numbers, the costliest first.

        Their time ranges are on the common clock. ``limits`` sets thresholds: ``straggler_share``,
        ``rank_waiting_share``, ``rank_function_share``.
        """
        return Findings(entry.finding for entry in self._rank_findings(**limits))

    def report(self, *, timelines: Sequence[int] | None = None) -> str:
        """Return the page as one HTML file that needs no network: linked timelines, and tables.

        ``timelines``: the ranks whose timelines are shown. By default these are all ranks if there
        are up to 16; else those that delayed the others most and those that waited most. Their
        files are read again. Ranks with only Python calls have no timeline.
        """
        from gpuprof_widgets.views import ranks_page, report, side_by_side

        tables = self._tables()
        static = ranks_page.ranks_html(tables)
        if not self.job.timed:
            return report.html_page(self._title(), static)
        rows, heading = self._timelines(timelines)
        return side_by_side.standalone_html(
            rows, heading, html=static, tables=ranks_page.page_tables(tables)
        )

    def show(self, *, timelines: Sequence[int] | None = None) -> None:
        """Show the page below the cell; outside a notebook, print findings and ranks."""
        from gpuprof_widgets.views import ranks_page, side_by_side

        tables = self._tables()

        def outputs(embed_runtime: bool) -> list[dict[str, Any]]:
            static = ranks_page.ranks_bundle(tables)
            if not self.job.timed:
                return [static]
            rows, heading = self._timelines(timelines)
            below = ranks_page.page_tables(tables)
            return side_by_side.outputs(
                rows, heading, static=static, tables=below, embed_runtime=embed_runtime
            )

        runtime_carrier.show(outputs, lambda: ranks_page.ranks_text(tables))

    def explore(self, *, sort: str = "device_self", top: int = 15) -> Explorer:
        """Return a widget with the report of one rank at a time (see `gpuprof_widgets.explore`).

        When a rank is chosen, its file is read again.
        """
        from gpuprof_widgets.explorer import Explorer

        profiles = {f"rank {rank}": partial(self.__getitem__, rank) for rank in self.numbers}
        return Explorer(profiles, noun="Rank", sort=sort, top=top)

    def _ipython_display_(self) -> None:
        """Show it as a cell's last value."""
        self.show()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Findings and tables, as text and as HTML without script (`show` has the timelines)."""
        from gpuprof_widgets.views.ranks_page import ranks_bundle

        return ranks_bundle(self._tables())

    def __len__(self) -> int:
        return len(self.job.ranks)

    def __getitem__(self, rank: int) -> Profile:
        """Read the profile of that rank again; if the rank has several files, the first one."""
        if rank not in self.job.files:
            raise OptionError(f"there is no rank {rank}: the ranks are {ranks_text(self.numbers)}")
        return load(self.job.files[rank][0])

    def __repr__(self) -> str:
        numbers = f" ({ranks_text(self.numbers)}),"
        return f"<RankProfiles: {self._title().replace(',', numbers, 1)}>"

    @property
    def span_ns(self) -> int:
        """Time from the first start to the last end of any rank; 0 for Python calls alone."""
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
            function_times=function_times(self.job.ranks),
            span_ns=self.span_ns,
        )
        return rules.findings(compared, **limits)

    @property
    def _why_no_collectives(self) -> str:
        """Why the ranks have no collective in common, with a reason from one rank's trace."""
        reason = next((f" ({rank.lacks})" for rank in self.job.timed if rank.lacks), "")
        return f"no collective of two ranks was found{reason}"

    def _with_reason(self, table: pd.DataFrame, why: str = "") -> pd.DataFrame:
        """Record in an empty table why it has no rows: perhaps no rank has a timeline."""
        if not len(table):
            table.attrs[LACKS] = why if self.job.timed else CALLS_ALONE
        return table

    def _tables(self) -> RanksTables:
        from gpuprof_widgets.views.ranks_page import RanksTables

        breakdown = self.breakdown()
        return RanksTables(
            on_gpu=bool((breakdown["device"] >= 0).any()),
            findings=self.findings(),
            notes=self.notes,
            overview=overview(self.job.timed, self._waiting),
            functions=self._functions,
            stragglers=self.stragglers(),
            waits=self.waits(),
            collectives=self._collectives,
            steps=self.steps(),
        )

    def _timelines(self, wanted: Sequence[int] | None) -> tuple[list[Row], Heading]:
        """Return the timelines of the page, placed on the common clock, and their heading."""
        from gpuprof_widgets.views.ranks_page import finding_lines_of
        from gpuprof_widgets.views.side_by_side import Heading, Row

        shown = self._shown(wanted)
        files = [self.job.files[rank][0] for rank in shown]
        shifts = self._alignment.set_index("rank")["shift_ns"].to_dict()
        clocks = [shifts[rank] - self._origin_ns for rank in shown]
        waits = [self._waiting[self._waiting["rank"] == rank] for rank in shown]
        records = light_records(files, waits, clocks)
        rows = [
            Row(record, f"rank {rank}", clock + record.trace.epoch_ns)
            for rank, clock, record in zip(shown, clocks, records, strict=True)
        ]
        findings = [
            (entry.finding, shown.index(entry.rank) if entry.rank in shown else 0)
            for entry in self._rank_findings()
        ]
        notes = [*self.notes, *self._timeline_notes(shown)]
        return rows, Heading(self._title(), finding_lines_of(findings), notes, BUSY)

    def _shown(self, wanted: Sequence[int] | None) -> list[int]:
        timed = [rank.rank for rank in self.job.timed]
        if wanted is not None:
            unknown = sorted(set(wanted) - set(timed))
            if unknown or not wanted:
                raise OptionError(f"timelines={list(wanted)}: the ranks are {ranks_text(timed)}")
            return list(dict.fromkeys(wanted))
        if len(timed) <= TIMELINES:
            return timed
        late = self.stragglers()
        half = TIMELINES // 2
        first = late["rank"].tolist()[:half]
        others = late[~late["rank"].isin(first)].sort_values("waited_ns", ascending=False)
        return sorted([*first, *others["rank"].tolist()[:half]])

    def _timeline_notes(self, shown: Sequence[int]) -> list[str]:
        notes = [
            "the time that a collective waited for the last rank has the colour of "
            f"synchronisation, and does not count as {BUSY}"
        ]
        if len(shown) < len(self):
            notes.append(
                f"the timelines of {len(shown)} of {len(self)} ranks are shown "
                f"({ranks_text(list(shown))}); timelines=[...] chooses others"
            )
        several = [rank for rank in shown if len(self.job.files[rank]) > 1]
        if several:
            notes.append(
                f"the timelines of ranks {ranks_text(several)} are those of their first files"
            )
        most = max(rank.slices for rank in self.job.ranks)
        if most > MOST_SLICES:
            notes.append(
                f"a timeline has at most {MOST_SLICES:,} slices of its rank: GPU work and "
                "annotations first, then the longest others; ranks[n] has all of them"
            )
        return notes

    def _title(self) -> str:
        ranks = format_count(len(self), "rank")
        if not self.job.timed:
            return f"{ranks}, Python calls alone"
        collectives = format_count(len(self._collectives), "collective")
        return f"{ranks}, {format_ns(self.span_ns)}, {collectives}"

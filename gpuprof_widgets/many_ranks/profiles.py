"""`RankProfiles`: what `gpuprof_widgets.ranks(...)` returns: answers, the page, each profile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuprof_widgets import runtime_carrier
from gpuprof_widgets.analyses.collective_words import ranks_text
from gpuprof_widgets.analyses.quantity import format_count, format_ns
from gpuprof_widgets.analyses.ranks.overview import overview
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.many_ranks.analysed import AnalysedRanks
from gpuprof_widgets.many_ranks.files import Paths, job, left_out, readable, trace_files
from gpuprof_widgets.many_ranks.reading import read
from gpuprof_widgets.many_ranks.timelines import MOST_SLICES, light_records
from gpuprof_widgets.profiles import Profile, load

if TYPE_CHECKING:
    from gpuprof_widgets.views.ranks_page import RanksTables
    from gpuprof_widgets.views.side_by_side import Heading, Row

BUSY = "computing or moving data"
"""What a GPU does that is busy and does not wait in a collective for the last rank."""

TIMELINES = 16
"""Ranks that the page shows where no others are asked for: more would have a few pixels each."""


def ranks(paths_or_directory: Paths, *, cluster: Any = None) -> RankProfiles:
    """The ranks of one distributed run, compared: who was late, who waited, who moved data.

    ``paths_or_directory``: the folder with the traces of all ranks, a glob
    (``"run.rank*.gpuprof"``), or their paths: profiles that we saved, and what else opens.
    The rank comes from the trace, else from the file's name. One file is read at a time, and only
    a few tables of each are kept. Of files of cProfile there is `RankProfiles.functions` alone.

    In a folder or glob, files that cannot be read are left out, which `RankProfiles.notes` says;
    given one by one, or where none can be read, it is a `TraceError`.

    ``cluster``: a ``distributed.Client``, a Dask cluster or the address of a scheduler: its workers
    then read and reduce the files, which they have to see at the same paths (``pip install
    "gpuprof-widgets[dask]"``).
    """
    files = trace_files(paths_or_directory)
    one_by_one = not isinstance(paths_or_directory, str | os.PathLike)
    parts, notes = readable(files, read(files, cluster), all_of_them=one_by_one)
    return RankProfiles(job(parts, [*left_out(paths_or_directory), *notes]))


@dataclass(frozen=True, eq=False, repr=False)
class RankProfiles(AnalysedRanks):
    """The ranks of one run on one clock, which starts (0 ns) with the first of their traces.

    ``notes`` says what is odd: missing ranks, copies, clocks that differ. ``ranks[3]`` reads the
    profile of rank 3 again. It does not change.
    """

    def report(self, *, timelines: Sequence[int] | None = None) -> str:
        """The page as one HTML file that needs no network: timelines on one range, and tables.

        Ranks of which there are Python calls alone have tables alone.

        ``timelines``: the ranks to show; else all of up to 16, of more those that delayed the
        others most and those that waited most. Their files are read again, one at a time.
        """
        from gpuprof_widgets.views import ranks_page, report, side_by_side

        tables = self._tables()
        static = ranks_page.ranks_html(tables)
        if not self.job.timed:
            return report.html_page(self._title(), static)
        rows, heading = self._timelines(timelines)
        return side_by_side.standalone_html(
            rows,
            heading,
            html=static,
            tables=ranks_page.ranks_tables_html(tables),
        )

    def show(self, *, timelines: Sequence[int] | None = None) -> None:
        """Show the page below the cell; outside a notebook, print findings and ranks."""
        from gpuprof_widgets.views import ranks_page

        tables = self._tables()

        def outputs(embed_runtime: bool) -> list[dict[str, Any]]:
            from gpuprof_widgets.views import side_by_side

            if not self.job.timed:
                return [self._repr_mimebundle_()]
            rows, heading = self._timelines(timelines)
            return side_by_side.outputs(
                rows,
                heading,
                html=ranks_page.ranks_html(tables),
                text=ranks_page.ranks_text(tables),
                tables=ranks_page.ranks_tables_html(tables),
                embed_runtime=embed_runtime,
            )

        runtime_carrier.show(outputs, lambda: ranks_page.ranks_text(tables))

    def _ipython_display_(self) -> None:
        """As a cell's last value it is shown."""
        self.show()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Findings and tables, as text and as HTML without script (`show` has the timelines)."""
        from gpuprof_widgets.views.ranks_page import ranks_html, ranks_text

        tables = self._tables()
        return {"text/plain": ranks_text(tables), "text/html": ranks_html(tables)}

    def __len__(self) -> int:
        return len(self.job.ranks)

    def __getitem__(self, rank: int) -> Profile:
        """The profile of that rank, read again (of several files the first)."""
        if rank not in self.job.files:
            raise OptionError(f"there is no rank {rank}: there are {ranks_text(self.numbers)}")
        return load(self.job.files[rank][0])

    def __repr__(self) -> str:
        numbers = f" ({ranks_text(self.numbers)}),"
        return f"<RankProfiles: {self._title().replace(',', numbers, 1)}>"

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
        """The timelines of the page, each at its place on the common clock, and what is above."""
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
        found = [(one.finding, shown.index(one.rank)) if one.rank in shown else (one.finding, 0)
                 for one in self._rank_findings()]  # fmt: skip
        notes = [*self.notes, *self._timeline_notes(shown)]
        return rows, Heading(self._title(), finding_lines_of(found), notes, BUSY)

    def _shown(self, wanted: Sequence[int] | None) -> list[int]:
        timed = [rank.rank for rank in self.job.timed]
        if wanted is not None:
            unknown = sorted(set(wanted) - set(timed))
            if unknown or not wanted:
                raise OptionError(
                    f"timelines={list(wanted)}: there are the ranks {ranks_text(timed)}"
                )
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
            "what a collective waited for the last rank is drawn in the colour of synchronisation, "
            f"and does not count as {BUSY}"
        ]
        if len(shown) < len(self):
            notes.append(
                f"of {len(self)} ranks the timelines of {len(shown)} are shown "
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
                f"a timeline has the {MOST_SLICES:,} slices of its rank that are on a GPU, "
                "annotations, or the longest; ranks[n] has all of them"
            )
        return notes

    def _title(self) -> str:
        ranks = format_count(len(self), "rank")
        if not self.job.timed:
            return f"{ranks}, Python calls alone"
        collectives = format_count(len(self._collectives), "collective")
        return f"{ranks}, {format_ns(self.span_ns)}, {collectives}"

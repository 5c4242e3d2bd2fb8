"""Files of many ranks: which is whose, one in memory at a time, and their page."""

from __future__ import annotations

import gzip
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses.ranks.reduced import reduced
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.many_ranks import reading
from gpuprof_widgets.many_ranks.files import Part, job, trace_files
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.report import REPORT_TYPE
from tests.displays import displayed, with_lines_at_once
from tests.job import MS, STARTS, collective, computing, in_lockstep, rank_record, saved
from tests.traces import calls_of, op, trace_of

pytestmark = pytest.mark.slow

HOUR = 3_600_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved(tmp_path, in_lockstep(STARTS))
    return tmp_path


class TestFiles:
    def test_a_folder_a_glob_and_paths_are_the_same(self, folder: Path) -> None:
        paths = sorted(folder.iterdir())
        assert trace_files(folder) == paths
        assert trace_files(str(folder / "run.rank*.gpuprof")) == paths
        assert trace_files([paths[1], paths[0], str(paths[2]), paths[0]]) == paths

    def test_what_lies_beside_the_traces_is_no_trace(self, folder: Path) -> None:
        (folder / "notes.txt").write_text("no trace")
        (folder / ".run.rank9.gpuprof.1.unfinished").write_text("half")
        assert len(trace_files(folder)) == 3

    def test_ten_comes_after_two(self, tmp_path: Path) -> None:
        for number in (10, 2):
            (tmp_path / f"rank{number}.json").write_text("{}")
        assert [path.name for path in trace_files(tmp_path)] == ["rank2.json", "rank10.json"]

    @pytest.mark.parametrize("missing", ["", "nothing/*.json", "empty"])
    def test_none_is_an_error_that_says_what_to_give(self, tmp_path: Path, missing: str) -> None:
        (tmp_path / "empty").mkdir()
        given: Any = tmp_path / missing if missing else []
        with pytest.raises(TraceError, match="folder"):
            trace_files(given)

    def test_a_file_of_the_folder_that_is_no_trace_is_left_out(self, folder: Path) -> None:
        (folder / "rank7.json").write_text("{}")
        (folder / "rank8.json.gz").write_bytes(gzip.compress(b"{}" * 99)[:20])
        run = gpuprof_widgets.ranks(folder)
        assert run.numbers == [0, 1, 2]
        assert any(note.startswith("rank7.json was left out: ") for note in run.notes)
        assert any("the gzip data ends at byte 20" in note for note in run.notes)

    def test_given_by_name_it_is_an_error(self, folder: Path) -> None:
        (folder / "rank7.json").write_text("{}")
        with pytest.raises(TraceError, match=r"rank7\.json"):
            gpuprof_widgets.ranks([*folder.iterdir()])

    def test_where_nothing_can_be_read_it_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "rank7.json").write_text("{}")
        with pytest.raises(TraceError, match=r"rank7\.json"):
            gpuprof_widgets.ranks(tmp_path)


Parts = list[Callable[[], Part]]
"""Made by the test, not where it is collected."""


def part(
    name: str, rank: int = -1, *, pid: int = 7, at: int = 0, world: int = -1
) -> Callable[[], Part]:
    """A file with one op of one process."""
    row = replace(op("aten::mm", ts=at, dur=50), process=str(pid))
    return lambda: (Path(name), reduced(rank_record(rank, row, world_size=world), source=name))


def calls_part(name: str, ns: int) -> Callable[[], Part]:
    """A file of cProfile."""
    calls = calls_of((None, "main", 1, ns))
    return lambda: (Path(name), reduced(replace(trace_of(), calls=calls), source=name))


END = ".17.pt.trace.json"
RIVALS = [part("a", 1, pid=1), part("b", 1, pid=2, at=3), part("c", 0, pid=3)]


class TestWhichIsWhose:
    @pytest.mark.parametrize(
        ("parts", "positions"),
        [
            ([part("r135128_7" + END)], {0: [0]}),
            ([part(f"gpu-r2_{pid}{END}", pid=pid) for pid in (1, 2)], {0: [0], 1: [1]}),
            ([part(f"gpu-rank1-{n}.json", pid=n) for n in (1, 2)], {0: [0], 1: [1]}),
            ([part("a_7" + END), part("b_7" + END, at=99)], {0: [0], 1: [1]}),
            ([part("r4_7.1.pt.trace.json"), part("r4_7" + END, at=99)], {0: [0, 1]}),
            ([part("h_7.1.pt.trace.json"), part("h_7" + END, 3, at=99)], {3: [0, 1]}),
            ([part("h_7.1.pt.trace.json"), part("h_7" + END, at=9)], {0: [0], 1: [1]}),
            ([part("h_7" + END), part(f"h_7{END}.gz"), part("g_7" + END)], {0: [0], 1: [2]}),
            ([part(f"rank{n}/trace.json") for n in (2, 1)], {2: [0], 1: [1]}),
            ([part(f"step_{n}_rank_3.json", at=n) for n in (100, 200)], {3: [0, 1]}),
            ([part(f"step_{n}_rank_3.json", pid=n) for n in (1, 2)], {0: [0], 1: [1]}),
            ([part(f"2024-05-{n}.json", pid=n) for n in (12, 13)], {0: [0], 1: [1]}),
            ([part("rank3.json", 1), part("rank1.json", 3)], {1: [0], 3: [1]}),
            ([part("r5.json"), part("r6.json", pid=2, world=4)], {0: [0], 1: [1]}),
            ([calls_part(f"step_{n}_rank_0.prof", n) for n in (1, 2)], {0: [0], 1: [1]}),
            ([part("n_7" + END), calls_part("rank0.prof", 5)], {0: [0], 1: [1]}),
            (RIVALS, {1: [0], 2: [1], 0: [2]}),
        ],
    )
    def test_what_the_files_hold_comes_before_guesses_which_join_and_drop_nothing(
        self, parts: Parts, positions: dict[int, list[int]]
    ) -> None:
        made = [make() for make in parts]
        files = {rank: tuple(made[n][0] for n in at) for rank, at in positions.items()}
        assert job(made).files == files

    @pytest.mark.parametrize(
        ("parts", "told"),
        [
            (RIVALS, "2 traces say rank 1, and they overlap in time: a was taken for rank 1, b"),
            ([part(f"rank{n}.zip", 0, pid=n, at=n) for n in (1, 2)], "all traces say rank 0"),
            ([part("rank1.zip"), part("rank0.zip", pid=2)], "taken from the file names"),
            ([part("a.zip"), part("b.zip", pid=2)], "in the order of their names"),
            ([part("a", 0), part("b", pid=2), part("c", 2, pid=3)], "b does not say its rank"),
        ],
    )
    def test_guesses_are_told(self, parts: Parts, told: str) -> None:
        assert any(told in note for note in job([make() for make in parts]).notes)

    @pytest.mark.parametrize(
        ("parts", "told"),
        [
            ([part("node-rank135.json")], ""),
            ([part(str(n), n, pid=n, world=8) for n in (0, 1, 5)], "ranks 2-4,6-7 are missing"),
            ([part("run-r0.json"), part("run-r2.json", pid=2)], ""),
            ([part("rank0.json"), part("rank2.json", pid=2)], "2 of 3 ranks are there: rank 1 is"),
            ([*RIVALS[:2], part("c", 0, pid=3, world=9)], "3 of 9 ranks are there;"),
            (
                [part("a", n, pid=n, world=10**6) for n in range(0, 20, 2)],
                "ranks 1,3,5,7,9,11,13,15 and others are missing",
            ),
        ],
    )
    def test_ranks_are_missing_only_where_their_numbers_are_known(
        self, parts: Parts, told: str
    ) -> None:
        notes = [note for note in job([make() for make in parts]).notes if "missing" in note]
        assert told in notes[0] if told else not notes

    def test_several_files_of_a_rank_follow_one_another(self, tmp_path: Path) -> None:
        first, second = in_lockstep({0: [0], 1: [300]}), in_lockstep({0: [9 * MS], 1: [8 * MS]})
        saved(tmp_path, [*first, *second], ["0a.zip", "1a.zip", "0b.zip", "1b.zip"])
        run = gpuprof_widgets.ranks(tmp_path)
        assert run.numbers == [0, 1]
        assert run.collectives()["last_rank"].tolist() == [1, 0]
        assert any("rank 0 has 2 files" in note for note in run.notes)
        whole = run.breakdown().query("step == -1").groupby("rank")
        assert (whole["time_ns"].sum() == whole["span_ns"].first()).all()

    def test_a_copy_counts_once(self, tmp_path: Path) -> None:
        records = in_lockstep(STARTS)
        saved(tmp_path, [*records, records[1]], ["0.zip", "1.zip", "2.zip", "copy of 1.zip"])
        run = gpuprof_widgets.ranks(tmp_path)
        assert len(run.collectives()) == 2
        assert any("is a copy of 1.zip" in note for note in run.notes)

    def test_traces_of_other_days_that_share_nothing_are_refused(self, tmp_path: Path) -> None:
        day = 24 * 3600 * 1_000_000_000
        unrelated = [
            rank_record(0, collective(0, 1000)),
            rank_record(0, collective(0, 1000), clock=400 * day),
            rank_record(1, collective(0, 1000), clock=8 * day),
        ]
        saved(tmp_path, unrelated, ["a.zip", "b.zip", "c.zip"])
        both = r"not traces of one run: a\.zip was recorded on 2023-11-14 .* c\.zip .* 2023-11-22"
        with pytest.raises(TraceError, match=both):
            gpuprof_widgets.ranks(tmp_path)

    def test_one_stranger_among_them_is_named(self, tmp_path: Path) -> None:
        stranger = rank_record(3, computing(0, 9), clock=2 * HOUR)
        saved(tmp_path, [*in_lockstep(STARTS), stranger])
        with pytest.raises(TraceError, match=r"run\.rank3\.gpuprof was recorded"):
            gpuprof_widgets.ranks(tmp_path)

    def test_files_hours_apart_are_of_one_run_where_the_ranks_have_them_together(
        self, tmp_path: Path
    ) -> None:
        records = [
            rank_record(rank, collective(at, at + 1000)) for rank in (0, 1) for at in (0, 9 * HOUR)
        ]
        saved(tmp_path, records, ["0a.zip", "0b.zip", "1a.zip", "1b.zip"])
        assert gpuprof_widgets.ranks(tmp_path).numbers == [0, 1]

    def test_a_clock_hours_wrong_is_of_the_run_where_the_collectives_say_so(
        self, tmp_path: Path
    ) -> None:
        begins = [number * MS for number in range(5)]
        for count, one_run in ((4, False), (5, True)):
            rows = [collective(at, at + 1000) for at in begins[:count]]
            records = [rank_record(0, *rows), rank_record(1, *rows, clock=5 * HOUR)]
            saved(tmp_path, records)
            if one_run:
                assert gpuprof_widgets.ranks(tmp_path).alignment()["shift_ns"].tolist()[1]
            else:
                with pytest.raises(TraceError, match="not traces of one run"):
                    gpuprof_widgets.ranks(tmp_path)

    def test_a_rank_without_collectives_says_why(self, tmp_path: Path) -> None:
        saved(tmp_path, [rank_record(0, collective(0, 9)), rank_record(1, computing(0, 9))])
        notes = gpuprof_widgets.ranks(tmp_path).notes
        assert any("rank 1: the trace has no collectives" in note for note in notes)

    def test_a_rank_is_read_again_when_asked_for(self, folder: Path) -> None:
        run = gpuprof_widgets.ranks(folder)
        assert isinstance(run[1], gpuprof_widgets.Profile)
        assert run[1].metadata["rank"] == 1
        with pytest.raises(OptionError, match="the ranks are 0-2"):
            run[3]


class TestOneAtATime:
    @pytest.fixture
    def alive(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many earlier traces are still in memory whenever another one is read."""
        seen: list[weakref.ref[Any]] = []
        counts: list[int] = []

        def watching(load: Any) -> Any:
            def loaded(path: Path) -> Record:
                counts.append(sum(trace() is not None for trace in seen))
                record: Record = load(path)
                seen.append(weakref.ref(record.trace))
                return record

            return loaded

        monkeypatch.setattr(reading, "load", watching(reading.load))
        return counts

    def test_no_two_traces_are_in_memory(self, folder: Path, alive: list[int]) -> None:
        run = gpuprof_widgets.ranks(folder)
        run.stragglers()
        assert alive == [0, 0, 0]
        run.report()
        assert alive == [0, 0, 0, 0, 0, 0]

    def test_the_watch_sees_a_trace_that_is_kept(self, folder: Path, alive: list[int]) -> None:
        kept = [reading.load(path) for path in trace_files(folder)]
        assert alive == [0, 1, 2]
        assert len(kept) == 3


def test_files_are_counted_as_they_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = with_lines_at_once(monkeypatch)
    run = gpuprof_widgets.ranks(folder)
    assert outputs.texts(0) == [*(f"{number} of 3 ranks read" for number in (1, 2, 3)), ""]
    run.report()
    assert outputs.texts(1) == [*(f"{number} of 3 timelines read" for number in (1, 2, 3)), ""]


class TestPage:
    def test_what_a_rank_waited_is_drawn_apart(self, folder: Path) -> None:
        run = gpuprof_widgets.ranks(folder)
        waits = run.collectives(per_rank=True).query("rank == 0")
        record = run[0]
        file, *_ = trace_files(folder)
        drawn = reading.read_light(file, waits, -record.trace.epoch_ns).trace.slices
        assert drawn["name"].tolist() == [
            "rank 1 awaited",
            "ncclDevKernel_Generic",
            "rank 1 awaited",
            "ncclDevKernel_Generic",
        ]
        assert drawn["dur"].tolist() == [200_000, 100_000, 2 * MS, 100_000]
        assert drawn["dur"].sum() == record.trace.slices["dur"].sum()

    def test_too_many_slices_leave_the_gpu_s_and_the_longest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "MOST_SLICES", 3)
        record = trace_of(
            *(op("aten::add", ts=n * 10, dur=n) for n in range(1, 6)),
            collective(0, 1),
            computing(2, 3),
        )
        monkeypatch.setattr(reading, "load", lambda _: record)
        waits = pd.DataFrame(columns=["row", "start_ns", "wait_ns", "last_rank"])
        drawn = reading.read_light(Path(), waits, 0)
        assert sorted(drawn.trace.slices["name"]) == ["aten::add", "gemm", "ncclDevKernel_Generic"]
        assert drawn.trace.slices["dur"].max() == 5

    def test_it_holds_all_timelines_and_tables(self, folder: Path) -> None:
        page = gpuprof_widgets.ranks(folder).report()
        for words in ("Time of each rank", "Who waits for whom", "Collectives, on all ranks"):
            assert words in page
        assert "Rank 1 came last to 2 of 2 collectives" in page

    def test_other_timelines_can_be_chosen(self, folder: Path) -> None:
        run = gpuprof_widgets.ranks(folder)
        assert len(run.report(timelines=[1])) < len(run.report())
        with pytest.raises(OptionError, match="the ranks are 0-2"):
            run.report(timelines=[5])

    def test_without_a_notebook_it_is_printed(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        gpuprof_widgets.ranks(folder).show()
        printed = capsys.readouterr().out
        assert "* Rank 1 came last to 2 of 2 collectives" in printed
        assert max(map(len, printed.splitlines())) < 80

    def test_in_a_notebook_it_leaves_three_outputs(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = displayed(monkeypatch)
        gpuprof_widgets.ranks(folder).show()
        assert [sorted(bundle) for bundle in shown] == [
            ["text/html", "text/plain"],
            ["image/png", "text/plain"],
            ["application/javascript", REPORT_TYPE, "text/plain"],
        ]
        assert "<script" not in shown[0]["text/html"]

    def test_many_ranks_show_the_late_and_the_waiting(self, tmp_path: Path) -> None:
        starts = {rank: [5000 if rank == 11 else rank] for rank in range(18)}
        saved(tmp_path, in_lockstep(starts, moving=100))
        run = gpuprof_widgets.ranks(tmp_path)
        shown = run._shown(None)
        assert len(shown) == 16
        assert {11, 0} <= set(shown)

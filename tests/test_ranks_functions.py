"""Python functions of many ranks side by side, also where that is all that the files hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.ranks.reduced import joined, reduced
from gpuprof_widgets.analyses.ranks.tables import functions
from gpuprof_widgets.cli import main
from gpuprof_widgets.many_ranks.files import rank_in_name
from gpuprof_widgets.many_ranks.profiles import RankProfiles
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.pstats import save_pstats
from tests.displays import displayed
from tests.job import MS, collective, computing, in_lockstep, rank_record, run_of, saved
from tests.profiler_databases import Nsys, Nvprof, written
from tests.traces import calls_of, python, runtime, trace_of

pytestmark = pytest.mark.slow

Capsys = pytest.CaptureFixture[str]


def calls(load: int, work: int) -> Calls:
    """Of a main function that takes nothing itself, and calls these two."""
    return calls_of((None, "main", 1, 0), ("main", "load", 2, load), ("main", "work", 2, work))


WORK = {0: calls(50, 100), 1: calls(40, 100), 2: calls(60, 400)}
"""Rank 2 has four times the work."""


def calls_alone(rank: int, of: Calls) -> Record:
    return replace(trace_of(rank=rank), calls=of)


@pytest.fixture
def run() -> RankProfiles:
    return run_of(*(calls_alone(rank, of) for rank, of in WORK.items()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank, of in WORK.items():
        save_pstats(of, tmp_path / f"run.{rank}.prof")
    return tmp_path


def noted(run: RankProfiles, words: str) -> bool:
    return any(words in note for note in run.notes)


class TestTable:
    def test_self_and_total_times_of_every_rank_and_who_is_slow(self, run: RankProfiles) -> None:
        table = run.functions().set_index("name")
        assert table.index.tolist() == ["work", "load", "main"]
        work, load, all_of_it = (table.loc[name] for name in ("work", "load", "main"))
        assert [work[f"rank{rank}_self_ns"] for rank in (0, 1, 2)] == [100, 100, 400]
        assert (work["self_spread_ns"], work["slowest_rank"]) == (300, 2)
        assert (load["self_spread_ns"], load["slowest_rank"], load["fastest_rank"]) == (20, 2, 1)
        assert [all_of_it[f"rank{rank}_total_ns"] for rank in (0, 1, 2)] == [150, 140, 460]
        assert (all_of_it["self_spread_ns"], all_of_it["total_spread_ns"]) == (0, 320)

    def test_a_function_that_a_rank_did_not_run_took_it_no_time(self) -> None:
        alone = calls_of((None, "main", 1, 5), ("main", "log", 3, 70))
        run = run_of(calls_alone(0, calls_of((None, "main", 1, 5))), calls_alone(1, alone))
        first = run.functions().iloc[0]
        assert (first["name"], first["ranks"]) == ("log", 1)
        assert (first["rank0_self_ns"], first["rank1_self_ns"]) == (0, 70)
        assert (first["slowest_rank"], first["fastest_rank"]) == (1, 0)

    def test_addresses_in_the_names_of_built_in_functions_tell_nothing_apart(self) -> None:
        names = ("<built-in method new of type object at 0x7f01>",
                 "<built-in method new of type object at 0x7f02>")  # fmt: skip
        run = run_of(
            *(calls_alone(n, calls_of((None, name, 1, 5))) for n, name in enumerate(names))
        )
        assert run.functions()["name"].tolist() == ["<built-in method new of type object>"]
        assert run.functions()["ranks"].tolist() == [2]

    def test_ranks_without_python_calls_are_not_compared(self) -> None:
        run = run_of(calls_alone(0, WORK[0]), rank_record(1, computing(0, 9)))
        assert "rank1_self_ns" not in run.functions()
        assert run.functions()["self_spread_ns"].tolist() == [0, 0, 0]

    def test_files_of_a_rank_that_follow_one_another_are_added_up(self) -> None:
        parts = [
            reduced(replace(rank_record(0, computing(at, at + 5)), calls=of))
            for at, of in ((0, WORK[0]), (9, WORK[2]))
        ]
        table = functions([joined(parts)]).set_index("name")
        assert table.loc["work", "rank0_self_ns"] == 500

    def test_it_does_not_change_what_it_was_computed_from(self, run: RankProfiles) -> None:
        del run.functions()["name"]
        assert "name" in run.functions()


class TestFindings:
    def test_the_function_in_which_the_ranks_differ_most_is_told(self, run: RankProfiles) -> None:
        (finding,) = run.findings()
        assert finding.rule == "slow_functions"
        assert "`cell.py:3(work)` itself took 400 ns on rank 2, 100 ns on rank 0" in finding.text
        assert (finding.cost_ns, finding.share) == (300, 300 / 460)

    @pytest.mark.parametrize(("more", "told"), [(4, False), (6, True)])
    def test_from_a_twentieth_of_the_slowest_rank_s_time_on(self, more: int, told: bool) -> None:
        ranks = (calls_alone(0, calls(0, 90)), calls_alone(1, calls(0, 90 + more)))
        assert bool(run_of(*ranks).findings()) == told

    def test_the_threshold_can_be_moved(self, run: RankProfiles) -> None:
        assert len(run.findings(rank_function_share=0.04)) == 2
        assert not run.findings(rank_function_share=0.9)

    def test_where_collectives_tell_who_is_late_functions_do_not(self) -> None:
        records = in_lockstep({0: [0], 1: [0], 2: [0]})
        run = run_of(*(replace(one, calls=WORK[n]) for n, one in enumerate(records)))
        assert len(run.functions())
        assert "slow_functions" not in [finding.rule for finding in run.findings()]


class TestLateRank:
    """Rank 1 comes 100 ns after the others to the second collective."""

    @staticmethod
    def told(*calls: Calls | None) -> Finding:
        records = in_lockstep({0: [0, 600], 1: [0, 700], 2: [0, 600]}, moving=200)
        pairs = zip(records, calls, strict=True)
        records = [replace(record, calls=of) for record, of in pairs]
        (late,) = (one for one in run_of(*records).findings() if one.rule == "stragglers")
        return late

    @staticmethod
    def checks(ns: int, name: str = "checksum", file: str = "cell.py") -> Calls:
        made = calls_of((None, "main", 1, 500 - ns), ("main", name, 1, ns))
        made.functions.loc[made.functions["name"] == name, "file"] = file
        return made

    @pytest.mark.parametrize(
        ("ns", "named"), [(49, False), (50, True), (100, True), (200, True), (201, False)]
    )
    def test_the_function_that_it_alone_runs_for_most_of_the_delay_is_named(
        self, ns: int, named: bool
    ) -> None:
        late = self.told(self.checks(0), self.checks(ns), self.checks(0))
        sentence = f"`cell.py:2(checksum)` took {ns} ns on rank 1, and at most 0 ns on the others."
        assert late.text.endswith(sentence) == named
        assert ("Call `cell.py:2(checksum)` less often" in late.remedy) == named

    def test_its_time_on_the_others_does_not_count(self) -> None:
        late = self.told(self.checks(40), self.checks(110), self.checks(60))
        assert late.text.endswith("took 110 ns on rank 1, and at most 60 ns on the others.")
        assert "checksum" not in self.told(self.checks(70), self.checks(110), self.checks(60)).text

    def test_of_callers_the_innermost_is_named_and_no_library(self) -> None:
        chain = calls_of(
            (None, "main", 1, 400), ("main", "log", 1, 5), ("log", "dump", 1, 10),
            ("dump", "<built-in method dump>", 1, 85),
        )  # fmt: skip
        chain.functions.loc[3, "file"] = "~"
        assert "`cell.py:3(dump)` took 95 ns" in self.told(WORK[0], chain, WORK[0]).text
        other = self.checks(90, file="/usr/lib/python3.11/json/encoder.py")
        assert "json" not in self.told(self.checks(0), other, self.checks(0)).text

    def test_without_the_calls_of_all_ranks_none_is_named(self) -> None:
        assert "checksum" not in self.told(self.checks(0), self.checks(100), None).text

    def test_a_rank_that_waits_longer_in_collectives_may_be_in_one(self) -> None:
        begins = {0: [100, 600], 1: [0, 700], 2: [100, 600]}
        records = in_lockstep(begins, moving=200)
        pairs = zip(records, (self.checks(0), self.checks(100), self.checks(0)), strict=True)
        run = run_of(*(replace(record, calls=of) for record, of in pairs))
        late = next(one for one in run.findings() if one.rule == "stragglers")
        assert late.title == "Rank 1 holds up the others: its GPU is idle"

    def test_frames_are_as_good_as_calls_and_a_wait_for_the_gpu_is_no_work(self) -> None:
        for waiting in (False, True):
            records = [
                rank_record(
                    rank,
                    collective(0, 200),
                    collective(600 + ns, 900),
                    python("train.py(7): step", ts=200, dur=400 + ns),
                    python("train.py(18): checksum", ts=300, dur=ns),
                    *[runtime("cudaDeviceSynchronize", ts=300, dur=ns)] * waiting,
                )
                for rank, ns in enumerate([1, 100, 1])
            ]
            (late,) = (one for one in run_of(*records).findings() if one.rule == "stragglers")
            assert ("`train.py:18(checksum)` took 100 ns on rank 1" in late.text) != waiting


class TestCallsAlone:
    def test_the_rank_is_in_the_name_of_the_file(self, folder: Path) -> None:
        (folder / "run.1.prof").unlink()
        run = gpuprof_widgets.ranks(folder)
        assert run.numbers == [0, 2]
        assert "2 of 3 ranks are there: rank 1 is missing" in run.notes
        assert repr(run) == "<RankProfiles: 2 ranks (0,2), Python calls alone>"

    def test_tables_of_times_are_empty_and_say_why(self, folder: Path) -> None:
        run = gpuprof_widgets.ranks(folder)
        assert not noted(run, "clock")
        assert not noted(run, "collective")
        tables = [run.breakdown(), run.steps(), run.stragglers(), run.collectives()]
        for table in (*tables, run.collectives(per_rank=True), run.waits(), run.alignment()):
            assert not len(table)
            assert "see the table functions" in table.attrs["lacks"]

    def test_its_text_is_the_functions_side_by_side(self, folder: Path, capsys: Capsys) -> None:
        gpuprof_widgets.ranks(folder).show()
        lines = capsys.readouterr().out.splitlines()
        head = next(n for n, line in enumerate(lines) if line.startswith("Function"))
        cells = [line.split() for line in lines[head:]]
        assert cells[0] == ["Function", "Difference", "rank", "0", "rank", "1", "rank", "2"]
        assert cells[1][2:] == ["320", "ns", "150", "ns", "140", "ns", "460", "ns"]
        assert cells[2][0] == "cell.py:3(work)"
        assert "Time of each rank" not in "\n".join(lines)
        assert max(map(len, lines)) < 80

    def test_of_many_ranks_the_slowest_and_fastest_are_shown(self) -> None:
        run = run_of(*(calls_alone(rank, calls(0, 100 + rank)) for rank in range(20)))
        bundle = run._repr_mimebundle_()
        for kind in ("text/plain", "text/html"):
            assert "rank 19: 119 ns" in bundle[kind]
            assert "rank 0: 100 ns" in bundle[kind]

    def test_one_rank_alone_is_compared_with_none_but_shown(self, folder: Path) -> None:
        for rank in (1, 2):
            (folder / f"run.{rank}.prof").unlink()
        assert "cell.py:3(work)" in gpuprof_widgets.ranks(folder).report()
        saved(folder, in_lockstep({0: [0], 1: [0]}))
        assert "cell.py:3(work)" not in gpuprof_widgets.ranks(folder).report()

    def test_its_page_has_no_timelines_and_no_script(self, folder: Path) -> None:
        page = gpuprof_widgets.ranks(folder).report()
        assert "cell.py:3(work)" in page
        assert "<script" not in page
        assert "need scripts" not in page
        assert "Time of each rank" not in page

    def test_in_a_notebook_it_is_one_output(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = displayed(monkeypatch)
        gpuprof_widgets.ranks(folder).show()
        assert [sorted(bundle) for bundle in shown] == [["text/html", "text/plain"]]
        assert "cell.py:3(work)" in shown[0]["text/html"]

    def test_the_command_writes_them_as_csv(self, folder: Path, capsys: Capsys) -> None:
        assert main(["ranks", str(folder), "--table", "functions", "--csv", "-"]) == 0
        head, first, *_ = capsys.readouterr().out.splitlines()
        assert head.endswith('"rank2_self_ns","rank0_total_ns","rank1_total_ns","rank2_total_ns"')
        assert first == '"cell.py",3,"work",3,300,2,0,300,100,100,400,100,100,400'


class TestFolders:
    """Whatever the ranks of a job leave, in one folder."""

    def test_profiles_and_files_of_cprofile_of_the_same_ranks_are_joined(
        self, folder: Path
    ) -> None:
        saved(folder, in_lockstep({0: [0], 1: [900]}))
        run = gpuprof_widgets.ranks(folder)
        assert run.numbers == [0, 1, 2]
        assert run.functions()["rank2_self_ns"].tolist() == [400, 60, 0]
        assert [rank.rank for rank in run.job.timed] == [0, 1]
        assert run.stragglers()["rank"].tolist() == [1, 0]
        assert noted(run, "rank 2: Python calls alone")
        assert run[1].metadata["rank"] == 1
        assert len(run.report(timelines=[1])) < len(run.report())

    def test_calls_that_a_rank_has_twice_count_once(self, folder: Path) -> None:
        record = replace(rank_record(0, collective(0, 9), world=3), calls=WORK[0])
        saved(folder, [record])
        run = gpuprof_widgets.ranks(folder)
        assert run.functions().set_index("name").loc["work", "rank0_self_ns"] == 100
        assert noted(run, "run.0.prof was left out: the Python calls of that rank are taken from")

    @pytest.mark.parametrize("ending", [".nvprof", ".sqlite"])
    def test_databases_are_read(self, ending: str, tmp_path: Path) -> None:
        for rank in (0, 1):
            made = Nvprof() if ending == ".nvprof" else Nsys()
            made.kernel("gemm", MS, (2 + rank) * MS)
            written(made.bytes(), tmp_path / f"report.{rank}{ending}")
        run = gpuprof_widgets.ranks(tmp_path)
        assert run.numbers == [0, 1]
        busy = run.breakdown().query("`class` == 'compute' and step == -1")
        assert busy["time_ns"].tolist() == [MS, 2 * MS]

    @pytest.mark.parametrize("ending", [".prof", ".pstats", ".cprofile"])
    def test_cprofile_by_any_ending(self, ending: str, tmp_path: Path) -> None:
        for rank in (0, 1):
            save_pstats(WORK[rank], tmp_path / f"rank{rank}{ending}")
        assert len(gpuprof_widgets.ranks(tmp_path).functions()) == 3

    def test_other_files_are_named(self, folder: Path) -> None:
        for name in ("job.py", "slurm-1.out", "report.html", "z.txt", ".hidden"):
            (folder / name).write_text("no trace")
        run = gpuprof_widgets.ranks(folder)
        assert (
            "job.py, report.html, slurm-1.out and 1 more were left out: no trace has such a name"
            in (run.notes)
        )

    def test_only_those_of_a_folder_that_was_named(self, folder: Path) -> None:
        (folder / "job.py").write_text("no trace")
        assert not noted(gpuprof_widgets.ranks(sorted(folder.glob("*.prof"))), "job.py")

    def test_what_a_rank_did_not_finish_to_write_is_told(self, folder: Path) -> None:
        (folder / "run.1.prof").unlink()
        (folder / ".run.1.prof.0123abcd.unfinished").write_bytes(b"half")
        run = gpuprof_widgets.ranks(folder)
        assert run.numbers == [0, 2]
        assert noted(run, "run.1.prof was not finished: its process ended while it wrote .run.1")

    @pytest.mark.parametrize(
        ("name", "rank"),
        [
            ("run.rank3.gpuprof", 3),
            ("trace_rank-12.json.gz", 12),
            ("worker7.pt.trace.json", 7),
            ("nccl_a100_rank34_of_300.json.gz", 34),
            ("resnet_r3.json", 3),
            ("run.rank10of16.json", 10),
            ("host_4242.1700000000.pt.trace.json", None),
            ("worker3_4242.1700000000.pt.trace.json", None),
            ("triton_a100.json.gz", None),
            ("resnet50_r3d.json", None),
            ("franks7.json", None),
            ("report.3.nvprof", 3),
            ("report_12.sqlite", 12),
            ("run-0.prof", 0),
            ("trace.7.json.gz", 7),
            ("run.4242.prof", None),
            ("prof_17.dat", None),
            ("3.prof", None),
        ],
    )
    def test_ranks_in_names(self, name: str, rank: int | None) -> None:
        assert rank_in_name(Path(name)) == rank

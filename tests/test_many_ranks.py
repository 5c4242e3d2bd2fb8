"""Ranks of one run: matched, aligned, and split into waiting and moving data, by known truths."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuprof_widgets
from gpuprof_widgets.analyses.ranks.matching import SURE, TOLERANCE_NS
from gpuprof_widgets.analyses.ranks.reduced import reduced
from gpuprof_widgets.analyses.ranks.tables import overview
from gpuprof_widgets.many_ranks.profiles import RankProfiles
from tests.job import EPOCH, MS, US, collective, computing, in_lockstep, rank_record, run_of
from tests.test_analyses_pure import digest
from tests.traces import Shared, annotation, copy, op

pytestmark = pytest.mark.slow


class TestWaiting:
    def test_every_rank_waits_for_the_last_and_then_all_move_data(self) -> None:
        run = run_of(*in_lockstep({0: [100], 1: [400], 2: [900]}, moving=100))
        table = run.collectives(per_rank=True)
        assert table["wait_ns"].tolist() == [800, 500, 0]
        assert table["transfer_ns"].tolist() == [100, 100, 100]
        assert table["last_rank"].tolist() == [2, 2, 2]
        (one,) = run.collectives().to_dict("records")
        assert (one["skew_ns"], one["transfer_ns"], one["waited_ns"]) == (800, 100, 1300)
        assert (one["first_rank"], one["last_rank"], one["delay_ns"]) == (0, 2, 500)

    def test_bandwidth_is_that_of_the_transfer(self) -> None:
        run = run_of(*in_lockstep({0: [0], 1: [9 * MS]}, moving=MS))
        (one,) = run.collectives().to_dict("records")
        assert one["algorithm_bytes_per_s"] == pytest.approx(4_000_000 / 1e-3)
        assert one["bus_bytes_per_s"] == pytest.approx(4_000_000 / 1e-3)  # 2(n-1)/n of 2 ranks

    def test_a_root_may_leave_a_broadcast_before_others_come(self) -> None:
        run = run_of(
            rank_record(0, collective(0, 100, name="broadcast")),
            rank_record(1, collective(500, 600, name="broadcast")),
        )
        assert run.collectives(per_rank=True)["wait_ns"].tolist() == [0, 0]
        assert not len(run.waits())

    def test_who_waits_for_whom(self) -> None:
        run = run_of(*in_lockstep({0: [0, 2000], 1: [700, 1500], 2: [100, 1600]}, moving=100))
        pairs = run.waits().set_index(["rank", "waits_for"])["wait_ns"].to_dict()
        assert pairs == {(0, 1): 700, (2, 1): 600, (1, 0): 500, (2, 0): 400}
        assert run.waits()["share"].sum() == pytest.approx(1)
        assert run.waits()["collectives"].tolist() == [1] * 4

    def test_groups_are_apart(self) -> None:
        run = run_of(
            rank_record(0, collective(0, 1000, ranks=[0, 1])),
            rank_record(1, collective(900, 1000, ranks=[0, 1])),
            rank_record(2, collective(0, 300, ranks=[2, 3])),
            rank_record(3, collective(200, 300, ranks=[2, 3])),
        )
        table = run.collectives()
        assert table["group"].tolist() == ["0-1", "2-3"]
        assert table["ranks"].tolist() == table["present"].tolist() == [2, 2]
        assert table["skew_ns"].tolist() == [900, 200]
        assert table["last_rank"].tolist() == [1, 3]

    @given(
        st.integers(2, 3).flatmap(
            lambda ranks: st.lists(
                st.lists(st.integers(0, 900), min_size=ranks, max_size=ranks),
                min_size=1,
                max_size=6,
            )
        )
    )
    @settings(max_examples=10)
    def test_what_adds_up(self, late: list[list[int]]) -> None:
        ranks = range(len(late[0]))
        starts = {rank: [n * 2000 + row[rank] for n, row in enumerate(late)] for rank in ranks}
        run = run_of(*in_lockstep(starts, moving=100))
        each, all_of_them = run.collectives(per_rank=True), run.collectives()
        assert (each["wait_ns"] + each["transfer_ns"] == each["dur_ns"]).all()
        assert int(each["wait_ns"].sum()) == sum(max(row) - at for row in late for at in row)
        assert int(run.waits()["wait_ns"].sum()) == int(all_of_them["waited_ns"].sum())
        table = run.stragglers()
        assert int(table["caused_wait_ns"].sum()) == int(table["waited_ns"].sum())
        assert int(table["delay_ns"].sum()) == int(all_of_them["delay_ns"].sum())
        parts = table["compute_ns"] + table["input_ns"] + table["idle_ns"]
        assert (parts == table["delay_ns"]).all()
        assert int(table["last"].sum()) == len(late)
        assert table["collectives"].tolist() == [len(late)] * len(ranks)
        of_rank = each.groupby("rank")["transfer_ns"].sum()
        assert table["transfer_ns"].tolist() == of_rank[table["rank"]].tolist()


class TestClocks:
    """The tables of two ranks do not depend on what their clocks count from."""

    @staticmethod
    def tables(*clocks: int) -> list[str]:
        rows = [collective(0, 900), collective(500, 900)]
        run = run_of(
            *(
                rank_record(rank, rows[rank], computing(950, 2000), clock=clock, host=f"box{rank}")
                for rank, clock in enumerate(clocks)
            )
        )
        tables = (run.collectives(), run.steps(), run.stragglers(), run.waits(), run.breakdown())
        return [str(run.span_ns), *(table.to_csv() for table in tables)]

    @pytest.mark.parametrize("clocks", [(7 * MS, 7 * MS), (0, 9 * MS), (-EPOCH - 9 * MS, -EPOCH)])
    def test_they_may_count_from_another_time(self, clocks: tuple[int, int]) -> None:
        assert self.tables(*clocks) == self.tables(0, 0)


class TestMatching:
    def test_a_trace_that_began_later_lacks_the_first_ones(self) -> None:
        ends = [1000, 3000, 4500, 9000]
        whole = [collective(end - 400, end) for end in ends]
        run = run_of(rank_record(0, *whole), rank_record(1, *whole[1:]))
        table = run.collectives(per_rank=True)
        assert table["end_ns"].groupby(table["collective"]).nunique().eq(1).all()
        assert len(run.collectives()) == 3

    def test_names_decide_before_times(self) -> None:
        names = ["allreduce", "broadcast", "allreduce", "_allgather_base"]
        first = [collective(n * 100, n * 100 + 50, name=name) for n, name in enumerate(names)]
        run = run_of(rank_record(0, *first), rank_record(1, *first[1:], clock=10 * MS))
        assert run.collectives()["name"].tolist() == ["broadcast", "all_reduce", "all_gather"]

    def test_torch_s_numbers_decide_where_they_are(self) -> None:
        run = run_of(
            rank_record(0, collective(0, 100, Seq=7), collective(200, 300, Seq=8), host="box"),
            rank_record(1, collective(0, 100, Seq=8), collective(200, 300, Seq=9), host="box"),
        )
        (one,) = run.collectives().to_dict("records")
        assert one["present"] == 2
        assert run.collectives(per_rank=True)["start_ns"].tolist() == [200, 0]

    def test_what_differs_is_left_out(self) -> None:
        run = run_of(
            rank_record(0, collective(0, 100), collective(200, 300, name="broadcast")),
            rank_record(1, collective(0, 100), collective(200, 300, name="reduce")),
        )
        assert run.collectives()["name"].tolist() == ["all_reduce"]

    def test_sending_is_no_collective(self) -> None:
        run = run_of(
            rank_record(0, collective(0, 100, name="send")),
            rank_record(1, collective(0, 100, name="recv")),
        )
        assert not len(run.collectives())
        assert "no collective of two ranks was found" in " ".join(run.notes)


class TestAlignment:
    @given(
        st.lists(st.integers(-(10**10), 10**10), min_size=1, max_size=2),
        st.lists(st.lists(st.integers(0, 5 * US), min_size=5, max_size=5), min_size=5, max_size=9),
    )
    @settings(max_examples=15)
    def test_offsets_are_found_within_the_jitter_of_the_ends(
        self, clocks: list[int], jitter: list[list[int]]
    ) -> None:
        clocks = [0, *clocks]
        records = [
            rank_record(
                rank,
                *(
                    collective(n * MS + 10 * rank * US, n * MS + 500 * US + late[rank])
                    for n, late in enumerate(jitter)
                ),
                clock=clock,
                host=f"node{rank}",
            )
            for rank, clock in enumerate(clocks)
        ]
        run = run_of(*records)
        table = run.alignment()
        assert np.abs(table["offset_ns"] - clocks).max() <= 5 * US
        far = max(map(abs, clocks))
        if far > TOLERANCE_NS + (SURE + 2) * 5 * US:
            assert np.abs(table["shift_ns"] + clocks).max() <= 5 * US
            ends = run.collectives(per_rank=True).groupby("collective")["end_ns"]
            assert (ends.max() - ends.min()).max() <= 15 * US
            assert any("the clocks differ" in note for note in run.notes)

    def test_offset_and_spread_are_the_medians_of_the_ends(self) -> None:
        ends = {
            "a": [n * MS + 90 * US for n in range(5)],
            "b": [n * MS + late * US for n, late in enumerate([90, 490, 500, 530, 490])],
        }
        run = run_of(
            *(
                rank_record(
                    rank, *(collective(end - 90 * US, end) for end in ends[host]), host=host
                )
                for rank, host in enumerate(ends)
            )
        )
        columns = ["rank", "host", "collectives", "offset_ns", "spread_ns", "impossible"]
        assert run.alignment()[[*columns, "shift_ns"]].to_numpy().tolist() == [
            [0, "a", 5, 0, 0, 4, 0],
            [1, "b", 5, 400 * US, 10 * US, 0, -400 * US],
        ]

    def test_clocks_that_agree_are_left_alone(self) -> None:
        run = run_of(*in_lockstep({0: [0, 5000], 1: [700, 9000], 2: [300, 6000]}))
        assert run.alignment()["shift_ns"].tolist() == [0, 0, 0]
        assert any("no clock was moved" in note for note in run.notes)

    def test_ranks_of_one_host_have_one_clock(self) -> None:
        """Ends that lie apart there are the backend's doing (gloo's last rank leaves later)."""
        first, second = in_lockstep({0: [0, 5 * MS], 1: [100, 5 * MS]}, host="box")
        late = rank_record(1, *(collective(at, at + 3 * MS) for at in (100, 5 * MS)), host="box")
        assert run_of(first, late).alignment()["shift_ns"].tolist() == [0, 0]
        assert run_of(first, second).alignment()["offset_ns"].tolist() == [0, 0]

    def test_it_goes_from_group_to_group(self) -> None:
        """0 and 1 share a group, 1 and 2 another: 2 is tied to 0 through 1."""

        def both(start: int, ranks: list[int]) -> list[object]:
            return [collective(start + n * MS, start + n * MS + 100 * US, ranks=ranks)
                    for n in range(3)]  # fmt: skip

        run = run_of(
            rank_record(0, *both(0, [0, 1])),
            rank_record(1, *both(0, [0, 1]), *both(500 * US, [1, 2]), clock=7 * MS),
            rank_record(2, *both(500 * US, [1, 2]), clock=-2 * MS),
        )
        assert run.alignment()["offset_ns"].tolist() == [0, 7 * MS, -2 * MS]
        assert run.alignment()["shift_ns"].tolist() == [0, -7 * MS, 2 * MS]

    def test_ranks_that_nothing_ties_to_the_first_are_aligned_with_each_other(self) -> None:
        def both(ranks: list[int]) -> list[object]:
            return [collective(n * MS, n * MS + 100 * US, ranks=ranks) for n in range(3)]

        run = run_of(
            rank_record(0, *both([0, 1])),
            rank_record(1, *both([0, 1])),
            rank_record(2, *both([2, 3]), clock=2 * MS),
            rank_record(3, *both([2, 3]), clock=9 * MS),
        )
        assert run.alignment()["offset_ns"].tolist() == [0, 0, 0, 7 * MS]
        assert any("rank 3's by 7.00 ms" in note for note in run.notes)


class TestStragglers:
    @pytest.mark.parametrize(
        ("how", "before"),
        [
            ("compute_ns", lambda come: [computing(MS, come)]),
            ("idle_ns", lambda come: [computing(MS, 3 * MS)]),
            (
                "input_ns",
                lambda come: [
                    annotation(
                        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                        ts=MS,
                        dur=come - MS,
                    ),
                    op("end", ts=11 * MS, dur=10),
                ],
            ),
        ],
    )
    def test_how_the_late_rank_spent_the_delay(self, how: str, before: Any) -> None:
        run = run_of(
            *(
                rank_record(rank, collective(0, MS), *before(come), collective(come, 11 * MS))
                for rank, come in enumerate([3 * MS, 10 * MS, 4 * MS])
            )
        )
        worst = run.stragglers().iloc[0]
        assert (worst["rank"], worst["delay_ns"], worst[how]) == (1, 6 * MS, 6 * MS)
        assert worst["caused_wait_ns"] == 13 * MS
        finding = run.findings()[0]
        assert finding.rule in ("stragglers", "waiting_for_others")

    def test_it_names_the_op_that_held_the_cpu(self) -> None:
        run = run_of(
            *(
                rank_record(
                    rank,
                    collective(0, MS),
                    op("aten::linear", ts=MS, dur=come - MS),
                    op("aten::view", ts=2 * MS, dur=come - 2 * MS),
                    collective(come, 11 * MS),
                )
                for rank, come in enumerate([3 * MS, 10 * MS, 4 * MS])
            )
        )
        (text,) = (one.text for one in run.findings() if one.rule == "stragglers")
        assert "In the longest delay (6.00 ms), it was in one `aten::view` for 8.00 ms" in text
        table = run.collectives(per_rank=True).query("collective == 1")
        assert table["lead_name_ns"].tolist() == [1 * MS, 8 * MS, 2 * MS]

    @staticmethod
    def told(delay: int) -> dict[str, str]:
        """What is said of a run of 1000 ns in which rank 1 is that late."""
        starts = {0: [0, 800 - delay], 1: [0, 800], 2: [0, 800 - delay]}
        return {one.rule: one.text for one in run_of(*in_lockstep(starts, moving=200)).findings()}

    def test_the_rule_fires_from_five_percent_on(self) -> None:
        assert "In total, it came 50 ns after the second to last" in self.told(50)["stragglers"]
        assert "stragglers" not in self.told(49)

    def test_waiting_is_told_from_five_percent_on(self) -> None:
        assert "The average rank spent" in self.told(75)["waiting_for_others"]
        assert "waiting_for_others" not in self.told(74)

    def test_its_range_is_that_of_the_longest_delay(self) -> None:
        run = run_of(*in_lockstep({0: [0, 2000, 4000], 1: [100, 2900, 4300]}, moving=100))
        (finding,) = (one for one in run.findings() if one.rule == "stragglers")
        assert (finding.start_ns, finding.end_ns) == (2000, 2900)
        assert finding.cost_ns == 100 + 900 + 300

    def test_ranks_that_take_turns_are_not_blamed_alone(self) -> None:
        starts = {rank: [n * 2000 + 900 * (n % 4 == rank) for n in range(8)] for rank in range(4)}
        run = run_of(*in_lockstep(starts, moving=100))
        (general,) = (one for one in run.findings() if one.rule == "waiting_for_others")
        assert "take turns" in general.remedy


class TestSteps:
    def test_own_time_is_without_waiting(self) -> None:
        run = run_of(
            *(
                rank_record(
                    rank,
                    annotation("ProfilerStep#1", ts=0, dur=1000),
                    computing(0, 20 * rank),
                    collective(come, 1000),
                )
                for rank, come in ((4, 300), (6, 900))
            )
        )
        table = run.steps()
        columns = ["step", "rank", "start_ns", "end_ns", "dur_ns"]
        assert table[columns].to_numpy().tolist() == [[1, 4, 0, 1000, 1000], [1, 6, 0, 1000, 1000]]
        assert table["compute_ns"].tolist() == [80, 120]
        assert table["gpu_busy_ns"].tolist() == [80 + 700, 120 + 100]
        assert table["waited_ns"].tolist() == [600, 0]
        assert table["own_ns"].tolist() == [400, 1000]
        assert table["imbalance"].tolist() == pytest.approx([400 / 700 - 1, 1000 / 700 - 1])


def test_the_time_of_each_rank_is_computing_waiting_moving_copying_or_idle() -> None:
    run = run_of(
        rank_record(
            0, computing(0, 300), collective(400, 1000), copy(ts=1000, dur=50, stream=9), host="box"
        ),
        rank_record(1, computing(0, 800), collective(900, 1000), host="box"),
    )
    table = overview(run.job.timed, run.collectives(per_rank=True))
    assert list(table)[1:] == [
        *("span_ns", "computing_ns", "waiting_ns", "moving_ns", "copying_ns", "idle_ns")
    ]
    assert table.to_numpy().tolist() == [
        [0, 1050, 300, 500, 100, 50, 100],
        [1, 1000, 800, 0, 100, 0, 100],
    ]


def test_one_rank_alone_has_nobody_to_wait_for() -> None:
    run = run_of(rank_record(0, collective(0, 100)))
    assert not len(run.collectives())
    assert run.findings() == []
    assert run.alignment()["shift_ns"].tolist() == [0]


@pytest.fixture(scope="module")
def megatron(shared: Shared) -> RankProfiles:
    return gpuprof_widgets.ranks(shared("megatron-tp8"))


@pytest.fixture(scope="module")
def raw_kernels(shared: Shared) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends (µs) of NCCL's kernels, by rank and order, from the JSON itself."""
    starts, ends = [], []
    for rank in range(8):
        with gzip.open(shared(f"megatron-tp8/rank{rank}.json.gz")) as file:
            events = json.load(file)["traceEvents"]
        nccl = sorted(
            (event["ts"], event["dur"])
            for event in events
            if event.get("cat") == "kernel" and "nccl" in event["name"]
        )
        starts.append([ts for ts, _ in nccl])
        ends.append([ts + dur for ts, dur in nccl])
    return np.array(starts, np.int64), np.array(ends, np.int64)


class TestMegatron:
    """Eight ranks of tensor parallelism on one machine, 84 all_reduces each."""

    def test_waiting_is_that_of_the_raw_events(
        self, megatron: RankProfiles, raw_kernels: tuple[np.ndarray, np.ndarray]
    ) -> None:
        start, end = raw_kernels
        waited = (start.max(axis=0) - start).sum(axis=1) * US
        table = megatron.stragglers().set_index("rank").sort_index()
        assert table["waited_ns"].tolist() == waited.tolist()
        order = np.sort(start, axis=0)
        assert int(table["delay_ns"].sum()) == int((order[-1] - order[-2]).sum() * US)
        transfer = (end.max(axis=0) - start.max(axis=0)) * US
        assert megatron.collectives()["transfer_ns"].tolist() == transfer.tolist()

    def test_two_ranks_are_late_because_of_their_cpus(
        self, megatron: RankProfiles, shared: Shared
    ) -> None:
        worst = megatron.stragglers().head(2)
        assert worst["rank"].tolist() == [0, 6]
        assert (worst["idle_ns"] > 0.99 * worst["delay_ns"]).all()
        texts = [one.text for one in megatron.findings() if one.rule == "stragglers"]
        assert len(texts) == 2
        assert all("its GPU was idle, mostly while its CPU was in CPU ops" in t for t in texts)
        assert (
            "it was in one `aten::view_as` for 16.4 ms" in texts[1]
        )  # it was stopped: it does nothing
        with gzip.open(shared("megatron-tp8/rank6.json.gz")) as file:
            events = json.load(file)["traceEvents"]
        stopped = [event["dur"] for event in events if event.get("name") == "aten::view_as"]
        assert max(stopped) == 17_749  # µs, of which 16.4 ms after the collective before

    def test_clocks_of_one_machine_agree(self, megatron: RankProfiles) -> None:
        assert megatron.alignment()["shift_ns"].eq(0).all()
        assert megatron.alignment()["offset_ns"].abs().max() < 20 * US

    def test_data_moves_at_the_speed_of_nvlink(self, megatron: RankProfiles) -> None:
        """Third generation: 300 GB/s per direction, of which NCCL reaches 230 or so at best."""
        large = megatron.collectives().query("bytes > 1_000_000")
        assert large["bytes"].unique().tolist() == [4 * 2048 * 4096 * 2]
        assert 150e9 < large["bus_bytes_per_s"].median() < 230e9


def test_reducing_a_record_changes_nothing_in_it() -> None:
    record = rank_record(0, collective(0, 100), computing(100, 300), collective(400, 500))
    before = digest(record)
    reduced(record)
    assert digest(record) == before

"""Holistic Trace Analysis on many ranks: overlap, classes of time and stragglers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.many_ranks.profiles import RankProfiles
from tests.hta_oracle import hta_of_ranks
from tests.job import US
from tests.traces import Shared

CHOSEN = (0, 4, 6)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of HTA's own making


@pytest.fixture(scope="module")
def both(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> tuple[RankProfiles, Any]:
    """Ours and HTA's; it knows NCCL's kernels by their former name alone, so they have that."""
    folder = tmp_path_factory.mktemp("megatron")
    files = {
        rank: _with_former_names(shared(f"megatron-tp8/rank{rank}.json.gz"), folder)
        for rank in CHOSEN
    }
    return gpuprof_widgets.ranks(files.values()), hta_of_ranks(files)


def test_it_has_the_same_times(both: tuple[RankProfiles, Any]) -> None:
    run, oracle = both
    hidden = oracle.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]
    each = run.collectives(per_rank=True).groupby("rank")[["dur_ns", "exposed_ns"]].sum()
    assert hidden.tolist() == pytest.approx((1 - each["exposed_ns"] / each["dur_ns"]) * 100)
    times = oracle.get_temporal_breakdown(visualize=False).set_index("rank")
    table = run.breakdown().query("step == -1").set_index(["rank", "class"])["time_ns"]
    for rank in CHOSEN:
        assert table[rank, "compute"] == times["compute_time(us)"][rank] * US
        rest = ("exposed communication", "exposed copy", "memset")
        own_rest = sum(int(table[rank, name]) for name in rest)
        assert own_rest == times["non_compute_time(us)"][rank] * US


def _with_former_names(trace: Path, folder: Path) -> Path:
    data = gzip.decompress(trace.read_bytes())
    path = folder / trace.with_suffix("").name
    path.write_bytes(data.replace(b"ncclDevKernel_", b"ncclKernel_"))
    return path


@pytest.mark.parametrize("late", [0, 1, 2])
def test_it_names_the_same_straggler_where_its_kernels_are_long(late: int, tmp_path: Path) -> None:
    starts = {rank: [1000 + 100 * rank, 1500 - 100 * rank] for rank in range(3)}
    starts[late] = [6000, 7000]
    files = {rank: tmp_path / f"rank{rank}.json" for rank in starts}
    for rank, file in files.items():
        file.write_text(json.dumps(_kineto(rank, starts[rank])))
    assert hta_of_ranks(files).get_potential_stragglers(num_candidates=1) == [late]
    worst = gpuprof_widgets.ranks(tmp_path).stragglers().iloc[0]
    others = [starts[rank] for rank in starts if rank != late]
    delay = sum(starts[late][step] - max(other[step] for other in others) for step in (0, 1))
    assert (worst["rank"], worst["last"], worst["delay_ns"]) == (late, 2, delay * US)


def _kineto(rank: int, starts: list[int], step_us: int = 10_000) -> dict[str, Any]:
    """A step per start: an all_reduce from then (µs in the step) until 500 µs before its end."""
    events = []
    for number, at in enumerate(starts, 1):
        begin = number * step_us
        link = {"External id": number, "correlation": number}
        cpu = {"ph": "X", "pid": 1, "tid": 1}
        gpu = {"ph": "X", "pid": 0, "tid": 20, "args": link | {"device": 0, "stream": 20}}
        step = {"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": begin}
        issued = {"cat": "cpu_op", "name": "c10d::allreduce_", "ts": begin + 10, "dur": 20}
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 15, "dur": 5}
        kernel = {"cat": "kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"}
        events += [
            cpu | step | {"dur": step_us - 1, "args": {"External id": 1000 + number}},
            cpu | issued | {"args": {"External id": number}},
            cpu | launch | {"args": link},
            gpu | kernel | {"ts": begin + at, "dur": step_us - 500 - at},
        ]
    about = {"backend": "nccl", "rank": rank, "world_size": 3}
    return {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}

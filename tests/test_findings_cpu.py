"""Ops on the CPU: threads and CPUs, and what is no op to make faster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gpuprof_widgets.analyses.cold_start import is_communication, is_compiling, is_dispatch
from gpuprof_widgets.analyses.findings import FINDINGS, Finding
from gpuprof_widgets.capture import environment
from gpuprof_widgets.capture.environment import ProcessState, cpus
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse
from tests import cells
from tests.traces import Row, annotation, backward_op, kernel, op, trace_of

pytestmark = pytest.mark.slow

TAKEN = {"wall_ns": 10**9, "cpu_ns": 10**9, "preemptions": 400}
FREE = {**TAKEN, "preemptions": 49}


def of_ops(record: Record) -> Finding:
    (finding,) = FINDINGS["cpu_ops"](record)
    return finding


def alike(name: str, **metadata: Any) -> Record:
    """Three calls of an op, of 1 ms each."""
    return trace_of(*(op(name, ts=n * 10**7, dur=10**6) for n in range(3)), **metadata)


def uneven(**metadata: Any) -> Record:
    """One op in six takes 50 times as long as the others."""
    durations = [10_000] * 90 + [500_000] * 10
    calls = [op("aten::mm", ts=at * 10**6, dur=dur) for at, dur in enumerate(durations)]
    return trace_of(*calls, **metadata)


@pytest.mark.parametrize(
    ("name", "metadata", "says"),
    [
        ("aten::mm", {"cpus": 8, "torch_threads": 1}, "Call torch.set_num_threads(8)."),
        ("aten::add_", {"cpus": 8, "torch_threads": 4}, "Call torch.set_num_threads(8)."),
        ("aten::mm", {"cpus": 8, "torch_threads": 8, "cpu_use": FREE}, ""),
        ("aten::mm", {}, ""),
        ("aten::mm", {"cpus": 8}, ""),
        ("aten::nonzero", {"cpus": 8, "torch_threads": 1}, ""),
        ("mine::op", {"cpus": 8, "torch_threads": 1}, ""),
        ("aten::mm", {"cpus": 8, "torch_threads": 1, "rank": 0, "world_size": 4}, ""),
        ("aten::mm", {"cpus": 2, "torch_threads": 8}, ""),
        ("aten::mm", {"cpus": 2, "torch_threads": 2, "cpu_use": TAKEN}, ""),
        ("aten::mm", {"cpus": 2, "torch_threads": 1, "cpu_use": TAKEN}, ""),
        ("aten::mm", {"cpus": 2, "torch_threads": 1, "cpu_use": FREE}, "use 2 CPUs. Call torch."),
    ],
)  # fmt: skip
def test_more_threads_are_asked_for_where_they_are_known_to_help(
    name: str, metadata: dict[str, Any], says: str
) -> None:
    remedy = of_ops(alike(name, **metadata)).remedy
    assert says in remedy
    assert ("threads" in remedy) == bool(says)


def test_calls_that_vary_wildly_may_be_due_to_threads_where_nothing_is_known_of_these() -> None:
    assert "Threads also wait for one another" in of_ops(uneven()).remedy
    assert "threads" not in of_ops(uneven(cpus=8, torch_threads=8, cpu_use=FREE)).remedy


INTERRUPTED = (
    "The system interrupted its threads 400 times for other programs, ranks or workers. That may "
    "be the reason: measure again while nothing else runs."
)


@pytest.mark.parametrize(
    ("durations", "metadata", "remedy"),
    [
        ((30, 970), {"cpu_use": TAKEN}, f"the other takes 30.0 µs. {INTERRUPTED}"),
        ((30, 970), {"cpu_use": FREE}, "the other takes 30.0 µs. Check whether its tensors are "
         "larger, and look at the timeline for what else ran then, on this thread and on others."),
        ((*[10] * 90, *[500] * 10), {"cpu_use": TAKEN, "torch_threads": 2, "cpus": 2},
         f"took most of that time; the median call takes 10.0 µs. {INTERRUPTED}"),
        # Threads of its own wait for one another: no other program is to blame.
        ((30, 970), {"cpu_use": TAKEN, "torch_threads": 8, "cpus": 2}, "the other takes 30.0 µs. "
         "Check whether its tensors are larger, and look at the timeline for what else ran then, "
         "on this thread and on others."),
        ((970, 30), {"cpu_use": TAKEN}, "The first call may set up a library or its threads: warm "
         "up before measuring (--steps with --warmup). Measure while nothing else runs: the "
         "system interrupted its threads 400 times for other programs, ranks or workers."),
        ((60, 40), {"cpu_use": TAKEN}, "The median call takes 50.0 µs: smaller sizes or a GPU "
         "make it shorter. Other programs used the CPUs at the same time. Without them, it takes "
         "less."),
        ((60, 40), {"cpu_use": FREE}, "The median call takes 50.0 µs: smaller sizes or a GPU make "
         "it shorter."),
    ],
)  # fmt: skip
def test_what_interrupts_the_process_is_the_likelier_cause_of_calls_that_stand_out(
    durations: tuple[int, ...], metadata: dict[str, Any], remedy: str
) -> None:
    calls = [op("aten::mm", ts=at * 10**6, dur=1000 * dur) for at, dur in enumerate(durations)]
    assert of_ops(trace_of(*calls, **metadata)).remedy.endswith(remedy)


def of_threads(record: Record) -> list[Finding]:
    return FINDINGS["cpu_threads"](record)


@pytest.mark.parametrize(
    ("metadata", "says", "remedy", "cost"),
    [
        ({"cpus": 2, "torch_threads": 8}, "on 8 threads, but this process may "
         "use only 2 CPUs. Threads wait for one another in ops that took 3.00 ms.",
         "Call torch.set_num_threads(2).", 3),
        ({"cpus": 8, "torch_threads": 8, "world_size": 4}, "This is one of 4 ranks, and each "
         "runs its ops on 8 threads. If the ranks share 8 CPUs",
         "torch.set_num_threads(2) in each", 3),
        ({"cpus": 2, "torch_threads": 2, "cpu_use": TAKEN}, "The system interrupted its "
         "threads 400 times in 1.00 s of CPU time. PyTorch runs",
         "try torch.set_num_threads(1).", 0),
    ],
)  # fmt: skip
def test_threads_that_hold_one_another_up_are_told_once(
    metadata: dict[str, Any], says: str, remedy: str, cost: int
) -> None:
    (finding,) = of_threads(alike("aten::mm", **metadata))
    assert says in finding.text
    assert remedy in finding.remedy
    assert finding.cost_ns == cost * 10**6
    assert finding.remedy not in of_ops(alike("aten::mm", **metadata)).remedy


@pytest.mark.parametrize(
    ("queued", "share", "says"),
    [
        (400_000_000, 0.4, "of CPU time, and the thread of the run was ready for 8.40 ms (40 %) "
         "without a CPU. PyTorch runs"),
        (0, 0.0, "of CPU time. PyTorch runs"),
        (10**10, 1.0, "without a CPU"),
        (-5, 0.0, "of CPU time. PyTorch runs"),
    ],
)  # fmt: skip
def test_contention_costs_what_the_run_waited_for_a_cpu(
    queued: int, share: float, says: str
) -> None:
    use = {**TAKEN, "queued_ns": queued}
    record = alike("aten::mm", cpus=2, torch_threads=2, cpu_use=use)
    (finding,) = of_threads(record)
    assert (finding.share, finding.cost_ns) == (share, share * 21_000_000)
    assert says in finding.text
    calm = {**use, "preemptions": 49}
    assert of_threads(alike("aten::mm", cpus=2, torch_threads=2, cpu_use=calm)) == []


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("aten::mm", {}),
        ("aten::mm", {"cpus": 8, "torch_threads": 8, "cpu_use": FREE}),
        ("aten::mm", {"cpus": 2, "torch_threads": 1, "cpu_use": TAKEN}),
        ("aten::mm", {"cpus": 8, "torch_threads": 2, "world_size": 4}),
        ("aten::nonzero", {"cpus": 2, "torch_threads": 8}),
    ],
)
def test_threads_are_not_spoken_of_otherwise(name: str, metadata: dict[str, Any]) -> None:
    assert of_threads(alike(name, **metadata)) == []


def shared_out(took: int, *beside: Row) -> Record:
    """An op of so long in a run of 1000 ns, on more threads than there are CPUs."""
    ops = [op("aten::mm", ts=0, dur=took), op("aten::nonzero", ts=100, dur=900)]
    return trace_of(*ops, *beside, cpus=2, torch_threads=8)


CASES = {"cpu_threads": (shared_out(50), shared_out(49))}


def test_threads_are_no_matter_beside_a_gpu() -> None:
    assert of_threads(shared_out(50, kernel("sgemm", ts=60, dur=30))) == []


@pytest.mark.parametrize(("wall_ns", "named"), [(50_000, True), (50_001, False)])
def test_ops_that_take_next_to_nothing_are_not_ranked(wall_ns: int, named: bool) -> None:
    finding = of_ops(trace_of(op("aten::mm", ts=0, dur=1000), wall_ns=wall_ns))
    assert ("aten::mm" in finding.text) == named
    assert ("took 1.00 µs of this run's 50.0 µs" in finding.text) != named
    assert bool(finding.remedy) == named


@pytest.mark.parametrize("bf16", [True, False])
def test_bfloat16_is_named_for_products_of_a_cpu_that_multiplies_in_it(bf16: bool) -> None:
    assert ("bfloat16" in of_ops(alike("aten::mm", cpu_bf16=bf16)).remedy) == bf16
    assert "bfloat16" not in of_ops(alike("aten::tanh", cpu_bf16=bf16)).remedy
    record = trace_of(
        op("aten::addmm", ts=0, dur=100, sequence=3),
        *backward_op("AddmmBackward0", ts=500, dur=200, sequence=3),
        cpu_bf16=bf16,
    )
    (finding,) = FINDINGS["backward"](record)
    assert ("bfloat16" in finding.remedy) == bf16


PLUMBING = {
    "c10d::allreduce_": "communication",
    "_c10d_functional::wait_tensor": "communication",
    "record_param_comms": "communication",
    "fsdp::all_gather_copy_in": "communication",
    "compile_file (dynamo_timed)": "torch.compile's own work",
    "_compile.compile_inner (dynamo_timed)": "torch.compile's own work",
    "entire_frame_compile": "torch.compile's own work",
    "PythonDispatchMode": "hooks and Python that hands over",
    "PythonSubclass": "hooks and Python that hands over",
    "Torch-Compiled Region: 0/0": "hooks and Python that hands over",
}


@pytest.mark.parametrize("name", PLUMBING)
def test_what_is_no_op_to_make_faster_does_not_lead(name: str) -> None:
    ops = [op("aten::mm", ts=0, dur=30_000), op("aten::add", ts=40_000, dur=20_000)]
    finding = of_ops(trace_of(*ops, op(name, ts=100_000, dur=900_000)))
    assert finding.text == (
        "No GPU activity was recorded. `aten::mm` took 30.0 µs in 1 call (3.0 % of the time, 60 "
        "% of CPU op time). Next: `aten::add` (40 %). This leaves out time in which no op "
        f"computes: {PLUMBING[name]} 900 µs (`{name}`)."
    )
    assert finding.cost_ns == 30_000
    little = of_ops(trace_of(*ops, op(name, ts=100_000, dur=50_000)))
    assert "This leaves out" not in little.text
    alone = of_ops(trace_of(op(name, ts=0, dur=900_000)))
    assert (alone.cost_ns, alone.remedy) == (0, "")
    assert "This leaves out" in alone.text


def test_what_torch_compile_runs_to_compile_is_its_own_and_what_it_compiled_is_not() -> None:
    rows: list[Row] = [
        op("_compile.compile_inner (dynamo_timed)", ts=0, dur=500),
        op("aten::mul", ts=10, dur=100),
        op("Torch-Compiled Region: 0/0", ts=600, dur=300),
        op("aten::mul", ts=610, dur=200),
    ]
    trace = trace_of(*rows).trace
    assert is_compiling(trace).tolist() == [True, True, False, False]
    assert is_dispatch(trace).tolist() == [False, False, True, False]
    finding = of_ops(trace_of(*rows))
    assert (
        "`aten::mul` took 200 ns in 1 call (22 % of the time, 100 % of CPU op time)" in finding.text
    )
    assert finding.start_ns == 610


def test_what_a_backend_marks_is_communication_and_a_region_of_the_user_is_not() -> None:
    rows = [annotation("gloo:all_reduce", ts=0, dur=9), annotation("all_reduce", ts=20, dur=9)]
    assert is_communication(trace_of(*rows).trace).tolist() == [True, False]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["DDP", "FSDP"])
def test_a_rank_is_not_told_to_make_collectives_and_hooks_faster(group: None, kind: str) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    wrapped: Any = model
    if kind == "DDP":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        for layer in [*model, model]:
            fully_shard(layer, mesh=mesh)
    names = {"__name__": "__main__", "model": wrapped, "x": torch.ones(4, 8)}
    outcome, record = cells.recorded("for _ in range(3): model(x).sum().backward()", names)
    assert not outcome.error
    assert is_communication(record.trace).any()
    assert is_dispatch(record.trace).any()
    led = of_ops(record).text.split("This leaves out")[0]
    assert not [word for word in ("c10d", "Python", "engine", "fsdp::", "Hook") if word in led]
    told = FINDINGS["backward"](record, backward_share=0, backward_large_share=0)
    assert not [one.text for one in told if "RegisterPostBackward" in one.text]


def test_what_compiling_takes_is_blamed_on_no_op() -> None:
    body = (
        "f = torch.compile(lambda x: x.sin() + 1, backend='aot_eager')\ny = f(x).sum().backward()"
    )
    names = {"__name__": "__main__", "torch": torch, "x": torch.ones(4, requires_grad=True)}
    torch._dynamo.reset()
    outcome, record = cells.recorded(body, names)
    assert not outcome.error
    finding = of_ops(record)
    assert "torch.compile's own work" in finding.text
    assert "dynamo" not in finding.text.split("This leaves out")[0]
    assert not [one for one in FINDINGS["backward"](record) if "times as long as" in one.text]


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({}, 64),
        ({"cpu.max": "nonsense"}, 64),
    ],
)
def test_the_cpus_are_those_of_the_process_and_of_its_container(
    files: dict[str, str], limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(environment, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert cpus() == limit


def test_a_recording_knows_its_threads_its_cpus_and_what_it_used() -> None:
    _, record = cells.recorded("x = [n * n for n in range(10_000)]")
    told = record.metadata
    assert told["torch_threads"] == torch.get_num_threads()
    assert 1 <= told["cpus"] <= (os.cpu_count() or 1)
    assert isinstance(told["cpu_bf16"], bool)
    assert set(told["cpu_use"]) - {"queued_ns"} == {"wall_ns", "cpu_ns", "preemptions"}
    assert told["cpu_use"]["wall_ns"] > 0
    assert told["anomaly_mode"] is False


def test_several_windows_add_up_and_a_second_stop_adds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = ("wall_ns", "cpu_ns", "preemptions", "queued_ns")
    counts = ((0, 0, 5, 1), (10, 7, 6, 3), (100, 50, 9, 3), (130, 60, 9, 8), (999, 999, 999, 999))
    moments = iter([dict(zip(keys, count, strict=True)) for count in counts])
    monkeypatch.setattr("gpuprof_widgets.capture.environment._usage", lambda: next(moments))
    part = ProcessState(Context(Options(), "x", {}, {}))
    assert "cpu_use" not in part.metadata()
    for turn in (part.start, part.stop, part.start, part.stop, part.stop):
        turn()
    assert part.metadata()["cpu_use"] == {
        "wall_ns": 40,
        "cpu_ns": 17,
        "preemptions": 1,
        "queued_ns": 7,
    }


def test_the_wait_of_another_thread_is_not_that_of_the_run() -> None:
    part = ProcessState(Context(Options(), "x", {}, {}))
    part.start()
    other = Thread(target=part.stop)
    other.start()
    other.join()
    assert set(part.metadata()["cpu_use"]) == {"wall_ns", "cpu_ns", "preemptions"}


@pytest.mark.parametrize(
    ("text", "known"),
    [("500 70 3\n", {"queued_ns": 70}), ("nonsense here", {}), ("1", {}), (None, {})],
)
def test_the_wait_for_a_cpu_is_known_where_the_system_counts_it(
    text: str | None, known: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedstat = tmp_path / "schedstat"
    if text is not None:
        schedstat.write_text(text)
    monkeypatch.setattr(environment, "SCHEDSTAT", schedstat)
    usage = environment._usage()
    assert {key: ns for key, ns in usage.items() if key == "queued_ns"} == known
    assert {"wall_ns", "cpu_ns", "preemptions"} <= set(usage)


def test_regions_that_took_no_time_are_not_ranked() -> None:
    rows = [{"ph": "X", "cat": "mine", "name": "a", "ts": 1, "dur": 0, "pid": 1, "tid": 1}]
    record = parse(json.dumps({"traceEvents": rows}).encode(), Path("regions.json"))
    assert FINDINGS["cpu_ops"](record) == []

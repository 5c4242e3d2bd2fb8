"""TensorFlow's Timeline: launching told from running, nothing counted twice, input waits, memory.

``data/tensorflow_2_21_queue_and_memory.json.gz`` was written by TensorFlow 2.21 (``compat.v1``) on
a CPU: a training step that waits 50 ms for a queue, with ``show_memory=True``.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuprof_widgets
from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load, parse
from tests.test_every_trace import all_answers
from tests.timelines import (
    CPU,
    DATA,
    GPU,
    GPU_COPIES,
    GPU_STREAM,
    Event,
    arrow,
    node,
    tensor,
    timeline,
)
from tests.traces import Shared

pytestmark = pytest.mark.slow

REAL = DATA / "tensorflow_2_21_queue_and_memory.json.gz"
GPU_STEP = "tf-timeline/gpu_step_0.json.gz"


@pytest.fixture
def step() -> Record:
    """One op on the CPU, two that launch: a matmul with a copy before it, and one twice."""
    kernels = [
        node("MatMul", "dense/MatMul", ts=40, dur=30),
        node("Softmax", "loss/Softmax", ts=75, dur=2),
        node("Softmax", "loss/Softmax", ts=80, dur=2),
    ]
    copies = [
        node("MEMCPYHtoD", "edge_3_x", ts=12, dur=5),
        node("MatMul", "dense/MatMul", ts=30, dur=1),
    ]
    return timeline({
        CPU: [node("Const", "x", ts=0, dur=4)],
        GPU: [
            node("MatMul", "dense/MatMul", ts=20, dur=10, inputs=["x", "w"]),
            node("Softmax", "loss/Softmax", ts=24, dur=5, lane=1, inputs=["dense/MatMul"]),
            *arrow("dense/MatMul", 0, out=(0, 30), into=(1, 24)),
        ],
        GPU_STREAM.format("all"): kernels,
        GPU_STREAM.format(12): kernels,
        GPU_COPIES: copies,
        GPU_STREAM.format(13): copies[:1],
        GPU_STREAM.format(7): copies[1:],
    })  # fmt: skip


def of(record: Record, category: str) -> pd.DataFrame:
    slices = record.trace.slices
    return slices[slices["category"] == category]


def test_rows_are_told_apart_as_launching_and_running(step: Record) -> None:
    assert list(of(step, "cpu_op")["name"].sort_values()) == ["Const", "MatMul", "Softmax"]
    assert list(of(step, "kernel")["name"]) == ["MatMul", "Softmax", "Softmax"]
    assert sorted(of(step, "gpu_memcpy")["name"]) == ["Memcpy", "Memcpy HtoD"]
    tracks = step.trace.tracks.set_index("label")
    assert list(tracks["kind"][["launching for GPU 0 · lane 0", "CPU 0"]]) == ["cpu", "cpu"]
    assert list(tracks.loc["GPU 0 · stream 12", ["kind", "device", "stream"]]) == ["gpu", 0, 12]


@settings(max_examples=15)
@given(st.lists(st.tuples(*(st.integers(1, 4),) * 4), min_size=1, max_size=12), st.randoms())
def test_whatever_stands_on_streams_counts_once(
    pieces: list[tuple[int, ...]], order: Random
) -> None:
    """Also where streams run equal pieces at once, and ``stream:all`` has another order."""
    work = [(stream, node("Op", f"n{name}", ts=ts, dur=dur)) for stream, ts, dur, name in pieces]
    everything = [event for _, event in work]
    order.shuffle(everything)
    streams = {stream for stream, _ in work}
    record = timeline({
        GPU_STREAM.format("all"): everything,
        **{GPU_STREAM.format(one): [e for s, e in work if s == one] for one in streams},
    })  # fmt: skip
    slices, tracks = record.trace.slices, record.trace.tracks
    found = zip(tracks["stream"][slices["track"]], slices["dur"] // 1000, strict=True)
    assert Counter(found) == Counter((stream, event["dur"]) for stream, event in work)


def test_work_that_only_all_streams_know_is_kept() -> None:
    work = node("Relu", "relu", ts=5, dur=1)
    record = timeline({GPU: [work], GPU_STREAM.format("all"): [work], GPU_COPIES: [
        node("MEMCPYDtoH", "edge_1_y", ts=9, dur=2)]})  # fmt: skip
    assert list(of(record, "kernel")["dur"]) == [1000]
    assert list(of(record, "gpu_memcpy")["name"]) == ["Memcpy DtoH"]


def test_a_kernel_s_launch_is_the_op_of_its_node(step: Record) -> None:
    trace = step.trace
    launch = of(step, "kernel")["launch"].to_numpy()
    assert list(trace.slices["name"].iloc[launch]) == ["MatMul", "Softmax", "Softmax"]
    assert list(of(step, "kernel")["op"]) == list(launch)
    copies = of(step, "gpu_memcpy").set_index("name")["launch"]
    assert copies["Memcpy HtoD"] == -1
    assert trace.slices["name"].iloc[copies["Memcpy"]] == "MatMul"
    waited = ANALYSES["launches"].function(step)
    assert set(waited["launch_name"] if "launch_name" in waited else waited["name"]) >= {"MatMul"}


def test_a_node_that_ran_again_launched_what_followed_it() -> None:
    runs = [node("Add", "loop/add", ts=at, dur=2) for at in (0, 100)]
    work = [node("Add", "loop/add", ts=at, dur=3) for at in (5, 110)]
    record = timeline({GPU: runs, GPU_STREAM.format(3): work})
    trace = record.trace
    launch = of(record, "kernel")["launch"].to_numpy()
    assert list(trace.slices["ts"].iloc[launch]) == [0, 100_000]


def test_gpus_of_several_hosts_are_different_ones() -> None:
    hosts = [f"/job:worker/replica:0/task:{task}/device:GPU:0" for task in (0, 1)]
    work = [node("MatMul", f"tower_{task}/MatMul", ts=5 + task, dur=4) for task in (0, 1)]
    record = timeline(
        {host: [event] for host, event in zip(hosts, work, strict=True)}
        | {f"{host}/stream:7": [event] for host, event in zip(hosts, work, strict=True)}
    )
    trace = record.trace
    kernels = of(record, "kernel")
    assert sorted(trace.tracks["device"][kernels["track"]]) == [0, 1]
    launching = trace.tracks["label"][trace.slices["track"][kernels["launch"]]]
    assert sorted(launching) == [
        f"launching for GPU 0 of job:worker/replica:0/task:{task}" for task in (0, 1)
    ]


def test_arrows_of_data_join_ops_whatever_rows_are_left_out(step: Record) -> None:
    """The writer draws them between lanes alone; this one goes back in time, as some in loops."""
    assert not (step.trace.flows["kind"] == "DataFlow").any()
    assert any("arrows" in note for note in step.metadata["notes"])
    again = [node("Relu", "relu", ts=1, dur=1)]
    record = timeline({
        GPU_STREAM.format("all"): again,
        GPU_STREAM.format(1): again,
        CPU: [
            node("Const", "c", ts=0, dur=4),
            node("Neg", "n", ts=9, dur=4, lane=1, inputs=["c"]),
            *arrow("c", 0, out=(0, 4), into=(1, 9)),
        ],
    })  # fmt: skip
    names = record.trace.slices["name"]
    (found,) = record.trace.flows.to_dict("records")
    assert (names[found["source"]], names[found["target"]], found["kind"]) == (
        "Const",
        "Neg",
        "DataFlow",
    )


@pytest.mark.parametrize(
    "name", ["QueueDequeueV2", "QueueDequeueManyV2", "IteratorGetNext", "Unstage"]
)
def test_the_gpu_waits_for_the_input_while_an_op_takes_a_batch(name: str) -> None:
    work = [node("MatMul", "mm", ts=at, dur=10) for at in (0, 100)]
    record = timeline({
        CPU: [node(name, "batch", ts=15, dur=80, lane=1)],
        GPU: [node("MatMul", "mm", ts=at, dur=1) for at in (0, 99)],
        GPU_STREAM.format("all"): work,
        GPU_STREAM.format(2): work,
    })  # fmt: skip
    classes = ANALYSES["breakdown"].function(record).set_index("class")["time_ns"]
    assert classes["input pipeline"] == 80_000
    waits = ANALYSES["waits"].function(record)
    assert [(one.kind, one.name, one.dur_ns) for one in waits.itertuples()] == [
        ("dataloader", name, 80_000)
    ]
    longest = ANALYSES["idle"].function(record).iloc[0]
    assert (longest["cause"], longest["dur_ns"]) == ("dataloader", 90_000)


def test_taking_a_batch_while_another_op_runs_is_no_wait_for_it() -> None:
    record = timeline({
        CPU: [
            node("QueueDequeueV2", "batch", ts=0, dur=100),
            node("MatMul", "mm", ts=20, dur=50, lane=1),
        ]
    })  # fmt: skip
    classes = ANALYSES["breakdown"].function(record).set_index("class")["time_ns"]
    assert (classes["input pipeline"], classes["CPU ops"]) == (50_000, 50_000)


def test_the_finding_names_the_op_that_waited_and_no_workers() -> None:
    record = timeline(
        {CPU: [node("QueueDequeueV2", "q", ts=0, dur=90), node("Add", "a", ts=95, dur=5)]}
    )
    (finding,) = [one for one in findings(record) if one.rule == "dataloader"]
    assert "waited for its input (`QueueDequeueV2`)" in finding.text
    assert "workers" not in finding.text + finding.remedy


def test_no_finding_tells_to_use_pytorch() -> None:
    """The same run without its framework's name gets PyTorch's remedies."""
    record = timeline({
        GPU: [node("MatMul", f"mm{n}", ts=n * 10_000, dur=9_000) for n in range(9)],
        GPU_STREAM.format(1): [
            node("MatMul", f"mm{n}", ts=n * 10_000 + 9_500, dur=99) for n in range(9)
        ],
    })  # fmt: skip
    said = " ".join(f"{one.text} {one.remedy}" for one in findings(record))
    assert "launch less, or use larger batches" in said
    assert not re.search("torch|DataLoader|num_workers", said, re.IGNORECASE)
    usual = findings(Record(record.trace, None, {}))
    assert any("launch less (torch.compile" in one.remedy for one in usual)


def test_an_op_of_that_name_in_another_program_is_no_wait() -> None:
    from tests.traces import op, trace_of

    assert not len(ANALYSES["waits"].function(trace_of(op("Unstage", ts=0, dur=9))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "tf-timeline/cpu_step_0.json.gz", GPU_STEP])
def test_all_analyses_and_the_report_work_on_it(name: str, shared: Shared) -> None:
    path = shared(name) if name else REAL
    record = load(path)
    assert all_answers(record) == {}
    page = gpuprof_widgets.load(path).report()
    assert "<html" in page.lower()


def test_a_real_step_on_a_gpu(shared: Shared) -> None:
    path = shared(GPU_STEP)
    record = load(path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    name = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    busy = Counter[str]()
    for event in events:
        if event["ph"] == "X":
            busy[name[event["pid"]]] += event["dur"] * 1000
    kernels, copies = of(record, "kernel"), of(record, "gpu_memcpy")
    assert kernels["dur"].sum() == busy["/gpu:0/stream:all Compute"]
    assert copies["dur"].sum() == busy["/gpu:0/memcpy Compute"]
    assert (kernels["launch"] >= 0).all()
    names, nodes = record.trace.slices["name"], record.trace.args["name"]
    assert (nodes[kernels.index].to_numpy() == nodes[kernels["launch"]].to_numpy()).all()
    assert len(record.trace.flows[record.trace.flows["kind"] == "DataFlow"]) == 14
    assert names[copies["launch"].max()] == "MatMul"


def test_the_one_slow_launch_of_the_real_step_is_told_once(shared: Shared) -> None:
    """Its first product loads the kernels; no call of the runtime is in the trace, only ops."""
    said = {one.rule: one for one in findings(load(shared(GPU_STEP)))}
    assert "went into one launch (112 ms): the first launch" in said["device_idle"].remedy
    assert "launch_bound" not in said


@pytest.mark.parametrize(
    ("node_name", "layer", "category"),
    [
        ("fc/MatMul", "fc", "module"),
        ("fc/MatMul/ReadVariableOp", "fc", "module"),
        ("model/fc/MatMul/Cast/x", "model/fc/MatMul/Cast", "module"),
        ("fc/MatMul/_5", "fc", "module"),
        ("gradients/fc/MatMul_grad/tuple/MatMul_1", "fc", "module_backward"),
        ("gradients_1/fc/AddN", "fc", "module_backward"),
        ("gradient_tape/fc/MatMul/MatMul_1", "fc", "module_backward"),
        ("x", "", ""),
        ("_recv_x_0/_13", "", ""),
        ("gradients/Mean_grad/Shape", "", ""),
    ],
)
def test_the_layer_of_a_node_is_its_name_scope(node_name: str, layer: str, category: str) -> None:
    found = timeline({
        CPU: [node("MatMul", "fc/MatMul", ts=50, dur=1), node("Op", node_name, ts=0, dur=4)]
    }).trace.slices  # fmt: skip
    op = found[(found["category"] == "cpu_op") & (found["dur"] == 4_000)].iloc[0]
    around = found.iloc[op["parent"]] if op["parent"] >= 0 else None
    assert ("" if around is None else around["name"]) == layer
    assert ("" if around is None else around["category"]) == category


def test_how_full_a_queue_was_follows_from_both_of_its_sides() -> None:
    """Two items lie there when the first is taken; the third take has to wait for its item."""

    def put(at: int) -> Event:
        return node("QueueEnqueueV2", f"put_{at}", ts=at, dur=1, lane=1, inputs=["queue", "x"])

    def take(at: int, until: int) -> Event:
        return node("QueueDequeueV2", "take", ts=at, dur=until - at, inputs=["queue:0"])

    record = timeline({
        CPU: [node("NoOp", "begin", ts=0, dur=1, lane=2), put(9), put(19),
              take(39, 40), take(49, 50), take(60, 90), put(89),
              node("NoOp", "end", ts=99, dur=1, lane=2)]
    })  # fmt: skip
    (queue,) = ANALYSES["input_queues"].function(record).to_dict("records")
    assert (queue["name"], queue["source"], queue["taken"], queue["put"]) == ("queue", "ops", 3, 3)
    assert (queue["empty_ns"], queue["empty_share"]) == (32_000, 0.32)
    # 1 from 10 on, 2 from 20 on, 1 from 40 on, 0 from 50 on
    assert (queue["least"], queue["average"], queue["most"]) == (0, 0.6, 2)
    (finding,) = [one for one in findings(record) if one.rule == "dataloader"]
    assert "`queue` held 0.6 items on average" in finding.text


def test_of_a_queue_seen_from_one_side_only_it_is_known_when_it_was_empty() -> None:
    table = ANALYSES["input_queues"].function(load(REAL)).set_index("name")
    queue = table.loc["fifo_queue"]
    assert (queue["taken"], queue["put"], queue["empty_ns"]) == (1, 0, 49_976_000)
    assert queue[["least", "average", "most"]].isna().all()
    assert "OneShotIterator" in table.index


def test_a_counter_of_a_queue_says_how_full_it_was() -> None:
    counted = [
        {"ph": "C", "name": "prefetch queue size", "pid": 1, "tid": 0, "ts": at,
         "args": {"items": value}}
        for at, value in ((0, 4), (50, 0), (75, 2))
    ]  # fmt: skip
    events = [node("MatMul", "mm", ts=0, dur=100), *counted]
    content = json.dumps({"traceEvents": [{**one, "pid": 1} for one in events]})
    record = parse(content.encode(), Path("trace.json"))
    (queue,) = ANALYSES["input_queues"].function(record).to_dict("records")
    assert (queue["source"], queue["taken"], queue["empty_share"]) == ("counter", -1, 0.25)
    assert (queue["least"], queue["average"], queue["most"]) == (0, 2.5, 4)


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ({"kernel": "MemcpyH2D kind:pinned size:4096 dest:0 async:1"}, 4096),
        ({"memcpy_details": "kind_src:pageable kind_dst:device size:8 dest:0 async:1"}, 8),
        ({"num_bytes": 512}, 512),
        ({"num_bytes": "512"}, 512),
        ({"kernel": "MemcpyH2D"}, -1),
        ({}, -1),
    ],
)
def test_copies_have_the_bytes_that_their_args_tell(told: dict[str, Any], size: int) -> None:
    copy = node("MemcpyH2D", "edge_1_x", ts=5, dur=2)
    copy = {**copy, "args": {**copy["args"], **told}}
    record = timeline({GPU_STREAM.format(7): [copy], GPU_COPIES: [copy]})
    (found,) = ANALYSES["copies"].function(record).to_dict("records")
    assert (found["direction"], found["bytes"]) == ("HtoD", size)
    assert found["name"] == "Memcpy HtoD"


def test_tensors_are_objects_and_allocators_counters() -> None:
    record = timeline({
        CPU: [node("unknown", "_recv_x_0", ts=0, dur=4),
              *tensor("c", 0, made=0, deleted=9, size=400, allocator="cpu")],
    })  # fmt: skip
    lives = of(record, "Tensor").set_index("name")
    assert lives["dur"].max() == 9_000
    assert record.trace.tracks["label"][lives["track"]].tolist() == ["CPU 0 · Tensor · objects"] * 2
    assert of(record, "cpu_op")["name"].tolist() == ["_recv_x_0"]  # the node, as it has no type
    counters = load(REAL).trace.counters
    assert set(counters["name"]) == {"mklcpu"}
    assert len(counters) > 50

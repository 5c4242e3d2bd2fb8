"""MegEngine's chrome timelines and graph profiles: real ones of a CPU, hand-made ones of a GPU.

``data/megengine_1_13_*.json.gz`` were written by MegEngine 1.13 on a CPU: a training step under
``Profiler``, and ``jit.trace(profiling=True).get_profile()`` of its forward. The expected times of
the latter are what MegEngine's own ``megengine.utils.profile_analyzer`` says of the file.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.analyze import analyze
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.dialects.megengine import CompNode, comp_node
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load, parse
from tests.test_every_trace import all_answers
from tests.timelines import DATA, HOST, WORKER, Event, graph_profile, link, megengine_file, pair

pytestmark = pytest.mark.slow

TIMELINE = DATA / "megengine_1_13_chrome_timeline.json.gz"
GRAPH = DATA / "megengine_1_13_graph_profile.json.gz"

GPU_NODE = 'CompNode("gpu0:1" from "xpux:1")'
NODE = 2
THREADS = {HOST: "interpreter", WORKER: "worker", NODE: "xpux:1"}
TENSOR = {"device": GPU_NODE, "dtype": "Float32", "id": 5, "nr_elements": 256, "shape": "{16,16}"}


def op(number: int) -> Event:
    return {"__id__": number, "__name__": "MatrixMul", "__device__": "invalid"}


@pytest.fixture
def step() -> Record:
    """A region in which one op is handed over, run by the worker and executed by GPU 0."""
    return megengine_file(
        [
            *pair("forward", HOST, 0, 20),
            *pair("OpDispatch", HOST, 2, 3, **op(11)),
            *pair("TensorWaitProp", HOST, 21, 60, **TENSOR),
            *pair("MatrixMul", WORKER, 5, 15, **op(11)),
            *pair("Input 5", WORKER, 6, 7, **TENSOR),
            *link("KernelLaunch", 3, call=(WORKER, 8), work=(NODE, 10)),
            *pair("MatrixMul", NODE, 10, 40, cat="Kernel", **op(11)),
            *pair("HostToDevice", NODE, 42, 44, **{**TENSOR, "nr_elements": 256.0}),
            *pair("StopProfile", WORKER, 70, 71),
        ],
        THREADS,
    )


def by_name(record: Record) -> dict[str, list[tuple[Any, ...]]]:
    """Category and label of the track, of all slices by name."""
    slices, tracks = record.trace.slices, record.trace.tracks
    found: dict[str, list[tuple[Any, ...]]] = {}
    for name, category, track in zip(
        slices["name"], slices["category"], slices["track"], strict=True
    ):
        found.setdefault(name, []).append((category, tracks["label"][track]))
    return found


def test_a_scope_that_the_worker_goes_through_as_well_is_called_once() -> None:
    record = megengine_file(
        pair("forward", HOST, 0, 20)
        + pair("forward", WORKER, 10, 50)
        + pair("MatrixMul", WORKER, 15, 25, **op(11))
        + pair("worker's own", WORKER, 60, 70),
        THREADS,
    )
    calls = ANALYSES["operators"].function(record).set_index("name")
    assert calls.loc["forward", ["calls", "cpu_total_ns"]].tolist() == [1, 20_000]
    assert calls.loc["worker's own", "calls"] == 1
    assert calls.loc["MatrixMul", "cpu_total_ns"] == 10_000
    assert sorted(by_name(record)["forward"]) == [
        ("scope_echo", "7 · worker"),
        ("user_annotation", "interpreter"),
    ]


def test_threads_and_nodes_are_told_apart(step: Record) -> None:
    found = by_name(step)
    assert found["forward"] == [("user_annotation", "interpreter")]
    assert found["OpDispatch"] == [("megengine_runtime", "interpreter")]
    assert sorted(found["MatrixMul"]) == [("cpu_op", "worker"), ("kernel", "GPU 0 · stream 1")]
    assert found["Input"] == [("megengine_runtime", "worker")]
    assert found["Memcpy HtoD"] == [("gpu_memcpy", "GPU 0 · stream 1 · copies")]
    assert found["StopProfile"] == [("overhead", "worker")]


def test_a_kernel_belongs_to_the_op_of_its_id(step: Record) -> None:
    slices = step.trace.slices
    (kernel,) = slices[slices["category"] == "kernel"].itertuples()
    assert (slices["name"][kernel.launch], slices["category"][kernel.launch]) == (
        "MatrixMul",
        "cpu_op",
    )
    table = ANALYSES["operators"].function(step).set_index(["name", "category"])
    assert table["device_total_ns"]["MatrixMul", "cpu_op"] == 30_000
    assert ANALYSES["copies"].function(step)["bytes"].tolist() == [1024]


def test_waiting_for_a_value_is_a_synchronisation(step: Record) -> None:
    (wait,) = ANALYSES["waits"].function(step).itertuples()
    assert (wait.kind, wait.name, wait.dur_ns) == ("synchronise", "TensorWaitProp", 39_000)


def test_an_op_has_the_name_scope_and_tensors_that_its_inputs_and_outputs_tell() -> None:
    made = {**TENSOR, "id": 6, "name": "forward.fc[1].MatrixMul:0", "shape": "{16,4}"}
    record = megengine_file(
        [
            *pair("MatrixMul", WORKER, 5, 15, **op(11)),
            *pair("Input 5", WORKER, 6, 7, **TENSOR),
            *pair("Input 8", WORKER, 7, 8, **{**TENSOR, "shape": "{16,4}", "dtype": "Int8"}),
            *pair("Output 6", WORKER, 9, 10, **made),
            *pair("Output 7", WORKER, 16, 17, **{**made, "name": "other.op:0"}),
            *pair("MatrixMul", NODE, 10, 40, cat="Kernel", **op(11)),
            *pair("Elemwise", WORKER, 20, 25, **op(12)),
        ],
        {**THREADS, NODE: 'CompNode("gpu0:1" from "xpux:1")'},
    )
    named, other = (analyze(record, side="host").set_index("type").loc[kind]
                    for kind in ("MatrixMul", "Elemwise"))  # fmt: skip
    assert named[["name", "in_shapes", "out_shapes", "in_dtypes"]].tolist() == [
        "forward.fc[1].MatrixMul",
        "[[16, 16], [16, 4]]",
        "[[16, 4]]",
        "float, signed char",
    ]
    assert other[["name", "in_shapes", "out_shapes"]].tolist() == ["Elemwise", "", ""]
    on_gpu = analyze(record).iloc[0]
    assert on_gpu[["name", "type"]].tolist() == ["forward.fc[1].MatrixMul", "MatrixMul"]
    scopes = ANALYSES["attribution"].function(record, "module").set_index("name")
    assert scopes.loc["forward.fc", ["calls", "device_ns"]].tolist() == [1, 30_000]


def test_with_cupti_kernels_count_once() -> None:
    """MegEngine's own row of an op on a stream then is the region around what CUPTI saw there."""
    record = megengine_file(
        [
            *pair("MatrixMul", WORKER, 5, 15, **op(11)),
            *pair("cudaLaunchKernel", WORKER, 6, 9),
            *pair("void sgemm()", WORKER, 7, 8),
            *link("KernelLink", 90, call=(WORKER, 7), work=(NODE, 30)),
            *pair("Memcpy", WORKER, 10, 11),
            *link("CUPTILink", 91, call=(WORKER, 10), work=(3, 31)),
            *pair("cuStreamSynchronize", WORKER, 12, 14),
            *pair("MatrixMul", NODE, 18, 31, cat="Kernel", **op(11)),
            *pair("Input 5", WORKER, 5, 6, **TENSOR),
            *pair("void sgemm()", NODE, 20, 30, execution_time=10_000),
            *pair("Memcpy", 3, 31, 35, bytes="512", src_kind="CUPTI_ACTIVITY_MEMORY_KIND_DEVICE",
                  dst_kind="CUPTI_ACTIVITY_MEMORY_KIND_PINNED"),
            *pair("Memset", 3, 36, 36, bytes="64", value="0"),
        ],
        THREADS,
    )  # fmt: skip
    found = by_name(record)
    assert ("gpu_user_annotation", "GPU 0 · stream 1 · annotations") in found["MatrixMul"]
    assert found["cuStreamSynchronize"] == [("cuda_driver", "worker")]
    kernels = ANALYSES["kernels"].function(record).set_index("name")
    assert kernels["total_ns"].to_dict() == {
        "void sgemm()": 10_000, "Memcpy DtoH (Device -> Pinned)": 4_000, "Memset": 0}  # fmt: skip
    (copy,) = ANALYSES["copies"].function(record).itertuples()
    assert (copy.direction, copy.bytes, copy.stream, copy.launch_name) == ("DtoH", 512, 3, "Memcpy")
    slices = record.trace.slices
    (kernel,) = slices[slices["category"] == "kernel"].itertuples()
    assert slices["category"][kernel.launch] == "cuda_runtime"
    assert slices["name"][kernel.op] == "MatrixMul"
    assert all_answers(record) == {}


def test_merged_processes_keep_their_own_ops_and_nodes() -> None:
    """As `merge_trace_events` writes them: each process numbers its ops and asks for ``xpux:0``."""
    events = []
    for pid, begin in ((7, 0), (8, 100)):
        real = f'CompNode("gpu{pid - 7}:0" from "xpux:0")'
        rows = [
            *pair("MatrixMul", WORKER, begin, begin + 9, **op(1)),
            *pair("Input 5", WORKER, begin + 1, begin + 2, **{**TENSOR, "device": real}),
            *pair("MatrixMul", NODE, begin + 20, begin + 30, cat="Kernel", **op(1)),
        ]
        named = [(WORKER, "worker"), (NODE, "xpux:0")]
        meta = [
            {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": name}}
            for tid, name in named
        ]
        events += [{**event, "pid": pid} for event in (*rows, *meta)]
    record = parse(json.dumps({"traceEvents": events}).encode(), Path("merge.chrome_timeline.json"))
    slices, tracks = record.trace.slices, record.trace.tracks
    kernels = slices[slices["category"] == "kernel"].sort_values("ts")
    assert tracks["device"][kernels["track"]].tolist() == [0, 1]
    assert tracks["process"][slices["track"][kernels["launch"]]].tolist() == ["7", "8"]


@pytest.mark.slow
@pytest.mark.parametrize("path", [TIMELINE, GRAPH], ids=lambda path: path.name)
def test_all_analyses_and_the_report_work_on_it(path: Path) -> None:
    assert all_answers(load(path)) == {}
    assert "<html" in gpuprof_widgets.load(path).report().lower()


def test_a_real_graph_s_work_and_shapes_are_told_where_megengine_told_them() -> None:
    content = json.loads(gzip.decompress(GRAPH.read_bytes()))
    operators = content["graph_exec"]["operator"]
    footprints = content["profiler"]["opr_footprint"]
    record = load(GRAPH)
    calls = analyze(record, side="host").set_index("row")
    number = record.trace.args["id"]
    assert len(calls) == len(content["profiler"]["host"])
    for row, call in calls.iterrows():
        told = footprints[str(number[row])]
        assert operators[str(number[row])]["type"] == call["type"]
        assert (None if pd.isna(call["computation_flops"]) else call["computation_flops"]) == told[
            "computation"
        ]
        assert call["memory_bytes"] == told["memory"]
        assert call["in_shapes"] == (str(told["in_shapes"]) if told["in_shapes"] else "")
        assert call["out_shapes"] == str(told["out_shapes"])


@pytest.fixture
def graph() -> Record:
    """A copy to the GPU and a matmul there, whose inputs came 2 ms late."""
    footprint = {
        "computation": 4096,
        "memory": 3072,
        "in_shapes": [[16, 16]],
        "out_shapes": [[16, 16]],
    }
    return graph_profile(
        {
            "1": ("Host2DeviceCopy", {"input": [], "output": ["2"], "footprint": {"memory": 1024}}),
            "3": ("MatrixMul", {"input": ["2"], "output": ["4"], "footprint": footprint}),
        },
        host={"1": {"@": (0.010, 0.011, 0.012)}, "3": {"@": (0.012, 0.013, 0.014)}},
        device={
            "1": {'CompNode("gpu0:copy" from "gpux:copy")': (0.001, 0.001, 0.004)},
            "3": {'CompNode("gpu0:0" from "gpux:0")': (0.003, 0.005, 0.009)},
        },
        variables={"2": 'CompNode("gpu0:0" from "gpux:0")'},
    )


def test_a_graph_s_work_on_a_gpu_follows_its_operators(graph: Record) -> None:
    slices = graph.trace.slices.set_index(["name", "category"])
    kernel = slices.loc[("MatrixMul", "kernel")]
    assert (kernel["ts"], kernel["dur"]) == (4_000_000, 4_000_000)
    assert slices["ts"]["Memcpy HtoD", "gpu_memcpy"] == 0
    wait = slices.loc[("wait for inputs", "cuda_sync")]
    assert (wait["ts"], wait["dur"]) == (2_000_000, 2_000_000)
    assert any("9,000 us later" in note for note in graph.metadata["notes"])


def test_a_graph_s_kernels_are_linked_sized_and_counted(graph: Record) -> None:
    slices = graph.trace.slices
    kernel = slices[slices["category"] == "kernel"].iloc[0]
    assert (slices["name"][kernel["launch"]], slices["category"][kernel["launch"]]) == (
        "MatrixMul",
        "cpu_op",
    )
    (copy,) = ANALYSES["copies"].function(graph).itertuples()
    assert (copy.direction, copy.bytes) == ("HtoD", 1024)
    roofline = ANALYSES["roofline"].function(graph).set_index("name")
    assert roofline.loc["MatrixMul", ["time_ns", "flops", "bytes"]].tolist() == [
        4_000_000,
        4096,
        3072,
    ]
    assert all_answers(graph) == {}


def test_a_file_of_load_and_run_has_the_graph_in_the_profiler_s_part() -> None:
    content = json.loads(gzip.decompress(GRAPH.read_bytes()))
    content["profiler"]["graph_exec"] = content.pop("graph_exec")
    record = parse(json.dumps(content).encode(), Path("lar.json"))
    pd.testing.assert_frame_equal(record.trace.slices, load(GRAPH).trace.slices)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"profiler": [], "graph_exec": {}}', ["lar.json", '"profiler"', "[]"]),
        ('{"profiler": {}, "graph_exec": null}', ["lar.json", '"graph_exec"', "None"]),
        ('{"profiler": {}, "graph_exec": {}}', ["without the time of any operator", "0 operators"]),
        ('{"graph_exec": {}, "profiler": {"host": {"1": ', ["not whole", "46 bytes", "again"]),
    ],
)
def test_what_is_no_graph_profile_is_refused_with_the_place(content: str, words: list[str]) -> None:
    with pytest.raises(TraceError) as refused:
        parse(content.encode(), Path("lar.json"))
    assert all(word in str(refused.value) for word in words), refused.value


def test_times_that_are_none_are_counted_and_left_out() -> None:
    good = (0.0, 0.5, 1.0)
    record = graph_profile(
        {"1": ("Elemwise", {})},
        host={"1": {"a": good, "b": (2.0, -1, 1.0), "c": (None, 0, 1), "d": ("0", 0, 1e300)}},  # type: ignore[dict-item]
        device={},
    )
    assert record.trace.slices["dur"].tolist() == [10**9]
    assert record.metadata["notes"] == ["3 of 4 times of operators are not valid and were left out"]


@pytest.mark.parametrize(
    ("local_time", "at", "epoch_us"),
    [
        ("1795281521339596014", 5, 1795281521339596 + 5),
        ("1795281521339596014", 1795281521339596, 1795281521339596),  # align_time added it
        ("soon", 5, 5),
        ("9" * 40, 5, 5),
    ],
)
def test_the_clock_of_the_file_begins_when_it_says(local_time: str, at: int, epoch_us: int) -> None:
    events = pair("MatrixMul", WORKER, at, at + 9, **op(1))
    record = megengine_file(events, THREADS, local_time=local_time)
    assert record.trace.epoch_ns // 1000 == epoch_us


def test_a_timeline_of_1_0_to_1_3() -> None:
    """A list; ops with an id of another key, their args at the begin; tensors as objects."""
    told = {"op.mode": "ADD", "name": "Elemwise", "id": 4, "inputs": "{1,2}", "outputs": "{3}"}
    slices = [
        ("CommandExecute", 1, 10, 30, {"__type__": "N3mgb10imperative7ApplyOpE"}),
        ("OpExecute", 1, 12, 20, told),
        ("OpExecute", 2, 15, 45, told),
        ("forward", 0, 0, 9, {}),
    ]
    events = [
        {"name": name, "ph": ph, "tid": tid, "ts": ts, "args": args if ph == "B" else {}}
        for name, tid, begin, end, args in slices
        for ph, ts in (("B", begin), ("E", end))
    ]
    lifetime = {"name": "TensorLifetime", "id": 3}
    events += [{**lifetime, "ph": "N", "tid": 0, "ts": 8}, {**lifetime, "ph": "D", "ts": 29}]
    names = {0: "channel", 1: "worker", 2: 'CompNode("gpu0:0" from "xpux:0")'}
    events += [
        {"name": "thread_name", "ph": "M", "tid": tid, "args": {"name": name}}
        for tid, name in names.items()
    ]
    content = json.dumps([{**event, "pid": 7} for event in events])
    record = parse(content.encode(), Path("profile.chrome_timeline.json"))
    found = by_name(record)
    assert found["CommandExecute"] == [("megengine_runtime", "worker")]
    assert sorted(found["Elemwise"]) == [("cpu_op", "worker"), ("kernel", "GPU 0 · stream 0")]
    assert found["TensorLifetime"] == [("other", "7 · TensorLifetime · objects")]
    table = record.trace.slices
    kernel = table[table["category"] == "kernel"].iloc[0]
    assert table["category"][kernel["launch"]] == "cpu_op"
    assert all_answers(record) == {}


def test_every_slice_of_a_real_timeline_is_there_and_each_op_once() -> None:
    content = json.loads(gzip.decompress(TIMELINE.read_bytes()))
    record = load(TIMELINE)
    assert record.trace.epoch_ns >= int(content["metadata"]["localTime"])
    pairs = Counter(event["ph"] for event in content["traceEvents"])
    category = record.trace.slices["category"].value_counts()
    layers = category["module"] + category.get("module_backward", 0)
    assert len(record.trace) - layers == pairs["B"] + pairs["X"]
    assert (category["cpu_op"], category["cpu_kernel"]) == (55, 60)
    assert not category.get("kernel", 0)
    assert not len(ANALYSES["waits"].function(record))  # those for a value wait for the CPU


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ('CompNode("gpu0:1" from "gpux:1")', CompNode("gpu0:1", "gpux:1", True, 0, 1)),
        ("xpux:0", CompNode("xpux:0", "", False, 0, 0)),
        ("gpu2:copy", CompNode("gpu2:copy", "", True, 2, -1)),
        ("worker", None),
        ("http://x:0", None),
    ],
)
def test_texts_of_computing_nodes(text: str, node: CompNode | None) -> None:
    assert comp_node(text) == node

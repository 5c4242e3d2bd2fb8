"""Files of nvprof: what is read of each table; torch's own reader is the judge of ops."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.autograd.profiler import load_nvprof

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.trace.databases.nvprof import LONGEST, readable
from tests.profiler_databases import PID, TID, Nvprof, emitted, object_id, rows, written

pytestmark = pytest.mark.slow

EPOCH = 1_506_000_000_000_000_000
"""The clock of nvprof is that of the day."""

LAUNCH, MEMCPY = 211, 41
MANGLED = "_ZN2at6native13reduce_kernelILi512ELi1EEEvT_PKf"


def a_run() -> Nvprof:
    """One op with one launch and one kernel."""
    made = Nvprof()
    text = emitted("aten::sum", number=1, sequence=3, sizes=[[4, 8], []])
    made.range(text, EPOCH + 1_000, EPOCH + 1_400)
    made.call(LAUNCH, EPOCH + 1_100, EPOCH + 1_200, correlation=77)
    made.kernel(MANGLED, EPOCH + 1_500, EPOCH + 2_500, correlation=77, device=1, stream=9)
    return made


def test_a_kernel_is_on_its_stream_and_knows_its_launch_and_op() -> None:
    trace = a_run().record().trace
    (kernel,) = rows(trace, "kernel").itertuples()
    assert (kernel.ts, kernel.dur, kernel.device, kernel.stream) == (500, 1_000, 1, 9)
    assert trace.slices["name"][kernel.launch] == "cudaLaunchKernel"
    assert trace.slices["name"][kernel.op] == "aten::sum"
    assert trace.args["grid"][kernel.Index] == [4, 2, 1]
    assert trace.args["block"][kernel.Index] == [64, 1, 1]
    assert trace.args["shared memory"][kernel.Index] == 24
    assert trace.args["Input Dims"][kernel.op] == [[4, 8], []]
    assert trace.epoch_ns == EPOCH + 1_000


def several_ops() -> Nvprof:
    """Nested ops, two launches in the inner one, one that is in none; torch wants nothing else."""
    made = Nvprof()
    made.range("outer", 100, 900)
    made.range(emitted("aten::addmm", number=1, sequence=3), 200, 500)
    made.range(emitted("aten::relu", number=2, sequence=4), 600, 800)
    for number, at in enumerate((250, 350, 650, 950), 1):
        made.call(LAUNCH, at, at + 20, correlation=number)
        made.kernel(f"k{number}", at + 500, at + 510 + number, correlation=number)
    return made


def test_ops_are_those_that_torch_reads(tmp_path: Path) -> None:
    made = several_ops()
    slices = made.record().trace.slices
    ours = slices[slices["category"].isin(["cpu_op", "user_annotation"])]
    expected = load_nvprof(str(written(made.bytes(), tmp_path / "a.nvprof")))
    times = sorted((one.time_range.start, one.time_range.end) for one in expected)
    assert sorted(zip(ours["ts"] + 100, ours["ts"] + ours["dur"] + 100, strict=True)) == times
    names = {one.name.split(", ")[0] for one in expected}
    assert set(ours["name"]) == names == {"outer", "aten::addmm", "aten::relu"}


def test_kernels_belong_to_the_ops_that_torch_finds_around_their_launch(tmp_path: Path) -> None:
    made = several_ops()
    expected = {
        one.name.split(", ")[0]: sum(kernel.duration for kernel in one.kernels)
        for one in load_nvprof(str(written(made.bytes(), tmp_path / "a.nvprof")))
    }
    table = ANALYSES["operators"].function(made.record()).set_index("name")
    assert {name: table["device_total_ns"][name] for name in expected} == expected
    assert expected == {"outer": 36, "aten::addmm": 23, "aten::relu": 13}


NAMES = [
    MANGLED,
    "_Z4gemmPf",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEENS_6detail5ArrayIPcLi"
    "1EEEEEviT0_T1_",
    "volta_sgemm_128x64_nn",
    "_Z",
    "_Znonsense",
    "",
    "gemm(float*)",
    "_ZN_ZN_Z",
    "naïve",
]


@given(st.lists(st.from_regex(r"_Z[A-Z0-9a-z_]{0,40}", fullmatch=True), min_size=50))
@example(NAMES)
@settings(max_examples=5)
def test_names_of_kernels_are_as_torch_demangles_them(names: list[str]) -> None:
    assert readable(names) == {name: torch._C._demangle(name) for name in names}


def test_names_made_to_exhaust_the_stack_stay_as_they_are() -> None:
    name = "_Z1f" + "P" * LONGEST
    assert readable([name]) == {name: name}


@pytest.mark.slow
def test_a_name_that_stands_for_gigabytes_stays_as_it_is() -> None:
    """Every argument is twice the one before; the names before it are read all the same."""
    known = ["S_", *(f"S{code}_" for code in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")]
    pairs = "".join(f"S_I{known[n]}{known[n]}E" for n in range(1, 36))
    bomb = f"_Z1f1pIiiE{pairs}"
    assert len(bomb) < 400
    assert readable(["_Z4gemmPf", bomb]) == {"_Z4gemmPf": "gemm(float*)", bomb: bomb}


@pytest.mark.parametrize(
    ("cbid", "table", "name", "category"),
    [
        (211, "RUNTIME", "cudaLaunchKernel", "cuda_runtime"),
        (13, "RUNTIME", "cudaLaunch", "cuda_runtime"),
        (131, "RUNTIME", "cudaStreamSynchronize", "cuda_runtime"),
        (165, "RUNTIME", "cudaDeviceSynchronize", "cuda_runtime"),
        (307, "DRIVER", "cuLaunchKernel", "cuda_driver"),
        (99_999, "RUNTIME", "cuda_runtime call 99999", "cuda_runtime"),
    ],
)
def test_calls_are_named_by_their_numbers(cbid: int, table: str, name: str, category: str) -> None:
    """As CUPTI's headers number them."""
    made = Nvprof()
    made.call(cbid, 10, 30, correlation=4, table=table)
    (call,) = rows(made.record().trace, category).itertuples()
    assert (call.name, call.process, call.thread) == (name, str(PID), str(TID))


def test_thread_ids_with_and_without_a_sign_are_one_thread() -> None:
    """Columns hold them as signed, the object ids of ranges as unsigned numbers."""
    made = Nvprof()
    made.range("aten::mm, op_id = 1", 10, 50, tid=0xF123_4567)
    made.call(LAUNCH, 20, 30, correlation=1, tid=0xF123_4567 - (1 << 32))
    made.kernel("k", 60, 70, correlation=1)
    trace = made.record().trace
    assert trace.tracks["thread"].tolist() == [str(0xF123_4567), "7"]
    assert trace.slices["name"][rows(trace, "kernel")["op"].item()] == "aten::mm"


def test_ranges_of_a_process_and_across_threads_stand_apart() -> None:
    made = Nvprof()
    made.range("of the process", 10, 100, objectKind=1)
    made.marker(2, 20, 50, text="from one to another", objectId=object_id(PID, 5))
    made.marker(4, 90, 50, objectId=object_id(PID, 6))
    made.range("of a thread", 30, 40)
    trace = made.record().trace
    assert rows(trace, "nvtx_range").set_index("name")["thread"].to_dict() == {
        "of the process": "NVTX start/end",
        "from one to another": "NVTX start/end 2",
    }
    assert rows(trace, "user_annotation")["thread"].to_dict() == {0: str(TID)}


def test_ranges_of_another_domain_are_no_ops() -> None:
    made = a_run()
    made.range("aten::add, op_id = 5", EPOCH + 1_300, EPOCH + 1_350, domain=made.text("mine"))
    trace = made.record().trace
    (own,) = rows(trace, "user_annotation").itertuples()
    assert own.name == "aten::add, op_id = 5"
    assert trace.args["domain"][own.Index] == "mine"


def test_ranges_without_one_of_their_ends() -> None:
    made = a_run()
    made.range("to the end", EPOCH + 900, None)
    made.marker(4, EPOCH + 1_000, 444)
    made.marker(4, EPOCH + 1_000, 445)
    record = made.record()
    (whole,) = rows(record.trace, "user_annotation").itertuples()
    assert (whole.ts, whole.dur) == (0, 1_600)
    assert record.metadata["notes"] == [
        "1 of 2 NVTX ranges were open when the recording ended; they end with it",
        "2 ends of NVTX ranges have no start and were left out",
    ]


def test_an_id_that_is_used_again_is_another_range() -> None:
    made = Nvprof()
    for start in (10, 100):
        made.marker(2, start, 1, text=f"range {start}")
        made.marker(4, start + 50, 1)
    record = made.record()
    found = rows(record.trace, "user_annotation")[["name", "ts", "dur"]]
    assert found.to_numpy().tolist() == [["range 10", 0, 50], ["range 100", 90, 50]]
    assert record.metadata["notes"] == []


def test_threads_that_the_program_named_have_their_names() -> None:
    made = a_run()
    made.add(
        "CUPTI_ACTIVITY_KIND_NAME",
        objectKind=2,
        objectId=object_id(PID, TID),
        name=made.text("trainer"),
    )
    assert rows(made.record().trace, "cuda_runtime")["label"].tolist() == ["trainer"]


@pytest.mark.parametrize("by_number", [True, False], ids=["number of a string", "text"])
def test_the_gpu_is_described_as_kineto_describes_it(by_number: bool) -> None:
    made = a_run()
    name = made.text("Tesla V100-SXM2-32GB") if by_number else "Tesla V100-SXM2-32GB"
    gpu = {"globalMemorySize": 32 << 30, "numMultiprocessors": 80, "numThreadsPerWarp": 32}
    version = {"computeCapabilityMajor": 7, "computeCapabilityMinor": 0}
    made.add("CUPTI_ACTIVITY_KIND_DEVICE", id=1, name=name, **gpu, **version)
    record = made.record()
    (told,) = ANALYSES["gpu_summary"].function(record).itertuples()
    assert (told.device_name, told.compute_capability) == ("Tesla V100-SXM2-32GB", "7.0")
    assert told.memory_bytes == 32 << 30


def test_power_temperature_and_clocks_are_counters() -> None:
    made = a_run()
    samples = [(1, (1_500, 877)), (2, (64,)), (3, (250_500,)), (4, (33,))]
    for kind, fields in samples:
        data = struct.pack(f"<{len(fields)}I", *fields).ljust(20, b"\0")
        at = {"timestamp": EPOCH + 1_000, "deviceId": 0}
        made.add("CUPTI_ACTIVITY_KIND_ENVIRONMENT", **at, environmentKind=kind, data=data)
    table = ANALYSES["counters"].function(made.record(), derived=False)
    assert set(zip(table["name"], table["value"], table["unit"], strict=True)) == {
        ("GPU 0 SM clock", 1_500, "MHz"),
        ("GPU 0 memory clock", 877, "MHz"),
        ("GPU 0 temperature", 64, "°C"),
        ("GPU 0 power", 250.5, "W"),
    }


def test_overhead_is_named_as_kineto_names_it() -> None:
    made = a_run()
    kind = {"overheadKind": 1 << 16, "objectId": object_id(PID, TID)}
    made.add("CUPTI_ACTIVITY_KIND_OVERHEAD", start=EPOCH + 1_000, end=EPOCH + 1_300, **kind)
    assert rows(made.record().trace, "overhead")["name"].tolist() == ["Buffer Flush"]


def test_blobs_that_are_none_are_no_thread() -> None:
    made = a_run()
    odd: Any
    for odd in (None, "text", 5, b"", b"\1"):
        made.range("odd", EPOCH + 1_000, EPOCH + 1_100, objectId=odd)
    found = rows(made.record().trace, "user_annotation")
    assert found["thread"].tolist() == ["0"] * 5

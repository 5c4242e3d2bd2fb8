"""Where to look in traces with Python frames: the functions that cause most of a finding's time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.findings.places import NO_PLACES, lack_of_places
from gpuprof_widgets.analyses.op_calls import calling_frame
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.report import static_text
from tests.traces import (
    Row,
    Shared,
    backward_op,
    cell_line,
    copy,
    kernel,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow

MS = 1_000_000
PACKAGES = "/opt/conda/lib/python3.11/site-packages/"


def found(record: Record, rule: str) -> Finding:
    (finding,) = [one for one in findings(record) if one.rule == rule]
    return finding


def called(start: int, gpu: int, *frames: str, at: int) -> list[Row]:
    """Nested frames, the innermost of which calls `aten::mm`, whose kernel takes so many ms.

    ``at``: the number of rows before these.
    """
    rows = [python(name, ts=start * MS, dur=2 * MS) for name in frames]
    launch = at + len(rows) + 1
    return [
        *rows,
        op("aten::mm", ts=start * MS, dur=MS),
        runtime("cudaLaunchKernel", ts=start * MS + 10, dur=10),
        kernel("gemm", ts=start * MS + 20, dur=gpu * MS, launched_by=launch),
    ]


def multiplying(*calls: tuple[int, tuple[str, ...]]) -> Record:
    """One call of `aten::mm` after the other: what it takes on the GPU (ms), and its frames."""
    rows: list[Row] = []
    start = 0
    for gpu, frames in calls:
        rows += called(start, gpu, *frames, at=len(rows))
        start += gpu
    return trace_of(*rows, op("end", ts=start * MS, dur=10))


ATTENTION = ("run.py(3): main", "nn.Module: Attention_2", "model.py(40): forward")
LINEAR = ("nn.Module: Linear_7", "torch/nn/modules/linear.py(124): forward", "<built-in linear>")
MLP = ("run.py(3): main", "nn.Module: MLP_0", "models/mlp.py(12): forward")


def test_the_functions_that_cause_a_quarter_and_more_are_named_with_their_modules() -> None:
    record = multiplying((60, (*ATTENTION, *LINEAR)), (30, MLP), (10, ("run.py(9): metric",)))
    assert found(record, "gpu_ops").remedy.endswith(
        " Look at `Attention.forward` (`model.py:40`), with 60 % of the GPU time of `aten::mm`, "
        "and `MLP.forward` (`mlp.py:12`), with 30 %."
    )


def test_calls_of_one_function_add_up_whatever_module_they_ran_for() -> None:
    other = ("run.py(3): main", "nn.Module: MLP_1", "models/mlp.py(12): forward")
    remedy = found(multiplying((50, MLP), (50, other)), "gpu_ops").remedy
    assert remedy.endswith(
        " Look at `MLP.forward` (`mlp.py:12`), with 100 % of the GPU time of `aten::mm`."
    )


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        ("<built-in method matmul of type object at 0x7f>", "`step` (`train.py:7`)"),
        (f"{PACKAGES}torch/functional.py(20): einsum", "`step` (`train.py:7`)"),
        ("contextlib.py(81): inner", "`step` (`train.py:7`)"),
        ("<string>(1): __init__", "`step` (`train.py:7`)"),
        ("nn.Module: Linear_3", "`step` (`train.py:7`)"),
        ("helpers.py(5): attend", "`attend` (`helpers.py:5`)"),
        (f"{PACKAGES}timm/layers/mlp.py(5): mix", "`mix` (`mlp.py:5`)"),
        ("/opt/pytorch/torch/nn/functional.py(5): linear", "`step` (`train.py:7`)"),
        (r"C:\miniconda3\Lib\contextlib.py(5): inner", "`step` (`train.py:7`)"),
        (f"{PACKAGES}IPython/core/shell.py(5): run_code", "`step` (`train.py:7`)"),
        ("<ipython-input-5-0a1b>(5): attend", "`attend` (`<ipython-input-5-0a1b>:5`)"),
    ],
)
def test_a_function_of_torch_or_python_passes_on_to_its_caller(inner: str, named: str) -> None:
    record = multiplying((60, ("train.py(7): step", inner)))
    assert f"Look at {named}, with 100 % of the GPU time" in found(record, "gpu_ops").remedy


def test_a_function_that_is_called_in_forward_is_not_the_modules_method() -> None:
    frames = ("nn.Module: MLP_0", "mlp.py(12): forward", "act.py(3): forward")
    remedy = found(multiplying((60, frames)), "gpu_ops").remedy
    assert "Look at `forward` (`act.py:3`)" in remedy


def test_nothing_is_named_where_no_function_causes_a_quarter() -> None:
    calls = [(20, (f"part{number}.py(1): run",)) for number in range(5)]
    record = multiplying(*calls)
    assert "Look at" not in found(record, "critical_path").remedy
    assert "Look at `run`" in found(multiplying(calls[0], *calls[2:]), "critical_path").remedy


def test_nothing_is_named_without_frames() -> None:
    assert "Look at" not in found(multiplying((60, ())), "gpu_ops").remedy


def test_why_nothing_can_be_named_is_said_of_traces_of_torch_alone() -> None:
    without = multiplying((60, ()), (40, ()))
    of_ours = replace(without, metadata={"options": {"cprofile": True}})
    of_others = replace(without, metadata={"recorded_by": "Nsight Systems"})
    with_lines = trace_of(cell_line(1, "x @ y", ts=0, dur=9), op("aten::mm", ts=0, dur=5))
    without_ops = trace_of(kernel("gemm", ts=0, dur=5))
    with_stacks = trace_of(op("aten::mm", ts=0, dur=5, stack="run.py(3): main"))
    of_range = window(multiplying((60, MLP), (40, ())), 70 * MS, 80 * MS)
    assert lack_of_places(without) == NO_PLACES
    others = (multiplying((60, MLP)), of_ours, of_others, with_lines, without_ops)
    for record in (*others, with_stacks, of_range):
        assert lack_of_places(record) == ""
    assert "Note: Findings name ops, but no file and line" in static_text(without)


def test_the_line_of_a_cell_comes_first() -> None:
    rows = called(0, 60, "model.py(4): run", at=0)
    record = trace_of(*rows, cell_line(4, "run(x)", ts=0, dur=60 * MS))
    remedy = found(record, "gpu_ops").remedy
    assert remedy.endswith(" Look at line 4: `run(x)`.")


def test_a_backward_op_is_caused_where_its_forward_was_called() -> None:
    record = trace_of(
        python("model.py(4): attend", ts=0, dur=2 * MS),
        op("aten::mm", ts=0, dur=MS, sequence=5),
        *backward_op("MmBackward0", ts=3 * MS, dur=5 * MS, sequence=5),
        python("train.py(9): step", ts=3 * MS, dur=9 * MS),
    )
    frames = calling_frame(record.trace)
    names = record.trace.slices["name"].tolist()
    assert names[frames[names.index("MmBackward0")]] == "model.py(4): attend"


def test_functions_of_two_files_are_two_functions() -> None:
    frames = (("a/model.py(3): run",), ("b/model.py(3): run",))
    remedy = found(multiplying((60, frames[0]), (40, frames[1])), "gpu_ops").remedy
    assert "with 60 % of the GPU time of `aten::mm`, and `run` (`model.py:3`), with 40 %" in remedy


def test_an_op_of_the_cpu_is_shared_out_by_its_self_time() -> None:
    """`nested` has 60 of 95 ms of `aten::add`, but 55 of these in what that calls."""
    record = trace_of(
        python("model.py(1): nested", ts=0, dur=60 * MS),
        op("aten::add", ts=0, dur=60 * MS),
        op("aten::exp", ts=0, dur=25 * MS),
        op("aten::log", ts=25 * MS, dur=30 * MS),
        python("model.py(9): plain", ts=60 * MS, dur=35 * MS),
        op("aten::add", ts=60 * MS, dur=35 * MS),
    )
    remedy = found(record, "cpu_ops").remedy
    assert remedy.endswith("`plain` (`model.py:9`), with 88 % of the self time of `aten::add`.")


def on_path(shared_out: tuple[int, int]) -> Record:
    """Two calls of `aten::mm` of 10 and 30 ms on the CPU, launching so many ms of GPU work each."""
    rows: list[Row] = []
    for start, cpu, gpu, frames in zip(
        (0, 10), (10, 30), shared_out, (MLP, ATTENTION), strict=True
    ):
        rows += [python(name, ts=start * MS, dur=cpu * MS) for name in frames]
        rows.append(op("aten::mm", ts=start * MS, dur=cpu * MS))
        rows.append(runtime("cudaLaunchKernel", ts=start * MS + 10, dur=10))
        at = 20 + (0 if start == 0 else shared_out[0] * MS)
        rows.append(kernel("gemm", ts=at, dur=gpu * MS, launched_by=len(rows) - 1))
    return trace_of(*rows, shapes=True)


def test_a_path_counts_what_the_run_waits_for_not_the_calls() -> None:
    """The first call is the shorter one, but its kernel has nine tenths of the path."""
    remedy = found(on_path((180, 20)), "critical_path").remedy
    assert "`MLP.forward` (`mlp.py:12`), with 9" in remedy


def test_a_wait_is_named_by_the_function_with_most_of_it() -> None:
    """Without shares: the cost of waits is the GPU's idle time."""
    rows: list[Row] = []
    for start, wait, name in ((0, 60, "a.py(1): log"), (100, 30, "b.py(1): plot")):
        rows.append(python(name, ts=start * MS, dur=wait * MS))
        rows.append(op("aten::item", ts=start * MS, dur=wait * MS))
        rows.append(runtime("cudaLaunchKernel", ts=start * MS, dur=10))
        launched = len(rows) - 1
        rows.append(runtime("cudaStreamSynchronize", ts=start * MS + 10, dur=wait * MS - 20))
        rows.append(kernel("gemm", ts=start * MS + 20, dur=wait * MS - 50, launched_by=launched))
    record = trace_of(*rows, op("aten::mm", ts=150 * MS, dur=MS))
    assert found(record, "synchronising").remedy.endswith(" Look at `log` (`a.py:1`).")


def test_copies_from_pageable_memory_name_no_function() -> None:
    """What they cost is the CPU's time in calls, which the copies on the GPU do not show."""
    rows = [
        python("a.py(1): load", ts=0, dur=30 * MS),
        op("aten::copy_", ts=0, dur=20 * MS),
        runtime("cudaMemcpyAsync", ts=0, dur=20 * MS),
        copy(ts=10, dur=24 * MS, launched_by=2, bytes=2**20),
        op("aten::mm", ts=20 * MS, dur=10 * MS),
    ]
    assert "Look at" not in found(trace_of(*rows), "pageable_copies").remedy


def test_the_models_file_is_named_on_a_real_trace(shared: Shared) -> None:
    record = load(shared("tracelens/qwen_h100_stacks_memory.json.gz"))
    remedy = found(record, "critical_path").remedy
    assert "Look at `Qwen2MLP.forward` (`modeling_qwen2.py:56`), with 64 %" in remedy
    assert "16 instead of 32 bits" not in remedy
    assert "`apply_rotary_pos_emb` (`modeling_qwen2.py:68`)" in found(record, "gpu_ops").remedy

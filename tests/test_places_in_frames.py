"""Where to look in traces with Python frames: the functions that cause most of a finding's time."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.op_calls import calling_frame
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.traces import Row, Shared, backward_op, cell_line, kernel, op, python, runtime, trace_of

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
        " Look at `Attention.forward` (`model.py:40`), which causes 60 % of it, and at "
        "`MLP.forward` (`mlp.py:12`), 30 %."
    )


def test_calls_of_one_function_add_up_whatever_module_they_ran_for() -> None:
    other = ("run.py(3): main", "nn.Module: MLP_1", "models/mlp.py(12): forward")
    remedy = found(multiplying((50, MLP), (50, other)), "gpu_ops").remedy
    assert remedy.endswith(" Look at `MLP.forward` (`mlp.py:12`), which causes 100 % of it.")


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        ("<built-in method matmul of type object at 0x7f>", "`step` (`train.py:7`)"),
        ("torch/functional.py(20): einsum", "`step` (`train.py:7`)"),
        (f"{PACKAGES}torch/functional.py(20): einsum", "`step` (`train.py:7`)"),
        ("contextlib.py(81): inner", "`step` (`train.py:7`)"),
        ("/opt/conda/lib/python3.11/contextlib.py(81): inner", "`step` (`train.py:7`)"),
        ("<string>(1): __init__", "`step` (`train.py:7`)"),
        ("nn.Module: Linear_3", "`step` (`train.py:7`)"),
        ("helpers.py(5): attend", "`attend` (`helpers.py:5`)"),
        (f"{PACKAGES}timm/layers/mlp.py(5): mix", "`mix` (`mlp.py:5`)"),
        (r"C:\code\torchish\mlp.py(5): mix", "`mix` (`mlp.py:5`)"),
    ],
)
def test_a_function_of_torch_or_python_passes_on_to_its_caller(inner: str, named: str) -> None:
    record = multiplying((60, ("train.py(7): step", inner)))
    assert f"Look at {named}, which causes 100 % of it" in found(record, "gpu_ops").remedy


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


def test_a_path_counts_what_the_run_waits_for_not_the_calls() -> None:
    """`critical_path` shows calls on the CPU; what they launched is what the run waits for."""
    rows: list[Row] = []
    for start, gpu, frames in ((0, 90, MLP), (1, 10, ATTENTION)):
        rows += called(start, gpu, *frames, at=len(rows))
    first, second = (row for row in rows if row.category == "kernel")
    moved = kernel("gemm", ts=first.ts + first.dur, dur=second.dur, launched_by=len(rows) - 2)
    record = trace_of(*[moved if row is second else row for row in rows])
    remedy = found(record, "critical_path").remedy
    assert "`MLP.forward` (`mlp.py:12`), which causes 9" in remedy


def test_the_models_file_is_named_on_a_real_trace(shared: Shared) -> None:
    record = load(shared("tracelens/qwen_h100_stacks_memory.json.gz"))
    on_path = found(record, "critical_path").remedy
    assert "Look at `Qwen2MLP.forward` (`modeling_qwen2.py:56`)" in on_path
    assert "`apply_rotary_pos_emb` (`modeling_qwen2.py:68`)" in found(record, "gpu_ops").remedy

"""Rules on autograd: checkpointing, custom functions, anomaly mode, a forward without no_grad."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpuprof_widgets.analyses.backward import backward_ops, recomputed
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.trace.model import Record
from tests import cells
from tests.test_findings_work import said
from tests.traces import Row, annotation, backward_op, cell_line, kernel, op, trace_of

pytestmark = pytest.mark.slow

END = op("end", ts=990, dur=10)
"""So that the run takes 1 µs."""

SETUP = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
def layer():
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh())
model = nn.Sequential(layer(), layer(), layer())
x = torch.randn(4, 16)
grown = torch.randn(4, 16, requires_grad=True)
class MyExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, grad):
        y, = ctx.saved_tensors
        return grad * y
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_().exp()
        return grad * y
"""
TRAINING = "for _ in range(3):\n    model(x).sum().backward()"
EVERYDAY = {
    "training": TRAINING,
    "a penalty on the gradient": "g, = torch.autograd.grad(model(grown).pow(2).sum(), grown, "
    "create_graph=True)\n(g ** 2).sum().backward()",
    "no_grad": "with torch.no_grad():\n    for _ in range(20): model(x)",
    "inference_mode": "with torch.inference_mode():\n    for _ in range(20): model(x)",
    "a frozen model": "model.requires_grad_(False)\nfor _ in range(20): model(x)",
    "functions under no_grad": "with torch.no_grad():\n    for _ in range(60): MyExp.apply(x)",
    "NaN looked for by hand": "for _ in range(3):\n    y = model(x)\n"
    "    y.register_hook(lambda g: g if g.isnan().any() else None)\n    y.sum().backward()",
    "making a model": "for _ in range(30): layer()",
    "large products in a custom function": """
class MyMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad @ x.T + x.T @ grad
big = torch.randn(1000, 1000, requires_grad=True)
for _ in range(2):
    MyMM.apply(big).sum().backward()""",
}
NEW = ("recomputation", "python_autograd", "anomaly_detection", "without_no_grad")


def recorded(body: str) -> Record:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP, names)  # its own code, outside of what is recorded
    outcome, record = cells.recorded(body, names)
    assert not outcome.error
    return record


def anew(took: int) -> Record:
    """The backward of a tanh computes its block's forward anew in so many of 1000 ns."""
    return trace_of(
        op("aten::tanh", ts=0, dur=10, sequence=3),
        *backward_op("TanhBackward0", ts=500, dur=200, sequence=3),
        op("aten::linear", ts=510, dur=5, sequence=4),
        op("aten::tanh", ts=520, dur=took - 10, sequence=5),
        op("aten::tanh_backward", ts=600, dur=50),
        END,
    )


def custom(outside: int, name: str = "Mine") -> Record:
    """A custom function whose backward is so many of 1000 ns outside of its only op."""
    return trace_of(
        op(name, ts=0, dur=30, sequence=3),
        op("aten::exp", ts=0, dur=30),
        *backward_op(f"{name}Backward", ts=500, dur=102 + outside, sequence=3),
        op("aten::mul", ts=501, dur=100),
        END,
    )


def checking(*checks: str, **metadata: Any) -> Record:
    return trace_of(
        op("aten::exp", ts=0, dur=30, sequence=3),
        *backward_op("ExpBackward0", ts=500, dur=50, sequence=3)[:1],
        *(op(name, ts=510 + 10 * at, dur=5) for at, name in enumerate(checks)),
        END,
        **metadata,
    )


def noting(ops: int, *more: Row, **metadata: Any) -> Record:
    """A forward of so many ops, of which all but the last surely made a node."""
    rows = [op("aten::exp", ts=10 * at, dur=9, sequence=at) for at in range(ops)]
    return trace_of(*rows, *more, **metadata)


CHECKS = ("aten::isnan", "aten::_is_any_true", "aten::item")
CASES: dict[str, tuple[Record, Record]] = {
    "recomputation": (anew(50), anew(49)),
    "python_autograd": (custom(50), custom(49)),
    "anomaly_detection": (checking(*CHECKS), checking("aten::isnan", "aten::any", "aten::item")),
    "without_no_grad": (noting(51), noting(50)),
}


@pytest.mark.parametrize("what", EVERYDAY)
def test_everyday_cells_say_nothing_of_it(what: str) -> None:
    record = recorded(EVERYDAY[what])
    silent = [rule for rule in NEW if rule != "python_autograd"]
    assert [one.text for rule in silent for one in said(rule, record)] == []
    in_python = 0.9 if what.startswith("large") else 0.05  # a machine at its limit stalls anything
    assert said("python_autograd", record, python_autograd_share=in_python) == []


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("block", ["model", "torch.tanh"])
def test_checkpointing_is_told_as_such_and_not_as_a_ratio(reentrant: bool, block: str) -> None:
    again = f"y = checkpoint({block}, y, use_reentrant={reentrant})"
    record = recorded(f"y = grown\n{again}\n{again}\ny.sum().backward()")
    (finding,) = said("recomputation", record, recomputation_share=0)
    assert "recomputes the forward in 2 ops" in finding.text
    ops = record.trace.slices["name"].iloc[recomputed(record.trace).rows].tolist()
    assert ops == 2 * (3 * ["aten::linear", "aten::tanh"] if block == "model" else ["aten::tanh"])
    everything = {"backward_share": 0, "backward_ratio": 1e-9, "backward_notable_share": 0}
    of_nodes = [one.text for one in said("backward", record, **everything)]
    nodes = "`CheckpointFunctionBackward`" if reentrant else "`TanhBackward0`"
    assert [text for text in of_nodes if text.startswith(nodes) and "times as long" in text] == []


def test_a_function_that_computes_its_forward_again_by_hand_recomputes_too() -> None:
    (finding,) = said("recomputation", recorded("Again.apply(grown).sum().backward()"),
                      recomputation_share=0)  # fmt: skip
    assert "`AgainBackward`" in finding.text


def test_what_is_computed_anew_is_no_time_of_the_backward_op_itself() -> None:
    finding = said("recomputation", anew(60))[0]
    assert (finding.cost_ns, finding.start_ns, finding.end_ns) == (60, 510, 570)
    (row,) = backward_ops(anew(60)).to_dict("records")
    assert (row["cpu_ns"], row["own_ns"]) == (200, 198 - 60)


def test_on_a_gpu_computing_anew_costs_what_it_launches() -> None:
    rows = [
        op("aten::tanh", ts=0, dur=10, sequence=3),
        *backward_op("TanhBackward0", ts=500, dur=200, sequence=3),
        op("aten::tanh", ts=520, dur=30, sequence=5),
        op("aten::tanh_backward", ts=600, dur=50),
        kernel("tanh", ts=530, dur=100, launched_by=3),
        kernel("tanh_backward", ts=700, dur=100, launched_by=4),
    ]
    (finding,) = said("recomputation", trace_of(*rows, END))
    assert finding.cost_ns == 100
    assert "100 ns (50 % of GPU time)" in finding.text


def test_hooks_collectives_and_compilation_are_no_time_of_a_backward_op() -> None:
    record = trace_of(
        op("aten::addmm", ts=0, dur=10, sequence=3),
        annotation("FSDP::pre_backward (1)", ts=500, dur=300),
        op("autograd::engine::evaluate_function: AddmmBackward0", ts=490, dur=500, sequence=3,
           forward_thread=1),
        op("AddmmBackward0", ts=850, dur=140, sequence=3, forward_thread=1),
        op("c10d::_allgather_base_", ts=860, dur=20),
        op("_compile.compile_inner (dynamo_timed)", ts=900, dur=60),
        op("aten::mm", ts=905, dur=50),
    )  # fmt: skip
    (row,) = backward_ops(record).to_dict("records")
    assert (row["cpu_ns"], row["own_ns"]) == (500, 140 - 20 - 60)


def test_a_custom_function_is_named_with_what_it_spends_outside_of_ops() -> None:
    body = "y = grown\nfor _ in range(60):\n    y = MyExp.apply(y * 1e-3)\ny.sum().backward()"
    (finding,) = said("python_autograd", recorded(body), python_autograd_share=0.001)
    assert finding.text.startswith("The custom autograd function `MyExp` spent ")
    assert finding.text.endswith("in 120 calls of its forward and backward.")
    assert said("python_autograd", custom(200))[0].cost_ns == 200


@pytest.mark.parametrize("name", ["CheckpointFunction", "RegisterPostBackwardFunction"])
def test_functions_of_torch_itself_are_no_custom_ones(name: str) -> None:
    assert said("python_autograd", custom(400, name)) == []


def test_python_beside_a_busy_gpu_holds_nothing_up() -> None:
    rows = [
        op("Mine", ts=0, dur=30, sequence=3),
        *backward_op("MineBackward", ts=500, dur=302, sequence=3),
        kernel("long", ts=400, dur=380),
    ]
    (finding,) = said("python_autograd", trace_of(*rows, END), python_autograd_share=0.001)
    assert finding.cost_ns == 30 + (801 - 780)


@pytest.mark.parametrize("mode", ["set_detect_anomaly(True)", "detect_anomaly()"])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_within_a_cell_is_seen_by_its_checks(mode: str) -> None:
    record = recorded(f"with torch.autograd.{mode}:\n    model(x).sum().backward()")
    (finding,) = said("anomaly_detection", record)
    assert "It looked for NaN in " in finding.text
    assert finding.cost_ns > 0
    assert record.metadata["anomaly_mode"] is False  # neither at the start nor at the end
    assert said("cpu_ops", record)[0].remedy.startswith("Autograd's anomaly mode was on")


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_left_on_is_noted_where_nothing_went_back() -> None:
    try:
        record = recorded("torch.autograd.set_detect_anomaly(True, check_nan=False)\n" + TRAINING)
    finally:
        torch.autograd.set_detect_anomaly(False)
    assert record.metadata["anomaly_mode"] is True
    (finding,) = said("anomaly_detection", record)
    assert finding.text == (
        "Autograd's anomaly mode was on. It recorded the Python stack of each forward op, which "
        "counts as time of that op."
    )


def test_a_forward_that_autograd_notes_in_vain_is_told() -> None:
    (finding,) = said("without_no_grad", recorded("model.eval()\nfor _ in range(20): model(x)"))
    assert finding.text.startswith(
        "Autograd recorded at least 179 ops for a backward pass, but no backward pass ran"
    )
    assert "torch.inference_mode()" in finding.remedy


STEP = annotation("Optimizer.step#SGD.step", ts=2000, dur=10)


@pytest.mark.parametrize(
    ("rows", "metadata"),
    [
        (backward_op("ExpBackward0", ts=2000, dur=50, sequence=3), {}),
        ([STEP], {}),
        ([], {"error": "ValueError: x"}),
        ([], {"interrupted": True}),
        ([], {"window_ns": [0, 900]}),
    ],
)
def test_where_a_backward_pass_ran_or_was_to_come_it_is_silent(
    rows: list[Row], metadata: dict[str, Any]
) -> None:
    assert said("without_no_grad", noting(80)) != []
    assert said("without_no_grad", noting(80, *rows, **metadata)) == []


@pytest.mark.parametrize("rule", NEW)
def test_real_traces_give_no_false_alarm(rule: str, shared_record: Record) -> None:
    """None of them checkpoints, debugs, or evaluates with gradients on, as their ops' names say."""
    assert [one.text for one in said(rule, shared_record)] == []


def test_lines_do_not_hide_what_runs_in_a_backward_op() -> None:
    rows = [
        op("Mine", ts=0, dur=30, sequence=3),
        *backward_op("MineBackward", ts=500, dur=202, sequence=3),
        cell_line(9, "return grad * y", ts=510, dur=180),
        op("aten::mul", ts=520, dur=160),
    ]
    (finding,) = said("python_autograd", trace_of(*rows, END))
    assert finding.cost_ns == 30 + 200 - 160


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_line_to_look_at_is_the_one_that_checkpoints(reentrant: bool) -> None:
    call = f"y = checkpoint(model, grown, use_reentrant={reentrant})"
    record = recorded(f"{call}\nfor _ in range(1):\n    y.sum().backward()")
    found = findings(record, recomputation_share=0)
    (remedy,) = (one.remedy for one in found if one.rule == "recomputation")
    assert remedy.endswith(f" Look at line 2: `{call}`.")

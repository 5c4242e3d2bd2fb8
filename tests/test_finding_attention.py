"""The rule on attention that is written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import gpuprof_widgets
from gpuprof_widgets.analyses.findings import FINDINGS, Finding, attention
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, backward_op, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

MS = 1_000_000
END = op("aten::mm", ts=199 * MS, dur=MS)
"""So that the run takes 200 ms."""
BMM, SOFTMAX = ("aten::matmul", "aten::bmm"), ("aten::softmax", "aten::_softmax")
DIV, MASK, DROPOUT = ("aten::div",), ("aten::masked_fill",), ("aten::dropout",)
WRITTEN_OUT = (BMM, DIV, MASK, SOFTMAX, DROPOUT, BMM)

Names = tuple[str, ...]
Shapes = dict[int, list[list[int]]]


def said(record: Record, **limits: float) -> list[Finding]:
    return FINDINGS["written_out_attention"](record, **limits)


def calls(*ops: Names, shapes: Shapes | None = None, thread: int = 100) -> list[Row]:
    """Ops of 4 ms one after the other, each with the one that it calls, if any, of 2 ms."""
    rows = []
    for at, (name, *below) in enumerate(ops):
        start, dims = at * 4 * MS, (shapes or {}).get(at)
        rows.append(op(name, ts=start, dur=4 * MS, shapes=dims, thread=thread))
        rows += [op(each, ts=start + MS, dur=2 * MS, shapes=dims, thread=thread) for each in below]
    return rows


def attention_of(took: int) -> Record:
    """A run of 100 ms, in which the softmax between two products takes so long."""
    inside = op("aten::softmax", ts=MS, dur=took)
    products = [op("aten::bmm", ts=0, dur=MS), op("aten::bmm", ts=50 * MS, dur=MS)]
    return trace_of(inside, *products, op("aten::mm", ts=99 * MS, dur=MS))


CASES = {"written_out_attention": (attention_of(5 * MS), attention_of(5 * MS - 1))}


def test_the_time_is_that_of_the_ops_between_the_products() -> None:
    record = trace_of(*calls(("aten::linear",), *WRITTEN_OUT, ("aten::linear",)), END)
    (finding,) = said(record)
    assert finding.cost_ns == 16 * MS
    assert finding.share == 0.08
    assert "mostly `aten::div`, `aten::dropout` and `aten::masked_fill`, took" in finding.text
    between = ["aten::div", "aten::masked_fill", "aten::softmax", "aten::dropout"]
    assert record.trace.slices["name"].iloc[list(finding.rows)].tolist() == between


@pytest.mark.parametrize(
    ("why", "ops"),
    [
        ("the scores are no batched product", (("aten::linear", "aten::addmm"), SOFTMAX, BMM)),
        ("what follows is no batched product", (BMM, SOFTMAX, ("aten::matmul", "aten::mm"))),
        ("there is no softmax", (BMM, DIV, MASK, BMM)),
        ("it is no softmax of scores alone", (BMM, SOFTMAX, DIV, SOFTMAX, BMM)),
        ("a layer lies between", (BMM, ("aten::linear", "aten::addmm"), SOFTMAX, BMM)),
        ("a gate chooses experts", (BMM, SOFTMAX, ("aten::topk",), ("aten::one_hot",), BMM)),
        ("they lie too far apart", (BMM, *(DIV,) * 24, SOFTMAX, BMM)),
    ],
)
def test_other_products_are_no_attention(why: str, ops: tuple[Names, ...]) -> None:
    assert not said(trace_of(*calls(*ops), END)), why


def test_the_ops_below_a_single_op_are_its_own() -> None:
    inside = calls(*WRITTEN_OUT)
    fused = op("aten::scaled_dot_product_attention", ts=0, dur=24 * MS)
    assert said(trace_of(*inside, END))
    assert not said(trace_of(fused, *inside, END))


def test_ops_that_are_attention_each_are_none_together() -> None:
    fused = ("aten::scaled_dot_product_attention", "aten::bmm", "aten::_softmax")
    layer = ("aten::_transformer_encoder_layer_fwd", "aten::addmm", "aten::bmm", "aten::_softmax")
    for ops in ((fused,) * 4, (layer,) * 4, (BMM, fused, BMM), (fused, SOFTMAX, fused)):
        assert not said(trace_of(*calls(*ops), END))


def test_products_on_other_threads_are_others() -> None:
    rows = [*calls(BMM, MASK, SOFTMAX), *calls(BMM, DIV, thread=101)]
    assert not said(trace_of(*rows, END))


@pytest.mark.parametrize(
    ("scores", "product", "is_attention"),
    [
        ([2, 8, 64, 128], [[16, 64, 128], [16, 128, 32]], True),
        ([2, 8, 64, 128], [[2, 8, 32, 128], [2, 8, 128, 64]], True),
        ([16, 64, 128], [[16, 32, 128], [16, 128, 64]], True),
        ([16, 64, 128], [[16, 32, 16], [16, 16, 64]], False),
    ],
)
def test_shapes_tell_whether_the_product_takes_the_scores(
    scores: list[int], product: list[list[int]], is_attention: bool
) -> None:
    rows = calls(BMM, SOFTMAX, BMM, shapes={1: [scores], 2: product})
    assert bool(said(trace_of(*rows, END), written_out_attention_share=0.0)) == is_attention


def test_on_a_gpu_the_time_is_that_of_its_work_with_the_backward_pass() -> None:
    ops = calls(*WRITTEN_OUT)
    forward = op("aten::softmax", ts=ops[4].ts, dur=4 * MS, sequence=7)
    ops[4] = forward
    launch = runtime("cudaLaunchKernel", ts=forward.ts + 2 * MS, dur=MS)
    back = backward_op("SoftmaxBackward0", ts=60 * MS, dur=4 * MS, sequence=7, thread=101)
    back_launch = runtime("cudaLaunchKernel", ts=61 * MS, dur=MS, thread=101)
    of_product = runtime("cudaLaunchKernel", ts=MS, dur=MS)
    rows = [*ops, launch, *back, back_launch, of_product]
    place = {id(row): at for at, row in enumerate(rows)}
    kernels = [
        kernel("gemm", ts=10 * MS, dur=5 * MS, launched_by=place[id(of_product)]),
        kernel("softmax", ts=20 * MS, dur=11 * MS, launched_by=place[id(launch)]),
        kernel("softmax_backward", ts=70 * MS, dur=13 * MS, launched_by=place[id(back_launch)]),
    ]
    (finding,) = said(trace_of(*rows, *kernels, END))
    assert finding.cost_ns == 24 * MS
    assert "mostly `aten::softmax`, took 24.0 ms on the GPU" in finding.text


def test_the_backward_pass_on_the_cpu_counts_once() -> None:
    ops = calls(*WRITTEN_OUT)
    ops[4] = op("aten::softmax", ts=ops[4].ts, dur=4 * MS, sequence=7)
    back = backward_op("SoftmaxBackward0", ts=60 * MS, dur=4 * MS, sequence=7, thread=101)
    (finding,) = said(trace_of(*ops, *back, END))
    assert finding.cost_ns == 20 * MS
    elsewhere = kernel("gemm", ts=100 * MS, dur=MS)  # the work of the ops themselves is not known
    assert not said(trace_of(*ops, *back, elsewhere, END))


class Heads(nn.Module):
    """Attention of 8 heads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = x.view(*x.shape[:2], 3, 8, -1).permute(2, 0, 3, 1, 4)
        return self.mixed(query, key, value).transpose(1, 2).flatten(2)

    def mixed(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / 8
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights = functional.softmax(scores.masked_fill(~causal, -torch.inf), dim=-1)
        return torch.einsum("bhqk,bhkd->bhqd", weights, value)


class Fused(Heads):
    """The same in one op."""

    def mixed(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@pytest.mark.parametrize("shapes", [False, True])
def test_torch_written_out_and_in_one_op(shapes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "WORTH_NS", 0)
    x = torch.randn(2, 128, 768, requires_grad=True)
    found = {}
    for model in (Heads(), Fused(), nn.MultiheadAttention(768, 8, batch_first=True)):
        inputs = (x, x, x) if isinstance(model, nn.MultiheadAttention) else (x,)
        with gpuprof_widgets.profile(shapes=shapes, quiet=True) as profile:
            result = model(*inputs)
            result = result[0] if isinstance(result, tuple) else result
            result.sum().backward()
        listed = profile.findings(written_out_attention_share=0.0)
        found[type(model)] = [each for each in listed if each.rule == "written_out_attention"]
    assert [model for model, said in found.items() if said] == [Heads, nn.MultiheadAttention]
    assert "written out 1 time" in found[Heads][0].text

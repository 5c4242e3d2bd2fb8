"""FLOPs and bytes of ops from their recorded shapes, against torch's own counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from gpuprof_widgets.analyses.op_bytes import bytes_of
from gpuprof_widgets.analyses.op_calls import Call
from gpuprof_widgets.analyses.roofline import ARITHMETIC, slice_work_flops, work_of, worker_of
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.traces import kernel, op, runtime, trace_of

sizes = st.integers(1, 6)


def recorded(run: Callable[[], Any], folder: Path) -> Record:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        run()
    path = folder / "trace.json"
    recording.export_chrome_trace(str(path))
    return load(path)


def products_only(record: Record) -> int:
    """FLOPs but those of sums and products element by element, which torch's counter leaves out."""
    trace = record.trace
    simple = trace.slices["name"].isin(ARITHMETIC).to_numpy()
    return int(slice_work_flops(trace)[~simple].sum())


def counted(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def trained(model: torch.nn.Module, *shape: int) -> Callable[[], None]:
    given = torch.randn(*shape, requires_grad=True)
    return lambda: model(given).sum().backward()


RUNS: dict[str, Callable[[], Any]] = {
    "mm": lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5)),
    "addmm": lambda: torch.addmm(torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)),
    "bmm": lambda: torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "baddbmm": lambda: torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "linear": trained(torch.nn.Linear(16, 8), 4, 16),
    "conv1d": trained(torch.nn.Conv1d(3, 8, 3, stride=2), 2, 3, 19),
    "conv2d": trained(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=2), 2, 3, 17, 20),
    "conv3d": trained(torch.nn.Conv3d(2, 4, 3, padding=(0, 1, 2)), 2, 2, 8, 9, 7),
    "conv_transpose2d": trained(
        torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), 2, 4, 8, 7
    ),
    "attention layer": trained(torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0), 5, 2, 16),
}


@pytest.mark.parametrize("name", RUNS)
def test_flops_are_those_of_torchs_counter(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    with sdpa_kernel(SDPBackend.MATH):  # the counter does not know the CPU's own attention
        assert products_only(recorded(run, tmp_path)) == counted(run)


def test_a_grouped_convolutions_weight_is_not_counted_once_per_group(tmp_path: Path) -> None:
    """Torch 2.13 takes all input channels for each group: ``groups`` times too many."""
    model, groups = torch.nn.Conv2d(8, 8, 3, groups=4, bias=False), 4
    run = trained(model, 2, 8, 9, 9)
    forward = 2 * (2 * 7 * 7) * 8 * (8 // groups) * 9
    assert products_only(recorded(run, tmp_path)) == 3 * forward
    assert counted(run) == (2 + groups) * forward


def test_attention_of_the_cpu_counts_as_on_a_gpu(tmp_path: Path) -> None:
    query, key = torch.randn(2, 4, 16, 8, requires_grad=True), torch.randn(2, 4, 12, 8)
    record = recorded(
        lambda: F.scaled_dot_product_attention(query, key, key).sum().backward(), tmp_path
    )
    shapes = (query.shape, key.shape, key.shape)
    expected = flop_counter.sdpa_flop_count(*shapes)
    expected += flop_counter.sdpa_backward_flop_count(query.shape, *shapes)
    assert products_only(record) == expected


ATTENTIONS = ("efficient", "flash", "cudnn")


@given(sizes, sizes, sizes, sizes, sizes, sizes, st.sampled_from(ATTENTIONS))
def test_attention_kernels_count_what_torch_counts(
    batch: int, heads: int, length: int, keys: int, size: int, wide: int, kind: str
) -> None:
    query, key = [batch, heads, length, size], [batch, heads, keys, size]
    value, gradient = [batch, heads, keys, wide], [batch, heads, length, wide]
    name = f"aten::_scaled_dot_product_{kind}_attention"
    forward = op(name, ts=0, dur=1, shapes=[query, key, value], **typed(3))
    backward = op(f"{name}_backward", ts=2, dur=1, shapes=[gradient, query, key, value], **typed(4))
    shapes = (query, key, value)
    assert slice_work_flops(trace_of(forward, backward).trace).tolist() == [
        flop_counter.sdpa_flop_count(*shapes),
        flop_counter.sdpa_backward_flop_count(gradient, *shapes),
    ]


def test_a_kernel_of_attention_called_by_itself_has_its_heads_third() -> None:
    shape = [2, 16, 4, 8]  # batch, length, heads, size
    row = op("aten::_flash_attention_forward", ts=0, dur=1, shapes=[shape] * 3, **typed(3))
    expected = flop_counter.sdpa_flop_count(*[(2, 4, 16, 8)] * 3)
    assert slice_work_flops(trace_of(row).trace).tolist() == [expected]


def test_packed_lengths_are_not_guessed() -> None:
    row = op("aten::_flash_attention_forward", ts=0, dur=1, shapes=[[32, 4, 8]] * 3, **typed(3))
    assert slice_work_flops(trace_of(row).trace).tolist() == [0]


def test_an_op_within_a_counted_op_is_counted_there_alone() -> None:
    record = trace_of(
        op("aten::addmm", ts=0, dur=90, shapes=[[4], [2, 3], [3, 4]], **typed(3)),
        op("aten::mm", ts=10, dur=50, shapes=[[2, 3], [3, 4]], **typed(2)),
        runtime("cudaLaunchKernel", ts=20, dur=5),
        kernel("gemm", ts=40, dur=9, launched_by=2),
    )
    assert slice_work_flops(record.trace).sum() == 2 * 2 * 3 * 4
    outer = int(np.flatnonzero(record.trace.slices["name"] == "aten::addmm")[0])
    assert (worker_of(record.trace) == outer).all()


def test_sums_count_the_elements_of_their_result() -> None:
    rows = [
        op("aten::mul", ts=0, dur=1, shapes=[[], [4, 5]], **typed(2)),
        op("aten::add_", ts=2, dur=1, shapes=[[4, 1], [5]], **typed(2)),
        op("aten::add", ts=4, dur=1, shapes=[[], [4]], **{"Input type": ["", "float"]}),
    ]
    assert slice_work_flops(trace_of(*rows).trace).tolist() == [20, 20, 0]


def typed(number: int) -> dict[str, Any]:
    return {"Input type": ["float"] * number}


def call(name: str, *tensors: tuple[str, list[int]], concrete: Any = (), strides: Any = ()) -> Call:
    types, dims = [kind for kind, _ in tensors], [shape for _, shape in tensors]
    return Call(f"aten::{name}", dims, types, strides, concrete)


HALF, FLOAT, LONG, PLAIN = "c10::Half", "float", "long int", "Scalar"

BYTES = {
    "a product": (call("mm", (HALF, [2, 3]), (HALF, [3, 4])), (6 + 12 + 8) * 2),
    "with a bias": (
        call("addmm", (FLOAT, [4]), (FLOAT, [2, 3]), (FLOAT, [3, 4])),
        (4 + 6 + 12 + 8) * 4,
    ),
    "added to zero times it": (
        call(
            "baddbmm",
            *((HALF, [2, 3, 5]), (HALF, [2, 3, 4]), (HALF, [2, 4, 5]), (PLAIN, []), (PLAIN, [])),
            concrete=["", "", "", "0.", "1"],
        ),
        (24 + 40 + 30) * 2,
    ),
    "into a given tensor": (call("clamp_min", (FLOAT, [10]), (PLAIN, []), (FLOAT, [10])), 80),
    "in place": (call("add_", (FLOAT, [10]), (FLOAT, [10]), (PLAIN, [])), 120),
    "a copy to another format": (call("copy_", (HALF, [10]), (FLOAT, [10])), 20 + 40),
    "filled": (call("fill_", (FLOAT, [10]), (PLAIN, [])), 40),
    "broadcast": (call("add", (FLOAT, [4, 1]), (FLOAT, [5])), (4 + 5 + 20) * 4),
    "compared": (call("gt", (FLOAT, [10]), (PLAIN, [])), 40 + 10),
    "expanded": (call("mul", (FLOAT, [4, 5]), (FLOAT, [4, 5]), strides=[[5, 1], [0, 1]]), 180),
    "looked up": (call("embedding", (FLOAT, [1000, 8]), (LONG, [3])), 3 * 8 * 4 * 2 + 24),
    "bags of rows": (
        call(
            "_embedding_bag",
            *((FLOAT, [1000, 8]), (LONG, [5]), (LONG, [2])),
            concrete=["", "", "", "False", "0", "False", "", "False", "-1"],
        ),
        5 * 32 + 40 + 16 + 2 * 32,
    ),
    "rows selected": (
        call("index_select", (FLOAT, [1000, 8]), (PLAIN, []), (LONG, [3]), concrete=["", "0", ""]),
        3 * 32 * 2 + 24,
    ),
    "gathered": (call("gather", (FLOAT, [1000, 8]), (PLAIN, []), (LONG, [4, 2])), 8 * 4 * 2 + 64),
    "a cache written": (
        call(
            "index_copy_",
            *((HALF, [2, 4096, 64]), (PLAIN, []), (LONG, [1]), (HALF, [2, 1, 64])),
            concrete=["", "1", "", ""],
        ),
        128 * 2 * 2 + 8,
    ),
    "rows added to": (
        call(
            "index_add_",
            *((FLOAT, [1000, 8]), (PLAIN, []), (LONG, [3]), (FLOAT, [3, 8]), (PLAIN, [])),
            concrete=["", "0", "", "", "1"],
        ),
        3 * 32 * 3 + 24,
    ),
    "scattered from a larger one": (
        call("scatter_", (FLOAT, [1000, 8]), (PLAIN, []), (LONG, [4, 1]), (FLOAT, [9, 9])),
        4 * 4 * 2 + 32,
    ),
    "scattered and added": (
        call("scatter_add_", (FLOAT, [1000, 8]), (PLAIN, []), (LONG, [4, 1]), (FLOAT, [4, 1])),
        4 * 4 * 3 + 32,
    ),
    "the scores of targets": (
        call("nll_loss_forward", (FLOAT, [64, 50_000]), (LONG, [64])),
        64 * 4 + 64 * 8 + 4,
    ),
    "the gradients of targets": (
        call("nll_loss_backward", (FLOAT, []), (FLOAT, [64, 50_000]), (LONG, [64])),
        4 + 64 * 8 + 64 * 4,
    ),
    "a convolution": (
        call(
            "convolution",
            *((FLOAT, [1, 2, 5, 5]), (FLOAT, [3, 2, 3, 3]), (FLOAT, [3])),
            concrete=["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
        ),
        (50 + 54 + 3 + 75) * 4,
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_read_and_written(name: str) -> None:
    made, expected = BYTES[name]
    assert (bytes_of(made).bytes, bytes_of(made).counted) == (expected, "inputs and outputs")


UNTOLD = {
    "indices in a list": call("index", (FLOAT, [1000, 8]), ("", [])),
    "a mask in a list": call("index_put_", (FLOAT, [1000, 8]), ("", []), (FLOAT, [])),
    "what indices in a list choose": call("_index_put_impl_", (FLOAT, [1000, 8]), ("", [])),
    "what a mask chooses": call("masked_select", (FLOAT, [1000]), ("bool", [1000])),
    "a sparse gradient's rows": call("_embedding_bag_sparse_backward", (FLOAT, [4, 8])),
    "a sparse gradient": call("add_", (FLOAT, [1000, 8]), (FLOAT, [1000, 8]), strides=[[8, 1], []]),
    "rows along an axis that was not recorded": call(
        "index_select", (FLOAT, [1000, 8]), (PLAIN, []), (LONG, [3])
    ),
    "another library's op": Call(
        "vllm::reshape_and_cache", [[4, 8], [9999, 8]], [FLOAT, FLOAT], [], []
    ),
    "a table in what torch.compile fused": Call(
        "triton_poi_fused_add_embedding_0", [[3], [1000, 8], [3, 8]], [LONG, FLOAT, FLOAT], [], []
    ),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_of_what_shapes_do_not_tell_nothing_is_counted(name: str) -> None:
    moved = bytes_of(UNTOLD[name])
    assert (moved.bytes, moved.counted) == (0, "")


def test_what_torch_records_of_a_sparse_gradient_is_not_counted(tmp_path: Path) -> None:
    table = torch.nn.Embedding(1000, 8, sparse=True)
    optimizer = torch.optim.SGD(table.parameters())

    def step() -> None:
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    trace = recorded(step, tmp_path).trace
    added = np.flatnonzero((trace.slices["name"] == "aten::add_").to_numpy())
    assert len(added)
    assert (work_of(trace, added).counted == "").all()


def test_an_op_whose_output_is_not_known_counts_its_inputs() -> None:
    moved = bytes_of(call("sum", (FLOAT, [10])))
    assert (moved.bytes, moved.counted, moved.moves_only) == (40, "inputs", True)
    assert bytes_of(call("my_op", (FLOAT, [10]))).moves_only is False


@pytest.mark.parametrize("kind", ["TensorList", ""])
def test_tensors_without_a_recorded_format_count_nothing(kind: str) -> None:
    moved = bytes_of(call("cat", (kind, [[4], [5]])))  # type: ignore[arg-type]
    assert (moved.bytes, moved.counted) == (0, "")


@pytest.mark.parametrize("name", ["detach_", "resize_"])
def test_ops_that_change_a_view_in_place_move_nothing_that_is_known(name: str) -> None:
    moved = bytes_of(call(name, (FLOAT, [10])))
    assert moved.counted != "inputs and outputs"
    assert not moved.moves_only
    assert bytes_of(call("add_", (FLOAT, [10]))).counted == "inputs and outputs"

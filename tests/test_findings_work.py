"""Rules on tensor cores, matrix products and loops over rows: made up, and as torch sees them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, _pattern_matcher, profile

from gpuprof_widgets.analyses.findings import FINDINGS, Finding
from gpuprof_widgets.analyses.findings.thresholds import thresholds_of
from gpuprof_widgets.analyses.sequences import indexing_loops
from gpuprof_widgets.analyses.tensor_cores import capability, products, unaligned
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.traces import Row, annotation, cell_line, kernel, op, trace_of

A100 = {"index": 0, "name": "NVIDIA A100-SXM4-40GB", "compute_capability": "8.0"}
V100 = {"index": 0, "name": "Tesla V100-SXM2-16GB", "compute_capability": "7.0"}
MI300 = {"index": 0, "name": "AMD Instinct MI300X", "compute_capability": "9.4"}
HALF = "c10::Half"


def launched(
    name: str,
    dur: int,
    *,
    ts: int = 0,
    gpu: str = "volta_sgemm_128x64_nn",
    shapes: Any = ([64, 64], [64, 64]),
    kind: str = "float",
    strides: Any = None,
) -> list[Row]:
    args = {"Input type": [kind] * len(shapes), "External id": ts + 1}
    if strides is not None:
        args["Input Strides"] = strides
    return [
        op(name, ts=ts, dur=10, shapes=list(shapes), **args),
        kernel(gpu, ts=ts + 20, dur=dur, **{"External id": ts + 1}),
    ]


def beside(dur: int, ts: int = 5000) -> list[Row]:
    """Other work on the GPU, so that the products are that share of it."""
    return launched("aten::relu", dur, ts=ts, gpu="elementwise", shapes=([100],))


def idle_cores(share: int, **given: Any) -> Record:
    """A product that took ``share`` of 1000 ns without tensor cores, on a busy V100."""
    rows = launched("aten::mm", share, **given)
    return trace_of(*rows, *beside(1000 - share, ts=share), devices=[V100])


def hidden_cores(share: int) -> Record:
    """The same, long before the CPU has the GPU do the rest."""
    return trace_of(*launched("aten::mm", share), *beside(1000 - share), devices=[V100])


def plain(share: int, device: dict[str, Any] = A100, **given: Any) -> Record:
    large = ([64], [4096, 4096], [4096, 4096])
    rows = launched("aten::addmm", share, shapes=large, **given)
    tensor = launched("aten::mm", 1, ts=999, gpu="ampere_fp16_s16816gemm", kind=HALF)
    return trace_of(*rows, *tensor, *beside(999 - share, ts=share), devices=[device])


def odd(share: int) -> Record:
    """A product of 50 columns that took ``share`` of 1000 ns."""
    shapes = ([64, 64], [64, 50])
    rows = launched("aten::mm", share, gpu="s16816gemm", shapes=shapes, kind=HALF)
    return trace_of(*rows, *beside(1000 - share, ts=share), devices=[A100])


def rounds(number: int) -> Record:
    """A loop of so many rounds in 10 ns each, in a run of 1000 ns."""
    loop = [
        op(name, ts=10 * at + offset, dur=4)
        for at in range(number)
        for offset, name in ((0, "aten::select"), (5, "aten::fill_"))
    ]
    return trace_of(*loop, op("end", ts=990, dur=10))


def nested(*, rounds: int, heavy: int, times: int = 5) -> Record:
    """So many times a loop of rounds of 10 ns with two or three ops, and then a heavy op."""
    ops = []
    for outer in range(times):
        start = outer * (10 * rounds + heavy)
        for at in range(rounds):
            names = ["aten::select", "aten::lt", *["aten::is_nonzero"] * (at % 3)]
            ops += [
                op(name, ts=start + 10 * at + 2 * offset, dur=2)
                for offset, name in enumerate(names)
            ]
        ops.append(op("aten::cdist", ts=start + 10 * rounds, dur=heavy))
    return trace_of(*ops)


CASES = {
    "tensor_cores_idle": (idle_cores(100), idle_cores(99)),
    "fp32_matmul": (plain(50), plain(49)),
    "matmul_sizes": (odd(20), odd(19)),
    "loop_indexing": (rounds(10), rounds(9)),
}
"""Per rule a trace that fires it and one just below."""


def said(rule: str, record: Record, **limits: float) -> list[Finding]:
    return FINDINGS[rule](record, **limits)


def test_odd_sizes_cost_no_more_than_the_run_waits_for() -> None:
    rows = launched("aten::mm", 500, gpu="s16816gemm", shapes=([64, 64], [64, 50]), kind=HALF)
    assert said("matmul_sizes", trace_of(*rows, *beside(500), devices=[A100])) == []
    (waited_for,) = said("matmul_sizes", odd(500))
    assert waited_for.cost_ns == 250
    assert "At twice the speed, the run would be at most 250 ns" in waited_for.text


class TestTensorCoresIdle:
    def test_place(self) -> None:
        (finding,) = said("tensor_cores_idle", idle_cores(500))
        assert (finding.start_ns, finding.end_ns, len(finding.rows)) == (20, 520, 1)

    def test_one_kernel_on_tensor_cores_is_enough(self) -> None:
        rows = launched("aten::mm", 500, gpu="volta_s884gemm_fp16")
        record = trace_of(*rows, *launched("aten::mm", 500, ts=2000), devices=[V100])
        assert said("tensor_cores_idle", record) == []

    def test_older_and_other_gpus_have_none(self) -> None:
        for device in (MI300, {"index": 0, "name": "Quadro GP100", "compute_capability": "6.0"}):
            record = trace_of(*launched("aten::mm", 500), devices=[device])
            assert said("tensor_cores_idle", record) == []

    def test_double_precision_is_not_eligible(self) -> None:
        assert said("tensor_cores_idle", idle_cores(500, kind="double")) == []

    def test_the_cost_is_what_16_bits_save_by_the_data_sheet(self) -> None:
        """Large products: 15.7 of 125 TFLOP/s; small ones: half the bytes."""
        large = idle_cores(500, shapes=([4096, 4096], [4096, 4096]))
        assert said("tensor_cores_idle", large)[0].cost_ns == pytest.approx(
            500 * (1 - 15.7 / 125), abs=1
        )
        assert said("tensor_cores_idle", idle_cores(500, shapes=([8, 8], [8, 8])))[0].cost_ns == 250

    def test_what_the_run_does_not_wait_for_costs_nothing(self) -> None:
        assert said("tensor_cores_idle", hidden_cores(500)) == []

    def test_16_bits_that_missed_them_are_not_told_to_use_16_bits(self) -> None:
        (finding,) = said("tensor_cores_idle", idle_cores(500, kind=HALF))
        assert "multiples of 8" in finding.remedy


class TestFp32Matmul:
    def test_tf32_is_recommended_once(self) -> None:
        rows = launched("aten::mm", 500, shapes=([4096, 4096], [4096, 4096]))
        record = trace_of(*rows, devices=[A100])
        assert len(said("fp32_matmul", record)) == 1
        assert said("tensor_cores_idle", record) == []

    def test_no_more_is_promised_than_the_run_waits_for(self) -> None:
        """A product that the GPU does long before its next work, and one right before it."""
        rows = launched("aten::mm", 500, shapes=([4096, 4096], [4096, 4096]))
        assert said("fp32_matmul", trace_of(*rows, *beside(500), devices=[A100])) == []
        (waited_for,) = said("fp32_matmul", trace_of(*rows, *beside(500, ts=500), devices=[A100]))
        assert waited_for.cost_ns == pytest.approx(500 * (1 - 19.5 / 156), abs=1)
        assert "take about 62 ns, and the run would be at most 438 ns" in waited_for.text

    def test_products_in_tf32_and_gpus_without_are_fine(self) -> None:
        assert said("fp32_matmul", plain(500, gpu="ampere_sgemm_tf32_128x64")) == []
        assert said("fp32_matmul", plain(500, device=V100)) == []
        assert said("fp32_matmul", plain(500, device=MI300)) == []

    def test_the_capability_is_in_kinetos_words_as_well(self) -> None:
        devices = [{"index": 0, "name": "NVIDIA A100-SXM4-40GB"}]
        properties = [{"id": 0, "computeMajor": 8, "computeMinor": 0}]
        record = trace_of(*launched("aten::mm", 5), devices=devices, deviceProperties=properties)
        assert capability(record) == 8


SIZES: dict[str, tuple[str, Any, Any, bool]] = {
    "all of 8": ("aten::mm", ([8, 16], [16, 24]), None, False),
    "columns": ("aten::mm", ([8, 16], [16, 25]), None, True),
    "inner": ("aten::bmm", ([2, 8, 17], [2, 17, 24]), None, True),
    "behind a bias": ("aten::addmm", ([24], [8, 17], [17, 24]), None, True),
    # Of these, it is the result's rows.
    "columns of a transposed one": ("aten::mm", ([8, 16], [16, 25]), [[16, 1], [1, 16]], True),
    "rows": ("aten::mm", ([9, 16], [16, 24]), [[16, 1], [24, 1]], False),
    "rows of a transposed one": ("aten::mm", ([9, 16], [16, 24]), [[1, 9], [24, 1]], True),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_along_which_memory_runs_are_multiples_of_8(case: str) -> None:
    name, shapes, strides, expected = SIZES[case]
    rows = launched(name, 100, gpu="s16816gemm", shapes=shapes, kind=HALF, strides=strides)
    record = trace_of(*rows)
    assert unaligned(record, products(record)).tolist() == [expected]


def test_torch_finds_the_same_sizes(tmp_path: Path) -> None:
    """On a recording of its own; products whose rows alone are odd are its only others."""
    sides = [(8, 16, 24), (8, 16, 25), (8, 17, 24), (9, 16, 24)]
    given = [
        (
            torch.ones(rows, inner, dtype=torch.bfloat16),
            torch.ones(inner, out, dtype=torch.bfloat16),
        )
        for rows, inner, out in sides
    ]
    recording, record = recorded(lambda: [a @ b for a, b in given], tmp_path)
    pattern = _pattern_matcher.MatMulDimInFP16Pattern(recording)
    theirs = [len(pattern.matched_events())]
    pieces = products(record)
    pieces = pieces[pieces["op"] == "aten::mm"]
    assert unaligned(record, pieces).tolist() == [False, True, True, False]
    assert theirs == [3]


class TestLoops:
    def test_numbers_and_rows(self) -> None:
        (finding,) = said("loop_indexing", rounds(20))
        assert "20 calls of `aten::select`, each with `aten::fill_`" in finding.text
        assert finding.cost_ns == 199 - 199 // 20
        assert len(finding.rows) == 20

    def test_other_ops_between_end_the_loop(self) -> None:
        loop = [op("aten::select", ts=10 * at, dur=4) for at in range(9)]
        between = [op(f"aten::{at}", ts=84 + at, dur=1) for at in range(11)]
        record = trace_of(*loop, *between, op("aten::select", ts=95, dur=4))
        assert indexing_loops(record)["rounds"].tolist() == [9]

    def test_rounds_need_not_be_alike_where_there_are_a_hundred_of_them(self) -> None:
        def branching(number: int) -> Record:
            names = ["aten::select", "aten::gt", *["aten::add"] * 2]
            ops = [
                op(name, ts=10 * at + 2 * offset, dur=2)
                for at in range(number)
                for offset, name in enumerate(names if at % 3 else names[:2])
            ]
            return trace_of(*ops)

        (loop,) = indexing_loops(branching(100)).itertuples()
        assert (loop.rounds, loop.alike) == (100, 2)
        (finding,) = said("loop_indexing", branching(100))
        assert "100 calls of `aten::select`." in finding.text
        assert said("loop_indexing", branching(99)) == []

    def test_a_loop_over_pairs_takes_two_rows_in_a_round(self) -> None:
        names = ["aten::select", "aten::select", *(f"aten::{at}" for at in range(7))]
        ops = [
            op(name, ts=100 * at + 2 * offset, dur=2)
            for at in range(60)
            for offset, name in enumerate(names)
        ]
        (finding,) = said("loop_indexing", trace_of(*ops))
        assert "120 calls of `aten::select`." in finding.text
        assert said("loop_indexing", trace_of(*ops[: 9 * 49])) == []

    def test_a_training_that_takes_a_batch_by_its_index_is_no_loop_over_rows(self) -> None:
        step = ["aten::select", "aten::linear", "aten::mean"]
        back = "autograd::engine::evaluate_function: AddmmBackward0"
        ops = [
            op(name, ts=10 * at + 2 * offset, dur=2)
            for at in range(40)
            for offset, name in enumerate(step)
        ]
        assert len(said("loop_indexing", trace_of(*ops))) == 1
        trained = [op(back, ts=10 * at + 7, dur=2, tid=2) for at in range(40)]
        assert said("loop_indexing", trace_of(*ops, *trained)) == []

    def test_ops_that_take_long_do_work(self) -> None:
        def loop(dur: int) -> Record:
            return trace_of(*(op("aten::select", ts=dur * at, dur=dur) for at in range(20)))

        assert len(said("loop_indexing", loop(49_999))) == 1
        assert said("loop_indexing", loop(50_000)) == []

    def test_a_loop_nested_in_one_with_a_heavy_op_is_found(self) -> None:
        """The heavy op lies in the last round of the inner loop, and is no part of its time."""
        (loop,) = indexing_loops(nested(rounds=40, heavy=10**7)).itertuples()
        assert (loop.rounds, loop.dur_ns, loop.per_op_ns) == (200, 2 + 10 * (200 - 5), 2)
        (finding,) = said("loop_indexing", nested(rounds=40, heavy=10**4))
        assert "took 1.95 µs" in finding.text
        assert (finding.start_ns, finding.end_ns) == (0, 4 * (400 + 10**4) + 392)

    def test_a_heavy_op_in_more_than_a_tenth_of_the_rounds_is_what_the_loop_does(self) -> None:
        assert said("loop_indexing", nested(rounds=8, heavy=10**7, times=25)) == []

    def test_a_cells_lines_are_looked_through(self) -> None:
        lines = [cell_line(3, "x[i] = 0", ts=10 * at, dur=9) for at in range(12)]
        selects = [op("aten::select", ts=10 * at + 1, dur=4) for at in range(12)]
        assert indexing_loops(trace_of(*lines, *selects))["rounds"].tolist() == [12]

    def test_loops_of_two_annotations_are_two(self) -> None:
        both = [
            row
            for start in (0, 100)
            for row in (
                annotation("loop", ts=start, dur=90),
                *(op("aten::select", ts=start + 10 * at, dur=4) for at in range(5)),
            )
        ]
        assert indexing_loops(trace_of(*both))["rounds"].tolist() == [5, 5]

    def test_a_short_loop_in_a_long_run_is_nobodys_trouble(self) -> None:
        loop = [op("aten::select", ts=10 * at, dur=4) for at in range(20)]
        assert said("loop_indexing", trace_of(*loop, op("aten::mm", ts=1000, dur=10**6))) == []


def fill(tensor: torch.Tensor, rows: int) -> None:
    for at in range(rows):
        tensor[at] = at


LOOPS: dict[str, Callable[[], Any]] = {
    "ten": lambda: fill(torch.zeros(20, 4), 10),
    "nine": lambda: fill(torch.zeros(20, 4), 9),
    "then something else": lambda: (fill(torch.zeros(20, 4), 12), torch.ones(3).relu()),
    "reading": lambda: [torch.ones(3) for _ in range(1)] + [row.sum() for row in torch.ones(15, 3)],
    "two at once": lambda: [(x[i] + y[i]) for x, y in [torch.ones(2, 11, 3)] for i in range(11)],
    "selects alone": lambda: [X[i] for i in range(10)],
}
X = torch.ones(11, 3)


@pytest.mark.parametrize("case", LOOPS)
def test_torch_finds_the_same_loops(case: str, tmp_path: Path) -> None:
    recording, record = recorded(LOOPS[case], tmp_path, stacks=False)
    pattern = _pattern_matcher.ForLoopIndexingPattern(recording)
    rounds = thresholds_of(FINDINGS["loop_indexing"])["loop_indexing_rounds"]
    found = bool((indexing_loops(record)["alike"] >= rounds).any())
    assert found == bool(pattern.matched_events())


def recorded(run: Callable[[], Any], folder: Path, stacks: bool = True) -> tuple[profile, Record]:
    """Not its first run: of modules imported in a recording torch reads names from freed memory."""
    run()
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=stacks
    ) as recording:
        run()
    path = folder / "trace.json"
    recording.export_chrome_trace(str(path))
    return recording, load(path)

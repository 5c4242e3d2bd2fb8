"""Cards of the report: each figure is that of the analysis behind it; without an answer no card."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.columns import format_share
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.gpu_work import device_busy
from gpuprof_widgets.analyses.memory import memory_curve
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.cards import cards, page_cards
from gpuprof_widgets.views.page import VIEWS, has_view
from gpuprof_widgets.views.panels import all_panels
from tests.traces import annotation, block, calls_of, copy, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

MS = 1_000_000
LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def training() -> Record:
    """In a second a GPU computes for 300 ms and communicates alone for 100; the loop waits."""
    return trace_of(
        annotation(LOADING, ts=0, dur=250 * MS),
        op("aten::mm", ts=250 * MS, dur=200 * MS),
        runtime("cudaLaunchKernel", ts=260 * MS, dur=MS),
        op("aten::add", ts=460 * MS, dur=10 * MS),
        runtime("cudaLaunchKernel", ts=461 * MS, dur=MS),
        op("c10d::allreduce_", ts=480 * MS, dur=10 * MS),
        runtime("cudaLaunchKernel", ts=481 * MS, dur=MS),
        annotation(LOADING, ts=900 * MS, dur=50 * MS),
        op("end", ts=999 * MS, dur=MS),
        kernel("gemm", ts=300 * MS, dur=200 * MS, launched_by=2),
        kernel("add", ts=500 * MS, dur=100 * MS, launched_by=4),
        kernel("ncclKernel_AllReduce", ts=550 * MS, dur=150 * MS, stream=20, launched_by=6),
        block(3 * 2**20, at=1, ts=300 * MS, device=0, allocated=5 * 2**20, reserved=8 * 2**20),
    )


def figures(record: Record) -> dict[str, float]:
    return {name: card.figure for name, card in cards(record).items()}


def test_the_cards_of_a_training_step() -> None:
    record = training()
    assert figures(record) == {
        "recorded_time": 1000 * MS,
        "gpu_busy": 0.4,
        "exposed_communication": 0.1,
        "input_wait": 0.3,
        "top_op": pytest.approx(200 / 450),
        "peak_memory": 5 * 2**20,
    }
    shown = {name: (card.label, card.value, card.detail) for name, card in cards(record).items()}
    assert shown == {
        "recorded_time": ("Recorded time", "1.00 s", ""),
        "gpu_busy": ("GPU busy", "40 %", "400 ms"),
        "exposed_communication": ("Exposed communication", "10 %", "100 ms"),
        "input_wait": ("Input wait", "30 %", "300 ms"),
        "top_op": ("Top op", "44 %", "`aten::mm`"),
        "peak_memory": ("Peak memory", "5.00 MiB", "GPU 0"),
    }
    longest_wait, calls = cards(record)["input_wait"], cards(record)["top_op"].rows
    assert (longest_wait.start_ns, longest_wait.end_ns) == (0, 250 * MS)
    names = record.trace.slices["name"]
    assert names.iloc[list(longest_wait.rows)].tolist() == [LOADING] * 2
    assert names.iloc[list(calls)].tolist() == ["aten::mm"]


@pytest.mark.parametrize(("waited", "has_card"), [(10, True), (9, False)])
def test_a_wait_for_input_of_less_than_a_hundredth_has_no_card(waited: int, has_card: bool) -> None:
    record = trace_of(
        annotation(LOADING, ts=0, dur=waited), op("aten::mm", ts=waited, dur=1000 - waited)
    )
    assert ("input_wait" in cards(record)) == has_card


def test_the_op_after_communication_is_called_so() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=9), annotation("nccl:all_reduce", ts=10, dur=5),
        kernel("gemm", ts=10, dur=40, launched_by=0),
        kernel("ncclKernel_AllReduce", ts=50, dur=60, stream=20, launched_by=1),
    )  # fmt: skip
    top = cards(record)["top_op"]
    assert (top.label, top.value, top.detail) == ("Top computing op", "40 %", "`aten::mm`")
    assert top.about == (
        "After communication (60 %) `aten::mm` has the most: 40 ns, 40 % of the GPU time of all "
        "kernels, copies and memsets."
    )


def test_the_share_of_the_top_op_is_of_annotations_too() -> None:
    record = trace_of(annotation("step", ts=0, dur=100), op("aten::mm", ts=0, dur=60))
    assert cards(record)["top_op"].about == (
        "`aten::mm` has the most: 60 ns, 60 % of the CPU self time of all rows of the op table, "
        "annotations and runtime calls included."
    )


def test_without_a_gpu_the_cpu_has_the_cards() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=60 * MS), op("aten::add", ts=70 * MS, dur=20 * MS),
        annotation("step", ts=0, dur=100 * MS),
    )  # fmt: skip
    assert figures(record) == {
        "recorded_time": 100 * MS,
        "cpu_in_ops": 0.8,
        "top_op": pytest.approx(0.6),
    }


def test_of_several_gpus_the_average_is_shown() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=100),
        kernel("a", ts=0, dur=80, device=0),
        kernel("b", ts=0, dur=20, device=1),
    )
    card = cards(record)["gpu_busy"]
    assert (card.label, card.value, card.detail) == ("GPUs busy", "50 %", "2 GPUs")
    assert card.about.endswith("GPU 0 80 %, GPU 1 20 %.")


def test_the_calls_of_python_alone_have_their_own_cards() -> None:
    record = trace_of(calls=calls_of((None, "step", 1, 30 * MS), ("step", "load", 3, 70 * MS)))
    assert figures(record) == {"recorded_time": 100 * MS, "top_function": 70 * MS}
    assert cards(record)["recorded_time"].label == "Python time"
    assert "load" in cards(record)["top_function"].detail


def test_a_record_of_nothing_has_no_cards() -> None:
    assert cards(trace_of()) == {}


def test_copies_alone_have_no_top_op_and_no_communication() -> None:
    record = trace_of(copy("DtoH", ts=0, dur=10), copy("HtoD", ts=90, dur=10))
    assert set(cards(record)) == {"recorded_time", "gpu_busy"}


def test_the_figures_are_those_of_the_analyses(shared_record: Record) -> None:
    known = cards(shared_record)
    gpus = device_busy(shared_record)
    assert ("gpu_busy" in known) == bool(gpus["slices"].any())
    if "gpu_busy" in known:
        working = gpus[gpus["slices"] > 0]
        assert known["gpu_busy"].figure == pytest.approx(working["busy_share"].mean())
        classes = breakdown(shared_record)
        busy = classes[(classes["state"] == "busy") & classes["device"].isin(working["device"])]
        by_gpu = busy.groupby("device")["share"].sum()
        assert known["gpu_busy"].figure == pytest.approx(by_gpu.mean())
    for name, rule in (
        ("exposed_communication", "exposed_communication"),
        ("input_wait", "dataloader"),
    ):
        if name in known:
            told = [each.text for each in findings(shared_record) if each.rule == rule]
            share = format_share(known[name].figure)
            assert all(f"{share} of the time" in text for text in told[:1])
    if "peak_memory" in known:
        curve = memory_curve(shared_record)
        here = curve[curve["device"] == known["peak_memory"].detail]
        assert known["peak_memory"].figure == here["allocated_bytes"].max()


def test_every_card_leads_to_something_that_the_page_has(shared_record: Record) -> None:
    shown = page_cards(cards(shared_record).values(), shared_record, 1_000)
    assert [card for card in shown if not _leads_somewhere(card, shared_record)] == []
    assert {card["label"] for card in shown} >= {"Recorded time"}
    assert all(
        1 <= len(card["label"].split()) <= 3 and len(card["rows"]) <= 1_000 for card in shown
    )


def _leads_somewhere(card: dict[str, Any], record: Record) -> bool:
    view = card["view"]
    if card["panel"]:
        return card["panel"] == view
    # Without its tab a card leads to the timeline.
    return view in all_panels() or (view in VIEWS and has_view(record, view))

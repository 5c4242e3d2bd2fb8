"""Copies: kinds, owners, waits and what is needless, by hand and on real traces."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.copies import copies, copy_bandwidth
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.copy_cases import (
    DTOH,
    HTOD,
    PAGE,
    in_every_step,
    launching,
    there_and_back,
)
from tests.hta_oracle import hta
from tests.traces import (
    Row,
    Shared,
    annotation,
    cell_line,
    copy,
    kernel,
    module,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (HTOD, ["HtoD", "pageable", "device"]),
        ("Memcpy DtoH (Device -> Pinned)", ["DtoH", "device", "pinned"]),
        ("Memcpy DtoD (Device -> Device)", ["DtoD", "device", "device"]),
        ("Memcpy PtoP (Device -> Device)", ["PtoP", "device", "device"]),
        ("Memcpy HtoD (Host -> Device)", ["HtoD", "host", "device"]),
        ("Memcpy HtoA (Pinned -> Array)", ["HtoA", "pinned", "array"]),
        ("CopyDeviceToHost", ["", "", ""]),
        ("Memcpy DtoH", ["DtoH", "", ""]),
    ],
)
def test_the_name_tells_direction_and_memory(name: str, kind: list[str]) -> None:
    table = copies(trace_of(copy(name, ts=0, dur=5, bytes=8)))
    assert table[["direction", "source", "target"]].to_numpy().tolist() == [kind]


def test_a_copy_that_names_two_devices_goes_from_gpu_to_gpu() -> None:
    ends = {"fromDevice": 0, "toDevice": 1}
    within = {"fromDevice": 1, "toDevice": 1}
    rows = [
        kernel("Memcpy DtoD (Device -> Device)", ts=ts, dur=5, category="gpu_memcpy", **args)
        for ts, args in ((0, ends), (9, within))
    ]
    assert copies(trace_of(*rows))["direction"].tolist() == ["PtoP", "DtoD"]


def test_bandwidth_is_bytes_over_time_and_unknown_without_either() -> None:
    record = trace_of(
        copy(ts=0, dur=4, bytes=8),
        copy(ts=10, dur=0, bytes=8),
        kernel(HTOD, ts=20, dur=4, category="gpu_memcpy"),
    )
    table = copies(record)
    assert table["bytes"].tolist() == [8, 8, -1]
    assert table["bytes_per_s"].tolist()[0] == 2e9
    assert table["bytes_per_s"].isna().tolist() == [False, True, True]


def test_on_amd_the_size_is_that_of_the_call() -> None:
    record = trace_of(
        runtime("hipMemcpyWithStream", ts=0, dur=30, size=2560, kind="HtoD"),
        kernel("Memcpy HtoD (Host -> Device)", ts=5, dur=20, launched_by=0, category="gpu_memcpy"),
    )
    assert copies(record)["bytes"].tolist() == [2560]


def owned() -> pd.DataFrame:
    """A copy by `aten::to` in a module on a line, and another by nobody that is known."""
    record = trace_of(
        cell_line(3, "x.to(gpu)", ts=0, dur=90),
        module("mask", ts=1, dur=80),
        python("model.py(7): forward", ts=2, dur=70),
        op("aten::to", ts=10, dur=50),
        op("aten::copy_", ts=11, dur=40),
        runtime("cudaMemcpyAsync", ts=12, dur=6),
        runtime("cudaStreamSynchronize", ts=20, dur=15),
        copy(HTOD, ts=15, dur=20, bytes=64, launched_by=5),
        copy(DTOH, ts=50, dur=10, bytes=8),
    )
    return copies(record)


def test_who_asked_for_it_is_the_op_that_python_called_and_all_around_it() -> None:
    owner = owned()[["op_name", "module", "line", "python"]].to_numpy().tolist()
    assert owner[0] == ["aten::to", "mask", "3: x.to(gpu)", "model.py(7): forward"]
    assert owner[1] == ["", "", "", ""]


def test_the_cpu_s_time_is_in_the_call_and_in_the_wait_after_it() -> None:
    times = owned()[["call_ns", "wait_ns", "blocking"]].to_numpy().tolist()
    assert times == [[6, 15, True], [0, 0, False]]


def test_a_call_that_lasts_as_long_as_its_copy_blocks_and_counts_once() -> None:
    record = trace_of(
        op("aten::to", ts=0, dur=50),
        runtime("cudaMemcpyAsync", ts=1, dur=40),
        copy(DTOH, ts=5, dur=30, launched_by=1),
    )
    assert copies(record)[["call_ns", "wait_ns", "blocking"]].to_numpy().tolist() == [[40, 0, True]]


def test_grouped_by_kind_and_by_op() -> None:
    record = trace_of(
        op("aten::to", ts=0, dur=9), runtime("cudaMemcpyAsync", ts=1, dur=2),
        op("aten::item", ts=10, dur=9), runtime("cudaMemcpyAsync", ts=11, dur=2),
        copy(HTOD, ts=2, dur=4, bytes=8, launched_by=1),
        copy(HTOD, ts=12, dur=8, bytes=16, launched_by=3),
        copy(DTOH, ts=30, dur=20, bytes=2),
    )  # fmt: skip
    kinds = copies(record, by="kind")
    columns = ["direction", "copies", "bytes", "dur_ns", "bytes_per_s", "call_ns", "sizes"]
    assert kinds[columns].to_numpy().tolist() == [
        ["DtoH", 1, 2, 20, 1e8, 0, 1],
        ["HtoD", 2, 24, 12, 2e9, 4, 2],
    ]
    assert kinds["needless"].tolist() == [0, 0]
    assert copies(in_every_step(9), by="kind")["needless"].tolist() == [3]
    assert copies(record, by="op")["op_name"].tolist() == ["", "aten::item", "aten::to"]
    with pytest.raises(OptionError, match="copy, kind, op"):
        copies(record, by="size")


def test_copies_of_unknown_size_count_in_no_bandwidth_of_their_group() -> None:
    unsized = [kernel(HTOD, ts=10, dur=100, category="gpu_memcpy")]
    unsized += [kernel(DTOH, ts=200, dur=100, category="gpu_memcpy")]
    table = copies(trace_of(copy(HTOD, ts=0, dur=4, bytes=8), *unsized), by="kind")
    columns = ["direction", "copies", "bytes", "dur_ns"]
    assert table[columns].to_numpy().tolist() == [["HtoD", 2, 8, 104], ["DtoH", 1, -1, 100]]
    assert table["bytes_per_s"].fillna(-1).tolist() == [2e9, -1]


def reasons(record: Record) -> list[str]:
    return copies(record)["needless"].tolist()


BETWEEN = kernel("gemm", ts=100, dur=50, stream=9)


def test_to_the_gpu_and_back_is_needless_if_no_kernel_ran_in_between() -> None:
    assert reasons(there_and_back(10)) == ["there and back"] * 2
    assert reasons(there_and_back(10, BETWEEN)) == [""] * 2
    elsewhere = kernel("gemm", ts=100, dur=50, device=1)
    assert reasons(there_and_back(10, elsewhere)) == ["there and back"] * 2


def test_few_bytes_other_sizes_and_two_gpus_are_no_round_trip() -> None:
    assert reasons(there_and_back(10, bytes=PAGE - 1)) == [""] * 2
    there = copy(HTOD, ts=0, dur=5, bytes=PAGE)
    assert reasons(trace_of(there, copy(DTOH, ts=9, dur=5, bytes=PAGE + 1))) == [""] * 2
    assert reasons(trace_of(there, copy(DTOH, ts=9, dur=5, bytes=PAGE, device=1))) == [""] * 2


def test_from_the_gpu_and_back_is_needless_whatever_ran_meanwhile() -> None:
    rows = [copy(DTOH, ts=0, dur=5, bytes=PAGE), copy(HTOD, ts=500, dur=5, bytes=PAGE)]
    assert reasons(trace_of(*rows, BETWEEN)) == ["there and back"] * 2
    third = copy(DTOH, ts=300, dur=5, bytes=8)
    assert reasons(trace_of(*rows, third)) == [""] * 3


LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize("name", [LOADING, "ProfilerStep#2"])
def test_a_result_and_the_next_batch_of_its_size_are_no_round_trip(name: str) -> None:
    """An autoencoder's output leaves and the next input comes: as large, but another tensor."""
    rows = [copy(DTOH, ts=0, dur=5, bytes=PAGE), copy(HTOD, ts=500, dur=5, bytes=PAGE)]
    assert reasons(trace_of(*rows, annotation(name, ts=100, dur=300))) == [""] * 2


def test_a_constant_of_a_module_is_needless_from_the_third_step_on() -> None:
    assert reasons(in_every_step(9)) == ["every step"] * 3
    assert reasons(in_every_step(9, steps=2)) == [""] * 2
    assert reasons(in_every_step(9, sent=2)) == [""] * 2


def test_bandwidth_over_time_adds_up_what_runs() -> None:
    record = trace_of(
        copy(HTOD, ts=0, dur=10, bytes=10), copy(HTOD, ts=5, dur=10, bytes=20, stream=9),
        copy(DTOH, ts=5, dur=5, bytes=5), copy(HTOD, ts=40, dur=10, bytes=10),
    )  # fmt: skip
    table = copy_bandwidth(record)
    there = table[table["direction"] == "HtoD"]
    assert there[["ts_ns", "bytes_per_s", "copies"]].to_numpy().tolist() == [
        *([0, 1e9, 1], [5, 3e9, 2], [10, 2e9, 1], [15, 0, 0], [40, 1e9, 1], [50, 0, 0])
    ]
    assert table[table["direction"] == "DtoH"]["bytes_per_s"].tolist() == [1e9, 0]


COPIES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(0, 50), st.booleans()), min_size=1
)


@given(COPIES)
def test_all_bytes_of_timed_copies_are_under_the_curve(
    made: list[tuple[int, int, int, bool]],
) -> None:
    rows = [copy(HTOD if to else DTOH, ts=ts, dur=d, bytes=b) for ts, d, b, to in made]
    table = copy_bandwidth(trace_of(*rows))
    for direction, to_gpu in (("HtoD", True), ("DtoH", False)):
        of_one = table[table["direction"] == direction]
        lasted = np.diff(of_one["ts_ns"].to_numpy())
        moved = (lasted * of_one["bytes_per_s"].to_numpy()[:-1] / 1e9).sum()
        assert moved == pytest.approx(sum(b for _, d, b, to in made if d and to == to_gpu))
        assert len(of_one) == 0 or of_one["bytes_per_s"].iloc[-1] == 0


def test_what_is_missing_is_said() -> None:
    without = trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=3, dur=4))
    for table in (copies(without), copies(without, by="op"), copy_bandwidth(without)):
        assert not len(table)
        assert why_empty(table)
    unsized = trace_of(kernel(HTOD, ts=3, dur=4, category="gpu_memcpy"))
    assert why_empty(copy_bandwidth(unsized)) == ("the trace has no copies of known size and time.")


def test_on_real_traces_groups_add_up_to_the_copies(shared_record: Record) -> None:
    table = copies(shared_record)
    slices = shared_record.trace.slices
    assert len(table) == int((slices["category"] == "gpu_memcpy").sum())
    for by in ("kind", "op"):
        grouped = copies(shared_record, by=by)
        if len(table):
            assert grouped["copies"].sum() == len(table)
            for key in ("dur_ns", "call_ns", "wait_ns", "blocking"):
                assert grouped[key].sum() == table[key].sum()
            assert grouped["bytes"].clip(lower=0).sum() == table["bytes"].clip(lower=0).sum()
    curve = copy_bandwidth(shared_record)
    if len(curve):
        assert (curve["bytes_per_s"] >= -1e-3).all()
        assert (curve.groupby(["device", "direction"])["bytes_per_s"].last() == 0).all()


def test_bandwidth_is_that_of_hta(shared: Shared) -> None:
    """Where copies do not overlap its sums are the file's own figures, and so are ours."""
    path = shared("hta/nccl_a100_rank0_of_2.json.gz")
    series = hta(path).get_memory_bw_time_series(ranks=[0])[0]
    theirs = series[series["name"] == "Memcpy DtoD"].sort_values("ts")["memory_bw_gbps"]
    ours = copy_bandwidth(load(path))
    assert set(ours["direction"]) == {"DtoD"}
    assert len(ours) == len(theirs)
    assert ours["bytes_per_s"].to_numpy() / 1e9 == pytest.approx(theirs.to_numpy(), abs=1e-6)


def test_the_finding_on_a_constant_says_in_which_module_it_is_copied() -> None:
    (said,) = [one for one in findings(in_every_step(10)) if one.rule == "needless_copies"]
    assert said.text == (
        "Every step copies the same 64 B to the GPU, mostly in `mask`. This took 10 ns (1.0 % of "
        "the time)."
    )


def test_data_parallel_is_told_what_to_use_instead() -> None:
    row = copy("Memcpy PtoP (Device -> Device)", ts=0, dur=50, bytes=64)
    record = trace_of(row, annotation("DataParallel.forward", ts=0, dur=100))
    (said,) = [one for one in findings(record) if one.rule == "peer_copies"]
    assert "DistributedDataParallel" in said.remedy


def test_a_wait_for_a_pageable_copy_is_reported_once() -> None:
    record = trace_of(
        op("aten::to", ts=0, dur=500),
        runtime("cudaMemcpyAsync", ts=1, dur=400),
        copy(HTOD, ts=5, dur=390, bytes=8, launched_by=1),
        op("end", ts=990, dur=10),
    )
    rules = [one.rule for one in findings(record)]
    assert "synchronising" in rules
    assert "pageable_copies" not in rules


def test_the_op_around_a_short_launch_counts_but_not_its_waiting() -> None:
    """A graph spares the op as well; what it waits for the GPU would remain."""
    rows = []
    for i in range(20):
        first = len(rows)
        rows += [
            op("aten::add", ts=100 * i, dur=60),
            runtime("cudaLaunchKernel", ts=100 * i + 10, dur=10),
            runtime("cudaStreamSynchronize", ts=100 * i + 40, dur=10),
        ]
        rows.append(kernel("add", ts=100 * i + 25, dur=5, launched_by=first + 1))
    (said,) = [one for one in findings(trace_of(*rows)) if one.rule == "short_kernels"]
    per_op = 60 - 10 - 5  # without the wait and the kernel
    assert said.cost_ns == 20 * per_op - 25 - 20  # between the first kernel and the last
    assert "`aten::add` made 20 of them" in said.text


def beside(*more: Row, thread: int, at: tuple[int, int]) -> Record:
    """Ten launches of that thread, whose kernels begin so late and so far apart."""
    rows = [runtime("cudaLaunchKernel", ts=60 * i, dur=9, thread=thread) for i in range(10)]
    first, apart = at
    rows += [kernel("add", ts=first + apart * i, dur=1, launched_by=i) for i in range(10)]
    return trace_of(*rows, *more)


@pytest.mark.parametrize(
    ("record", "least", "costs"),
    [
        (launching(took=90), 11, [90]),  # there are eleven
        (launching(took=90), 12, []),
        # The GPU is busy meanwhile.
        (beside(kernel("long", ts=0, dur=700, stream=9), thread=100, at=(700, 1)), 9, []),
        # Another thread launches them, and the run ends no sooner without.
        (beside(op("train", ts=0, dur=1000), thread=300, at=(40, 60)), 9, []),
    ],
)
def test_short_kernels_cost_what_the_run_waits_for_them(
    record: Record, least: int, costs: list[int]
) -> None:
    said = findings(record, short_kernels_least=least)
    assert [one.cost_ns for one in said if one.rule == "short_kernels"] == costs

"""Two runs side by side: who is who, what differs, what is noise, and that differences add up."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

import gpuprof_widgets
from gpuprof_widgets.analyses.compare.lines import paired_tree
from gpuprof_widgets.analyses.compare.measured import without_numbers
from gpuprof_widgets.analyses.compare.sentences import RECORDED
from gpuprof_widgets.analyses.compare.tables import are_noise, spread
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.options import Options
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from gpuprof_widgets.views import comparison as page
from tests.records import records
from tests.traces import (
    Row,
    annotation,
    calls_of,
    cell_line,
    kernel,
    module,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow

STEP = 1_000


def loop(*steps: list[Row], length: int = STEP - 10) -> Record:
    """A run whose steps hold these rows; times in a step count from its start."""
    rows: list[Row] = []
    for number, inside in enumerate(steps):
        start = number * STEP
        rows.append(annotation(f"ProfilerStep#{number}", ts=start, dur=length))
        for row in inside:
            first = len(rows) - inside.index(row)
            launcher = None if row.launched_by is None else first + row.launched_by
            moved = {"ts": start + row.ts, "launched_by": launcher}
            rows.append(Row(**{**vars(row), **moved}))
    return trace_of(*rows)


def steps_of(name: str, *durations: int) -> Record:
    return loop(*([op(name, ts=10, dur=dur)] for dur in durations))


def row_of(table: pd.DataFrame, name: str) -> pd.Series:
    (found,) = np.flatnonzero(table["name"] == name)
    return table.iloc[found]


def test_changes_of_ops_are_said_per_step() -> None:
    a = loop(*([op("aten::mm", ts=1, dur=50), op("aten::old", ts=60, dur=7)] for _ in range(3)))
    b = loop(*([op("aten::mm", ts=1, dur=20), op("aten::new", ts=60, dur=5)] for _ in range(5)))
    table = Comparison(a, b).ops()
    assert table.attrs == {"per": "step", "measure": "cpu_self"}
    mm = row_of(table, "aten::mm")
    assert (mm.change, mm.a_ns, mm.b_ns, mm.delta_ns) == ("less", 50, 20, -30)
    assert (mm.total_a_ns, mm.total_b_ns, mm.calls_a, mm.calls_b) == (150, 100, 1, 1)
    assert (mm.median_a_ns, mm.median_b_ns, mm.spread_ns) == (50, 20, 0)
    new, old = row_of(table, "aten::new"), row_of(table, "aten::old")
    assert (new.change, new.delta_ns, new.name_a, new.matched) == ("added", 5, "", "")
    assert (old.change, old.delta_ns, old.name_b, old.calls_delta) == ("gone", -7, "", -1)
    assert list(table["name"])[:2] == ["ProfilerStep*", "aten::mm"]
    assert row_of(table, "ProfilerStep*").delta_ns == 30 + 7 - 5


@pytest.mark.parametrize(
    ("table", "name", "whole"),
    [
        ("ops", "aten::mm", STEP - 10),
        ("kernels", "gemm", 150),
        ("lines", "x = f(y)", 150),
        ("modules", "model", STEP - 10),
        ("breakdown", "compute", STEP - 10),
    ],
)
def test_a_difference_is_of_means_with_its_share_medians_and_spread(
    table: str, name: str, whole: int
) -> None:
    make = {"ops": op, "lines": partial(cell_line, 2), "modules": module}.get(table, kernel)
    key = {"lines": "code", "breakdown": "class"}.get(table, "name")

    def run(calls: int, *durations: int) -> Record:
        parts = [[dur // calls] * calls for dur in durations]
        return loop(*([make(name, ts=10 + n * dur, dur=dur) for n, dur in enumerate(part)]
                      for part in parts))  # fmt: skip

    pair = ((100, 200, 150), (310, 400, 310))
    rows = getattr(Comparison(run(1, *pair[0]), run(2, *pair[1])), table)()
    (row,) = rows[rows[key] == name].to_dict("records")
    assert {key: row[key] for key in row if key.endswith("_ns") or key == "share"} == {
        "a_ns": 150,
        "b_ns": 340,
        "delta_ns": 190,
        "share": 190 / whole,
        "median_a_ns": 150,
        "median_b_ns": 310,
        "spread_ns": max(spread(np.array([each], float))[0] for each in pair),
        "total_a_ns": 450,
        "total_b_ns": 1020,
    }
    if table != "breakdown":
        assert (row["calls_a"], row["calls_b"], row["calls_delta"]) == (1, 2, 1)


def test_steps_have_the_numbers_the_times_and_the_busy_gpu_of_both_runs() -> None:
    a = loop([kernel("gemm", ts=50, dur=30)], [], length=900)
    b = loop([], [kernel("gemm", ts=50, dur=70)], [], length=800)
    assert Comparison(a, b).steps().to_numpy().tolist() == [
        [0, 0, "less", 900, 800, -100, 30, 0],
        [1, 1, "less", 900, 800, -100, 0, 70],
        [-1, 2, "added", 0, 800, 800, 0, 0],
    ]


def test_runs_without_steps_are_compared_as_a_whole() -> None:
    a = trace_of(op("aten::mm", ts=0, dur=50), op("aten::mm", ts=60, dur=50))
    b = steps_of("aten::mm", 30, 30)
    table = Comparison(a, b).ops()
    assert table.attrs["per"] == "run"
    mm = row_of(table, "aten::mm")
    assert (mm.a_ns, mm.b_ns, mm.delta_ns, mm.change) == (100, 60, -40, "less")
    assert np.isnan(mm.spread_ns)
    assert Comparison(b, b, per="run").ops().attrs["per"] == "run"


def test_what_lies_outside_of_the_steps_is_left_out_of_them() -> None:
    a = steps_of("aten::mm", 50, 50)
    outside = trace_of(
        annotation("ProfilerStep#0", ts=0, dur=STEP - 10),
        op("aten::mm", ts=10, dur=50),
        op("aten::mm", ts=STEP + 50, dur=900),
    )
    mm = row_of(Comparison(a, outside).ops(), "aten::mm")
    assert (mm.total_b_ns, mm.delta_ns, mm.change) == (50, 0, "same")
    texts = [finding.text for finding in Comparison(a, outside).findings()]
    assert any("Outside of the steps" in text for text in texts)


def test_a_difference_smaller_than_the_spread_is_noise() -> None:
    a = steps_of("aten::mm", 40, 50, 60, 70)
    shifted = steps_of("aten::mm", 45, 55, 65, 75)
    far = steps_of("aten::mm", 140, 150, 160, 170)
    assert row_of(Comparison(a, shifted).ops(), "aten::mm").change == "noise"
    assert row_of(Comparison(a, far).ops(), "aten::mm").change == "more"
    assert row_of(Comparison(far, a).ops(), "aten::mm").change == "less"
    hiccup = row_of(Comparison(a, steps_of("aten::mm", 40, 50, 60, 900)).ops(), "aten::mm")
    assert (hiccup.change, hiccup.delta_ns > 100) == ("noise", True)


@pytest.mark.parametrize(
    ("a", "b", "noise"),
    [
        ([0, 50, 100], [101, 300, 1_001], True),
        ([0, 33, 66, 100], [101, 120, 700, 1_001], False),
        ([0, 33, 66, 100], [99, 120, 700, 1_001], True),
    ],
)
def test_runs_that_never_overlap_differ_with_enough_steps(
    a: list[float], b: list[float], noise: bool
) -> None:
    assert are_noise(np.array([a]), np.array([b], float)).tolist() == [noise]
    assert are_noise(np.array([b]), np.array([a], float)).tolist() == [noise]


def test_what_runs_in_some_steps_only_has_the_range_as_its_spread() -> None:
    steps = np.array([[0, 0, 0, 0, 0, 0, 30.0, 0], [10, 20, 30, 40, 10, 20, 30, 40]])
    assert spread(steps).tolist() == [30, 15]


def test_gpu_time_counts_in_the_step_that_launched_it() -> None:
    def run(late: int) -> Record:
        return trace_of(
            annotation("ProfilerStep#0", ts=0, dur=90),
            op("aten::mm", ts=10, dur=20),
            runtime("cudaLaunchKernel", ts=12, dur=3),
            kernel("gemm", ts=20 + late, dur=30, launched_by=2),
            annotation("ProfilerStep#1", ts=100, dur=90),
            op("aten::mm", ts=110, dur=20),
            runtime("cudaLaunchKernel", ts=112, dur=3),
            kernel("gemm", ts=160 + late, dur=50, launched_by=6),
            kernel("lonely", ts=20, dur=6, stream=9),
        )

    comparison = Comparison(run(0), run(85))
    table = comparison.kernels()
    gemm = row_of(table, "gemm")
    assert (gemm.change, gemm.median_a_ns, gemm.median_b_ns) == ("same", 40, 40)
    ops = comparison.ops()
    assert ops.attrs["measure"] == "device_self"
    assert ops["total_a_ns"].sum() == table["total_a_ns"].sum() == 86
    assert row_of(ops, "(launched by no recorded op)").total_a_ns == 6


def test_names_are_paired_exactly_then_without_numbers_and_types() -> None:
    a = trace_of(
        op("aten::conv1d", ts=0, dur=5),
        op("Call CompiledFxGraph f3a9c0d27b61", ts=10, dur=7),
        kernel("void at::native::add<float, 4>(int)", ts=0, dur=3),
        kernel("triton_poi_fused_add_3", ts=9, dur=2),
        kernel("same", ts=20, dur=1),
    )
    b = trace_of(
        op("aten::conv2d", ts=0, dur=5),
        op("Call CompiledFxGraph 0b5e77d1aa42", ts=10, dur=9),
        kernel("void at::native::add<double, 8>(long)", ts=0, dur=8),
        kernel("triton_poi_fused_add_11", ts=9, dur=2),
        kernel("same", ts=20, dur=1),
    )
    ops = Comparison(a, b).ops(measure="cpu_self")
    assert sorted(ops[ops["matched"] == ""]["name"]) == ["aten::conv1d", "aten::conv2d"]
    graph = ops[ops["matched"] == "similar"].iloc[0]
    assert (graph.delta_ns, graph.name_a) == (2, "Call CompiledFxGraph f3a9c0d27b61")
    kernels = Comparison(a, b).kernels().set_index("name")["matched"].to_dict()
    assert kernels == {
        "void at::native::add<double, 8>(long)": "similar",
        "triton_poi_fused_add_11": "similar",
        "same": "name",
    }


@pytest.mark.parametrize(
    ("name", "common"),
    [
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
        ("enumerate(DataLoader)#3", "enumerate(DataLoader)#*"),
        ("train.py(31): step", "train.py: step"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
    ],
)
def test_numbers_that_change_from_run_to_run_are_taken_out(name: str, common: str) -> None:
    assert without_numbers(name) == common


def test_modules_are_compared_by_what_ran_for_them() -> None:
    def run(dur: int) -> Record:
        return trace_of(
            module("encoder", ts=0, dur=80),
            module("encoder.0", ts=5, dur=60),
            op("aten::mm", ts=10, dur=dur),
            op("aten::add", ts=90, dur=4),
        )

    table = Comparison(run(20), run(30)).modules().set_index("name")
    names = ["encoder.0", "encoder", "(in no module)"]
    assert table["change"].to_dict() == dict.fromkeys(names, "same")
    assert table.loc["encoder.0", ["a_ns", "calls_a"]].tolist() == [60, 1]


def test_of_equal_steps_there_is_but_one_sentence() -> None:
    alike = Comparison(loop(*[[]] * 5), loop(*[[]] * 5)).findings()
    assert [finding.text for finding in alike] == ["No difference: a step takes 990 ns in both."]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (800, 1_600, "takes 2.0 times as long:"),
        (800, 32_400, "takes 40 times as long:"),
        (800, 100, "takes 88 % less time:"),
    ],
)
def test_much_more_is_told_as_times_as_long(before: int, after: int, words: str) -> None:
    comparison = Comparison(loop(*[[]] * 5, length=before), loop(*[[]] * 5, length=after))
    assert words in comparison.findings()[0].text


def test_what_made_recordings_unlike_is_said() -> None:
    def run(gpu: str, **options: Any) -> Record:
        return trace_of(op("aten::mm", ts=0, dur=9), devices=[{"name": gpu}], options=options)

    python = "cprofile"
    a = run("A100", stack=True, python=python, workers=False, modules="auto", lines=True, sync=True)
    b = run("H100", stack=False, python=python, workers=True, modules="net", lines=True)
    texts = [finding.text for finding in Comparison(a, b).findings()]
    assert "A ran on 1 × A100, B on 1 × H100." in texts
    assert (
        "A and B were recorded with different options (stack True in A, False in B; python off in "
        "A, cprofile in B; modules auto in A, net in B; workers False in A, True in B), which "
        "change the times, too."
    ) in texts


def test_every_option_that_a_comparison_looks_at_is_one() -> None:
    assert set(RECORDED) <= {option.name for option in fields(Options)}


def test_times_are_called_what_they_are() -> None:
    def run(dur: int) -> Record:
        return trace_of(
            cell_line(2, "y = net(x)", ts=0, dur=dur),
            op("aten::mm", ts=0, dur=dur - 20),
            runtime("cudaLaunchKernel", ts=2, dur=3),
            kernel("gemm", ts=20, dur=dur, launched_by=2),
        )

    texts = {finding.text for finding in Comparison(run(100), run(300)).findings()}
    assert {
        "Ops: `aten::mm` +200 ns (CPU self time of the run).",
        "Lines: `y = net(x)` +200 ns (wall self time of the run).",
        "Kernels: `gemm` +200 ns (GPU time of the run).",
        "Ops: `aten::mm` +200 ns (GPU self time of the run).",
    } <= texts


def test_compare_takes_profiles_and_files(tmp_path: Path) -> None:
    record = steps_of("aten::mm", 50, 50)
    profile = Profile(record.trace, record.calls, record.metadata)
    path = profile.save(tmp_path / "run.gpuprof")
    for comparison in (
        profile.compare(path),
        gpuprof_widgets.compare(path, profile),
        gpuprof_widgets.compare(str(path), str(path), per="step"),
    ):
        assert set(comparison.ops()["change"]) == {"same"}


def test_what_cannot_be_compared_is_said() -> None:
    plain = trace_of(op("aten::mm", ts=0, dur=9))
    with pytest.raises(OptionError, match="no steps in a and b"):
        Comparison(plain, plain, per="step").ops()
    with pytest.raises(OptionError, match=r"not a NoneType: .* `with profile\(\) as run`"):
        gpuprof_widgets.compare(plain, None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="not per 'epoch'"):
        Comparison(plain, plain, per="epoch").ops()
    with pytest.raises(OptionError, match="not by 'calls'"):
        Comparison(plain, plain).ops(measure="calls")
    assert "GPU work" in Comparison(plain, plain).kernels().attrs["lacks"]


def test_a_run_without_a_trace_says_so() -> None:
    calls = trace_of(calls=calls_of((None, "main", 1, 5)))
    alone = Comparison(calls, steps_of("aten::mm", 50)).findings()
    assert [finding.text for finding in alone] == ["A holds no trace, so nothing can be compared."]
    both = Comparison(trace_of(), calls)
    assert both.findings()[0].text.startswith("A and B hold no trace")
    assert "A and B hold no trace" in both.report()


@given(a=records(), b=records())
@settings(max_examples=8, deadline=None)
def test_differences_add_up_to_that_of_the_runs(a: Record, b: Record) -> None:
    runs = Comparison(a, b, "run")
    tables = {"ops": runs.ops(measure="cpu_self"), "kernels": runs.kernels(), "lines": runs.lines()}
    for name, table in tables.items():
        assert table["delta_ns"].dtype == np.int64, name
        assert (table["total_b_ns"] - table["total_a_ns"] == table["delta_ns"]).all(), name
    of_ops = [operators(record) for record in (a, b)]
    gpu_ns = [
        int(table.loc[table["category"].isin(GPU_CATEGORIES), "device_self_ns"].sum())
        for table in of_ops
    ]
    cpu_ns = [int(table["cpu_self_ns"].sum()) for table in of_ops]
    assert tables["kernels"]["delta_ns"].sum() == gpu_ns[1] - gpu_ns[0]
    assert tables["ops"]["delta_ns"].sum() == cpu_ns[1] - cpu_ns[0]


def test_real_runs_are_the_same_as_themselves(shared_record: Record) -> None:
    """Whatever a trace holds: GPU-less, of another vendor, of old versions, of TensorFlow."""
    comparison = Comparison(shared_record, shared_record)
    for table in (comparison.ops(), comparison.kernels(), comparison.breakdown()):
        assert set(table["change"]) <= {"same"}
    whole = comparison.findings()[0].text
    assert whole.startswith("No difference: " if len(shared_record.trace) else "A and B hold no")


def test_what_moved_is_named_and_what_is_noise_is_not() -> None:
    a = loop(
        *([op("aten::mm", ts=1, dur=100), op("aten::cat", ts=300, dur=50 + i)] for i in range(4))
    )
    b = loop(
        *([op("aten::mm", ts=1, dur=40), op("aten::cat", ts=300, dur=51 + i)] for i in range(4)),
        length=930,
    )
    texts = [finding.text for finding in Comparison(a, b).findings()]
    assert "Ops: `aten::mm` −60 ns (CPU self time per step)." in texts
    assert not any("aten::cat" in text for text in texts)


def test_gpu_work_without_a_launch_stands_beside_the_threads_of_either_run() -> None:
    """Also where one of the runs has a single thread, and so no level of threads."""
    rows = [op("aten::mm", ts=0, dur=9), kernel("gemm", ts=10, dur=5, launched_by=0)]
    rows.append(kernel("of_before", ts=20, dur=3))
    tree = paired_tree(trace_of(*rows), trace_of(*rows, op("x", ts=0, dur=2, thread=7)))
    found = zip(tree["name"], tree["depth"], tree["device_a_ns"], tree["device_b_ns"], strict=True)
    assert sorted(found) == [
        ("GPU work without a launch in the trace", 1, 3, 3),
        ("all threads", 0, 8, 8),
        ("aten::mm", 2, 5, 5),
        ("thread 100", 1, 5, 5),
        ("thread 7", 1, 0, 0),
        ("x", 2, 0, 0),
    ]


# A cell that ran again has another number: the two runs are of the same cell all the same.


def cell_run(number: int, *rows: Row, label: str = "", calls: Calls | None = None) -> Record:
    """A run of cell ``number``; its region is named after it where it has no ``label``."""
    label = label or f"Cell [{number}]"
    region = annotation(label, ts=0, dur=1_000)
    return trace_of(region, *rows, calls=calls, label=label, execution_count=number)


def in_cells(calls: Calls, *files: str) -> Calls:
    """The calls with these files of their functions."""
    return replace(calls, functions=calls.functions.assign(file=pd.Series(files, dtype=object)))


def changes(table: pd.DataFrame) -> dict[str, str]:
    return dict(zip(table["name"], table["change"], strict=True))


def test_the_region_of_the_run_is_one_thing() -> None:
    mm = op("aten::mm", ts=10, dur=400)
    comparison = Comparison(cell_run(3, mm), cell_run(4, replace(mm, dur=500)))
    assert changes(comparison.ops()) == {"Cell [3 → 4]": "less", "aten::mm": "more"}
    labelled = Comparison(cell_run(3, label="before"), cell_run(4, label="after"))
    assert changes(labelled.ops()) == {"before → after": "same"}
    tree = comparison.call_tree()
    below = tree[tree["name"] == "Cell [3 → 4]"]
    assert below[["calls_a", "calls_b", "a_ns", "b_ns"]].to_numpy().tolist() == [[1, 1, 1000, 1000]]
    assert "gone" not in comparison._repr_mimebundle_()["text/plain"]


def test_each_run_keeps_its_own_name_in_titles() -> None:
    comparison = Comparison(cell_run(3), cell_run(4))
    assert repr(comparison) == "<Comparison of 'Cell [3]' and 'Cell [4]' per run>"
    assert [row.title for row in page._rows(comparison._runs)] == ["A · Cell [3]", "B · Cell [4]"]


def test_functions_of_cells_that_ran_again_are_the_same() -> None:
    def rows(own: str, helpers: str) -> list[Row]:
        return [
            python(f"{own}(0): <module>", ts=10, dur=900),
            python(f"{own}(2): step", ts=20, dur=300),
            python(f"{helpers}(7): load", ts=400, dur=300),
            python("Cell [1](5): fixed", ts=800, dur=50),
        ]

    comparison = Comparison(
        cell_run(3, *rows("Cell [3]", "Cell [2]")), cell_run(9, *rows("Cell [9]", "Cell [8]"))
    )
    assert changes(comparison.functions()) == {
        "Cell [3 → 9](0): <module>": "same",
        "Cell [3 → 9](2): step": "same",
        "Cell [8](7): load": "same",
        "Cell [1](5): fixed": "same",
    }


def test_without_ops_the_call_tree_is_that_of_python() -> None:
    """Sampled or traced frames have no ops; cProfile's calls have no frames either."""
    frames = (python("Cell [2](1): step", ts=10, dur=100),)
    sampled = [trace_of(*frames) for _ in "ab"]
    counted = [trace_of(calls=calls_of((None, "step", 1, 100))) for _ in "ab"]
    for both in (sampled, counted):
        tree = Comparison(*both).call_tree()
        assert tree["a_ns"].tolist() == tree["b_ns"].tolist() == [100, 100]


def test_functions_that_cprofile_counted_are_paired() -> None:
    calls = calls_of((None, "<module>", 1, 5), ("<module>", "step", 2, 7))
    a, b = (cell_run(number, calls=in_cells(calls, *[f"Cell [{number}]"] * 2)) for number in (3, 4))
    assert set(Comparison(a, b).functions()["change"]) == {"same"}


def test_what_was_given_stays_as_it_was() -> None:
    a, b = cell_run(3, python("Cell [3](2): step", ts=20, dur=300)), cell_run(4)
    Comparison(a, b).report()
    assert a.metadata["label"] == "Cell [3]"
    assert set(a.trace.slices["name"]) == {"Cell [3]", "Cell [3](2): step"}

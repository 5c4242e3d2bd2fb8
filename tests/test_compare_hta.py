"""The kernels of two real runs against Holistic Trace Analysis' own comparison of traces."""

from __future__ import annotations

import shutil
from typing import Any

import pandas as pd
import pytest

from gpuprof_widgets.analyses.compare.measured import step_of
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from tests.traces import Shared

CONTROL, TEST = "diff_control_a100_rank3_of_8", "diff_test_v100_rank1_of_2"


@pytest.fixture(scope="module")
def theirs(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Per name counts and durations (µs) of the GPU work of all steps in either run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        module: Any = pytest.importorskip("hta.trace_diff")
        runs = {}
        for label, name in (("a", CONTROL), ("b", TEST)):
            folder = tmp_path_factory.mktemp(name)
            shutil.copy(shared(f"hta/{name}.json.gz"), folder)
            runs[label] = module.LabeledTrace(label=label, trace_dir=str(folder))
        table: pd.DataFrame = module.TraceDiff.compare_traces(
            runs["a"],
            runs["b"],
            control_iteration=runs["a"].iterations(),
            test_iteration=runs["b"].iterations(),
            device_type=module.DeviceType.GPU,
        )
    return table


def without_launch(record: Record) -> pd.DataFrame:
    """Calls and time (ns) by name of the GPU work of the steps of which no launch was recorded."""
    slices = record.trace.slices
    chosen = slices["category"].isin(GPU_CATEGORIES) & (slices["launch"] < 0) & (slices["op"] < 0)
    found = slices[chosen & (step_of(record) >= 0)]
    return found.groupby(found["name"].astype(str))["dur"].agg(["count", "sum"])


def ours(record: Record) -> pd.DataFrame:
    """Calls and time (ns) by name of all GPU work of the steps: a run beside itself."""
    table = Comparison(record, record).kernels()
    steps = record.trace.slices["name"].astype(str).str.match(r"ProfilerStep#\d+$").sum()
    table = table.assign(count=(table["calls_a"] * steps).round().astype(int))
    return table.set_index("name")[["count", "total_a_ns"]].set_axis(["count", "sum"], axis=1)


@pytest.mark.parametrize(("name", "side"), [(CONTROL, "a"), (TEST, "b")])
def test_kernels_of_the_steps_are_those_of_hta(
    theirs: pd.DataFrame, name: str, side: str, shared: Shared
) -> None:
    """But for GPU work whose launch was not recorded: HTA leaves it out, without a word."""
    record = load(shared(f"hta/{name}.json.gz"))
    linked = ours(record).sub(without_launch(record), fill_value=0)
    linked = linked[linked["count"] > 0]
    columns = [f"{side}_counts", f"{side}_total_duration"]
    expected = theirs[theirs[columns[0]] > 0][columns].set_axis(["count", "sum"], axis=1)
    assert set(linked.index) == set(expected.index)
    expected = expected.reindex(linked.index)
    pd.testing.assert_series_equal(linked["count"], expected["count"], check_dtype=False)
    pd.testing.assert_series_equal(
        linked["sum"] / 1_000, expected["sum"], check_dtype=False, rtol=0, atol=1e-3
    )

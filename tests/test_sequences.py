"""What ops launch one after another: by hand, by HTA, on real traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.sequences import ARROW, sequences
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.hta_oracle import hta
from tests.traces import Row, Shared, kernel, op, runtime, trace_of

COLUMNS = ["op_name", "sequence", "kernels", "calls", "total_ns"]


def calling(name: str, *launched: str, ts: int, first: int) -> list[Row]:
    """An op that launches these kernels, 5 ns each; ``first`` is its position in the trace."""
    rows = [op(name, ts=ts, dur=90), op("aten::inner", ts=ts + 1, dur=80)]
    rows += [runtime("cudaLaunchKernel", ts=ts + 5 + 10 * i, dur=4) for i in range(len(launched))]
    rows += [
        kernel(each, ts=ts + 20 + 10 * i, dur=5, launched_by=first + 2 + i)
        for i, each in enumerate(launched)
    ]
    return rows


def norm_twice() -> Record:
    rows = calling("aten::norm", "mean", "var", "scale", ts=0, first=0)
    rows += calling("aten::norm", "mean", "var", "scale", ts=100, first=len(rows))
    rows += calling("aten::norm", "mean", "scale", ts=200, first=len(rows))
    rows += calling("aten::lone", "mul", ts=300, first=len(rows))
    return trace_of(*rows)


def test_calls_that_launch_the_same_kernels_in_the_same_order_are_one_sequence() -> None:
    (row,) = sequences(norm_twice()).to_dict("records")
    assert [row[key] for key in COLUMNS] == [
        *("aten::norm", ARROW.join(["mean", "var", "scale"]), 3, 2, 30)
    ]
    assert (row["average_ns"], row["launching_ns"], row["op_ns"]) == (15, 24, 180)
    assert (row["first"], row["short_kernels"]) == (0, 0.0)


def test_delays_are_those_of_the_first_launch_of_each_call() -> None:
    early = calling("aten::norm", "mean", "var", "scale", ts=0, first=0)
    late = calling("aten::norm", "mean", "var", "scale", ts=100, first=len(early))
    late[0] = op("aten::norm", ts=99, dur=91)
    (row,) = sequences(trace_of(*early, *late)).to_dict("records")
    assert (row["average_until_launch_ns"], row["average_until_start_ns"]) == ((5 + 6) / 2, 15)
    by_op = [op("aten::norm", ts=0, dur=90)]
    by_op += [kernel(name, ts=20 + i, dur=1, launched_by=0) for i, name in enumerate("abc")]
    (row,) = sequences(trace_of(*by_op)).to_dict("records")
    assert np.isnan(row["average_until_launch_ns"])


def test_shorter_sequences_count_from_the_length_asked_for() -> None:
    assert sequences(norm_twice(), length=2)["kernels"].tolist() == [3, 2]
    assert sequences(norm_twice(), length=1)["op_name"].tolist() == [
        *("aten::norm", "aten::norm", "aten::lone")
    ]
    assert sequences(norm_twice(), length=1, top=2)["calls"].tolist() == [2, 1]
    with pytest.raises(OptionError, match="at least one kernel"):
        sequences(norm_twice(), length=0)


def test_an_op_is_chosen_by_a_part_of_its_name_and_the_outermost_counts() -> None:
    table = sequences(norm_twice(), op="inner", length=1)
    assert set(table["op_name"]) == {"aten::inner"}
    assert table["calls"].sum() == 4
    assert set(sequences(norm_twice(), op="aten", length=1)["op_name"]) == {
        *("aten::norm", "aten::lone")
    }


def test_kernels_stand_in_the_order_of_their_start_whatever_their_stream() -> None:
    rows = [op("aten::both", ts=0, dur=90)]
    rows += [runtime("cudaLaunchKernel", ts=5 + 10 * i, dur=4) for i in range(3)]
    streams = {"late": (60, 7), "early": (20, 9), "middle": (40, 7)}
    rows += [
        kernel(name, ts=ts, dur=5, stream=stream, launched_by=1 + i)
        for i, (name, (ts, stream)) in enumerate(streams.items())
    ]
    assert sequences(trace_of(*rows))["sequence"].tolist() == ["early → middle → late"]


def test_what_is_missing_is_said() -> None:
    assert "no GPU work" in why_empty(sequences(trace_of(op("aten::mm", ts=0, dur=9))))
    assert why_empty(sequences(norm_twice(), op="conv")) == (
        "no op whose name holds 'conv' launched 3 or more kernels or copies in one call."
    )


def test_on_real_traces_sequences_of_any_length_hold_all_that_ops_launched(
    shared_record: Record,
) -> None:
    table = sequences(shared_record, length=1, top=10**9)
    slices = shared_record.trace.slices
    assert (table["kernels"] * table["calls"]).sum() <= kernels(shared_record)["calls"].sum()
    if len(table):
        first = table["first"].to_numpy()
        assert (slices["name"].to_numpy(object)[first] == table["op_name"].to_numpy()).all()
        assert table["short_kernels"].between(0, 1).all()
        assert (table["sequence"].str.count(ARROW) == table["kernels"] - 1).all()


SYNCHRONISING = ("Stream Wait Event", "Stream Synchronize", "Event Synchronize", "Context Sync")
"""What HTA takes for kernels: waits that `enable_cuda_sync_events` puts on the streams."""


def test_sequences_equal_those_of_hta_where_an_op_has_one_depth(
    tmp_path: Path, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    unique = np.unique

    def of_numbers(values: Any, *args: Any, **kwargs: Any) -> Any:
        kind = getattr(getattr(values, "dtype", None), "kind", "")
        is_mixed = kind == "O" and kwargs.get("axis") == 0
        return unique(values.astype(np.float64) if is_mixed else values, *args, **kwargs)

    # HTA 0.5 expects a replacement of texts by numbers to give numbers: pandas 3 leaves objects,
    # of which numpy cannot tell whole rows apart.
    monkeypatch.setattr(np, "unique", of_numbers)
    path = shared("hta/critical_path_alexnet_a100.json.gz")
    found = hta(path).get_frequent_cuda_kernel_sequences(
        "aten::conv2d", str(tmp_path), min_pattern_len=3, rank=0, visualize=False
    )
    ours = {
        (row["op_name"], *row["sequence"].split(ARROW)): row
        for row in sequences(load(path), op="aten::conv2d").to_dict("records")
    }
    calls = Counter[tuple[str, ...]]()
    for row in found.to_dict("records"):
        launched = row["pattern"].split("|")
        pattern = tuple(name for name in launched if name not in SYNCHRONISING)
        calls[pattern] += row["count"]
        if len(pattern) == len(launched):
            assert ours[pattern]["total_ns"] / 1000 == row["GPU kernel duration (us)"]
    assert calls == {pattern: row["calls"] for pattern, row in ours.items()}

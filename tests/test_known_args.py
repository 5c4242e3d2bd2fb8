"""Args of odd types: left out and counted, so that the others stay what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.trace.known_args import KINDS, usable_args
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse
from tests.test_every_trace import all_answers
from tests.traces import kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

GOOD = {
    "correlation": 4,
    "stream": 7,
    "bytes": "128",
    "Addr": "0x7fda0e810200",
    "grid": [3, 1, 1],
    "Input Dims": [[2, 3], [], [[1], [2, 2]]],
    "Input type": ["float", ""],
    "blocks per SM": 0.25,
    "Call stack": "train.py(3): step",
}


def launched(**odd: Any) -> bytes:
    """Two launches and their kernels; the args of the second kernel are odd."""
    events = []
    for number, more in enumerate(({}, odd)):
        start, link = 100 * number, {"correlation": 5 + number}
        common = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start, "dur": 5,
             "args": link},
            {**common, "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start + 9,
             "dur": 20, "args": {"device": 0, "stream": 7, "grid": [1, 1, 1], **link, **more}},
        ]  # fmt: skip
    return json.dumps({"traceEvents": events}).encode()


def read(**odd: Any) -> Record:
    return parse(launched(**odd), Path("trace.json"))


@pytest.mark.parametrize("odd", [None, True, "five", 5.5, [6], {"a": 6}, 2**63, "NaN", ""])
def test_one_odd_number_does_not_take_all_links_with_it(odd: Any) -> None:
    record = read(correlation=odd)
    kernels = record.trace.slices[record.trace.slices["name"] == "gemm"]
    assert (kernels["launch"] >= 0).tolist() == [True, False]
    assert record.metadata["notes"] == [
        "1 of 4 values of 'correlation' are not whole numbers and were left out"
    ]


ODD = [
    ("device", [1]),
    ("stream", "NaN"),
    ("grid", [1, 2]),
    ("grid", [1, -1, "x"]),
    ("block", 64),
    ("Input Dims", [1, 2]),
    ("Input Dims", [["a"]]),
    ("Input Dims", [[2**70]]),
    ("Input type", "float"),
    ("registers per thread", {}),
    ("est. achieved occupancy %", 1e300),
    ("blocks per SM", "many"),
    ("Bytes", None),
    ("Call stack", 5),
]


@pytest.mark.parametrize(("key", "odd"), ODD)
def test_a_value_of_another_type_is_counted(key: str, odd: Any) -> None:
    record = read(**{key: odd})
    assert any(f"values of {key!r} are not" in note for note in record.metadata["notes"])
    assert len(record.trace) == 4


def test_every_analysis_answers_where_args_are_odd() -> None:
    assert all_answers(read(**dict(ODD))) == {}


@pytest.mark.parametrize("key", GOOD)
def test_what_profilers_write_stays_as_it_is(key: str) -> None:
    record = trace_of(op("a", ts=0, dur=1, **{key: GOOD[key]}), op("b", ts=2, dur=1))
    args, notes = usable_args(record.trace.args)
    assert notes == []
    assert all(args[name] is values for name, values in record.trace.args.items())


def test_other_args_may_be_anything() -> None:
    record = read(anything={"a": [None, True]})
    assert record.metadata["notes"] == []
    assert "anything" not in KINDS


def test_numbers_are_numbers_again_without_the_odd_ones() -> None:
    record = trace_of(
        op("a", ts=0, dur=1),
        runtime("cudaLaunchKernel", ts=1, dur=1),
        kernel("k", ts=2, dur=1, bytes=8),
        kernel("l", ts=4, dur=1, bytes=None),
    )
    args, _ = usable_args(record.trace.args)
    assert str(args["bytes"].dtype) == "int64"
    assert args["bytes"].tolist() == [8]

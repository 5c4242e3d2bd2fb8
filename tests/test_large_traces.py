"""The benchmark of large traces: what it makes, what it counts, and what its table says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import gpuprof_widgets
from benchmarks.child_process import ROOT
from benchmarks.made_traces import SOURCE, make_trace
from benchmarks.routes import ENVIRONMENTS

pytestmark = pytest.mark.slow


def test_the_default_source_grows_into_a_trace_that_we_read(tmp_path: Path) -> None:
    once, twice = (make_trace(SOURCE, millions, tmp_path) for millions in (0, 0.015))
    assert (once.times, twice.times) == (1, 2)
    with gzip.open(twice.file) as file:
        text = file.read()
    assert len(text) == twice.text_bytes
    assert len(json.loads(text)["traceEvents"]) == twice.events
    small, large = (gpuprof_widgets.load(trace.file).trace for trace in (once, twice))
    assert len(large) == 2 * len(small)


def test_each_peer_is_pinned_and_fits_what_else_is_pinned() -> None:
    constraints = dict(pins(ROOT / "constraints.txt"))
    for environment in ENVIRONMENTS:
        if environment.folder is None:
            continue
        required = dict(pins(ROOT / "benchmarks" / "peers" / f"{environment.folder.name}.txt"))
        assert environment.packages[0] in required
        assert all(constraints.get(name, pin) == pin for name, pin in required.items())


def pins(file: Path) -> list[list[str]]:
    lines = file.read_text().splitlines()
    return [line.split("==") for line in lines if line and not line.startswith("#")]

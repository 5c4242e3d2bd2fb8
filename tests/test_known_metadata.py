"""Metadata of odd types: left out and told, whoever wrote them; what we write ourselves stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.memory import memory_peak
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.known_metadata import TYPES, with_usable_metadata
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load, parse
from tests.fuzz_seeds import seeds
from tests.test_every_trace import all_answers
from tests.traces import kernel, op, trace_of

pytestmark = pytest.mark.slow

ODD: dict[str, Any] = {
    "label": ["x"],
    "source": 5,
    "error": {"a": 1},
    "notes": 2,
    "devices": [{"index": 0, "total_memory_bytes": {}}],
    "deviceProperties": [{"id": 0, "totalGlobalMem": "much"}],
    "distributedInfo": {"pg_config": [{"pg_name": "0", "ranks": [0, "1"]}]},
    "profiler_spans": "none",
    "wall_ns": "long",
    "own_torch_profiler": "yes",
    "overhead": 7,
    "options": [1],
    "steps": {"iterations": [{"step": 0}]},
    "guards": {"eval": 5},
    "gc": {"collections": [1, 2, 3], "time_ns": "long"},
    "compilations": [{"function": "step", "dur_ns": 5}],
    "lines": {"cells": [{"label": 1, "source": None}]},
    "workers": [{"worker": "0"}],
    "memory": {"before": {"a": 1}},
    "memory_segments": [{"device": 0}],
    "peaks": {"device": 5},
    "rank": "first",
    "world_size": 2**70,
    "host": 5,
    "recorded_by": {"a": 1},
    "recorder": 5,
    "sampled": "now and then",
    "python_samples": {"by_signal": True, "samples": 9, "interval_ns": 5, "code": ["x"]},
    "window_ns": {"from": 0},
    "remarks": [{"text": "no time"}],
    "focus": {"range_ns": [1], "rows": [], "about": ""},
    "cpus": "all",
    "torch_threads": [2],
    "cpu_use": {"wall_ns": 5},
}


def odd_record(**metadata: Any) -> Record:
    return trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=10, dur=5), **metadata)


def test_every_known_key_is_tried() -> None:
    assert set(ODD) == set(TYPES)


@pytest.mark.parametrize("key", ODD)
def test_what_is_of_another_type_is_left_out_and_told(key: str, tmp_path: Path) -> None:
    record = odd_record(**{"notes": ["a note"], "mine": [1], key: ODD[key]})
    found = load(save(record, tmp_path / "run.gpuprof")).metadata
    assert found["mine"] == [1]
    *before, told = found["notes"]
    assert before == ([] if key == "notes" else ["a note"])
    assert told.startswith(f'the metadata "{key}" of the file is malformed (')
    assert key == "notes" or key not in found


def test_what_another_version_adds_to_a_known_entry_is_kept(tmp_path: Path) -> None:
    overhead = {"events": 5, "estimate_ns": 4_000, "source": "measured"}
    saved = save(odd_record(overhead=overhead), tmp_path / "run.gpuprof")
    assert load(saved).metadata["overhead"] == overhead


def test_half_a_character_is_no_text() -> None:
    record = with_usable_metadata(odd_record(wall_ns="\ud800"))
    assert "broken Unicode" in record.metadata["notes"][0]
    assert "wall_ns" not in record.metadata


def test_every_analysis_and_the_page_answer_where_metadata_are_odd(tmp_path: Path) -> None:
    path = save(odd_record(**ODD), tmp_path / "run.gpuprof")
    profile = gpuprof_widgets.load(path)
    assert all_answers(profile) == {}
    assert "gemm" in profile.report()


def test_what_is_recorded_is_as_it_should_be() -> None:
    weights = torch.ones(8, 8)
    with gpuprof_widgets.profile(memory=True, shapes=True) as run:
        for _ in range(3):
            weights @ weights
    as_saved = replace(run, metadata=json.loads(json.dumps(run.metadata)))
    assert with_usable_metadata(as_saved) is as_saved


def test_what_other_programs_write_is_as_it_should_be() -> None:
    for seed in seeds():
        if "metadata" not in seed.name:
            notes = parse(seed.data, Path("seed")).metadata["notes"]
            assert not any("of the file is malformed" in note for note in notes), seed.name


def test_metadata_may_be_null() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=10, dur=5, launched_by=0))
    nothing = with_usable_metadata(replace(record, metadata=dict.fromkeys(TYPES)))
    assert findings(nothing)
    assert memory_peak(nothing).empty

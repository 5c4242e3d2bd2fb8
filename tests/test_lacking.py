"""What a trace lacks is said in the words of the program that recorded it."""

from __future__ import annotations

import cProfile
import re
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses import ANALYSES, plain_analyses
from gpuprof_widgets.analyses.attribution import attribution
from gpuprof_widgets.analyses.reasons import HOW_TO_RECORD, SNAPSHOT, why_empty
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse
from gpuprof_widgets.trace.schema import WRITTEN_CATEGORY
from gpuprof_widgets.views.page import VIEWS, has_view
from tests.snapshots import dumped, snapshot, training
from tests.traces import kernel, op, python, trace_of

TORCH_ONLY = re.compile("profile_memory|record_function|DataLoader|with_stack|record_shapes\\)")

OTHERS: dict[str, dict[str, Any]] = {
    "TensorFlow": {"framework": "TensorFlow", "recorded_by": "TensorFlow Timeline"},
    "MegEngine": {"framework": "MegEngine"},
    "Nsight Systems": {"recorder": "Nsight Systems"},
    "nvprof": {"recorder": "nvprof"},
    "VizTracer": {"recorded_by": "VizTracer"},
    "cProfile": {"recorded_by": "cProfile"},
}
UNKNOWN = op("handle", ts=0, dur=9, **{WRITTEN_CATEGORY: "http"})


def answers(record: Record) -> list[str]:
    """What every analysis says that is lacking, and all findings."""
    tables = [one.function(record) for one in plain_analyses()]
    profile = Profile(record.trace, record.calls, record.metadata)
    return [*map(why_empty, tables), *(one.text for one in profile.findings())]


@pytest.mark.parametrize("recorder", OTHERS)
def test_advice_for_torch_is_given_of_its_own_traces_alone(recorder: str) -> None:
    given = op("matmul", ts=0, dur=9)
    said = "\n".join(answers(trace_of(given, **OTHERS[recorder])))
    for what in HOW_TO_RECORD:
        assert what in said
    assert not TORCH_ONLY.search(said)
    of_torch = "\n".join(answers(trace_of(given)))
    assert {"profile_memory", "record_function", "DataLoader", "with_stack", "record_shapes)"} == (
        set(TORCH_ONLY.findall(of_torch))
    )


@pytest.mark.parametrize(
    ("recorder", "name", "advice"),
    [
        ("Nsight Systems", "memory", "(nsys profile --cuda-memory-usage=true)"),
        ("nvprof", "annotations", "(NVTX)"),
        ("TensorFlow", "waits", "no op that waits for a queue or an iterator"),
    ],
)
def test_who_recorded_can_record_that_too(recorder: str, name: str, advice: str) -> None:
    record = trace_of(op("matmul", ts=0, dur=9), **OTHERS[recorder])
    assert why_empty(ANALYSES[name].function(record)).endswith(advice)


@pytest.mark.parametrize(
    ("level", "lacks"),
    [
        ("line", "the trace has no cell lines"),
        ("module", "the trace has no modules"),
        ("python", "the trace has no Python frames"),
    ],
)
def test_that_nothing_has_an_owner_is_said(level: str, lacks: str) -> None:
    table = attribution(trace_of(op("matmul", ts=0, dur=9)), level)
    assert table["name"].tolist() == [""]
    assert why_empty(table).startswith(lacks)


def test_of_python_alone_the_analysis_that_has_its_time_is_named() -> None:
    record = trace_of(python("train.py(3): step", ts=0, dur=9))
    table = attribution(record, "python")
    assert table["calls"].tolist() == [1, 0]
    assert "python_time has the functions' own" in why_empty(table)
    beside = trace_of(python("train.py(3): step", ts=0, dur=9), op("aten::mm", ts=1, dur=5))
    assert why_empty(attribution(beside, "python")) == ""


def test_of_a_program_that_is_not_known_nothing_is_advised() -> None:
    assert not TORCH_ONLY.search("\n".join(answers(trace_of(UNKNOWN))))


@pytest.mark.parametrize("metadata", [{"recorder": 5}, {"framework": ["x"]}, {"recorded_by": None}])
def test_odd_names_of_recorders_do_no_harm(metadata: dict[str, Any]) -> None:
    record = trace_of(op("matmul", ts=0, dur=9), **metadata)
    lacks = why_empty(ANALYSES["memory"].function(record))
    assert lacks.startswith("the trace has no memory events")


def test_a_file_of_cprofile_is_not_one_of_torch(tmp_path: Path) -> None:
    profile = cProfile.Profile()
    profile.runcall(sorted, [3, 1, 2])
    profile.dump_stats(tmp_path / "run.prof")
    said = answers(parse((tmp_path / "run.prof").read_bytes(), tmp_path / "run.prof"))
    assert "the trace has no memory events" in said
    assert not TORCH_ONLY.search("\n".join(said))


@pytest.mark.parametrize("name", ["critical_path", "operators", "breakdown", "kernels"])
def test_a_memory_snapshot_has_no_time_and_no_ops(name: str, tmp_path: Path) -> None:
    profile = Profile.load(dumped(snapshot(training()), tmp_path))
    assert why_empty(ANALYSES[name].function(profile)) == SNAPSHOT
    assert why_empty(getattr(profile, name)()) == SNAPSHOT
    assert len(profile.memory()) > 0


def test_the_page_of_a_memory_snapshot_has_views_of_memory_alone(tmp_path: Path) -> None:
    profile = Profile.load(dumped(snapshot(training()), tmp_path))
    shown = [view for view in VIEWS if has_view(profile, view)]
    assert shown == ["timeline", "memory", "analyses"]
    assert has_view(trace_of(op("matmul", ts=0, dur=9)), "flame_graph")


def test_a_wrong_call_is_told_without_the_frames_in_which_it_was_found() -> None:
    record = trace_of(op("matmul", ts=0, dur=9))
    profile = Profile(record.trace, record.calls, record.metadata)
    with pytest.raises(OptionError, match="did you mean 'matmul'") as wrong:
        profile.what_if("matmull")
    assert [entry.name for entry in wrong.traceback][1:] == ["explaining"]
    assert (wrong.value.__cause__, wrong.value.__context__) == (None, None)


def test_what_was_asked_for_and_did_not_happen_is_not_advised() -> None:
    with gpuprof_widgets.profile(quiet=True, memory=True, workers=True, python="off") as run:
        pass
    assert why_empty(run.memory()) == (
        "the trace has no memory events: they were recorded, and nothing was allocated or released"
    )
    assert why_empty(run.workers()).endswith("none started in the recorded code")


@pytest.mark.parametrize(
    ("metadata", "ends"),
    [
        ({"options": {"python": "cprofile"}}, "of Python (--python sampled, python='sampled')"),
        ({"options": {"python": "both"}}, "asked for, and none found a line of your code"),
        ({}, ": only recordings of gpuprof have them"),
        ({"recorder": "nvprof"}, ": only recordings of gpuprof have them"),
    ],
)
def test_who_can_sample_is_said(metadata: dict[str, Any], ends: str) -> None:
    table = ANALYSES["sampled_lines"].function(trace_of(op("mm", ts=0, dur=9), **metadata))
    assert why_empty(table).startswith("the trace has no samples of Python")
    assert why_empty(table).endswith(ends)


def test_who_sampled_is_not_told_that_python_was_off() -> None:
    nothing = trace_of(op("mm", ts=0, dur=9), options={"python": "sampled"})
    for name in ("python_calls", "python_time"):
        assert why_empty(ANALYSES[name].function(nothing)).endswith(
            "neither cProfile's nor frames: samples were asked for, and none was taken"
        )


def test_what_our_own_samples_lack_can_be_recorded() -> None:
    ours = {"sampled": True, "python_samples": {"interval_ns": 5}, "options": {}}
    record = trace_of(python("train.py(3): step", ts=0, dur=9), **ours)
    assert why_empty(ANALYSES["memory"].function(record)).endswith("(--memory, memory=True)")


def test_what_a_range_lacks_the_run_may_have() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=20, dur=9))
    run = Profile(record.trace, record.calls, record.metadata)
    gap = run.window(12_000, 15_000)
    assert why_empty(gap.kernels()).startswith("this range of the trace has no GPU work")
    assert why_empty(gap.memory()) == "this range of the trace has no memory events"
    assert why_empty(gap.attribution("module")) == "this range of the trace has no modules"
    assert "could be idle" not in why_empty(gap.idle())
    assert "profile_memory" in why_empty(run.memory())


def test_of_ops_without_a_gpu_the_side_that_has_their_times_is_named() -> None:
    of_ops = why_empty(ANALYSES["analyze"].function(trace_of(op("aten::mm", ts=0, dur=9))))
    assert of_ops.endswith("those of its CPU ops are of the side 'host'")
    assert "host" not in why_empty(ANALYSES["analyze"].function(trace_of()))

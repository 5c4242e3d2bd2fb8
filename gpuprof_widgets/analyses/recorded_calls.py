"""The Python calls of a record, however they were recorded."""

from __future__ import annotations

from gpuprof_widgets.analyses.thread_waits import python_lanes
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.python_frames import calls_from_slices
from gpuprof_widgets.trace.schema import SAMPLED


def recorded_calls(record: Record) -> Calls:
    """The calls of cProfile, else those of recorded frames; else an error that says why not.

    A sampler's frames are none: how often a function was called is not known.
    """
    if record.calls is not None:
        return record.calls
    if record.metadata.get(SAMPLED):
        raise RecordingError(
            "this profile was sampled, so that its calls are not known, and files of cProfile "
            "count calls; export stacks with their times (.speedscope.json, .collapsed)"
        )
    if len(python_lanes(record)):
        return calls_from_slices(record.trace, str(record.metadata.get("label")))
    raise RecordingError(f"this profile has no Python calls: {_why_no_calls(record)}")


def _why_no_calls(record: Record) -> str:
    metadata = record.metadata
    notes = [str(note) for note in metadata.get("notes", ()) if "Python calls" in str(note)]
    if notes:
        return notes[0].removeprefix("no Python calls: ")
    if (metadata.get("options") or {}).get("cprofile") is False:
        return "it was recorded without cProfile (--no-cprofile); record it again with it"
    source = f" ({metadata['source']})" if metadata.get("source") else ""
    return f"the trace{source} holds neither cProfile's nor Python frames; record with either"

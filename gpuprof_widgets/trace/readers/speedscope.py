"""Reader of speedscope's files, which py-spy, rbspy, Austin, pyinstrument and others write.

The format is https://www.speedscope.app/file-format-schema.json: named profiles, each a thread,
that share a list of frames. An "evented" profile has the begin and end of each call, a "sampled"
one stacks with weights, which are put one after another. pyinstrument writes its samples as
"evented" (``pyinstrument/renderers/speedscope.py``), with a function's self time as a frame
``[self]`` within it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers.json_text import decoded
from gpuprof_widgets.trace.readers.pyinstrument import PYINSTRUMENT
from gpuprof_widgets.trace.schema import SAMPLED
from gpuprof_widgets.trace.stack_lanes import (
    NO_UNIT,
    SELF_FRAME,
    Lane,
    frame_name,
    lane_of_events,
    lane_of_samples,
    trace_of_lanes,
)
from gpuprof_widgets.trace.writers.stacks import FROM_SAMPLES

SCHEMA = b"speedscope.app/file-format-schema.json"
SPEEDSCOPE = "speedscope"
ENDS = 1 << 16
"""The schema's name is within so many bytes of a file's start or end."""
UNIT_NS = {"nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
COUNTS = {"none": 1}
"""Where no profile of a file measures time, its counts are shown as ns."""
LONGEST_NS = 2**62

Number = int | float


class _Frame(msgspec.Struct):
    name: str = ""
    file: str | None = None
    line: Number | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Event(msgspec.Struct):
    type: str
    at: Number
    frame: int


class _Evented(msgspec.Struct, tag="evented"):
    events: list[_Event]
    unit: str = "none"
    name: str = ""
    endValue: Number = 0  # noqa: N815  # as the file has it


class _Sampled(msgspec.Struct, tag="sampled"):
    samples: list[list[int]]
    weights: list[Number]
    unit: str = "none"
    name: str = ""
    startValue: Number = 0  # noqa: N815  # as the file has it


class _File(msgspec.Struct):
    shared: _Shared
    profiles: list[_Evented | _Sampled]
    name: str | None = None
    exporter: str | None = None


_decode = msgspec.json.Decoder(_File).decode


def is_speedscope(data: bytes) -> bool:
    """Return whether this is a JSON object that names the schema near its start or end."""
    return data[:64].lstrip()[:1] == b"{" and (SCHEMA in data[:ENDS] or SCHEMA in data[-ENDS:])


def parse_speedscope(data: bytes, path: Path) -> Record:
    """Return the record of the JSON text; metadata and errors name ``path``."""
    kind, shape = "a file of speedscope", "as its schema says"
    file = decoded(_decode, data, path, kind=kind, shape=shape, again="Export it again")
    measures_time = any(profile.unit in UNIT_NS for profile in file.profiles)
    units = UNIT_NS if measures_time else COUNTS
    timed = [
        _without_self_frames(profile, file) for profile in file.profiles if profile.unit in units
    ]
    lanes = [lane for lane in (_lane(p, len(file.shared.frames), path) for p in timed) if lane.ts]
    if not lanes:
        measured = ", ".join(sorted({profile.unit for profile in file.profiles}))
        raise TraceError(
            f"{path}: a file of speedscope without any time spent in a function (its profiles "
            f"measure {measured[:80] or 'nothing: there are none'}). Record again, or export a "
            "profile that measures time."
        )
    functions = [
        frame_name(frame.name, frame.file or "", int(frame.line or 0))
        for frame in file.shared.frames
    ]
    metadata: dict[str, Any] = {"source": str(path), "recorded_by": file.exporter or SPEEDSCOPE}
    if _sampled(file, timed):
        metadata[SAMPLED] = True
    notes = _notes(file, timed, lanes)
    return Record(
        trace_of_lanes(lanes, functions, file.name or SPEEDSCOPE), None, metadata | {"notes": notes}
    )


def _sampled(file: _File, profiles: list[_Evented | _Sampled]) -> int:
    """Return how many of these come from a sampler, whatever their type."""
    if file.exporter in (PYINSTRUMENT, FROM_SAMPLES):
        return len(profiles)
    return sum(isinstance(profile, _Sampled) for profile in profiles)


def _without_self_frames(profile: _Evented | _Sampled, file: _File) -> _Evented | _Sampled:
    """Drop pyinstrument's frames ``[self]``: that time is the function's own, and no call."""
    self_frames = {at for at, frame in enumerate(file.shared.frames) if frame.name == SELF_FRAME}
    if file.exporter != PYINSTRUMENT or not self_frames:
        return profile
    if isinstance(profile, _Evented):
        events = [event for event in profile.events if event.frame not in self_frames]
        return msgspec.structs.replace(profile, events=events)
    stacks = [[frame for frame in stack if frame not in self_frames] for stack in profile.samples]
    return msgspec.structs.replace(profile, samples=stacks)


def _lane(profile: _Evented | _Sampled, frames: int, path: Path) -> Lane:
    unit = (UNIT_NS | COUNTS)[profile.unit]
    if isinstance(profile, _Evented):
        used = {event.frame for event in profile.events}
        _check_frames(used, frames, profile.name, path)
        events = (
            (event.type == "O", event.frame, _ns(event.at, unit, path)) for event in profile.events
        )
        return lane_of_events(profile.name, events, _ns(profile.endValue, unit, path))
    _check_frames(
        {frame for stack in profile.samples for frame in stack}, frames, profile.name, path
    )
    if len(profile.samples) != len(profile.weights):
        raise TraceError(
            f"{path}: the profile {profile.name[:80]!r} has {len(profile.samples):,} samples and "
            f"{len(profile.weights):,} weights, where each sample has one. Export it again."
        )
    weights = (max(_ns(weight, unit, path), 0) for weight in profile.weights)
    return lane_of_samples(
        profile.name, profile.samples, weights, _ns(profile.startValue, unit, path)
    )


def _check_frames(used: set[int], frames: int, name: str, path: Path) -> None:
    wrong = [frame for frame in used if not 0 <= frame < frames]
    if wrong:
        raise TraceError(
            f"{path}: the profile {name[:80]!r} names frame {min(wrong)}, but the file has only "
            f"{frames:,} frames, counted from 0. Export it again."
        )


def _ns(value: Number, unit: float, path: Path) -> int:
    """Return whole nanoseconds; those of a file in nanoseconds stay exact."""
    ns = value * unit
    if not abs(ns) < LONGEST_NS:
        raise TraceError(
            f"{path}: the time {value!r} is too large (in ns it is beyond 2**62). Export it again."
        )
    return round(ns)


def _notes(file: _File, timed: list[_Evented | _Sampled], lanes: list[Lane]) -> list[str]:
    untimed = len(file.profiles) - len(timed)
    counted = [
        (untimed, f"of {len(file.profiles):,} profiles do not measure time and were left out"),
        (sum(lane.repaired for lane in lanes), "calls begin or end out of order and were mended"),
    ]
    notes = [f"{count:,} {words}" for count, words in counted if count]
    if all(profile.unit in COUNTS for profile in timed):
        notes.append(NO_UNIT)
    if sampled := _sampled(file, timed):
        some = "" if sampled == len(timed) else f"in {sampled:,} of {len(timed):,} threads, "
        notes.append(f"{some}recorded by samples: calls are not counted, times are estimates")
    return notes

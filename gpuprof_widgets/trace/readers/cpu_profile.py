"""Reader of V8's CPU profiles (``.cpuprofile``), which Node, Deno and Chrome's DevTools write."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers.json_text import decoded
from gpuprof_widgets.trace.schema import LANGUAGE, SAMPLED
from gpuprof_widgets.trace.stack_lanes import most_calls, trace_of_lanes
from gpuprof_widgets.trace.v8_profiles import (
    JAVASCRIPT,
    BrokenProfileError,
    CpuProfile,
    Node,
    Number,
    Numbers,
    check_whole,
    lane_of_profile,
)

V8 = "V8"
_FIRST_KEY = re.compile(rb'\s*\{\s*"(?:nodes|startTime|endTime|samples|timeDeltas)"\s*:')
_KIND = "a CPU profile of V8"
_AGAIN = "Record again (node --cpu-prof, or the Performance panel of DevTools)"


class _File(msgspec.Struct):
    nodes: list[Node]
    startTime: Number  # noqa: N815  # as the file has it
    endTime: Number | None = None  # noqa: N815  # as the file has it
    samples: list[int] | None = None
    timeDeltas: list[Number] | None = None  # noqa: N815  # as the file has it


_decode = msgspec.json.Decoder(_File).decode


def is_cpu_profile(data: bytes) -> bool:
    """Return whether this is a JSON object that begins with a key of a profile and has nodes."""
    return _FIRST_KEY.match(data) is not None and b'"callFrame"' in data


def parse_cpu_profile(data: bytes, path: Path) -> Record:
    """Return the record of the JSON text; metadata and errors name ``path``."""
    file = decoded(_decode, data, path, kind=_KIND, shape="as V8 writes one", again=_AGAIN)
    profile = CpuProfile(
        file.startTime, file.endTime, file.nodes, file.samples or [], file.timeDeltas or []
    )
    functions = Numbers()
    try:
        check_whole(profile)
        lane = lane_of_profile("main thread", profile, functions, most_calls(len(data)), path)
    except BrokenProfileError as error:
        raise TraceError(f"{path}: {_KIND}, but {error}. {_AGAIN}.") from error
    if not lane.ts:
        raise TraceError(
            f"{path}: {_KIND} without a sample of any function (it has "
            f"{len(profile.samples):,} samples of {len(profile.nodes):,} nodes). {_AGAIN}."
        )
    trace = trace_of_lanes([lane], list(functions.of), V8, language=JAVASCRIPT)
    metadata = {
        "source": str(path),
        "recorded_by": V8,
        SAMPLED: True,
        LANGUAGE: JAVASCRIPT,
        "notes": [
            f"{len(profile.samples):,} samples: calls are not counted, times are estimates",
            *_early(profile),
        ],
    }
    return Record(trace, None, metadata)


def _early(profile: CpuProfile) -> list[str]:
    """Return a note where samples are earlier than the profile's start."""
    now, early = 0.0, 0
    for delta in profile.deltas:
        now += delta
        early += now < 0
    note = f"{early:,} samples were taken before the start time in the file"
    return [note] if early else []

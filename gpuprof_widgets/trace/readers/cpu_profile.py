"""Reader of V8's CPU profiles (``.cpuprofile``), which Node, Deno and Chrome's DevTools write."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
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
_AGAIN = "Record again (node --cpu-prof, or the Performance panel of DevTools)"


class _File(msgspec.Struct):
    nodes: list[Node]
    startTime: Number  # noqa: N815  # as the file has it
    endTime: Number | None = None  # noqa: N815  # as the file has it
    samples: list[int] | None = None
    timeDeltas: list[Number] | None = None  # noqa: N815  # as the file has it


_decode = msgspec.json.Decoder(_File).decode


def is_cpu_profile(data: bytes) -> bool:
    """Whether this is a JSON object that begins with a key of such a profile, and has its nodes."""
    return _FIRST_KEY.match(data) is not None and b'"callFrame"' in data


def parse_cpu_profile(data: bytes, path: Path) -> Record:
    """The record of the JSON text; ``path`` is named in metadata and in errors."""
    file = _decoded(data, path)
    profile = CpuProfile(
        file.startTime, file.endTime, file.nodes, file.samples or [], file.timeDeltas or []
    )
    functions = Numbers()
    try:
        check_whole(profile)
        lane = lane_of_profile("main thread", profile, functions, most_calls(len(data)), path)
    except BrokenProfileError as error:
        raise TraceError(f"{path}: a CPU profile of V8, but {error}. {_AGAIN}.") from error
    if not lane.ts:
        raise TraceError(
            f"{path}: a CPU profile of V8 without a sample of any function (it has "
            f"{len(profile.samples):,} samples of {len(profile.nodes):,} nodes). {_AGAIN}."
        )
    trace = trace_of_lanes([lane], list(functions.of), V8, language=JAVASCRIPT)
    return Record(
        trace,
        None,
        {
            "source": str(path),
            "recorded_by": V8,
            SAMPLED: True,
            LANGUAGE: JAVASCRIPT,
            "notes": [
                f"{len(profile.samples):,} samples: calls are not counted, times are estimates",
                *_early(profile),
            ],
        },
    )


def _early(profile: CpuProfile) -> list[str]:
    """That the profile's start is behind samples of it."""
    now, early = 0.0, 0
    for delta in profile.deltas:
        now += delta
        early += now < 0
    told = f"{early:,} samples were taken before the start that the file tells"
    return [told] if early else []


def _decoded(data: bytes, path: Path) -> _File:
    try:
        return _decode(data)
    except msgspec.ValidationError as error:
        raise TraceError(
            f"{path}: a CPU profile of V8, but not as V8 writes one: {error}. {_AGAIN}."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{path}: a CPU profile of V8 that is not whole: {error} (it has {len(data):,} "
            "bytes). Copy it again, or record again."
        ) from error

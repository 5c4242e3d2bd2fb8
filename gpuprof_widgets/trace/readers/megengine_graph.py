"""Reader of MegEngine's profile of a static graph: one JSON object, no Chrome trace.

See `megengine_graph_file` for what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.dialects.dialect import in_layers
from gpuprof_widgets.trace.dialects.megengine import TORCH_TYPES, comp_node, places
from gpuprof_widgets.trace.events import EventFlows, Events, Names, text_codes, typed
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import (
    CPU_KERNEL,
    FLOPS,
    FRAMEWORK,
    INPUT_SHAPES,
    INPUT_TYPES,
    MEGENGINE,
    MEMORY_TRAFFIC,
    NODE,
    OUTPUT_SHAPES,
)

PROCESS = "MegEngine"
COPIES = ("Copy", "Host2DeviceCopy")
"""Types of operators whose work on a GPU is a copy."""


@dataclass(frozen=True)
class _Slice:
    """One slice, times in ns."""

    name: str
    category: str
    process: str
    thread: str
    ts: int
    end: int
    args: Mapping[str, Any] = field(default_factory=dict)


def is_megengine_graph(data: bytes) -> bool:
    """Whether this is a JSON object with the two keys that such a profile has, and no trace."""
    if data[:64].lstrip()[:1] != b"{" or b'"traceEvents"' in data:
        return False
    return b'"graph_exec"' in data and b'"profiler"' in data


def parse_megengine_graph(data: bytes, path: Path) -> Record:
    """The record of the JSON text; ``path`` is named in metadata and in errors."""
    profile = graph_profile(data, path)
    if not profile.host and not profile.device:
        raise TraceError(
            f"{path}: a MegEngine profile without the time of any operator: it names "
            f"{len(profile.operators):,} operators and has {profile.left_out:,} times that are "
            "none. Run the graph at least once before you take its profile."
        )
    shift = _device_shift_ns(profile)
    slices = [*_of_host(profile), *_of_devices(profile, shift)]
    threads = {(PROCESS, one.thread): one.thread for one in slices if one.process == PROCESS}
    events = _events(slices)
    events, _ = in_layers(events, EventFlows(), places)
    trace = assemble(events, names=Names({PROCESS: PROCESS}, threads))
    metadata = {
        "source": str(path),
        "devices": [],
        "recorded_by": "MegEngine graph profiler",
        FRAMEWORK: MEGENGINE,
        "notes": _notes(profile, shift),
    }
    return Record(trace, None, metadata)


def _device_shift_ns(profile: GraphProfile) -> int:
    """How much later the devices' clock reads 0 than the host's, as far as the order tells.

    Nothing of an operator begins on a device before the operator's turn came on the host: the
    least shift with which that holds for all.
    """
    turn: dict[str, int] = {}
    for operator, _, times in profile.host:
        turn[operator] = min(times.start, turn.get(operator, times.start))
    found = [turn[one] - times.start for one, _, times in profile.device if one in turn]
    return max(found, default=0)


def _of_host(profile: GraphProfile) -> Iterator[_Slice]:
    """Operators on the threads that dispatched them."""
    number = {operator: index for index, operator in enumerate(profile.operators, 1)}
    for operator, thread, times in profile.host:
        args = _args(profile, operator)
        if operator in number:
            args["correlation"] = number[operator]
        name = _type(profile, operator)
        yield _Slice(name, "cpu_op", PROCESS, thread, times.start, times.end, args)


def _of_devices(profile: GraphProfile, shift: int) -> Iterator[_Slice]:
    """What the nodes ran of them, and how long these waited for the inputs of each."""
    number = {operator: index for index, operator in enumerate(profile.operators, 1)}
    for operator, place, times in profile.device:
        node, name = comp_node(place), _type(profile, operator)
        start, kernel, end = (time + shift for time in (times.start, times.kernel, times.end))
        if node is None or not node.on_gpu:
            thread = node.name if node else place
            yield _Slice(name, CPU_KERNEL, PROCESS, thread, kernel, end)
            continue
        device = max(node.device, 0)
        lane = (str(device), str(node.stream) if node.stream >= 0 else node.name)
        args: dict[str, Any] = {"device": device}
        if node.stream >= 0:
            args["stream"] = node.stream
        if kernel > start:
            yield _Slice("wait for inputs", "cuda_sync", *lane, start, kernel, args)
        if operator in number:
            args = {**args, "correlation": number[operator]}
        if name in COPIES:
            args = {**args, **_size(profile, operator)}
            yield _Slice(_copy(profile, operator), "gpu_memcpy", *lane, kernel, end, args)
        else:
            yield _Slice(name, "kernel", *lane, kernel, end, args)


def _type(profile: GraphProfile, operator: str) -> str:
    return str(profile.operators.get(operator, {}).get("type") or f"operator {operator}")


def _args(profile: GraphProfile, operator: str) -> dict[str, Any]:
    """Name, shapes, formats and work, by torch's keys where it has the like."""
    told, footprint = profile.operators.get(operator, {}), profile.footprints.get(operator, {})
    formats = [_format(profile.variables.get(str(one), {})) for one in _list(told.get("input"))]
    formats = [TORCH_TYPES.get(one, one) for one in formats]
    args = {
        NODE: told.get("name"),
        "id": operator,
        INPUT_SHAPES: _list(footprint.get("in_shapes")),
        OUTPUT_SHAPES: _list(footprint.get("out_shapes")),
        INPUT_TYPES: formats if any(formats) else None,
        "param": footprint.get("param"),
        FLOPS: _whole(footprint.get("computation")),
        MEMORY_TRAFFIC: _whole(footprint.get("memory")),
    }
    return {key: value for key, value in args.items() if value not in (None, {}, "")}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if fits else None


def _format(variable: Mapping[str, Any]) -> str:
    plan = variable.get("mem_plan")
    layout = plan.get("layout") if isinstance(plan, dict) else None
    return str(layout.get("dtype") or "") if isinstance(layout, dict) else ""


def _size(profile: GraphProfile, operator: str) -> dict[str, int]:
    """The bytes of a copy: its footprint counts what it reads and what it writes."""
    memory = _whole(profile.footprints.get(operator, {}).get("memory"))
    ends = 1 + bool(_list(profile.operators.get(operator, {}).get("input")))
    return {} if memory is None else {"bytes": memory // ends}


def _copy(profile: GraphProfile, operator: str) -> str:
    """Kineto's name of a copy between the nodes of an operator's first input and output."""
    told = profile.operators.get(operator, {})
    ends = []
    for key in ("input", "output"):
        names = [
            profile.variables.get(str(one), {}).get("comp_node") for one in _list(told.get(key))
        ]
        node = comp_node(str(names[0])) if names else None
        ends.append("D" if node and node.on_gpu else "H")
    return f"Memcpy {ends[0]}to{ends[1]}"


def _events(slices: Sequence[_Slice]) -> Events:
    rows: dict[str, list[int]] = {}
    values: dict[str, list[Any]] = {}
    for row, one in enumerate(slices):
        for key, value in one.args.items():
            rows.setdefault(key, []).append(row)
            values.setdefault(key, []).append(value)
    return Events(
        ts=np.array([one.ts for one in slices], dtype=np.int64),
        dur=np.array([one.end - one.ts for one in slices], dtype=np.int64),
        name=text_codes([one.name for one in slices]),
        category=text_codes([one.category for one in slices]),
        process=text_codes([one.process for one in slices]),
        thread=text_codes([one.thread for one in slices]),
        args={key: typed(values[key], np.array(rows[key], dtype=np.int64)) for key in rows},
    )


def _notes(profile: GraphProfile, shift: int) -> list[str]:
    times = len(profile.host) + len(profile.device) + profile.left_out
    left = f"{profile.left_out:,} of {times:,} times of operators are no valid ones"
    moved = (
        f"the devices' times are {shift / 1000:,.0f} us later than in the file, which has them on"
    )
    clocks = f"{moved} another clock: so that nothing begins before its operator's turn"
    return [
        *([f"{left} and were left out"] if profile.left_out else []),
        *([clocks] if profile.device and profile.host else []),
    ]


LONGEST_S = 1e9
"""No run is as long: what exceeds it (30 years) is no time."""


@dataclass(frozen=True)
class Times:
    """Of one operator on one thread or node, in ns: ``kernel`` is the start where it had none."""

    start: int
    kernel: int
    end: int


@dataclass(frozen=True)
class GraphProfile:
    """What the file tells of operators, by their ids.

    ``host`` and ``device``: the operator, its thread or node as written, its times. ``left_out``
    counts the times that are none.
    """

    operators: Mapping[str, Mapping[str, Any]]
    variables: Mapping[str, Mapping[str, Any]]
    footprints: Mapping[str, Mapping[str, Any]]
    host: Sequence[tuple[str, str, Times]]
    device: Sequence[tuple[str, str, Times]]
    left_out: int


def graph_profile(data: bytes, path: Path) -> GraphProfile:
    """What is told in this JSON text; a `TraceError`, which names ``path``, for what is damaged."""
    content = _decoded(data, path)
    profiler = _part(content, "profiler", path)
    # in the documentation of load_and_run the graph stands within the profiler's part
    graph = _part(content if "graph_exec" in content else profiler, "graph_exec", path)
    host, of_host = _timed(profiler.get("host"))
    device, of_device = _timed(profiler.get("device"))
    return GraphProfile(
        operators=_objects(graph.get("operator")),
        variables=_objects(graph.get("var")),
        footprints=_objects(profiler.get("opr_footprint")),
        host=host,
        device=device,
        left_out=of_host + of_device,
    )


def _decoded(data: bytes, path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{path}: a MegEngine profile that is not whole: {error} (it has {len(data):,} bytes). "
            "Copy it again, or record again."
        ) from error
    return content


def _part(content: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    found = content.get(key)
    if isinstance(found, dict):
        return found
    raise TraceError(
        f'{path}: a MegEngine profile whose "{key}" is {str(found)[:40]!r}, not an object. '
        "Give the file that MegEngine's graph profiler wrote."
    )


def _objects(part: Any) -> dict[str, dict[str, Any]]:
    """The members that are objects; others tell nothing."""
    members = part.items() if isinstance(part, dict) else ()
    return {key: value for key, value in members if isinstance(value, dict)}


def _timed(part: Any) -> tuple[list[tuple[str, str, Times]], int]:
    """Every entry that has times, and how many have none."""
    entries = [
        (operator, place, _times(written))
        for operator, places in _objects(part).items()
        for place, written in places.items()
    ]
    found = [(operator, place, times) for operator, place, times in entries if times]
    return found, len(entries) - len(found)


def _times(written: Any) -> Times | None:
    if not isinstance(written, dict):
        return None
    start, kernel, end = (_nanoseconds(written.get(key)) for key in ("start", "kern", "end"))
    if start is None or end is None or end < start:
        return None
    return Times(start, min(max(kernel or start, start), end), end)


def _nanoseconds(seconds: Any) -> int | None:
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return None
    return round(seconds * 1e9) if abs(seconds) < LONGEST_S else None

"""Reader of MegEngine's profile of a static graph: one JSON object, no Chrome trace.

``megengine.jit.trace(profiling=True)``, ``GraphProfiler`` and ``load_and_run --profile`` write it;
``megengine.tools.profile_analyze`` reads it. Times are seconds, one run of each operator:

- ``profiler.host``: operator id -> thread -> ``start`` (its turn came), ``kern`` (its kernel was
  given to the device; -1 without) and ``end``, on the host's clock,
- ``profiler.device``: operator id -> computing node -> ``start``, ``kern`` (its inputs were ready)
  and ``end``, on the device's clock,
- ``profiler.opr_footprint``: operator id -> ``computation`` (operations), ``memory`` (bytes read
  and written), ``in_shapes``, ``out_shapes``, ``param``,
- ``graph_exec.operator``: operator id -> ``name``, ``type``, ``input``, ``output`` (ids of vars),
- ``graph_exec.var``: id -> ``comp_node``, ``mem_plan.layout`` (``dtype``).

Sources: src/plugin/impl/profiler.cpp and opr_footprint.cpp of MegEngine.

`graph_profile` checks the file; the rest turns operators into slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.dialects.dialect import in_layers
from gpuprof_widgets.trace.dialects.megengine import comp_node, places, torch_types
from gpuprof_widgets.trace.events import EventFlows, Events, Names, text_codes, typed
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers.json_text import decoded
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
LONGEST_S = 1e9
"""No run takes so long (30 years): longer times are not valid."""


@dataclass(frozen=True)
class Run:
    """One run of an operator on a thread or node, in ns; ``kernel`` is the start without one."""

    operator: str
    place: str
    start: int
    kernel: int
    end: int


@dataclass(frozen=True)
class GraphProfile:
    """The file's contents by operator id (or id of the variable), and its runs.

    ``left_out`` counts the runs without valid times.
    """

    operators: Mapping[str, Mapping[str, Any]]
    variables: Mapping[str, Mapping[str, Any]]
    footprints: Mapping[str, Mapping[str, Any]]
    host: Sequence[Run]
    device: Sequence[Run]
    left_out: int

    @cached_property
    def correlations(self) -> dict[str, int]:
        """A number for each operator."""
        return {operator: number for number, operator in enumerate(self.operators, 1)}


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
    """Return whether this is a JSON object with the two keys of such a profile, and no trace."""
    if data[:64].lstrip()[:1] != b"{" or b'"traceEvents"' in data:
        return False
    return b'"graph_exec"' in data and b'"profiler"' in data


def parse_megengine_graph(data: bytes, path: Path) -> Record:
    """Return the record of the JSON text; metadata and errors name ``path``."""
    profile = graph_profile(data, path)
    if not profile.host and not profile.device:
        raise TraceError(
            f"{path}: a MegEngine profile without the time of any operator: it names "
            f"{len(profile.operators):,} operators, and {profile.left_out:,} of its times are not "
            "valid. Run the graph at least once before you take its profile."
        )
    shift = _device_shift_ns(profile)
    slices = [*_host_slices(profile), *_device_slices(profile, shift)]
    threads = {(PROCESS, s.thread): s.thread for s in slices if s.process == PROCESS}
    events, _ = in_layers(_events(slices), EventFlows(), places)
    trace = assemble(events, names=Names({PROCESS: PROCESS}, threads))
    metadata = {
        "source": str(path),
        "devices": [],
        "recorded_by": "MegEngine graph profiler",
        FRAMEWORK: MEGENGINE,
        "notes": _notes(profile, shift),
    }
    return Record(trace, None, metadata)


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def graph_profile(data: bytes, path: Path) -> GraphProfile:
    """Parse the JSON text; raise a `TraceError`, which names ``path``, where it is damaged."""
    kind, shape = "a MegEngine profile", "as its graph profiler writes one"
    content = decoded(_decode, data, path, kind=kind, shape=shape, again="Record again")
    profiler = _part(content, "profiler", path)
    # In the documentation of load_and_run the graph is within the profiler's part.
    graph = _part(content if "graph_exec" in content else profiler, "graph_exec", path)
    host, host_left_out = _runs(profiler.get("host"))
    device, device_left_out = _runs(profiler.get("device"))
    return GraphProfile(
        operators=_objects(graph.get("operator")),
        variables=_objects(graph.get("var")),
        footprints=_objects(profiler.get("opr_footprint")),
        host=host,
        device=device,
        left_out=host_left_out + device_left_out,
    )


def _part(content: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    part = content.get(key)
    if isinstance(part, dict):
        return part
    raise TraceError(
        f'{path}: a MegEngine profile whose "{key}" is {str(part)[:40]!r}, not an object. '
        "Give the file that MegEngine's graph profiler wrote."
    )


def _objects(part: Any) -> dict[str, dict[str, Any]]:
    """Return the members that are objects."""
    members = part.items() if isinstance(part, dict) else ()
    return {key: value for key, value in members if isinstance(value, dict)}


def _runs(part: Any) -> tuple[list[Run], int]:
    """Return the runs with valid times, and how many have none."""
    runs = [
        _run(operator, place, times)
        for operator, places in _objects(part).items()
        for place, times in places.items()
    ]
    valid = [run for run in runs if run]
    return valid, len(runs) - len(valid)


def _run(operator: str, place: str, times: Any) -> Run | None:
    if not isinstance(times, dict):
        return None
    start, kernel, end = (_nanoseconds(times.get(key)) for key in ("start", "kern", "end"))
    if start is None or end is None or end < start:
        return None
    return Run(operator, place, start, min(max(kernel or start, start), end), end)


def _nanoseconds(seconds: Any) -> int | None:
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return None
    return round(seconds * 1e9) if abs(seconds) < LONGEST_S else None


def _device_shift_ns(profile: GraphProfile) -> int:
    """Return by how much the devices' times must be later to fit the host's clock.

    An operator begins on a device only after its turn came on the host: this is the least shift
    with which that holds for all.
    """
    turn: dict[str, int] = {}
    for run in profile.host:
        turn[run.operator] = min(run.start, turn.get(run.operator, run.start))
    shifts = [turn[r.operator] - r.start for r in profile.device if r.operator in turn]
    return max(shifts, default=0)


def _host_slices(profile: GraphProfile) -> Iterator[_Slice]:
    """Yield operators on the threads that dispatched them."""
    for run in profile.host:
        args = _args(profile, run.operator) | _correlation(profile, run.operator)
        name = _type(profile, run.operator)
        yield _Slice(name, "cpu_op", PROCESS, run.place, run.start, run.end, args)


def _device_slices(profile: GraphProfile, shift: int) -> Iterator[_Slice]:
    """Yield what the nodes ran of each operator, and how long they waited for its inputs."""
    for run in profile.device:
        operator, node, name = run.operator, comp_node(run.place), _type(profile, run.operator)
        start, kernel, end = (time + shift for time in (run.start, run.kernel, run.end))
        if node is None or not node.on_gpu:
            thread = node.name if node else run.place
            yield _Slice(name, CPU_KERNEL, PROCESS, thread, kernel, end)
            continue
        device = max(node.device, 0)
        lane = (str(device), str(node.stream) if node.stream >= 0 else node.name)
        args: dict[str, Any] = {"device": device}
        if node.stream >= 0:
            args["stream"] = node.stream
        if kernel > start:
            yield _Slice("wait for inputs", "cuda_sync", *lane, start, kernel, args)
        args = args | _correlation(profile, operator)
        if name in COPIES:
            args |= _size(profile, operator)
            yield _Slice(_copy_name(profile, operator), "gpu_memcpy", *lane, kernel, end, args)
        else:
            yield _Slice(name, "kernel", *lane, kernel, end, args)


def _correlation(profile: GraphProfile, operator: str) -> dict[str, int]:
    number = profile.correlations.get(operator)
    return {} if number is None else {"correlation": number}


def _type(profile: GraphProfile, operator: str) -> str:
    return str(profile.operators.get(operator, {}).get("type") or f"operator {operator}")


def _args(profile: GraphProfile, operator: str) -> dict[str, Any]:
    """Return name, shapes, formats and work of an operator, under torch's keys if it has them."""
    node, footprint = profile.operators.get(operator, {}), profile.footprints.get(operator, {})
    formats = [_format(variable) for variable in _variables(profile, node, "input")]
    args = {
        NODE: node.get("name"),
        "id": operator,
        INPUT_SHAPES: _list(footprint.get("in_shapes")),
        OUTPUT_SHAPES: _list(footprint.get("out_shapes")),
        INPUT_TYPES: torch_types(formats) if any(formats) else None,
        "param": footprint.get("param"),
        FLOPS: _count(footprint.get("computation")),
        MEMORY_TRAFFIC: _count(footprint.get("memory")),
    }
    return {key: value for key, value in args.items() if value not in (None, {}, "")}


def _variables(profile: GraphProfile, node: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the variables that are the operator's ``key``: "input" or "output"."""
    return [profile.variables.get(str(variable), {}) for variable in _list(node.get(key))]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if fits else None


def _format(variable: Mapping[str, Any]) -> str:
    plan = variable.get("mem_plan")
    layout = plan.get("layout") if isinstance(plan, dict) else None
    return str(layout.get("dtype") or "") if isinstance(layout, dict) else ""


def _size(profile: GraphProfile, operator: str) -> dict[str, int]:
    """Return the bytes of a copy: its footprint counts those read and those written."""
    memory = _count(profile.footprints.get(operator, {}).get("memory"))
    ends = 1 + bool(_list(profile.operators.get(operator, {}).get("input")))
    return {} if memory is None else {"bytes": memory // ends}


def _copy_name(profile: GraphProfile, operator: str) -> str:
    """Return Kineto's name of a copy between the nodes of the first input and output."""
    sides = []
    for key in ("input", "output"):
        variables = _variables(profile, profile.operators.get(operator, {}), key)
        node = comp_node(str(variables[0].get("comp_node"))) if variables else None
        sides.append("D" if node and node.on_gpu else "H")
    return f"Memcpy {sides[0]}to{sides[1]}"


def _events(slices: Sequence[_Slice]) -> Events:
    rows: dict[str, list[int]] = {}
    values: dict[str, list[Any]] = {}
    for row, slice_ in enumerate(slices):
        for key, value in slice_.args.items():
            rows.setdefault(key, []).append(row)
            values.setdefault(key, []).append(value)
    return Events(
        ts=np.array([s.ts for s in slices], dtype=np.int64),
        dur=np.array([s.end - s.ts for s in slices], dtype=np.int64),
        name=text_codes([s.name for s in slices]),
        category=text_codes([s.category for s in slices]),
        process=text_codes([s.process for s in slices]),
        thread=text_codes([s.thread for s in slices]),
        args={key: typed(values[key], np.array(rows[key], dtype=np.int64)) for key in rows},
    )


def _notes(profile: GraphProfile, shift: int) -> list[str]:
    times = len(profile.host) + len(profile.device) + profile.left_out
    left_out = f"{profile.left_out:,} of {times:,} times of operators are not valid"
    clocks = (
        f"the devices' times were moved {shift / 1000:,.0f} us later, because the file has them on "
        "another clock: nothing may begin before its operator's turn"
    )
    return [
        *([f"{left_out} and were left out"] if profile.left_out else []),
        *([clocks] if profile.device and profile.host else []),
    ]

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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.dialects.dialect import in_layers
from gpuprof_widgets.trace.dialects.megengine import comp_node, places, torch_types
from gpuprof_widgets.trace.event_json import Event
from gpuprof_widgets.trace.events import EventFlows, Names
from gpuprof_widgets.trace.gather import events_of
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
LONGEST_S = 1e9
"""No run takes so long (30 years): longer times are not valid."""


class Run(NamedTuple):
    """One run of an operator on a thread or node, in ns; ``kernel`` is the start without one."""

    operator: str
    place: str
    start: int
    kernel: int
    end: int


Slice = tuple[Event, int, int]
"""A slice of the trace with its start and end in ns."""


def _slice(
    name: str, category: str, process: str, thread: str, start: int, end: int, args: dict[str, Any]
) -> Slice:
    return Event("X", category, name, process, thread, args=args), start, end


@dataclass(frozen=True)
class Operator:
    """An operator: its type, its args, and the nodes of its variables."""

    kind: str
    args: dict[str, Any]
    inputs: Sequence[str]
    outputs: Sequence[str]


def is_megengine_graph(data: bytes) -> bool:
    """Return whether this is a JSON object with the two keys of such a profile, and no trace."""
    if data[:64].lstrip()[:1] != b"{" or b'"traceEvents"' in data:
        return False
    return b'"graph_exec"' in data and b'"profiler"' in data


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def parse_megengine_graph(data: bytes, path: Path) -> Record:
    """Return the record of the JSON text; metadata and errors name ``path``."""
    try:
        content = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{path}: a MegEngine profile that is not whole, or not as its graph profiler writes "
            f"one: {error} (it has {len(data):,} bytes). "
            "Copy it again, or record again."
        ) from error
    profiler = _part(content, "profiler", path)
    # In the documentation of load_and_run the graph is within the profiler's part.
    graph = _part(content if "graph_exec" in content else profiler, "graph_exec", path)
    host, device = _runs(profiler.get("host")), _runs(profiler.get("device"))
    left_out = host.count(None) + device.count(None)
    on_host, on_device = ([run for run in runs if run] for runs in (host, device))
    operators = _operators(graph, profiler, [*on_host, *on_device])
    if not on_host and not on_device:
        raise TraceError(
            f"{path}: a MegEngine profile without the time of any operator: it names "
            f"{len(operators):,} operators, and {left_out:,} of its times are not valid. Run the "
            "graph at least once before you take its profile."
        )
    # The least shift of the devices' times with which no operator begins on a device before its
    # turn on the host.
    turn: dict[str, int] = {}
    for run in on_host:
        turn[run.operator] = min(run.start, turn.get(run.operator, run.start))
    early = [turn[run.operator] - run.start for run in on_device if run.operator in turn]
    shift = max(early, default=0)
    slices = [
        _slice(operators[key].kind, "cpu_op", PROCESS, place, start, end, operators[key].args)
        for key, place, start, _, end in on_host
    ]
    slices += _device_slices(on_device, operators, shift)
    written = [event for event, _, _ in slices]
    threads = {(PROCESS, str(e.tid)): str(e.tid) for e in written if e.pid == PROCESS}
    ts, end = np.array([times for _, *times in slices], dtype=np.int64).T
    events, _ = in_layers(events_of(written, ts, end - ts), EventFlows(), places)
    notes = []
    if left_out:
        count = len(host) + len(device)
        notes.append(
            f"{left_out:,} of {count:,} times of operators are not valid and were left out"
        )
    if on_host and on_device:
        notes.append(
            f"the devices' times were moved {shift / 1000:,.0f} us later, because the file has "
            "them on another clock: nothing may begin before its operator's turn"
        )
    metadata = {
        "source": str(path),
        "devices": [],
        "recorded_by": "MegEngine graph profiler",
        FRAMEWORK: MEGENGINE,
        "notes": notes,
    }
    trace = assemble(events, names=Names({PROCESS: PROCESS}, threads))
    return Record(trace, None, metadata)


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


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if fits else None


def _operators(
    graph: Mapping[str, Any], profiler: Mapping[str, Any], runs: Sequence[Run]
) -> dict[str, Operator]:
    """Return the operators by id, with those that only ran; args are under torch's keys."""
    nodes: dict[str, dict[str, Any]] = {run.operator: {} for run in runs}
    nodes |= _objects(graph.get("operator"))
    variables, footprints = _objects(graph.get("var")), _objects(profiler.get("opr_footprint"))
    operators = {}
    for number, (key, node) in enumerate(nodes.items(), 1):
        inputs, outputs = (
            [variables.get(str(variable), {}) for variable in _list(node.get(side))]
            for side in ("input", "output")
        )
        layouts = [_objects(variable.get("mem_plan")).get("layout", {}) for variable in inputs]
        formats = [str(layout.get("dtype") or "") for layout in layouts]
        footprint = footprints.get(key, {})
        args = {
            NODE: node.get("name"),
            "id": key,
            INPUT_SHAPES: _list(footprint.get("in_shapes")),
            OUTPUT_SHAPES: _list(footprint.get("out_shapes")),
            INPUT_TYPES: torch_types(formats) if any(formats) else None,
            "param": footprint.get("param"),
            FLOPS: _count(footprint.get("computation")),
            MEMORY_TRAFFIC: _count(footprint.get("memory")),
            "correlation": number,
        }
        operators[key] = Operator(
            str(node.get("type") or f"operator {key}"),
            {name: value for name, value in args.items() if value not in (None, {}, "")},
            [str(variable.get("comp_node")) for variable in inputs],
            [str(variable.get("comp_node")) for variable in outputs],
        )
    return operators


def _runs(part: Any) -> list[Run | None]:
    """Return all runs in this part; None for those without valid times."""
    runs: list[Run | None] = []
    for operator, by_place in _objects(part).items():
        for place, times in by_place.items():
            written = times if isinstance(times, dict) else {}
            seconds = [written.get(key) for key in ("start", "kern", "end")]
            start, kernel, end = (
                round(s * 1e9) if isinstance(s, int | float) and abs(s) < LONGEST_S else None
                for s in seconds
            )
            if start is None or end is None or end < start:
                runs.append(None)
            else:
                begun = min(max(kernel or start, start), end)
                runs.append(Run(operator, place, start, begun, end))
    return runs


def _device_slices(
    runs: Sequence[Run], operators: Mapping[str, Operator], shift: int
) -> Iterator[Slice]:
    """Yield what the nodes ran of each operator, and how long they waited for its inputs."""
    for run in runs:
        operator, node = operators[run.operator], comp_node(run.place)
        start, kernel, end = (time + shift for time in (run.start, run.kernel, run.end))
        if node is None or not node.on_gpu:
            thread = node.name if node else run.place
            yield _slice(operator.kind, CPU_KERNEL, PROCESS, thread, kernel, end, {})
            continue
        lane = (str(node.device), str(node.stream) if node.stream >= 0 else node.name)
        args: dict[str, Any] = {"device": node.device}
        if node.stream >= 0:
            args["stream"] = node.stream
        if kernel > start:
            yield _slice("wait for inputs", "cuda_sync", *lane, start, kernel, args)
        name, category = operator.kind, "kernel"
        args = {**args, "correlation": operator.args["correlation"]}
        if name in COPIES:
            # Kineto's name of a copy between the nodes of the first input and output.
            ends = [
                comp_node(nodes[0]) if nodes else None
                for nodes in (operator.inputs, operator.outputs)
            ]
            source, target = ("D" if end_node and end_node.on_gpu else "H" for end_node in ends)
            name, category = f"Memcpy {source}to{target}", "gpu_memcpy"
            if (memory := operator.args.get(MEMORY_TRAFFIC)) is not None:
                # The footprint counts the bytes read, if from a variable, and those written.
                args = {**args, "bytes": memory // (1 + bool(operator.inputs))}
        yield _slice(name, category, *lane, kernel, end, args)

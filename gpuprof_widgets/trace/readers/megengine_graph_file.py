"""The JSON object that is MegEngine's profile of a static graph, as operators and their times.

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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gpuprof_widgets.exceptions import TraceError

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

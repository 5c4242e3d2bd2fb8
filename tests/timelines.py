"""Hand-made files of TensorFlow's Timeline and MegEngine, as these programs write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse

DATA = Path(__file__).parent / "data"
"""Files that the programs themselves wrote on a CPU; see the tests that read them."""

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
GPU_STREAM = "/device:GPU:0/stream:{}"
GPU_COPIES = "/device:GPU:0/memcpy"

Event = dict[str, Any]


def timeline(events: Mapping[str, Sequence[Event]]) -> Record:
    """The record of TensorFlow's file of these events of each device."""
    return parse(json.dumps(timeline_content(events)).encode(), Path("timeline.json"))


def timeline_content(events: Mapping[str, Sequence[Event]]) -> Event:
    """TensorFlow's file of these events of each device; it numbers processes as TensorFlow does.

    An event's ``pid`` is set: that of the device's ops, for objects that of its tensors.
    """
    written: list[Event] = [_process(0, "Allocators")]
    for number, device in enumerate(events):
        written.append(_process(2 * number + 1, f"{device} Compute"))
        written.append(_process(2 * number + 2, f"{device} Tensors"))
    for number, (device, of_device) in enumerate(events.items()):
        for event in of_device:
            offset = 2 if event["cat"] == "Tensor" else 1
            pid = 0 if device == "Allocators" else 2 * number + offset
            written.append({**event, "pid": pid})
    return {"traceEvents": written}


def _process(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def node(
    op: str, name: str, *, ts: int, dur: int, lane: int = 0, inputs: Sequence[str] = ()
) -> Event:
    """An op of this type, run for a node of the graph; times in us, as the Timeline has them."""
    args = {"name": name, "op": op, **{f"input{n}": one for n, one in enumerate(inputs)}}
    return {"ph": "X", "cat": "Op", "name": op, "tid": lane, "ts": ts, "dur": dur, "args": args}


def arrow(name: str, number: int, *, out: tuple[int, int], into: tuple[int, int]) -> list[Event]:
    """The data flow from an op that ends to one that begins, each a lane and a time (us)."""
    return [
        {"ph": ph, "cat": "DataFlow", "name": name, "id": number, "tid": lane, "ts": ts}
        for ph, (lane, ts) in (("s", out), ("t", into))
    ]


def tensor(
    name: str, number: int, *, made: int, deleted: int, size: int, allocator: str, lane: int = 0
) -> list[Event]:
    """A tensor's creation, description and deletion (``show_memory=True``)."""
    described = (
        "dtype: DT_FLOAT\nallocation_description {\n"
        f"  requested_bytes: {size}\n  allocator_name: {allocator}\n  ptr: 1\n}}\n"
    )
    common = {"cat": "Tensor", "name": name, "id": number}
    snapshot = {"snapshot": {"tensor_description": described}}
    return [
        {**common, "ph": "N", "tid": lane, "ts": made},
        {**common, "ph": "O", "tid": lane, "ts": made + 1, "args": snapshot},
        {**common, "ph": "D", "tid": 0, "ts": deleted},
    ]


def graph_profile(
    operators: Mapping[str, tuple[str, Mapping[str, Any]]],
    host: Mapping[str, Mapping[str, tuple[float, float, float]]],
    device: Mapping[str, Mapping[str, tuple[float, float, float]]],
    variables: Mapping[str, str] | None = None,
) -> Record:
    """MegEngine's profile of a graph.

    ``operators``: type and further keys by id, "footprint" among them; ``host`` and ``device``:
    start, kernel and end (s) by operator and thread or node; ``variables``: their nodes.
    """
    footprints = {
        key: more["footprint"] for key, (_, more) in operators.items() if "footprint" in more
    }
    content = {
        "profiler": {
            "host": _times(host),
            "device": _times(device),
            "opr_footprint": footprints,
            "opr_internal_pf": {},
        },
        "graph_exec": {
            "operator": {
                key: {"id": key, "name": f"{kind}[{key}]", "type": kind, **more}
                for key, (kind, more) in operators.items()
            },
            "var": {key: {"id": key, "comp_node": at} for key, at in (variables or {}).items()},
        },
    }
    return parse(json.dumps(content).encode(), Path("graph.json"))


def _times(part: Mapping[str, Mapping[str, tuple[float, float, float]]]) -> dict[str, Any]:
    keys = ("start", "kern", "end")
    return {
        operator: {place: dict(zip(keys, times, strict=True)) for place, times in places.items()}
        for operator, places in part.items()
    }


HOST, WORKER = 0, 1
"""Threads of `megengine_events`; computing nodes come after them."""


def megengine_file(
    events: Sequence[Event], threads: Mapping[int, str], *, local_time: str | None = None
) -> Record:
    """The record of MegEngine's chrome timeline (1.4 and newer) of these events."""
    content = megengine_content(events, threads)
    if local_time is not None:
        content["metadata"] = {"localTime": local_time}
    return parse(json.dumps(content).encode(), Path("7.chrome_timeline.json"))


def megengine_content(events: Sequence[Event], threads: Mapping[int, str]) -> Event:
    """MegEngine's chrome timeline of these events."""
    named = [
        {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": name}}
        for tid, name in threads.items()
    ]
    return {"traceEvents": [{**event, "pid": 7} for event in (*events, *named)]}


def pair(name: str, tid: Any, begin: float, end: float, /, **more: Any) -> list[Event]:
    """A slice as MegEngine writes it: its args stand at its end (us)."""
    cat = {"cat": more.pop("cat")} if "cat" in more else {}
    args = {"args": more} if more else {}
    return [
        {"ph": "B", "name": name, "tid": tid, "ts": begin, **cat},
        {"ph": "E", "name": name, "tid": tid, "ts": end, **cat, **args},
    ]


def link(cat: str, number: int, *, call: tuple[int, float], work: tuple[int, float]) -> list[Event]:
    """An arrow from a call to its work on a node, each a thread and a time (us)."""
    ends = (("s", call, {}), ("f", work, {"bp": "e"}))
    common = {"name": "7", "scope": "7", "cat": cat, "id": number}
    return [{**common, "ph": ph, "tid": tid, "ts": ts, **more} for ph, (tid, ts), more in ends]


def of_gpus() -> dict[str, Event]:
    """A small file of each program that ran something on a GPU, by a name."""
    work, copy = node("MatMul", "mm", ts=30, dur=9), node("MEMCPYHtoD", "edge_1_x", ts=5, dur=2)
    held = tensor("mm", 1, made=20, deleted=50, size=64, allocator="GPU_0_bfc")
    step = {
        CPU: [node("QueueDequeueV2", "q", ts=0, dur=9)],
        GPU: [node("MatMul", "mm", ts=20, dur=4, inputs=["q"]), *held],
        GPU_STREAM.format("all"): [work],
        GPU_STREAM.format(7): [work, copy],
        GPU_COPIES: [copy],
    }
    node_of_gpu = {"device": 'CompNode("gpu0:1" from "xpux:1")'}
    events = [
        *pair("MatrixMul", WORKER, 5, 15, __id__=11),
        *pair("Input 5", WORKER, 6, 7, **node_of_gpu),
        *link("KernelLink", 90, call=(WORKER, 8), work=(2, 30)),
        *pair("sgemm", WORKER, 8, 9),
        *pair("sgemm", 2, 20, 30, execution_time=10_000),
        *pair("Memcpy", 3, 31, 35, bytes="512", src_kind="DEVICE", dst_kind="PINNED"),
        *pair("MatrixMul", 2, 18, 31, cat="Kernel", __id__=11),
    ]
    return {
        "TensorFlow on a GPU": timeline_content(step),
        "MegEngine on a GPU": megengine_content(events, {WORKER: "worker", 2: "xpux:1"}),
    }

"""Hand-made traces: a few rows in ns, put together by the same code as any file.

``trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=10, dur=5, launched_by=0))``
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.events import Events, text_codes, typed
from gpuprof_widgets.trace.model import Calls, Record

Shared: TypeAlias = Callable[[str], Path]
"""What the fixture ``shared`` is: the path of one of other people's real traces, by its name."""

PROCESS = "100"
MAIN_THREAD = "100"


@dataclass(frozen=True)
class Row:
    """One event of a hand-made trace; ``launched_by`` is the position of an earlier argument."""

    name: str
    category: str
    ts: int
    dur: int
    process: str = PROCESS
    thread: str = MAIN_THREAD
    args: dict[str, Any] = field(default_factory=dict)
    launched_by: int | None = None


def op(
    name: str,
    *,
    ts: int,
    dur: int,
    thread: int | str = MAIN_THREAD,
    shapes: list[Any] | None = None,
    sequence: int | None = None,
    forward_thread: int | None = None,
    stack: str | None = None,
    category: str = "cpu_op",
    **args: Any,
) -> Row:
    """A CPU op; the keywords become the args that torch writes."""
    written = {
        "Input Dims": shapes,
        "Sequence number": sequence,
        "Fwd thread id": forward_thread,
        "Call stack": stack,
    }
    args |= {key: value for key, value in written.items() if value is not None}
    return Row(name, category, ts, dur, thread=str(thread), args=args)


def cell_line(
    number: int,
    code: str,
    *,
    ts: int,
    dur: int,
    thread: int | str = MAIN_THREAD,
    cell: str = "Cell [3]",
    **args: Any,
) -> Row:
    """One execution of a statement of the cell."""
    args |= {"line": number, "cell": cell}
    return op(f"{number}: {code}", ts=ts, dur=dur, thread=thread, category="cell_line", **args)


def module(
    name: str,
    *,
    ts: int,
    dur: int,
    thread: int | str = MAIN_THREAD,
    kind: str = "Module",
    category: str = "module",
) -> Row:
    """The forward of a module (or its backward, by the category)."""
    args = {"class": kind, "root": "model"}
    return Row(name, category, ts, dur, thread=str(thread), args=args)


def backward_op(
    name: str,
    *,
    ts: int,
    dur: int,
    sequence: int,
    thread: int | str = MAIN_THREAD,
    forward_thread: int = 1,
) -> list[Row]:
    """A backward op as torch writes it: the engine's slice with the op itself inside."""
    link = {"sequence": sequence, "forward_thread": forward_thread, "thread": thread}
    return [
        op(f"autograd::engine::evaluate_function: {name}", ts=ts, dur=dur, **link),  # type: ignore[arg-type]
        op(name, ts=ts + 1, dur=max(dur - 2, 0), **link),  # type: ignore[arg-type]
    ]


def annotation(name: str, *, ts: int, dur: int, thread: int | str = MAIN_THREAD) -> Row:
    """A `record_function` region."""
    return op(name, ts=ts, dur=dur, thread=thread, category="user_annotation")


def runtime(
    name: str,
    *,
    ts: int,
    dur: int,
    thread: int | str = MAIN_THREAD,
    category: str = "cuda_runtime",
    **args: Any,
) -> Row:
    """A call of the CUDA runtime, such as cudaLaunchKernel."""
    return Row(name, category, ts, dur, thread=str(thread), args=args)


def python(name: str, *, ts: int, dur: int, thread: int | str = MAIN_THREAD, **args: Any) -> Row:
    """A Python frame."""
    return Row(name, "python_function", ts, dur, thread=str(thread), args=args)


def kernel(
    name: str,
    *,
    ts: int,
    dur: int,
    launched_by: int | None = None,
    stream: int = 7,
    device: int = 0,
    category: str = "kernel",
    **args: Any,
) -> Row:
    """A GPU slice, launched by the runtime call or by the op at that position of the arguments."""
    args = {"device": device, "stream": stream} | args
    return Row(name, category, ts, dur, str(device), str(stream), args, launched_by)


def copy(
    name: str = "Memcpy HtoD (Pageable -> Device)",
    *,
    ts: int,
    dur: int,
    bytes: int = 0,
    launched_by: int | None = None,
    stream: int = 7,
    device: int = 0,
    category: str = "gpu_memcpy",
) -> Row:
    """A copy on a GPU stream."""
    row = kernel(name, ts=ts, dur=dur, launched_by=launched_by, stream=stream, device=device)
    return replace(row, category=category, args=row.args | {"bytes": bytes})


def gpu_annotation(name: str, *, ts: int, dur: int, stream: int = 7, device: int = 0) -> Row:
    """What a `record_function` region covers on a stream."""
    return kernel(
        name, ts=ts, dur=dur, stream=stream, device=device, category="gpu_user_annotation"
    )


def memory(
    bytes: int,
    *,
    ts: int,
    allocated: int = 0,
    reserved: int = 0,
    device: int | None = None,
    thread: int | str = MAIN_THREAD,
) -> Row:
    """An allocation (or, below zero, a release) on the CPU or on a GPU."""
    args = {
        "Bytes": bytes,
        "Total Allocated": allocated,
        "Total Reserved": reserved,
        "Device Type": 0 if device is None else 1,
        "Device Id": -1 if device is None else device,
    }
    return Row("[memory]", "cpu_instant_event", ts, 0, thread=str(thread), args=args)


def block(size: int, *, at: int, ts: int, device: int | None = None, **given: Any) -> Row:
    """An allocation (or release) of the memory at that address; totals as in `memory`."""
    totals = {key: given.pop(key) for key in ("allocated", "reserved") if key in given}
    row = memory(size, ts=ts, device=device, **totals)
    args = row.args if "allocated" in totals else _without_totals(row.args)
    return replace(row, args=args | {"Addr": at} | given)


def _without_totals(args: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in args.items() if not key.startswith("Total ")}


def trace_of(*rows: Row, calls: Calls | None = None, **metadata: Any) -> Record:
    """The record of these events; keywords become its metadata."""
    args = [dict(row.args) for row in rows]
    for number, row in enumerate(rows):
        if row.launched_by is not None:
            _join(args[number], args[row.launched_by], rows[row.launched_by], row.launched_by + 1)
    columns: dict[str, tuple[list[int], list[Any]]] = defaultdict(lambda: ([], []))
    for number, given in enumerate(args):
        for key, value in given.items():
            columns[key][0].append(number)
            columns[key][1].append(value)
    events = Events(
        ts=np.array([row.ts for row in rows], dtype=np.int64),
        dur=np.array([row.dur for row in rows], dtype=np.int64),
        name=text_codes([row.name for row in rows]),
        category=text_codes([row.category for row in rows]),
        process=text_codes([row.process for row in rows]),
        thread=text_codes([row.thread for row in rows]),
        args={
            key: typed(values, np.array(numbers, dtype=np.int64))
            for key, (numbers, values) in columns.items()
        },
    )
    return Record(assemble(events), calls, metadata)


def _join(
    launched: dict[str, Any], launcher: dict[str, Any], launcher_row: Row, number: int
) -> None:
    key = "correlation" if launcher_row.category.startswith("cuda_") else "External id"
    launched[key] = launcher.setdefault(key, number)


def calls_of(*edges: tuple[str | None, str, int, int]) -> Calls:
    """What cProfile says of these (caller or None, callee, calls, self_ns); "<...>" is built in."""
    names = list(dict.fromkeys(name for edge in edges for name in edge[:2] if name is not None))
    number = {name: index for index, name in enumerate(names)}
    table = pd.DataFrame(edges, columns=["caller", "callee", "calls", "self_ns"])
    own = table.groupby("callee")[["calls", "self_ns"]].sum().reindex(names, fill_value=0)
    total = {name: _total(name, edges) for name in names}
    functions = pd.DataFrame(
        {
            "file": pd.Series(
                ["~" if name[:1] == "<" else "cell.py" for name in names], dtype=object
            ),
            "line": np.array(
                [0 if name[:1] == "<" else line for line, name in enumerate(names, 1)], np.int64
            ),
            "name": pd.Series(names, dtype=object),
            "calls": own["calls"].to_numpy(dtype=np.int64),
            "primitive_calls": own["calls"].to_numpy(dtype=np.int64),
            "self_ns": own["self_ns"].to_numpy(dtype=np.int64),
            "total_ns": np.array([total[name] for name in names], dtype=np.int64),
        }
    )
    inner = [edge for edge in edges if edge[0] is not None]
    edge_table = pd.DataFrame(
        {
            "caller": np.array([number[str(e[0])] for e in inner], dtype=np.int32),
            "callee": np.array([number[e[1]] for e in inner], dtype=np.int32),
            "calls": np.array([e[2] for e in inner], dtype=np.int64),
            "primitive_calls": np.array([e[2] for e in inner], dtype=np.int64),
            "self_ns": np.array([e[3] for e in inner], dtype=np.int64),
            "total_ns": np.array([_share(e, edges, total) for e in inner], dtype=np.int64),
        }
    )
    return Calls(functions, edge_table)


def _total(name: str, edges: tuple[tuple[str | None, str, int, int], ...]) -> int:
    """Self time and that of everything below, for call graphs without cycles or shared callees."""
    own = sum(edge[3] for edge in edges if edge[1] == name)
    return own + sum(_total(edge[1], edges) for edge in edges if edge[0] == name)


def _share(
    edge: tuple[str | None, str, int, int],
    edges: tuple[tuple[str | None, str, int, int], ...],
    total: dict[str, int],
) -> int:
    calls = sum(e[2] for e in edges if e[1] == edge[1])
    return total[edge[1]] * edge[2] // calls

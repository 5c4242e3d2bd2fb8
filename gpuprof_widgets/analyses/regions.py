"""Regions of a run: `record_function` annotations, the profiler's steps and a loop's iterations."""

import re
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.gpu_work import open_within
from gpuprof_widgets.analyses.reasons import ANNOTATIONS, LOOP, of_the_whole_run, says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import calling_annotations
from gpuprof_widgets.trace.schema import NONE, NVTX_RANGE

# Without `from __future__ import annotations`, which would clash with the function of that name.


ON_CPU, ON_GPU = "user_annotation", "gpu_user_annotation"
COLUMNS = (
    *("name", "calls", "cpu_total_ns", "cpu_self_ns", "device_busy_ns", "device_self_busy_ns"),
    *("kernel_ns", "kernel_self_ns", "kernels", "gpu_span_ns", "row"),
)


@says_if_empty(ANNOTATIONS)
def annotations(record: Record) -> pd.DataFrame:
    """One row per annotation by name, the one with most GPU time first, then CPU time.

    All steps are one ``ProfilerStep*``. Work of the backward pass, launched from autograd's thread,
    belongs to the annotation open on the thread that called it. NVTX ranges that were started and
    ended by number have rows of their own and cause no work. If the trace has only the GPU side,
    work within an annotation's span on its stream belongs to it, ``calls`` are the most on any
    stream, and the CPU columns are 0.

    Columns:

    - ``name``, ``calls``: the annotation, and how often it was opened.
    - ``cpu_total_ns``: open on its thread; nested ones of its name count once.
    - ``cpu_self_ns``: without the annotations within it.
    - ``device_busy_ns``: time in which the GPU ran anything launched within it (per device,
      overlapping streams count once).
    - ``device_self_busy_ns``: without the annotations within it.
    - ``kernel_ns``, ``kernel_self_ns``: the same as a sum over kernels, copies and memsets. The
      selfs add up over the annotations to all that any launched.
    - ``kernels``: number of these kernels, copies and memsets.
    - ``gpu_span_ns``: from the first to the last of them on each stream, pauses included, as Kineto
      writes it on the GPU and HTA adds it up; 0 if the trace has none.
    - ``row``: the longest call.

    Source: Kineto writes an annotation on the CPU and again on every stream that it launched to;
    here that is one call (a sum over both counts its time twice: pytorch issue 130730). Kineto's
    GPU side leaves out the backward pass.
    """
    trace, index = record.trace, record.trace.index
    annotated, is_of_the_host = _annotated(trace)
    above = links.nearest_ancestor(index.parent, annotated)
    if not is_of_the_host:
        return _table(trace, annotated, above, _around_on_gpu(trace, annotated))
    # GPU slices count where they were launched, autograd's threads where they were called.
    above = np.where(above >= 0, above, calling_annotations(trace)).astype(np.int32)
    around = np.where(annotated, np.arange(len(trace), dtype=np.int32), above)
    launch, op = (take(around, index.column(link)[index.gpu]) for link in ("launch", "op"))
    owner = np.where(launch >= 0, launch, op)
    return _table(trace, annotated, above, owner)


def annotation_slices(record: Record) -> pd.DataFrame:
    """Return every call of an annotation, from its CPU side if there is one.

    Columns: ``name`` (as in `annotations`), ``row``, ``start_ns``, ``end_ns``.
    """
    trace, index = record.trace, record.trace.index
    annotated, _ = _annotated(trace)
    rows = np.flatnonzero(annotated & (index.column("count") > 0))
    code, names = names_with_steps_merged(trace)
    columns = {
        "name": np.array(names, object)[code[rows]],
        "row": rows.astype(np.int32),
        "start_ns": index.ts[rows],
        "end_ns": index.end[rows],
    }
    return pd.DataFrame(columns)


def _annotated(trace: Trace) -> tuple[Mask, bool]:
    """Return which slices are the annotations to count, and whether they are those of the host.

    A window keeps annotations of the host with count 0 if their GPU work outlasts them. They count
    here, because a window has to use the same side as the whole trace.
    """
    cpu = _of_the_host(trace)
    return (cpu, True) if cpu.any() else (trace.index.in_category(ON_GPU), False)


def _of_the_host(trace: Trace) -> Mask:
    """Return which slices are annotations of a thread, or NVTX ranges."""
    on_thread = trace.index.in_category(ON_CPU) & trace.index.on_tracks("cpu")
    return np.asarray(on_thread | trace.index.in_category(NVTX_RANGE), bool)


def _around_on_gpu(trace: Trace, annotated: Mask) -> Codes:
    """Return per GPU slice the innermost annotation of its stream that spans its start."""
    rows = trace.index.gpu
    began, ended = trace.index.uncut
    lane = trace.tracks["lane"].to_numpy()[trace.index.track]
    around = np.full(len(trace), NONE, np.int32)
    work, annotations = links.rows_by(lane[rows]), np.flatnonzero(annotated)
    for stream, spans_here in links.rows_by(lane[annotations]).items():
        spans, inside = annotations[spans_here], rows[work.get(stream, [])]
        at = links.innermost_open(began[spans], ended[spans], began[inside])
        around[inside] = take(spans, at)
    return around[rows]


def _table(trace: Trace, annotated: Mask, above: Codes, owner: Codes) -> pd.DataFrame:
    """Return one row per name of the annotated slices.

    ``above``: the annotation around each slice; ``owner``: the innermost one of each GPU slice.
    """
    code, names = names_with_steps_merged(trace)
    gpu, owner = trace.index.gpu[owner >= 0], owner[owner >= 0]
    at, inside = _pairs(owner, above, code)
    table = pd.DataFrame({"name": pd.Series(names, dtype=object)})
    here = np.flatnonzero(annotated)
    table["calls"], table["row"] = _calls(trace, here, code, len(names))
    on_cpu = here[_of_the_host(trace)[here]]
    table["cpu_total_ns"], table["cpu_self_ns"] = _cpu(trace, on_cpu, code, len(names))
    for prefix, rows, of_name in (("_self", gpu, code[owner]), ("", gpu[at], inside)):
        busy, total, number = _gpu_sums(trace, rows, of_name, len(names))
        table[f"device{prefix}_busy_ns"], table[f"kernel{prefix}_ns"] = busy, total
        table["kernels"] = number  # of all within it, which come last
    spans = np.flatnonzero(trace.index.in_category(ON_GPU))
    table["gpu_span_ns"] = group_sums(code[spans], trace.index.dur[spans], len(names))
    # In a window, an annotation may be present by its GPU work alone.
    there = table[["calls", "kernels", "gpu_span_ns"]].any(axis=1)
    table = table[there].sort_values(
        ["kernel_ns", "cpu_total_ns"], ascending=False, kind="stable", ignore_index=True
    )
    return table[list(COLUMNS)]


def _calls(trace: Trace, rows: Rows, code: Rows, names: int) -> tuple[Ints, Codes]:
    """Return per name its calls (the most on any stream or thread) and its longest slice."""
    count = trace.index.column("count")[rows]
    lane = np.where(trace.index.in_category(ON_GPU)[rows], trace.index.track[rows], 0)
    pairs, at = np.unique(np.stack([code[rows], lane]), axis=1, return_inverse=True)
    on_lane = group_sums(at.reshape(-1), count, pairs.shape[1])
    calls = np.zeros(names, np.int64)
    np.maximum.at(calls, pairs[0], on_lane)
    longest = np.full(names, NONE, np.int32)
    order = rows[np.argsort(trace.index.dur[rows], kind="stable")]
    longest[code[order]] = order
    return calls, longest


def _cpu(trace: Trace, rows: Rows, code: Rows, names: int) -> tuple[Ints, Ints]:
    """Return per name the time in which it was open, and in which it was the innermost one."""
    ts, end, track = trace.index.ts[rows], trace.index.end[rows], trace.index.track[rows]
    parent, _ = links.nest(ts, end, track)
    innermost = group_sums(code[rows], links.self_times(ts, end, parent), names)
    pairs, at = np.unique(np.stack([code[rows], track]), axis=1, return_inverse=True)
    open_on_track = intervals.length_by(at.reshape(-1), ts, end, pairs.shape[1])
    return group_sums(pairs[0], open_on_track, names), innermost


def _pairs(owner: Codes, above: Codes, code: Rows) -> tuple[Rows, Rows]:
    """Return pairs of each GPU slice and the name of an annotation around it, each name once."""
    owns = np.zeros(len(above), bool)
    owns[owner] = owns[above[above >= 0]] = True
    rows, place = np.flatnonzero(owns), np.cumsum(owns) - 1
    owner, above, code = place[owner], take(place, above[rows]), code[rows]
    outermost = ~links.below_its_like(above, code)
    at, inside = links.itself_or_ancestor(above, outermost)[owner], np.arange(len(owner))
    around, slices, names = links.nearest_ancestor(above, outermost), [inside], [code[at]]
    while (up := around[at] >= 0).any():
        at, inside = around[at[up]], inside[up]
        slices.append(inside)
        names.append(code[at])
    return np.concatenate(slices), np.concatenate(names)


def _gpu_sums(trace: Trace, rows: Rows, name: Rows, names: int) -> tuple[Ints, Ints, Ints]:
    """Return per name the busy time, the summed time and the number of these GPU slices."""
    index = trace.index
    device = np.maximum(index.device[rows], 0)
    devices = int(device.max(initial=0)) + 1
    group = name * devices + device
    busy = intervals.length_by(group, index.ts[rows], index.end[rows], names * devices)
    total = group_sums(name, index.dur[rows], names)
    number = group_sums(name, index.column("count")[rows], names)
    return busy.reshape(names, devices).sum(axis=1), total, number


STEP = re.compile(r"ProfilerStep#(\d+)")
NO_STEPS = "the trace has no steps: the profiler ran without a schedule"


@says_if_empty("the trace has no steps: nothing is marked as ProfilerStep#")
@remembered
def steps(record: Record) -> pd.DataFrame:
    """One row per step that the profiler's schedule marked, in order of time.

    A step is annotated on the CPU and again on each stream. The CPU's annotation counts; the
    streams' stand in only if the CPU has none.

    Columns:

    - ``step``: its number.
    - ``row``: its annotation.
    - ``start_ns``, ``end_ns``, ``dur_ns``: when it ran.
    - ``gpu_busy_ns``: time between its start and its end in which any GPU was busy.

    Source: torch's ``ProfilerStep#`` annotations, as in PyTorch's TensorBoard plugin.
    """
    trace, index = record.trace, record.trace.index
    number = {n: int(match[1]) for n in index.names if (match := STEP.fullmatch(n))}
    marked = index.named(frozenset(number)) & (index.column("count") > 0)
    on_cpu = marked & index.on_tracks("cpu")
    rows = np.flatnonzero(on_cpu if on_cpu.any() else marked)
    step = np.array([number[name] for name in index.names_of(rows)], np.int64)
    times = {"start_ns": index.ts[rows], "end_ns": index.end[rows]}
    table = pd.DataFrame({"step": step, "row": rows, **times})
    once = {"row": "first", "start_ns": "min", "end_ns": "max"}
    table = table.groupby("step", as_index=False).agg(once).sort_values("start_ns")
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    busy = intervals.overlap((start, end), open_within(trace, index.gpu))
    return table.assign(dur_ns=end - start, gpu_busy_ns=busy).reset_index(drop=True)


def time_ranges(record: Record, by: str) -> tuple[Ints, Ints, Ints]:
    """Return numbers, starts and ends of the steps, or -1 and the whole unless by "step"."""
    trace = record.trace
    whole = pd.DataFrame({"step": [NONE], "start_ns": [trace.start_ns], "end_ns": [trace.end_ns]})
    table = steps(record) if by == "step" else whole
    number, start, end = (table[key].to_numpy(np.int64) for key in ("step", "start_ns", "end_ns"))
    return number, start, end


def rank_of(trace: Trace) -> int:
    """Return the rank of the job that recorded the trace; -1 if unknown."""
    return int(trace.tracks["rank"].to_numpy().max()) if len(trace.tracks) else NONE


def names_with_steps_merged(trace: Trace) -> tuple[Rows, list[str]]:
    """Return per slice the code of its name, and the names, all steps as ``ProfilerStep*``."""
    merged = [re.sub(r"^ProfilerStep#.*", "ProfilerStep*", name) for name in trace.index.names]
    code, names = pd.factorize(np.array(merged, object))
    return code[trace.index.name], names.tolist()


UNRECORDED = ("wait", "warmup")


@says_if_empty(LOOP)
def iterations(record: Record) -> pd.DataFrame:
    """One row per iteration of the loop that was bounded; none if no loop was.

    A window does not cut it (``attrs["whole"]`` says why).

    Columns:

    - ``step``: counted from 0, the number of its ``ProfilerStep#``.
    - ``kind``: "wait", "warmup", "recorded", or "cprofile" while only cProfile still ran.
    - ``dur_ns``: from the fetch of its item to the end of its body, with its part of the waits for
      the device around the window.
    - ``complete``: False if the loop was left in the middle of it.

    Source: measured by the recorder, whether or not the iteration was recorded.
    """
    noted: dict[str, Any] = record.metadata.get("steps") or {}
    rows: list[dict[str, Any]] = noted.get("iterations") or []
    table = pd.DataFrame(
        {
            "step": np.array([row["step"] for row in rows], dtype=np.int64),
            "kind": pd.Series([row["kind"] for row in rows], dtype=object),
            "dur_ns": np.array([row["dur_ns"] for row in rows], dtype=np.int64),
            "complete": np.array([not row.get("left") for row in rows], dtype=bool),
        }
    )
    return of_the_whole_run(table, "of iterations the recorder notes how long they took, not when")


def usual_steps(record: Record) -> tuple[pd.Series, pd.Series]:
    """Return the durations (ns) of the unrecorded and of the recorded iterations to compare.

    Left out are the first iteration, which pays one-time costs, and incomplete ones.
    """
    table = iterations(record)
    table = table[table["complete"] & (table["step"] > 0)]
    plain = table["kind"].isin(UNRECORDED)
    return table.loc[plain, "dur_ns"], table.loc[table["kind"] == "recorded", "dur_ns"]


def calls_per_traced_step(record: Record) -> float:
    """Return the number of iterations in cProfile per iteration in the trace: at least 1.

    Multiply times of the trace by it before comparing them with Python calls.
    """
    kinds = iterations(record)["kind"]
    traced = int((kinds == "recorded").sum())
    return 1.0 + int((kinds == "cprofile").sum()) / traced if traced else 1.0

"""Findings on the cell's costliest line, and on what bounds the run (its critical path)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.blocking import blocked
from gpuprof_widgets.analyses.cold_start import cold_spans
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.findings.finding import (
    WORTH_NS,
    Finding,
    Place,
    about_one_call,
    code,
    kernel_code,
    longest_slice,
    run_ns,
    share_of,
    slice_range,
    spread,
    statement,
)
from gpuprof_widgets.analyses.findings.gpu_idle import WARM_UP, first_launches
from gpuprof_widgets.analyses.findings.stalls import REMEDY as STALLED
from gpuprof_widgets.analyses.findings.stalls import TIMES_USUAL, stalled
from gpuprof_widgets.analyses.lines import (
    Line,
    cell_lines,
    holder,
    inner_lines,
    lines,
    lines_beyond_limit,
    lines_within,
    op_times,
)
from gpuprof_widgets.analyses.owners import is_mostly_replayed, line_of
from gpuprof_widgets.analyses.path_graph import KERNEL_DELAY, LAUNCH_DELAY, STREAM_WAIT
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.analyses.what_if import what_ifs
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import BACKWARD
from gpuprof_widgets.trace.schema import NONE

WAITING = 0.5
"""Share of a line's time from which on it mostly waits, for work of another line."""
WAITED_FOR = "What it waits for was launched before: see the lines with much GPU time."
NAMED, NAMED_SHARE = 3, 0.1
"""How many ops of a line are named at most, and the least share of its time of each."""
GPU_WORK_SHARE = 0.1
"""Share of a line's time below which its GPU work is not worth mentioning."""


def costliest_line(record: Record, *, line_share: float = 0.2) -> list[Finding]:
    """Fires for the line with most self time, where that is a fifth of the run or more.

    A line that only calls is named as the caller of what holds most of its time: the deepest user
    function or module. Not for the only line that ran, not for a line that waits for the
    DataLoader, for files or anything but the GPU, which other rules report, and not for the head
    of a block whose time is in the lines within it. For lines that ran more often than the
    recorder's limit it says what they took at least, or which line has the rest of their time. Up
    to three ops are named where ops took half of the line's time.

    ``line_share``: The costliest line's own time.
    """
    table = lines(record)
    ran = table[table["wall_ns"] > 0]
    if len(ran) < 2:
        return []
    most = int(ran["self_ns"].argmax())
    top = ran.iloc[most].to_dict()
    share = share_of(top["self_ns"], run_ns(record))
    if share < line_share or top["self_ns"] < WORTH_NS or _loads(record, top):
        return []
    if _blocks(record, int(ran.index[most]), int(top["self_ns"])):
        return []
    if not top["complete"]:
        return _beyond_limit(record, ran, top)
    place = f"ine {top['line']}{_where(ran['cell'].nunique(), top)}{statement(top['code'])}"
    cost = int(top["self_ns"])
    deepest = holder(record, int(ran.index[most]))
    if deepest is None or deepest.is_backward:
        took = f"took {format_share(share)} of the time ({format_ns(cost)}{_runs(top)})"
        mostly = f", mostly in the backward pass of {code(deepest.name)}" if deepest else ""
        mostly = mostly or _in_one_run(record, top) or _ops(record, top, ", {} of it in")
        text = f"L{place} {took}{mostly}{_device(top)}."
        title = _title(ran, top)
    else:
        cost, share = deepest.ns, share_of(deepest.ns, run_ns(record))
        subject = f"{'Module ' if deepest.is_module else ''}{code(deepest.name)}"
        took = f"took {format_share(share)} of the time ({format_ns(cost)})"
        text = f"{subject} {took}, called by l{place}{_runs(top)}"
        text += f"{_ops(record, top, '; the line spent {} in')}{_device_of_line(top)}."
        title = f"{subject}, called by line {top['line']}, takes the most time"
    remedy = WAITED_FOR if _mostly_waits(top) else ""
    return [Finding(text, cost, share, remedy=remedy, title=title, **_place(record, top))]


def _title(ran: pd.DataFrame, top: dict[Any, Any]) -> str:
    source, where = statement(top["code"]), _where(ran["cell"].nunique(), top)
    return f"Line {top['line']}{where} takes the most time{':' if source else ''}{source}"


def _loads(record: Record, top: dict[Any, Any]) -> bool:
    """Whether most of the line's time is waiting for the DataLoader."""
    table = waits(record)
    table = table[table["kind"] == "dataloader"]
    around = line_of(record.trace)[table["row"]]
    loading = table["dur_ns"].to_numpy()[np.isin(around, _rows(record, top))]
    return bool(loading.sum() >= WAITING * top["self_ns"])


def _blocks(record: Record, line: int, self_ns: int) -> bool:
    """Whether a single wait takes most of the line's time."""
    table = blocked(record).table
    return bool((table["ns"][table["line"] == line] >= WAITING * self_ns).any())


def _beyond_limit(record: Record, ran: pd.DataFrame, top: dict[Any, Any]) -> list[Finding]:
    """Report a line beyond the recorder's limit of runs, or the head of a loop around such lines.

    For the line itself it says what it took at least; for the head of a loop, which lines' time it
    includes.
    """
    line = (top["cell"], top["line"])
    beyond = lines_beyond_limit(cell_lines(record.trace), record)
    if line in beyond:
        return [_at_least(record, ran, top, beyond)]
    within = sorted(inner for inner, around in beyond.items() if line in around)
    their = "their" if within[1:] else "its"
    self_ns = int(top["self_ns"])
    share = share_of(self_ns, run_ns(record))
    text = (
        f"Line {top['line']}{_where(ran['cell'].nunique(), top)}{statement(top['code'])} took "
        f"{format_share(share)} of the time ({format_ns(self_ns)}), including that of "
        f"l{_named(within)[1:]} after {their} first {_runs_kept(record)}."
    )
    return [Finding(text, self_ns, share, title=_title(ran, top), **_place(record, top))]


def _at_least(
    record: Record, ran: pd.DataFrame, top: dict[Any, Any], beyond: dict[Line, set[Line]]
) -> Finding:
    """Report what a line beyond the limit took at least, with such lines within it."""
    line = (top["cell"], top["line"])
    within = inner_lines(cell_lines(record.trace), record.trace)
    group = sorted(lines_within(within, line, beyond))
    keys = pd.MultiIndex.from_frame(ran[["cell", "line"]])
    self_ns = int(ran["self_ns"][keys.isin(group)].sum())
    share = min(share_of(self_ns, run_ns(record)), 1.0)
    source = statement(top["code"]) if len(group) == 1 else ""
    head = min(beyond[line], default=None)
    rest = ""
    if head is not None:
        of_head = ran[keys == head].iloc[0].to_dict()
        rest = f", and {_counts_for(record, of_head, len(group))}"
    text = (
        f"{_named(group)}{_where(ran['cell'].nunique(), top)}{source} took at least "
        f"{format_share(share)} of the time ({format_ns(self_ns)}): "
        f"{'they' if group[1:] else 'it'} ran {_more_often(record)}{rest}."
    )
    alone = len(group) == 1
    title = (
        _title(ran, top) if alone else f"Line {top['line']} and lines within it take the most time"
    )
    return Finding(text, self_ns, share, title=title, **_place(record, top))


def _named(numbered: list[Line]) -> str:
    """Return ``Line 3``, or ``Lines 3, 4 and 5``."""
    numbers = [str(line) for _, line in numbered]
    return (
        f"Lines {', '.join(numbers[:-1])} and {numbers[-1]}"
        if numbers[1:]
        else f"Line {numbers[0]}"
    )


def _counts_for(record: Record, head: dict[Any, Any], lines_beyond: int) -> str:
    self_ns = int(head["self_ns"])
    return (
        f"beyond that {'their' if lines_beyond > 1 else 'its'} time counts for line {head['line']} "
        f"({format_share(share_of(self_ns, run_ns(record)))} of the time, {format_ns(self_ns)})"
    )


def _runs_kept(record: Record) -> str:
    """Return ``10,000 runs``, ``runs`` where the file does not say how many."""
    return format_count(limit, "run") if (limit := _limit(record)) else "runs"


def _more_often(record: Record) -> str:
    """Return ``more than 10,000 times``, in other words where the file does not say how many."""
    return (
        f"more than {limit:,} times" if (limit := _limit(record)) else "more often than is recorded"
    )


def _limit(record: Record) -> int:
    """Return how many runs of a line are recorded, 0 where the file does not say."""
    return int(record.metadata["lines"].get("limit", 0))


def _where(cells: int, top: dict[Any, Any]) -> str:
    return f" of {top['cell']}" if cells > 1 else ""


def _runs(top: dict[Any, Any]) -> str:
    calls = int(top["calls"])
    return f" in {format_count(calls, 'run')}" if calls > 1 else ""


def _in_one_run(record: Record, top: dict[Any, Any]) -> str:
    """Say that one of three or more runs took half of the time, and whether it was the first."""
    rows = _rows(record, top)
    spent = record.trace.slices["dur"].to_numpy()[rows]
    longest = int(spent.argmax())
    if top["calls"] < 3 or 2 * spent[longest] < top["self_ns"] or spent[longest] > top["self_ns"]:
        return ""
    which = "the first" if longest == 0 else "one of them"
    return f", {format_ns(int(spent[longest]))} of it in {which}"


def _ops(record: Record, top: dict[Any, Any], words: str) -> str:
    """Name the line's largest ops by self time, where ops and no waiting take most of its time.

    ``words``: what comes before the first, with room for its share. Ops of several threads at once
    have no share of the line's time.
    """
    self_ns = int(top["self_ns"])
    if _mostly_waits(top) or not self_ns / 2 <= top["cpu_self_ns"] <= self_ns:
        return ""
    took = op_times(record, (top["cell"], top["line"])).nlargest(NAMED)
    took = took[took >= NAMED_SHARE * self_ns]
    named = [
        f"{(' {} in' if number else words).format(format_share(ns / self_ns))} {code(str(name))}"
        for number, (name, ns) in enumerate(took.items())
    ]
    return ",".join(named)


def _device(top: dict[Any, Any]) -> str:
    """Say how long the line waited for the GPU, or how long its GPU work took."""
    device, self_ns = int(top["device_ns"]), int(top["self_ns"])
    if _mostly_waits(top):
        return f", {format_ns(int(top['wait_ns']))} of it waiting for the GPU"
    return f"; its GPU work took {format_ns(device)}" if device >= GPU_WORK_SHARE * self_ns else ""


def _device_of_line(top: dict[Any, Any]) -> str:
    """Say the same where the sentence is about a function or module that the line called."""
    device, self_ns = int(top["device_ns"]), int(top["self_ns"])
    if _mostly_waits(top):
        return f"; the line waited {format_ns(int(top['wait_ns']))} for the GPU"
    if device < GPU_WORK_SHARE * self_ns:
        return ""
    return f"; the GPU work of the line took {format_ns(device)}"


def _mostly_waits(top: dict[Any, Any]) -> bool:
    return bool(top["wait_ns"] >= WAITING * top["self_ns"])


def _place(record: Record, top: dict[Any, Any]) -> Place:
    """Return all executions of the line, and the range of the longest."""
    rows = _rows(record, top)
    start, end = slice_range(record.trace, longest_slice(record.trace, rows))
    return Place(start_ns=start, end_ns=end, rows=tuple(rows.tolist()))


def _rows(record: Record, top: dict[Any, Any]) -> npt.NDArray[np.intp]:
    """Return the slices that are executions of the line."""
    cell = cell_lines(record.trace)
    of_line = cell.lines["cell"].eq(top["cell"]) & cell.lines["line"].eq(top["line"])
    return cell.row[of_line.to_numpy(bool)[cell.of_slice[cell.row]]]


BOUNDS = {
    "the CPU": ("python", "cpu op", "runtime"),
    "the GPU's compute": ("compute",),
    "communication": ("communication",),
    "copies": ("copy", "memset"),
    "delays between launches and kernels": (LAUNCH_DELAY, KERNEL_DELAY, STREAM_WAIT),
}
"""What can bound a run; other rules report waiting for data and for the GPU."""

CPU = "the CPU"
REMEDIES = {
    CPU: "Give it less to do: fewer, larger ops (torch.compile, fused or foreach variants), CUDA "
    "graphs, or a larger batch.",
    "the GPU's compute": "Compute less (smaller sizes, nothing twice or in vain), compute in 16 "
    "instead of 32 bits, or move less data between kernels (torch.compile fuses them).",
    "communication": "Begin it earlier, so that compute hides it (async_op=True, smaller buckets "
    "of DDP), or send less and less often (bf16, gradient accumulation).",
    "copies": "Leave data where it is, or copy it while the GPU computes: from pinned memory, with "
    "non_blocking=True, on a stream of its own.",
    "delays between launches and kernels": "The kernels are too short for their launches: use "
    "larger ones, or CUDA graphs, which launch many at once.",
}
REPLAYED = {
    CPU: "Give it less to do: fewer, larger ops (torch.compile, fused or foreach variants), more "
    "of the step in one CUDA graph, or a larger batch.",
    "delays between launches and kernels": "The kernels are very short: use larger ones (larger "
    "batches, torch.compile), which have fewer such delays.",
}
"""The same where CUDA graphs are replayed already."""

PYTHON_BETWEEN = (
    "Most of that is Python between the ops: shorten it (logging, metrics, loops over tensors), "
    "or use larger batches."
)
ONE_CALL = "Most of that is one call, {name}, of {time}: {advice}"
FIRST_CALLS = "Most of that is first calls, which load libraries and kernels{launches}: {warm_up}."
MOST = 0.5
"""Share of the CPU's part of the path that counts as most of it."""


def critical_path_bound(record: Record, *, critical_path_share: float = 0.05) -> list[Finding]:
    """Fires where the run's bound is known and would be 5 % shorter without one op.

    The saving is that of an op that costs nothing, with what it launches (`what_if`): time that
    other work hides does not count, unlike in the sums of `gpu_ops` and `cpu_ops`.

    ``critical_path_share``: Share of the run that would be saved if an op cost nothing.
    """
    if not len(record.trace.index.gpu):
        return []
    path, table = critical_path(record), what_ifs(record)
    bound, share = _bound(path)
    op = _worth_most(record, table) if bound else None
    if op is None or op["saved_share"] < critical_path_share:
        return []
    in_stalls = _in_stalls(record.trace, str(op["name"]))
    text = (
        f"The run is bound by {bound}: {format_share(share)} of its critical path. If "
        f"{code(op['name'])} cost nothing, the run would be {format_share(op['saved_share'])} "
        f"({format_ns(op['saved_ns'])}) shorter.{in_stalls}"
    )
    where = _calls_on_path(record.trace, path, str(op["name"]))
    cost, saved = int(op["saved_ns"]), float(op["saved_share"])
    kernels_sentence = _kernels_sentence(table, critical_path_share)
    if bound == CPU:
        remedy = f"{STALLED if in_stalls else _cpu_remedy(record, path)} {kernels_sentence}"
    else:
        remedies = _remedies(record.trace)[bound]
        sentences = (kernels_sentence, remedies, _cpu_part(path, critical_path_share))
        remedy = " ".join(filter(None, sentences))
    saving = format_share(saved).replace("less than", "under")  # a title has ten words at most
    title = f"Without {code(op['name'])} the run would be {saving} shorter"
    return [Finding(text, cost, saved, remedy=remedy, title=title, **where)]


def _in_stalls(trace: Trace, name: str) -> str:
    """Say that a few stalled calls have most of an op's time; "" where they have not."""
    calls = np.flatnonzero(trace.index.named(frozenset({name})) & trace.index.on_tracks("cpu"))
    dur = trace.index.dur[calls]
    long = stalled(dur)
    if 2 * int(dur[long].sum()) <= int(dur.sum()):
        return ""
    return (
        f" Most of its time lies in {int(long.sum()):,} of its {len(calls):,} calls, each at least "
        f"{TIMES_USUAL} times as long as the median: the CPU stalled there."
    )


def _calls_on_path(trace: Trace, path: pd.DataFrame, name: str) -> Place:
    """Return the calls of this op that the path goes through, and the range of the longest."""
    calls = trace.index.named(frozenset({name})) & trace.index.in_category("cpu_op")
    call = np.append(links.itself_or_ancestor(trace.index.parent, calls), NONE)[path["op"]]
    rows = np.unique(call[call >= 0]).astype(np.intp)
    if not len(rows):  # what is on the path is a kernel of that name, whose launch is missing
        rows = np.flatnonzero(calls)
    start, end = slice_range(trace, longest_slice(trace, rows))
    return Place(start_ns=start, end_ns=end, rows=spread(rows))


def _cpu_remedy(record: Record, path: pd.DataFrame) -> str:
    """Return the remedy for the CPU's part: a long call, first calls, Python or ops."""
    trace = record.trace
    on_cpu = path[path["kind"].isin(BOUNDS[CPU])]
    time = on_cpu["dur_ns"]
    longest = on_cpu.nlargest(1, "dur_ns").iloc[0]
    if longest["kind"] == "runtime" and longest["dur_ns"] > MOST * time.sum():
        name, length = code(str(longest["name"])), format_ns(longest["dur_ns"])
        advice = about_one_call(trace, int(longest["row"]))
        return ONE_CALL.format(name=name, time=length, advice=advice)
    segments = (on_cpu["start_ns"].to_numpy(np.int64), on_cpu["end_ns"].to_numpy(np.int64))
    if intervals.overlap(segments, cold_spans(record)).sum() > MOST * time.sum():
        return FIRST_CALLS.format(launches=first_launches(record), warm_up=WARM_UP)
    if time[on_cpu["kind"] == "python"].sum() > MOST * time.sum():
        return PYTHON_BETWEEN
    return _remedies(trace)[CPU]


def _remedies(trace: Trace) -> dict[str, str]:
    return REMEDIES | REPLAYED if is_mostly_replayed(trace) else REMEDIES


def _kernels_sentence(table: pd.DataFrame, least_share: float) -> str:
    """Say which kernel or copy would save most; `what_ifs` tries the longest on the path."""
    tried = table[(table["what"] == "kernel") & (table["saved_ns"] > 0)]
    if not len(tried):
        return "Of the kernels and copies none would save anything, even if it cost nothing."
    most = tried.iloc[0]
    share, time = format_share(most["saved_share"]), format_ns(most["saved_ns"])
    if most["saved_share"] < least_share:
        return f"No kernel or copy would save more than {time} ({share}) if it cost nothing."
    name = kernel_code(str(most["name"]))
    return f"Of the kernels and copies {name} would save most if it cost nothing: {share} ({time})."


def _cpu_part(path: pd.DataFrame, least_share: float) -> str:
    """Say how much of a path that is mostly the GPU's is the CPU's; "" where that is little."""
    on_cpu = path["kind"].isin(BOUNDS[CPU])
    share = int(path.loc[on_cpu, "dur_ns"].sum()) / max(int(path["dur_ns"].sum()), 1)
    if share < least_share:
        return ""
    return (
        f"But {format_share(share)} of the path is the CPU's (Python, ops, launches): "
        "that stays however fast the GPU is."
    )


def _bound(path: pd.DataFrame) -> tuple[str, float]:
    """Return what takes most of the path, and its share; "" where that is none of `BOUNDS`."""
    by_kind = path.groupby("kind")["dur_ns"].sum()
    total = max(int(by_kind.sum()), 1)
    groups = {name: int(by_kind.reindex(kinds).sum()) for name, kinds in BOUNDS.items()}
    name = max(groups, key=lambda group: groups[group])
    others = by_kind.drop([kind for kinds in BOUNDS.values() for kind in kinds], errors="ignore")
    known = groups[name] > others.max() if len(others) else groups[name] > 0
    return (name, groups[name] / total) if known else ("", 0.0)


def _worth_most(record: Record, table: pd.DataFrame) -> pd.Series | None:
    """Return the op that saves most, not autograd's slice around a backward op."""
    slices = record.trace.slices
    ops = set(slices["name"].to_numpy(object)[record.trace.index.is_op])
    are_named = [name in ops and not str(name).startswith(BACKWARD) for name in table["name"]]
    ops_table = table[np.array(are_named, bool)]
    return ops_table.iloc[0] if len(ops_table) else None

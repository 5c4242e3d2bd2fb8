"""Findings on the recording itself: what it lacks, early ends, one-off costs, overhead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.cold_start import recording_time
from gpuprof_widgets.analyses.columns import format_bytes, format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.compilation import COMPILATION_SHARE, compilation
from gpuprof_widgets.analyses.findings.finding import (
    Finding,
    code,
    kind_of_run,
    listed,
    run_ns,
    share_of,
    spread,
)
from gpuprof_widgets.analyses.host_states import LAUNCHES
from gpuprof_widgets.analyses.reasons import NSYS, NVPROF, recorder_of
from gpuprof_widgets.analyses.regions import UNRECORDED, iterations, usual_steps
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.intervals import length
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import (
    MODULE_CATEGORIES,
    NVTX_RANGE,
    REGION_CATEGORIES,
    SAMPLED,
    WINDOW,
)


def ending(record: Record) -> list[Finding]:
    """Fires if the recorder noted an interruption or an error.

    Cost: the time until then. There is no remedy: the sentence says that the profile ends there.
    """
    error = record.metadata.get("error")
    if record.metadata.get("interrupted"):
        short = outcome = "was interrupted"
    elif error:
        outcome = f"raised {str(error).splitlines()[0].rstrip('.')}"
        short = f"raised {code(str(error).partition(':')[0])}"
    else:
        return []
    cost = int(record.metadata.get("wall_ns") or run_ns(record))
    text = f"The {kind_of_run(record)} {outcome} after {format_ns(cost)}. This profile ends there."
    return [Finding(text, cost, 1.0, title=f"The {kind_of_run(record)} {short}")]


NAMED = ("user_annotation", NVTX_RANGE, "python_function", "cpu_op", *REGION_CATEGORIES)


def expected(record: Record) -> list[Finding]:
    """Fires for every name of ``expect`` that did not run.

    A name is that of an annotation, an op, a module (its last part or its class is enough) or, if
    Python functions were recorded, one of these.

    Cost: none. This finding comes before all others.
    """
    options: dict[str, Any] = record.metadata.get("options") or {}
    names = [name.strip() for name in (options.get("expect") or "").split(",") if name.strip()]
    seen = _seen(record) if names else set()
    return [_missing(record, name) for name in dict.fromkeys(names) if name not in seen]


def _seen(record: Record) -> set[str]:
    """Return all names by which users may know something that ran."""
    slices = record.trace.slices
    ran = slices[slices["category"].isin(NAMED) & (slices["count"] > 0)]
    seen: set[str] = set()
    for category, names in ran.groupby("category", observed=True)["name"]:
        for name in map(str, names.unique()):
            seen |= {name, *_short_names(str(category), name)}
    classes = record.trace.args.get("class")
    if classes is not None:
        seen |= set(classes[classes.index.isin(ran.index)])
    if record.calls is not None:
        seen |= {_builtin_name(str(name)) for name in record.calls.functions["name"]}
    return seen


def _short_names(category: str, name: str) -> set[str]:
    if category in MODULE_CATEGORIES:
        return {name.rsplit(".", 1)[-1]}
    if category == "cpu_op":
        return {name.rsplit("::", 1)[-1]}
    if category == "python_function":
        match = re.search(r"\): (?P<name>.*)$", name)
        return {match["name"] if match else _builtin_name(name)}
    return set()


def _builtin_name(name: str) -> str:
    """Return ``save`` for ``<built-in method save ...>`` or ``<method 'save' of ... objects>``."""
    match = re.match(r"^<(?:built-in )?(?:method|function) '?(?:[\w.]*\.)?(\w+)", name)
    return match[1] if match else name


def _missing(record: Record, name: str) -> Finding:
    steps = int((iterations(record)["kind"] == "recorded").sum())
    where = f"these {format_count(steps, 'step')}" if steps > 1 else "what was recorded"
    text = f"{code(name)} did not run in {where}"
    guard = (record.metadata.get("guards") or {}).get(name)
    remedy = "Its cost is not in this profile: record more steps, or profile it on its own."
    if guard:
        text += f". Line {guard['line']} runs it only every {guard['every']:,} iterations"
    elif record.calls is None and not record.trace.index.in_category("python_function").any():
        text += ", as far as is known: Python functions were not recorded"
        remedy = (
            "Record Python functions (with cProfile or --stack), or name a record_function region."
        )
    title = f"{code(name)} did not run in what was recorded"
    return Finding(f"{text}.", remedy=remedy, title=title)


GROWTH_BYTES = 1 << 20  # CUDA's allocator takes small blocks from segments of 2 MiB


def one_off(
    record: Record, *, first_step_ratio: float = 2.0, compilation_share: float = COMPILATION_SHARE
) -> list[Finding]:
    """Fires for a slow first step, compilation, allocator growth or retries in the warm-up.

    Also for compilations after the warm-up, which are part of the recorded times.

    Cost: 0 for what was in the warm-up, which is not recorded; the time of compilations after it.
    """
    noted: Mapping[str, Any] = (record.metadata.get("steps") or {}).get("one_off") or {}
    costs = list(_first_step(record, first_step_ratio))
    if noted.get("graphs"):
        graphs = format_count(noted["graphs"], "graph")
        costs.append(f"torch.compile compiled {graphs} in {format_ns(noted['compile_ns'])}")
    if noted.get("reserved_bytes", 0) >= GROWTH_BYTES:
        costs.append(f"CUDA's allocator reserved {format_bytes(noted['reserved_bytes'])} more")
    if noted.get("alloc_retries"):
        retries = format_count(noted["alloc_retries"], "time")
        costs.append(f"CUDA's allocator freed its cached memory and retried {retries}")
    if noted.get("cudnn_benchmark"):
        costs.append(
            "cuDNN tried its algorithms on new shapes (torch.backends.cudnn.benchmark is on)"
        )
    findings = []
    if costs:
        text = f"The warm-up had one-off costs, which the recording leaves out: {'; '.join(costs)}."
        findings.append(Finding(text, title="One-off costs fell into the warm-up"))
    late = noted.get("after_warmup") or {}
    # `compilation` says what was compiled, and why.
    if late.get("graphs") and not compilation(record, compilation_share=compilation_share):
        cost = int(late["compile_ns"])
        text = (
            f"torch.compile still compiled {format_count(late['graphs'], 'graph')} after the "
            f"warm-up, in {format_ns(cost)}: the recorded steps include one-off costs."
        )
        share = min(share_of(cost, record.trace.span_ns), 1.0)
        remedy = (
            "Warm up longer (--warmup), or find what changes from step to step (shapes or flags)."
        )
        title = "`torch.compile` still compiled after the warm-up"
        findings.append(Finding(text, cost, share, remedy=remedy, title=title))
    return findings


def _first_step(record: Record, ratio: float) -> Iterator[str]:
    table = iterations(record)
    whole = table[table["complete"] & table["kind"].isin(UNRECORDED)]
    if not (whole["step"] == 0).any():  # the first step was recorded, or not counted
        return
    plain, recorded = usual_steps(record)
    others = plain if len(plain) else recorded
    first = int(table["dur_ns"].iloc[0])
    if not len(others) or first < ratio * float(others.median()):
        return
    kind = "the other steps of the warm-up" if len(plain) else "the recorded steps"
    yield (
        f"the first step took {format_ns(first)}, {format_ns(first - float(others.median()))} more "
        f"than {kind}"
    )


ENOUGH = 2
"""Steps of either kind that a comparison needs: a single one has no median."""
LEAST_UNRECORDED = 5
"""Unrecorded steps that are needed to know how much they vary."""

MORE_STEPS = "Run more steps: a longer --warmup, and more --steps."
UNKNOWN = "Profiling's own cost is unknown"
SHORT_OPS = "Short ops"
PYTHON_FUNCTIONS = "Python functions, and what waits for them,"


def step_overhead(record: Record, *, step_slowdown: float = 1.1) -> list[Finding]:
    """Fires if the recorded steps of a bounded loop took 1.1 times as long or more.

    Also if that is unknown: there are too few steps of either kind, or their times vary more.

    Cost: the difference of the medians, times the number of recorded steps; 0 if unknown.
    """
    table = iterations(record)
    if not (table["kind"] == "recorded").any():
        return []
    plain, recorded = usual_steps(record)
    if min(len(plain), len(recorded)) < ENOUGH:
        text = (
            "It is not known how much profiling slows a step. To know it takes "
            f"{format_count(ENOUGH, 'recorded step')} and {ENOUGH} unrecorded steps after the "
            f"loop's first step, but there are {len(recorded)} recorded and {len(plain)} "
            "unrecorded."
        )
        return [Finding(text, remedy=MORE_STEPS, title=f"{UNKNOWN}: too few steps")]
    before, during = float(plain.median()), float(recorded.median())
    if share_of(during, before) < step_slowdown:
        return []
    of_recorded = format_count(len(recorded), "recorded step")
    of_plain = format_count(len(plain), "unrecorded step")
    if _is_noise(plain, recorded):
        text = (
            "It is not known how much profiling slows a step, because step times vary too much: "
            f"{_range(recorded)} in {of_recorded}, {_range(plain)} in {of_plain} before."
        )
        return [Finding(text, remedy=MORE_STEPS, title=f"{UNKNOWN}: step times vary")]
    cost = round((during - before) * len(recorded))
    text = (
        f"Profiling made a step {share_of(during, before):.1f}x slower. The median of "
        f"{of_recorded} is {format_ns(during)}; that of {of_plain} before is {format_ns(before)}."
    )
    share = min(share_of(cost, int(recorded.sum())), 1.0)
    noted = record.metadata.get("overhead") or {}
    lengthened = _lengthened(noted, float(noted.get("estimate_ns") or 0))
    remedy = f"{lengthened} look slower than they are"
    remedy += "; long ops hardly do." if lengthened == SHORT_OPS else "."
    if without := _costly_options(record):
        remedy += f" Record less (without {without}) for times nearer to the truth."
    return [Finding(text, cost, share, remedy=remedy, title="Profiling makes the steps slower")]


COSTLY = {"stack": "stacks", "shapes": "shapes", "memory": "memory", "flops": "FLOPs"}
"""Recording options that cost time, and what they record."""


def _costly_options(record: Record) -> str:
    """Return the options that were on and cost time: ``stacks, shapes and cProfile``; else ""."""
    options: dict[str, Any] = record.metadata.get("options") or {}
    on = [words for name, words in COSTLY.items() if options.get(name)]
    # With stacks, cProfile does not run: the calls are counted from the frames.
    counted = record.calls is not None and not options.get("stack")
    return listed([*on, "cProfile"] if counted else on)


def _is_noise(plain: pd.Series, recorded: pd.Series) -> bool:
    """Whether the medians differ by no more than steps usually differ from their own median.

    Few unrecorded steps are noise too, unless each recorded step took longer than every one
    before. The median deviation counts, not the range, as one step may be an outlier.
    """
    if float(recorded.min()) > float(plain.max()):
        return False
    apart = float(recorded.median() - plain.median())
    usual = max(float((kind - kind.median()).abs().median()) for kind in (plain, recorded))
    return len(plain) < LEAST_UNRECORDED or apart <= usual


def _range(times: pd.Series) -> str:
    return f"{format_ns(int(times.min()))} to {format_ns(int(times.max()))}"


_KINDS = {
    "calls": "Python call",
    "frames": "frame",
    "modules": "module call",
    "lines": "line run",
    "allocations": "memory change",
}
"""What `capture.overhead` counts besides events, and the word for one of each."""


def overhead(
    record: Record, *, recording_share: float = 0.05, recording_least_ns: int = 1_000_000
) -> list[Finding]:
    """Fires if the recorder estimates its cost at 5 % of the cell's time and 1 ms or more.

    Not if steps were timed with and without recording: `step_overhead` is more accurate.

    Cost: the estimate, by events and calls, and the time in which the recording asked for memory in
    a launch.
    """
    if min(map(len, usual_steps(record))) >= ENOUGH:
        return []
    noted = record.metadata.get("overhead") or {}
    estimate, wall = int(noted.get("estimate_ns") or 0), int(record.metadata.get("wall_ns") or 0)
    asked = length(recording_time(record.trace))
    cost = estimate + asked
    share = min(share_of(cost, wall), 1.0)
    if share < recording_share or cost < recording_least_ns:
        return []
    counts = {"event": int(noted.get("events") or len(record.trace))}
    counts |= {word: int(noted.get(key) or 0) for key, word in _KINDS.items()}
    recorded = listed([format_count(count, word) for word, count in counts.items() if count])
    text = (
        f"Recording {recorded} took about {format_ns(cost)} "
        f"({format_share(share)} of the {kind_of_run(record)}'s {format_ns(wall)})."
        f"{f' {format_ns(asked)} of that went into asking for memory.' if asked else ''} "
        f"{_lengthened(noted, estimate)} look longer here than they are."
    )
    without = _costly_options(record)
    remedy = f"Record fewer iterations{f', or record less (without {without})' * bool(without)}."
    calls, each = int(noted.get("calls") or 0), float(noted.get("call_cost_ns") or 0)
    of_calls = round(calls * each)
    is_much = of_calls and of_calls >= CPROFILE_SLOWDOWN * (wall - of_calls)
    if is_much and not record.metadata.get(SAMPLED):
        remedy += (
            f" cProfile took about {format_ns(of_calls)} of that time "
            f"({format_count(calls, 'call')} at {format_ns(each)} each). `--python sampled` takes "
            f"samples instead, which hardly slows the {kind_of_run(record)}."
        )
    return [Finding(text, cost, share, remedy=remedy, title="Recording itself takes time")]


CPROFILE_SLOWDOWN = 0.2
"""Share of a run's time without cProfile from which on cProfile's cost is told."""


def _lengthened(noted: dict[str, Any], cost: float) -> str:
    """Return what the recording makes longer: Python functions where most of its cost is theirs."""
    of_calls = sum(
        int(noted.get(kind) or 0) * float(noted.get(f"{kind[:-1]}_cost_ns") or 0)
        for kind in ("calls", "frames")
    )
    return PYTHON_FUNCTIONS if 2 * of_calls > cost > 0 else SHORT_OPS


NAMED_CALLS = 3  # calls
OF_HIP = re.compile(r"hip\w+")
PROFILER_BUSY = (
    "another profiler held {library} (only one can at a time), or the profiler had no permission "
    "({permission})"
)
CUPTI = PROFILER_BUSY.format(
    library="CUPTI",
    permission="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, NVIDIA's ERR_NVGPUCTRPERM; in a container: "
    "--cap-add=SYS_ADMIN",
)
ROCTRACER = PROFILER_BUSY.format(
    library="roctracer",
    permission="in a container: --device=/dev/kfd --device=/dev/dri",
)
NO_KERNELS_REMEDY = "Either ProfilerActivity.CUDA was not among the activities, or {held}."
UNDER_NSYS = "Record with nsys profile --trace=cuda. If you did, {held}."


def no_kernels(record: Record) -> list[Finding]:
    """Fires if the trace has calls that launch GPU work, but no GPU work.

    Not for a range in which the GPU did nothing, of a trace that has GPU work elsewhere.

    Cost: none. This finding comes before all others.
    """
    trace = record.trace
    rows = unanswered_launches(trace)
    if not len(rows):
        return []
    names = pd.Series(trace.index.names_of(rows)).value_counts().items()
    named = ", ".join(f"{code(str(name))} {count:,}" for name, count in [*names][:NAMED_CALLS])
    counts = "1 launch" if len(rows) == 1 else f"{len(rows):,} launches"
    text = (
        f"The trace has {counts} of GPU work ({named}), but not the work itself. It does not "
        "show how long kernels and copies took. The time of an op is only the time of the CPU, "
        "which launches them."
    )
    held = ROCTRACER if trace.index.matching(OF_HIP)[rows].all() else CUPTI
    by_nsight = recorder_of(record) in (NSYS, NVPROF)
    remedy = (UNDER_NSYS if by_nsight else NO_KERNELS_REMEDY).format(held=held)
    title = "GPU work was launched, but not recorded"
    return [Finding(text, rows=spread(rows), remedy=remedy, title=title)]


def unanswered_launches(trace: Trace) -> Rows:
    """Return the calls that launched GPU work in a trace without any GPU work; else none."""
    if trace.tracks["kind"].isin(["gpu", "copy"]).any():
        return np.empty(0, np.intp)
    calls = trace.index.is_launch
    counted = trace.slices["count"].to_numpy() > 0
    return np.flatnonzero(calls & trace.index.matching(LAUNCHES) & counted)


LAUNCHED_BEFORE = (
    "This work was launched before the recording began: it ran in the first {first}, before all "
    "work whose launch is known. Select the time after it by dragging. "
)
SYNCHRONISE = "Call torch.cuda.synchronize() right before recording."
UNLINKED_REMEDY = (
    "This work may have been launched before the recording began: call torch.cuda.synchronize() "
    "right before recording. Or the recorder dropped the launches: record fewer steps."
)


def unlinked(record: Record, *, unlinked_share: float = 0.02) -> list[Finding]:
    """Fires if 2 % of the GPU's events or of their time lack a launch.

    Cost: none. If a tenth of the GPU's time belongs to no op, this finding comes before all others.
    """
    index = record.trace.index
    gpu = index.gpu[index.column("count")[index.gpu] > 0]
    loose = gpu[index.column("launch")[gpu] < 0]
    dur = index.dur
    shares = (len(loose) / max(len(gpu), 1), share_of(dur[loose].sum(), dur[gpu].sum()))
    if not len(loose) or max(shares) < unlinked_share:
        return []
    without_op = int(np.count_nonzero(index.column("op")[loose] < 0))
    owned = f"but no op is known for {without_op:,} of them"
    if not without_op:  # known by external ids
        owned = "and its op is known" if len(loose) == 1 else "and their ops are known"
    elif without_op == len(loose):
        owned = "but belongs to no op"
    text = (
        f"{format_count(len(loose), 'GPU event')} of {len(gpu):,} "
        f"({format_share(shares[0])}, and {format_share(shares[1])} of the GPU's time) "
        f"{'has' if len(loose) == 1 else 'have'} no launch in the trace. Their time is counted, "
        f"{owned}."
    )
    title, rows = "Some GPU work lacks its launch in the trace", tuple(loose)
    before = _launched_before(record, loose, gpu)
    if (missing := time_without_op(record.trace)) >= MUCH_WITHOUT_OP:
        title = f"The op is unknown for {format_share(missing)} of GPU time"
        if not before:
            text += " Ops, modules and functions may cause more GPU time than their rows show."
    return [Finding(text, rows=rows, remedy=before or UNLINKED_REMEDY, title=title)]


def _launched_before(record: Record, loose: Rows, gpu: Rows) -> str:
    """Return what to do about work that was launched before the recording; "" if it may not be.

    It is that if it ran before all other work, and all launches by then have work in the trace.
    """
    trace, index = record.trace, record.trace.index
    others, end = np.setdiff1d(gpu, loose), int(index.end[loose].max())
    if WINDOW in record.metadata or not len(others) or end > int(index.ts[others].min()):
        return ""
    launches = np.flatnonzero(index.is_launch & index.matching(LAUNCHES) & (index.ts < end))
    if not np.isin(launches, index.column("launch")[others]).all():
        return ""
    return LAUNCHED_BEFORE.format(first=format_ns(end - trace.start_ns)) + SYNCHRONISE


MUCH_WITHOUT_OP = 0.1
"""Share of a GPU's time that belongs to no op from which on no op's share can be relied on."""


def time_without_op(trace: Trace) -> float:
    """Return the share of the GPU's time whose op is not known; 0 where no ops were recorded."""
    index, gpu = trace.index, trace.index.gpu
    if not index.is_op.any():
        return 0.0
    without_op = gpu[(index.column("launch")[gpu] < 0) & (index.column("op")[gpu] < 0)]
    return share_of(int(index.dur[without_op].sum()), int(index.dur[gpu].sum()))

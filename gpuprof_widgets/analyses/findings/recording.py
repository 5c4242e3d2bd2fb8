"""Findings on the recording itself: early ends, names that did not run, one-off costs, overhead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.cold_start import recording_time
from gpuprof_widgets.analyses.columns import format_bytes, format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.compilation import COMPILATION_SHARE, compilation
from gpuprof_widgets.analyses.findings.finding import (
    Finding,
    code,
    costly_options,
    kind_of_run,
    run_ns,
    share_of,
)
from gpuprof_widgets.analyses.regions import UNRECORDED, iterations, usual_steps
from gpuprof_widgets.trace.intervals import length
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import (
    MODULE_CATEGORIES,
    NVTX_RANGE,
    REGION_CATEGORIES,
    SAMPLED,
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

_FRAME = re.compile(r"\): (?P<name>.*)$")


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
        match = _FRAME.search(name)
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
    elif not _has_functions(record):
        text += ", as far as is known: Python functions were not recorded"
        remedy = (
            "Record Python functions (with cProfile or --stack), or name a record_function region."
        )
    return Finding(
        f"{text}.", remedy=remedy, title=f"{code(name)} did not run in what was recorded"
    )


def _has_functions(record: Record) -> bool:
    frames = (record.trace.slices["category"] == "python_function").any()
    return record.calls is not None or bool(frames)


GROWTH_BYTES = 1 << 20  # CUDA's allocator takes small blocks from segments of 2 MiB


def one_off(
    record: Record, *, first_step_ratio: float = 2.0, compilation_share: float = COMPILATION_SHARE
) -> list[Finding]:
    """Fires for a slow first step, compilation, allocator growth or retries in the warm-up.

    Also for compilations after the warm-up, which are part of the recorded times.

    Cost: 0 for what was in the warm-up, which is not recorded; the time of compilations after it.
    """
    noted: Mapping[str, Any] = (record.metadata.get("steps") or {}).get("one_off") or {}
    costs = [*_first_step(record, first_step_ratio), *_costs(noted)]
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


def _costs(noted: Mapping[str, Any]) -> Iterator[str]:
    if noted.get("graphs"):
        graphs = format_count(noted["graphs"], "graph")
        yield f"torch.compile compiled {graphs} in {format_ns(noted['compile_ns'])}"
    if noted.get("reserved_bytes", 0) >= GROWTH_BYTES:
        yield f"CUDA's allocator reserved {format_bytes(noted['reserved_bytes'])} more"
    if noted.get("alloc_retries"):
        retries = format_count(noted["alloc_retries"], "time")
        yield f"CUDA's allocator freed its cached memory and retried {retries}"
    if noted.get("cudnn_benchmark"):
        yield "cuDNN tried its algorithms on new shapes (torch.backends.cudnn.benchmark is on)"


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
        text = _too_few(len(plain), len(recorded))
        return [Finding(text, remedy=MORE_STEPS, title=f"{UNKNOWN}: too few steps")]
    before, during = float(plain.median()), float(recorded.median())
    if share_of(during, before) < step_slowdown:
        return []
    if _is_noise(plain, recorded):
        text, title = _too_uneven(plain, recorded), f"{UNKNOWN}: step times vary"
        return [Finding(text, remedy=MORE_STEPS, title=title)]
    cost = round((during - before) * len(recorded))
    text = (
        f"Profiling made a step {share_of(during, before):.1f}x slower. The median of "
        f"{format_count(len(recorded), 'recorded step')} is {format_ns(during)}; that of "
        f"{format_count(len(plain), 'unrecorded step')} before is {format_ns(before)}."
    )
    share = min(share_of(cost, int(recorded.sum())), 1.0)
    title = "Profiling makes the steps slower"
    return [Finding(text, cost, share, remedy=_remedy(record), title=title)]


def _remedy(record: Record) -> str:
    without = costly_options(record)
    less = f" Record less (without {without}) for times nearer to the truth." if without else ""
    noted = record.metadata.get("overhead") or {}
    lengthened = _lengthened(noted, float(noted.get("estimate_ns") or 0))
    long = "; long ops hardly do" if lengthened == SHORT_OPS else ""
    return f"{lengthened} look slower than they are{long}.{less}"


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


def _too_uneven(plain: pd.Series, recorded: pd.Series) -> str:
    return (
        "It is not known how much profiling slows a step, because step times vary too much: "
        f"{_range(recorded)} in {format_count(len(recorded), 'recorded step')}, {_range(plain)} in "
        f"{format_count(len(plain), 'unrecorded step')} before."
    )


def _range(times: pd.Series) -> str:
    return f"{format_ns(int(times.min()))} to {format_ns(int(times.max()))}"


def _too_few(plain: int, recorded: int) -> str:
    return (
        "It is not known how much profiling slows a step. To know it takes "
        f"{format_count(ENOUGH, 'recorded step')} and {ENOUGH} unrecorded steps after the loop's "
        f"first step, but there are {recorded} recorded and {plain} unrecorded."
    )


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
    text = (
        f"Recording {_recorded(record, noted)} took about {format_ns(cost)} "
        f"({format_share(share)} of the {kind_of_run(record)}'s {format_ns(wall)})."
        f"{f' {format_ns(asked)} of that went into asking for memory.' if asked else ''} "
        f"{_lengthened(noted, estimate)} look longer here than they are."
    )
    without = costly_options(record)
    less = f", or record less (without {without})" if without else ""
    remedy = f"Record fewer iterations{less}.{_by_cprofile(record, noted, wall)}"
    return [Finding(text, cost, share, remedy=remedy, title="Recording itself takes time")]


CPROFILE_SLOWDOWN = 0.2
"""Share of a run's time without cProfile from which on cProfile's cost is told."""


def _by_cprofile(record: Record, noted: Mapping[str, Any], wall: int) -> str:
    """Say how long cProfile took, where it slowed the run by 20 % or more; else ""."""
    calls, each = int(noted.get("calls") or 0), float(noted.get("call_cost_ns") or 0)
    cost = round(calls * each)
    if not cost or cost < CPROFILE_SLOWDOWN * (wall - cost) or record.metadata.get(SAMPLED):
        return ""
    return (
        f" cProfile took about {format_ns(cost)} of that time ({format_count(calls, 'call')} at "
        f"{format_ns(each)} each). `--python sampled` takes samples instead, which hardly slows "
        f"the {kind_of_run(record)}."
    )


def _lengthened(noted: dict[str, Any], cost: float) -> str:
    """Return what the recording makes longer: Python functions where most of its cost is theirs."""
    of_calls = sum(
        int(noted.get(kind) or 0) * float(noted.get(f"{kind[:-1]}_cost_ns") or 0)
        for kind in ("calls", "frames")
    )
    return PYTHON_FUNCTIONS if 2 * of_calls > cost > 0 else SHORT_OPS


def _recorded(record: Record, noted: dict[str, Any]) -> str:
    """Return what was counted: "1,200 events, 23,000 Python calls and 4,800 module calls"."""
    counts = {"event": int(noted.get("events") or len(record.trace))}
    counts |= {word: int(noted.get(key) or 0) for key, word in _KINDS.items()}
    first, *more = [format_count(count, word) for word, count in counts.items() if count]
    return f"{', '.join([first, *more[:-1]])} and {more[-1]}" if more else first

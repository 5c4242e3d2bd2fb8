"""Findings of a comparison: the step or run as a whole first, then what made the difference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import format_ns, format_share, signed_ns
from gpuprof_widgets.analyses.compare import tables
from gpuprof_widgets.analyses.compare.measured import QUANTITIES, ops, python_recorder
from gpuprof_widgets.analyses.compare.tables import ADDED, GONE, MEASURE, NOISE, SAME, Runs, differ
from gpuprof_widgets.analyses.findings.finding import Finding, code
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED

LEAST_SHARE = 0.01
"""Share of a step (or run) of A: smaller differences are in the tables only."""
STEPS = "ProfilerStep*"
SAME_TIME = "A and B take the same time"
KINDS = {
    "Where it went": "The time in",
    "Ops": "The op",
    "Kernels": "The kernel",
    "Lines": "The line",
    "Functions": "The function",
}
"""What a title calls a row of the table, by the heading of the sentence."""
NAMED = 4
"""Differences that one sentence names."""
TEN = 9.95
"""Times as long, from which on the number has no decimals."""
OUTSIDE_SHARE = 0.1
"""Share of the time of all ops that, outside of the steps, is worth mentioning."""

RECORDED = (
    *("stack", "cprofile", "memory", "shapes", "lines", "modules", "workers", "sync", "flops"),
)
"""Options that cost time while a cell runs."""
OFF = (False, "none", "")


def comparison_findings(runs: Runs) -> list[Finding]:
    """Return the sentences: the step or run as a whole, unlike recordings, and the causes.

    Differences within the spread of the steps are no causes.
    """
    if sentence := _no_trace_sentence(runs):
        without = Finding(sentence, rule="whole", title="Without a trace nothing can be compared")
        return _functions_without_trace(runs) or [without]
    whole = _whole(runs)
    if not differ(runs):
        return [whole, *_not_alike(runs)]
    on_cpu = tables.ops(runs, "cpu_self")
    first = tables.ops(runs, None)
    causes = (
        _moved(runs, "Where it went", _class_names(tables.classes(runs))),
        _moved(runs, "Ops", first),
        _moved(runs, "Ops", on_cpu) if first.attrs[MEASURE] != "cpu_self" else None,
        _moved(runs, "Kernels", tables.kernels(runs)),
        _moved(runs, "Lines", _coded_lines(tables.lines(runs, "cpu_self"))),
        None if len(on_cpu) else _moved(runs, "Functions", tables.functions(runs)),
    )
    return [whole, *_not_alike(runs), *(cause for cause in causes if cause is not None)]


def _no_trace_sentence(runs: Runs) -> str:
    """Return a sentence about runs without a trace (cProfile's files); "" where both have one."""
    empty = [name for name, run in (("A", runs.a), ("B", runs.b)) if not len(run.trace)]
    if not empty:
        return ""
    verb = "hold" if len(empty) > 1 else "holds"
    return f"{' and '.join(empty)} {verb} no trace, so nothing can be compared."


def _functions_without_trace(runs: Runs) -> list[Finding]:
    """Compare runs without a trace: all of Python's time, and the functions that changed."""
    table = tables.functions(runs)
    if not len(table):
        return []
    a, b = (int(table[column].sum()) for column in ("total_a_ns", "total_b_ns"))
    share = abs(b - a) / max(a, 1)
    text = (
        f"B's Python functions take {_relative_time(a, b)}: {format_ns(a)} → {format_ns(b)} "
        f"({_recorders_without_steps(runs)}: noise and change cannot be distinguished)."
        if a != b
        else f"No difference: the Python functions of both take {format_ns(a)}."
    )
    title = f"B's Python functions take {_relative_time(a, b)}" if a != b else SAME_TIME
    whole = Finding(text, cost_ns=abs(b - a), share=share, rule="whole", title=title)
    moved = _moved(runs, "Functions", table, whole_ns=float(a))
    unlike = _recorder_findings(runs)
    return [whole, *unlike, *filter(None, [moved])]


def _recorders_without_steps(runs: Runs) -> str:
    names = dict.fromkeys(python_recorder(run) or "another program" for run in (runs.a, runs.b))
    if len(names) > 1:
        return f"by {' and '.join(names)}, of the whole runs"
    return f"by {next(iter(names))}, which has no steps"


def _whole(runs: Runs) -> Finding:
    a, b = (float(np.median(times)) for times in tables.step_times(runs))
    apart = tables.spread_of_steps(runs)
    thing = "run" if runs.steps is None else "step"
    both = f"{format_ns(a)} → {format_ns(b)}"
    if a == b:
        text = f"No difference: a {thing} takes {format_ns(a)} in both."
        return Finding(text, rule="whole", title=SAME_TIME)
    if not differ(runs):
        text = f"No difference beyond the noise: {both} per step ({_unsure(runs, apart)})."
        return Finding(text, rule="whole", title="No difference between A and B beyond the noise")
    title = f"B's {thing} takes {_relative_time(a, b)}"
    text = f"{title}: {both} ({_unsure(runs, apart)})."
    share = abs(b - a) / max(a, 1)
    return Finding(text, cost_ns=int(abs(b - a)), share=share, rule="whole", title=title)


def _relative_time(a: float, b: float) -> str:
    """Return ``22 % less time``, ``35 % more time`` or, from twice on, ``40 times as long``."""
    if b < 2 * a:
        return f"{format_share(abs(b - a) / a)} {'less' if b < a else 'more'} time"
    times = b / max(a, 1)
    return f"{times:,.0f} times as long" if times >= TEN else f"{times:.1f} times as long"


def _unsure(runs: Runs, apart: float) -> str:
    if runs.steps is None:
        return "not both have steps, so noise and change cannot be distinguished"
    if np.isnan(apart):
        return "one step only, so noise and change cannot be distinguished"
    return f"medians; the steps of one run vary by {format_ns(apart)}"


def _moved(
    runs: Runs, heading: str, table: pd.DataFrame, *, whole_ns: float | None = None
) -> Finding | None:
    """Name the rows that changed the total most, each with its difference.

    ``whole_ns``: the total; None takes a step or run of A.
    """
    if not len(table):
        return None
    real = table[~table["change"].isin([NOISE, SAME])]
    whole = max(whole_ns or float(np.median(tables.step_times(runs)[0])), 1.0)
    # The step's self time is in no op: it is Python's, which the classes of time show.
    real = real[(real["delta_ns"].abs() >= LEAST_SHARE * whole) & (real["name"] != STEPS)]
    if not len(real):
        return None
    named = [_difference(row) for row in real.head(NAMED).to_dict("records")]
    more = f", and {len(real) - NAMED} more" if len(real) > NAMED else ""
    quantities = QUANTITIES.get(heading.lower().removesuffix("s"), {})
    measure = quantities.get(table.attrs.get(MEASURE, ""), "time")
    per = "per step" if runs.steps else "of the run"
    cost = float(real["delta_ns"].abs().max())
    text = f"{heading}: {', '.join(named)}{more} ({measure} {per})."
    most = str(real["name"].iloc[int(real["delta_ns"].abs().to_numpy().argmax())])
    of_what = "" if measure == "time" else f" in {measure}"
    title = f"{KINDS[heading]} {code(most)} changed most{of_what}"
    return Finding(text, cost_ns=int(cost), share=cost / whole, rule="moved", title=title)


def _difference(row: Mapping[Any, Any]) -> str:
    words = f"{code(str(row['name']))} {signed_ns(row['delta_ns'])}"
    return words + {ADDED: " (new in B)", GONE: " (gone)"}.get(row["change"], "")


def _coded_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Name lines by their source; redacted ones are left out, as none can be matched."""
    return table[table["code"] != ""].assign(name=table["code"]) if len(table) else table


def _class_names(table: pd.DataFrame) -> pd.DataFrame:
    if not len(table):
        return table
    states = {"busy": "", "idle": "idle: ", "host": ""}
    names = [states.get(s, "") + c for s, c in zip(table["state"], table["class"], strict=True)]
    return table.assign(name=names)


def _not_alike(runs: Runs) -> list[Finding]:
    """Return what differs between the recordings, not between the programs."""
    devices = [_device_names(run) for run in (runs.a, runs.b)]
    findings = []
    if all(devices) and devices[0] != devices[1]:
        text = f"A ran on {devices[0]}, B on {devices[1]}."
        findings.append(_unlike(text, "A and B ran on different GPUs"))
    if options := _options_that_differ(runs):
        which = ", ".join(options)
        text = f"A and B were recorded with different options ({which}), which take time too."
        findings.append(_unlike(text, "A and B were recorded with different options"))
    return [*findings, *_recorder_findings(runs), *_outside(runs)]


def _unlike(text: str, title: str) -> Finding:
    return Finding(text, rule="unlike", title=title)


def _options_that_differ(runs: Runs) -> list[str]:
    """Return what only one of the runs recorded, as ``stack in B only``."""
    a, b = (_recorded(run) for run in (runs.a, runs.b))
    words = []
    for name in RECORDED:
        if a.get(name) == b.get(name) or not {name} <= a.keys() & b.keys():
            continue
        on = [run for run, options in (("A", a), ("B", b)) if options[name] not in OFF]
        # Both recorded modules, but of different variables.
        both = f"{name} {a[name]} in A and {b[name]} in B"
        words.append(f"{name} in {on[0]} only" if len(on) == 1 else both)
    return words


def _recorded(run: Record) -> dict[str, Any]:
    """Return the run's options as they took effect: with stacks, cProfile does not run."""
    options = dict(run.metadata.get("options") or {})
    return options | ({"cprofile": False} if options.get("stack") else {})


def _recorder_findings(runs: Runs) -> list[Finding]:
    """Say how to read Python functions that two programs, or a sampler, recorded."""
    table = tables.functions(runs)
    if not len(table):
        return []
    names = [python_recorder(run) or "another program" for run in (runs.a, runs.b)]
    findings = []
    if names[0] != names[1]:
        text = (
            f"{names[0]} recorded A's Python functions, {names[1]} B's: each slows them down in "
            "its own way, so small differences between functions mean nothing."
        )
        findings.append(_unlike(text, "Different programs recorded the Python functions"))
    sampled = [
        run for run, of in zip("AB", (runs.a, runs.b), strict=True) if of.metadata.get(SAMPLED)
    ]
    if sampled and table["change"].isin([ADDED, GONE]).any():
        text = (
            f"{' and '.join(sampled)} {'were' if len(sampled) > 1 else 'was'} sampled: a function "
            "that is new or gone may have run in both, between the samples of one."
        )
        findings.append(_unlike(text, "A sampler may have missed functions"))
    return findings


def _outside(runs: Runs) -> list[Finding]:
    """Say how much of the runs is in no step, where that is much."""
    if runs.steps is None:
        return []
    shares = []
    for run in (runs.a, runs.b):
        times = ops(run, "cpu_self")
        shares.append(float(times.ns[times.step < 0].sum()) / max(float(times.ns.sum()), 1.0))
    if max(shares) < OUTSIDE_SHARE:
        return []
    parts = [f"{format_share(share)} of {run}'s" for share, run in zip(shares, "AB", strict=True)]
    text = f"Outside of the steps, and so not compared: {' and '.join(parts)} CPU time."
    return [_unlike(text, "Time outside of the steps is not compared")]


def _device_names(run: Record) -> str:
    """Return the GPUs that a run saw, by name."""
    given: Any = run.metadata.get("devices") or []
    try:
        listed: Sequence[Any] = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return ""
    names = [str(device.get("name")) for device in listed if isinstance(device, Mapping)]
    kinds = dict.fromkeys(names)
    return " and ".join(f"{names.count(kind)} × {kind}" for kind in kinds)

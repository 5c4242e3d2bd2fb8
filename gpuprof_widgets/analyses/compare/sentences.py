"""Findings of a comparison: the step or run as a whole first, then what made the difference."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share, signed_ns
from gpuprof_widgets.analyses.compare import lines, tables
from gpuprof_widgets.analyses.compare.measured import QUANTITIES, ops
from gpuprof_widgets.analyses.compare.tables import (
    ADDED,
    ENOUGH_STEPS,
    GONE,
    MEASURE,
    NOISE,
    SAME,
    Runs,
    are_noise,
)
from gpuprof_widgets.analyses.findings.finding import Finding, code
from gpuprof_widgets.trace.arrays import Floats
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED

STEPS = "ProfilerStep*"
"""The op that stands for all steps of torch's profiler."""
IN_ONE = {ADDED: "in B only", GONE: "in A only"}
"""What rows of one run are called: the other may have them under another name."""
LEAST_SHARE = 0.01
"""Share of a step (or run) of A: smaller differences are in the tables only."""
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
OUTSIDE_SHARE = 0.1
"""Share of the time of all ops that, outside of the steps, is worth mentioning."""

RECORDED = (
    *("stack", "python", "memory", "shapes", "lines"),
    *("modules", "workers", "sync", "flops", "steps"),
)
"""Options that cost time while a cell runs, or end its loop."""

SAME_TIME = "A and B take the same time"
TEN = 9.95
"""Times as long, from which on the number has no decimals."""

NORMAL_95 = 1.96
"""Standard deviations of a normal distribution around 95 % of it."""

MOST_STEPS = 400
"""Steps of a run from which an interval is computed: all pairs would take too much memory."""

RUNS_ENOUGH = 3
"""Other runs of a's code from which on a run that lies far from them all is no noise."""

AGREE = 1.5
"""Times that the difference of the means may be that of the medians, or the other way round."""


def comparison_findings(runs: Runs) -> list[Finding]:
    """Return the sentences: the step or run as a whole, unlike recordings, and the causes.

    Differences within the spread of the steps are no causes.
    """
    if without := [name for name, run in (("A", runs.a), ("B", runs.b)) if not len(run.trace)]:
        return _functions_without_trace(runs, without)
    first = whole(runs)
    if not differ(runs):
        return [first, *_source(runs), *_not_alike(runs)]
    ops = [tables.ops(runs, None)]
    if ops[0].attrs[MEASURE] != "cpu_self":
        ops.append(tables.ops(runs, "cpu_self"))
    causes = (
        _moved(runs, "Where it went", named_classes(tables.classes(runs))),
        *(_moved(runs, "Ops", table) for table in ops),
        _moved(runs, "Kernels", tables.kernels(runs)),
        _moved(runs, "Lines", _named_lines(lines.lines(runs, "cpu_self"))),
        None if len(ops[-1]) else _moved(runs, "Functions", tables.functions(runs)),
    )
    found = [first, *_source(runs), *_not_alike(runs), *_without_text(runs)]
    return [*found, *filter(None, causes)]


def _functions_without_trace(runs: Runs, without: list[str]) -> list[Finding]:
    """Compare runs without a trace (cProfile's files): all functions, and those that changed."""
    table = tables.functions(runs)
    if not len(table):
        verb = "hold" if len(without) > 1 else "holds"
        text = f"{' and '.join(without)} {verb} no trace, so nothing can be compared."
        return [Finding(text, rule="whole", title="Without a trace nothing can be compared")]
    a, b = (int(table[column].sum()) for column in ("total_a_ns", "total_b_ns"))
    if a == b:
        text = f"No difference: the Python functions of both take {format_ns(a)}."
        return [Finding(text, rule="whole", title=SAME_TIME)]
    title = f"B's Python functions take {change_words(a, b)}"
    text = (
        f"{title}: {format_ns(a)} → {format_ns(b)} (by cProfile, which has no steps: noise and "
        "change cannot be distinguished)."
    )
    share = abs(b - a) / max(a, 1)
    first = Finding(text, cost_ns=abs(b - a), share=share, rule="whole", title=title)
    return [first, *filter(None, [_moved(runs, "Functions", table, whole_ns=float(a))])]


def _source(runs: Runs) -> list[Finding]:
    """Say which lines of the source differ, those first whose times differ most, or that none do.

    Where times differ and the code does not, the reader must not take the difference for its work.
    """
    edits = lines.edits(runs)
    if not len(edits):
        if not (differ(runs) and lines.is_same_code(runs)):
            return []
        text = (
            "The recorded code is the same in A and B: the difference comes from elsewhere, such "
            "as warm-up, caches, the data, the machine, or functions that the code calls."
        )
        return [Finding(text, rule="source", title="The recorded code is the same in A and B")]
    moved_ns = edits["delta_ns"].abs().fillna(0).sort_values(ascending=False, kind="stable")
    moved = edits.loc[moved_ns.index]
    named = []
    for row in moved.head(NAMED).to_dict("records"):
        line = row["line_b"] if row["source"] == ADDED else row["line_a"]
        words = f"line {line} {code(row['code'].strip())} {IN_ONE[row['source']]}"
        delta = row["delta_ns"]
        named.append(words if math.isnan(delta) else f"{words} ({signed_ns(delta)})")
    more = f", and {format_count(len(edits) - NAMED, 'more line')}" if len(edits) > NAMED else ""
    per = "per step" if runs.steps else "of the run"
    text = f"Changed in the source: {', '.join(named)}{more} (wall self time {per})."
    title = f"The source differs in {format_count(len(edits), 'line')}"
    cost = int(moved_ns.iloc[0])
    share = cost / max(medians(runs)[0], 1)
    return [Finding(text, cost_ns=cost, share=share, rule="source", title=title)]


def _moved(
    runs: Runs, heading: str, table: pd.DataFrame, *, whole_ns: float | None = None
) -> Finding | None:
    """Name the rows that changed the total most, each with its difference.

    ``whole_ns``: the total; None takes a step or run of A.
    """
    if not len(table):
        return None
    real = table[~table["change"].isin([NOISE, SAME])]
    all_ns = max(whole_ns or medians(runs)[0], 1.0)
    # The self time of steps and of the run is in no op: it is Python's, which the classes show.
    whole_names = (STEPS, runs.a.metadata.get("label"))
    real = real[(real["delta_ns"].abs() >= LEAST_SHARE * all_ns) & ~real["name"].isin(whole_names)]
    if not len(real):
        return None
    named = [
        f"{code(str(row['name']))} {signed_ns(row['delta_ns'])}"
        + (f" ({IN_ONE[row['change']]})" if row["change"] in IN_ONE else "")
        for row in real.head(NAMED).to_dict("records")
    ]
    more = f", and {len(real) - NAMED} more" if len(real) > NAMED else ""
    quantities = QUANTITIES.get(heading.lower().removesuffix("s"), {})
    measure = quantities.get(table.attrs.get(MEASURE, ""), "time")
    per = "per step" if runs.steps else "of the run"
    cost = float(real["delta_ns"].abs().max())
    text = f"{heading}: {', '.join(named)}{more} ({measure} {per})."
    most = str(real["name"].iloc[int(real["delta_ns"].abs().to_numpy().argmax())])
    of_what = "" if measure == "time" else f" in {measure}"
    title = f"{KINDS[heading]} {code(most)} changed most{of_what}"
    return Finding(text, cost_ns=int(cost), share=cost / all_ns, rule="moved", title=title)


def _named_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Name lines by their text, else by their number and cell.

    If some have no text, those that one run has are left out: the other run may have them.
    """
    number = table["line_b"].where(table["line_b"] >= 0, table["line_a"]).astype(str)
    has_text = table["code"] != ""
    named = table.assign(name=table["code"].where(has_text, number + " of " + table["cell"]))
    return named if has_text.all() else named[~named["change"].isin(IN_ONE)]


def named_classes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the classes of time with a ``name``, which says so where the GPU was idle."""
    idle = table["state"] == "idle"
    names = table["class"].astype(object)
    return table.assign(name=names.where(~idle, "idle: " + names))


def _not_alike(runs: Runs) -> list[Finding]:
    """Return what differs between the recordings, not between the programs."""
    devices = [_devices(run) for run in (runs.a, runs.b)]
    findings = [*_endings(runs), *_first_run(runs), *_outliers(runs)]
    if all(devices) and devices[0] != devices[1]:
        text = f"A ran on {devices[0]}, B on {devices[1]}."
        findings.append(_unlike(text, "A and B ran on different GPUs"))
    # Stacks replace calls and samples of Python.
    a, b = (
        options | ({"python": "off"} if options.get("stack") else {})
        for options in (dict(run.metadata.get("options") or {}) for run in (runs.a, runs.b))
    )
    differing = [name for name in RECORDED if name in a and name in b and a[name] != b[name]]
    if differing:
        which = "; ".join(f"{name} {a[name]} in A, {b[name]} in B" for name in differing)
        text = (
            f"A and B were recorded with different options ({which}), which change the times, too."
        )
        findings.append(_unlike(text, "A and B were recorded with different options"))
    return [*findings, *_sampled(runs), *_outside(runs)]


def _without_text(runs: Runs) -> list[Finding]:
    """Say how lines are matched whose text is not known."""
    lacking = [name for name, run in (("A", runs.a), ("B", runs.b)) if lines.lacks_text(run)]
    if not lacking:
        return []
    text = (
        f"The text of lines is not known in {' and '.join(lacking)}, as in a redacted profile: "
        "such lines are matched by their number, and only with one another."
    )
    return [_unlike(text, "Lines are matched by their number")]


def _devices(run: Record) -> str:
    """Return the GPUs that a run saw, as ``2 × NVIDIA A100``; "" where it tells none."""
    devices = run.metadata.get("devices") or ()
    names = [str(device.get("name")) for device in devices if isinstance(device, dict)]
    return " and ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _endings(runs: Runs) -> list[Finding]:
    """Say which run did not reach its end."""
    ended = []
    for name, run in (("A", runs.a), ("B", runs.b)):
        error = str(run.metadata.get("error") or "").partition(":")[0]
        if error or run.metadata.get("interrupted"):
            how = f"raised {code(error)}" if error else "was interrupted"
            text = f"{name} {how}: it has not done all that the other run did."
            ended.append(_unlike(text, f"{name} did not reach its end"))
    return ended


def _first_run(runs: Runs) -> list[Finding]:
    """Say that A warmed up, where that may be why B is faster."""
    a, b = medians(runs)
    if not runs.earlier.a_is_first or b >= a or not differ(runs):
        return []
    text = (
        "A is the first recorded run of this cell: it may also have paid for warm-up (imports, "
        "allocations, compilation). Run the cell once more before you trust the difference."
    )
    return [_unlike(text, "A is the first recorded run of this cell")]


def _outliers(runs: Runs) -> list[Finding]:
    """Say that single steps make the averages, which differ from the medians then."""
    if runs.steps is None or not differ(runs) or means_agree(runs):
        return []
    times = tables.step_times(runs)
    means = format_ns(float(times[0].mean())), format_ns(float(times[1].mean()))
    slow, slowest = max((float(of.max()), name) for of, name in zip(times, "AB", strict=True))
    text = (
        f"Single slow steps dominate the averages, {means[0]} → {means[1]} (the slowest step of "
        f"{slowest} took {format_ns(slow)}): what follows is about averages."
    )
    return [_unlike(text, "Single slow steps dominate the averages")]


def _unlike(text: str, title: str) -> Finding:
    return Finding(text, rule="unlike", title=title)


def _sampled(runs: Runs) -> list[Finding]:
    """Say that functions that a sampler saw in one run may have run in both."""
    sampled = [name for name, run in (("A", runs.a), ("B", runs.b)) if run.metadata.get(SAMPLED)]
    if not sampled or not tables.functions(runs)["change"].isin(IN_ONE).any():
        return []
    text = (
        f"{' and '.join(sampled)} {'were' if len(sampled) > 1 else 'was'} sampled: a function that "
        "only one run has may have run in both, between the samples of one."
    )
    return [_unlike(text, "A sampler may have missed functions")]


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


def whole(runs: Runs) -> Finding:
    """Return the finding on the step or run as a whole."""
    a, b = medians(runs)
    thing = "run" if runs.steps is None else "step"
    both = f"{format_ns(a)} → {format_ns(b)}"
    if a == b:
        text = f"No difference: a {thing} takes {format_ns(a)} in both."
        return Finding(text, rule="whole", title=SAME_TIME)
    if not differ(runs):
        text = f"No difference beyond the noise: {both} per {thing} ({_unsure(runs)})."
        return Finding(text, rule="whole", title="No difference between A and B beyond the noise")
    title = f"B's {thing} takes {change_words(a, b)}"
    text = f"{title}: {both} ({_unsure(runs)})."
    share = abs(b - a) / max(a, 1)
    return Finding(text, cost_ns=int(abs(b - a)), share=share, rule="whole", title=title)


def change_words(a: float, b: float) -> str:
    """Return ``22 % less time`` or, from twice on, ``40 times as long``."""
    if b < 2 * a:
        return f"{format_share(abs(b / a - 1))} {'less' if b < a else 'more'} time"
    times = b / max(a, 1)
    return f"{times:,.0f} times as long" if times >= TEN else f"{times:.1f} times as long"


def medians(runs: Runs) -> tuple[float, float]:
    """Return how long (ns) a step or run takes in either run."""
    a, b = tables.step_times(runs)
    return float(np.median(a)), float(np.median(b))


def differ(runs: Runs) -> bool:
    """Whether the steps of the runs differ by more than noise, if that can be known.

    With four steps and more the interval of their ratio does not hold 1 either. Where they have no
    steps, b differs by noise if it lies among other runs of a's code; of three or more, also if it
    is no further away from them than they lie apart.
    """
    a, b = tables.step_times(runs)
    if np.isnan(tables.spread_of_steps(runs)):
        known = [float(np.median(a)), *runs.earlier.times_ns]
        low, high = min(known), max(known)
        beyond = high - low if _are_enough(runs) else 0
        return not low - beyond <= float(np.median(b)) <= high + beyond
    low, high = ratio_interval(a, b)
    return not (low <= 1 <= high) and not are_noise(a[None, :], b[None, :])[0]


def _are_enough(runs: Runs) -> bool:
    return len(runs.earlier.times_ns) >= RUNS_ENOUGH


def ratio_interval(a: Floats, b: Floats) -> tuple[float, float]:
    """Return between what the ratio b / a of the times of steps lies, at 95 % confidence.

    That is the interval of Hodges and Lehmann (1963): of all ratios of a step of b to one of a, the
    k-th from either end, where k is that of the rank sum test (normal approximation; Hollander and
    Wolfe, Nonparametric Statistical Methods, section 4.3). It assumes nothing of the distribution,
    but that the steps of a run do not depend on one another. NaN with fewer than four steps in
    either run.
    """
    n, m = len(a), len(b)
    if min(n, m) < ENOUGH_STEPS or a.min() <= 0:
        return math.nan, math.nan
    # Of many steps so many stand for all, evenly spaced in the order of their times.
    evenly = (np.arange(MOST_STEPS) + 0.5) / MOST_STEPS
    a, b = (np.quantile(of, evenly) if len(of) > MOST_STEPS else of for of in (a, b))
    ratios = np.sort((b[:, None] / a[None, :]).ravel())
    k = n * m / 2 - NORMAL_95 * math.sqrt(n * m * (n + m + 1) / 12)
    k = max(math.floor(k * len(ratios) / (n * m)), 1)
    return float(ratios[k - 1]), float(ratios[-k])


def _unsure(runs: Runs) -> str:
    """Return how the times were made, and what is known of their noise."""
    if runs.steps is not None and min(runs.steps) >= 2:
        low, high = ratio_interval(*tables.step_times(runs))
        interval = "" if math.isnan(low) else f"; 95 % interval of B / A: {low:.3g} to {high:.3g}"
        apart = f"the steps of one run vary by {format_ns(tables.spread_of_steps(runs))}"
        return f"medians of {runs.steps[0]:,} and {runs.steps[1]:,} steps{interval}; {apart}"
    others = _others(runs)
    if _are_enough(runs) or (others and not differ(runs)):
        return others
    thing = "one step only" if runs.steps is not None else "not both have steps"
    unknown = f"{thing}, so noise and change cannot be distinguished"
    return f"{unknown}; {others}" if others else unknown


def _others(runs: Runs) -> str:
    """Return how long other runs of a's code took, "" where none is known."""
    times = runs.earlier.times_ns
    if not times:
        return ""
    low, high = format_ns(min(times)), format_ns(max(times))
    took = low if low == high else f"{low} to {high}"
    return f"{format_count(len(times), 'other run')} of A's code took {took}"


def means_agree(runs: Runs) -> bool:
    """Whether the means differ about as much as the medians, which no single slow step moves."""
    a, b = tables.step_times(runs)
    means, medians = float(b.mean() - a.mean()), float(np.median(b) - np.median(a))
    return means * medians > 0 and 1 / AGREE <= means / medians <= AGREE

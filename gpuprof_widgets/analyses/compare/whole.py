"""The sentence on a step or run as a whole: how much time, and how sure that is."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.compare import tables
from gpuprof_widgets.analyses.compare.tables import ENOUGH_STEPS, Runs, are_noise
from gpuprof_widgets.analyses.findings.finding import Finding

Numbers = npt.NDArray[np.float64]

SAME_TIME = "A and B take the same time"
TEN = 9.95
"""Times as long, from which on the number has no decimals."""

NORMAL_95 = 1.96
"""Standard deviations of a normal distribution around 95 % of it."""

MOST_STEPS = 400
"""Steps of a run, evenly spaced in the order of their times, that stand for all in an interval."""

RUNS_ENOUGH = 3
"""Other runs of a's code from which on a run that lies far from them all is no noise."""

AGREE = 1.5
"""Times that the difference of the means may be that of the medians, or the other way round."""


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


def ratio_interval(a: Numbers, b: Numbers) -> tuple[float, float]:
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
    ratios = np.sort((_thinned(b)[:, None] / _thinned(a)[None, :]).ravel())
    k = n * m / 2 - NORMAL_95 * math.sqrt(n * m * (n + m + 1) / 12)
    k = max(math.floor(k * len(ratios) / (n * m)), 1)
    return float(ratios[k - 1]), float(ratios[-k])


def _thinned(times: Numbers) -> Numbers:
    """Return at most `MOST_STEPS` of the times, which stand for all."""
    if len(times) <= MOST_STEPS:
        return times
    middle_of_each = (np.arange(MOST_STEPS) + 0.5) / MOST_STEPS
    return np.quantile(times, middle_of_each)


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

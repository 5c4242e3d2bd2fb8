"""The sentence on a step or run as a whole: how much time, how sure that is, and what made it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.compare import tables
from gpuprof_widgets.analyses.compare.tables import ENOUGH_STEPS, MEASURE, NOISE, Runs, are_noise
from gpuprof_widgets.analyses.findings.finding import Finding, code
from gpuprof_widgets.analyses.waits import DATALOADER

Numbers = npt.NDArray[np.float64]

STEPS = "ProfilerStep*"
"""The op that stands for all steps of torch's profiler."""
SAME_TIME = "A and B take the same time"
TEN = 9.95
"""Times as long, from which on the number has no decimals."""

NORMAL_95 = 1.96
"""Standard deviations of a normal distribution around 95 % of it."""

LOPSIDED = 1.5
"""How much further one end of an interval may be from the middle than the other, to be a ±."""

WIDE = 0.2
"""Share of a change from which on it matters that its interval is lopsided."""

MOST_STEPS = 400
"""Steps of a run, evenly spaced in the order of their times, that stand for all in an interval."""

RUNS_ENOUGH = 3
"""Other runs of a's code from which on a run that lies far from them all is no noise."""

ALL, MOST = 0.95, 0.6
"""Shares of the difference that one op has at least, for "all of it" and "most of it"."""
NEARLY = 0.9
"""Share of what is left of a's time from which on half an interval, rounded, may exceed it."""
AGREE = 1.5
"""Times that the difference of the means may be that of the medians, or the other way round."""
AGAINST = 0.1
"""Share of the difference by which other ops may work against it, or the GPU differ from it."""


@dataclass(frozen=True)
class Change:
    """How long (ns) a step or run takes in either run, medians, and the ``interval`` of b / a.

    The interval is that of `ratio_interval`: NaN where it is not known.
    """

    a: float
    b: float
    interval: tuple[float, float] = (math.nan, math.nan)

    def words(self) -> str:
        """Return ``22 % ± 3 % less time`` or, from twice on, ``40 times as long``."""
        if self.b < 2 * self.a:
            return f"{self._share()} {'less' if self.b < self.a else 'more'} time"
        times = self.b / max(self.a, 1)
        return f"{times:,.0f} times as long" if times >= TEN else f"{times:.1f} times as long"

    def _share(self) -> str:
        """Return the share that changed, with its interval.

        That is written out if it is lopsided, or if its half is more than the change or nearly what
        is left of a: nothing takes 110 % less time.
        """
        ratio = self.b / self.a
        share = format_share(abs(ratio - 1))
        near, far = sorted(abs(end - ratio) for end in self.interval)
        if not far > 0:  # NaN too
            return share
        effect = abs(ratio - 1)
        if far >= min(effect, NEARLY * ratio) or (far > LOPSIDED * near and far > WIDE * effect):
            least, most = sorted(abs(end - 1) for end in self.interval)
            return f"{_short(least)} to {_short(most)}"
        return f"{share} ± {_short(far)}"


def _short(share: float) -> str:
    return format_share(share).replace(".0 %", " %")


def whole(runs: Runs) -> Finding:
    """Return the finding on the step or run as a whole."""
    change = change_of(runs)
    a, b = change.a, change.b
    thing = "run" if runs.steps is None else "step"
    both = f"{format_ns(a)} → {format_ns(b)}"
    if a == b:
        text = f"No difference: a {thing} takes {format_ns(a)} in both."
        return Finding(text, rule="whole", title=SAME_TIME)
    if not differ(runs):
        known = f"{_unsure(runs)}{_both_ways(runs, change)}"
        text = f"No difference beyond the noise: {both} per {thing} ({known})."
        return Finding(text, rule="whole", title="No difference between A and B beyond the noise")
    title = f"B's {thing} takes {change.words()}"
    text = f"{title}{_made_by(runs)}: {both} ({_unsure(runs, title)})."
    share = abs(b - a) / max(a, 1)
    return Finding(text, cost_ns=int(abs(b - a)), share=share, rule="whole", title=title)


def _both_ways(runs: Runs, change: Change) -> str:
    """Say that the interval holds 1, where the medians lie further apart than the steps vary."""
    least, most = change.interval
    if not least <= 1 <= most or abs(change.b - change.a) <= tables.spread_of_steps(runs):
        return ""
    less, more = _short(1 - least), _short(most - 1)
    return f"; the 95 % interval of the difference reaches from {less} less to {more} more time"


def change_of(runs: Runs) -> Change:
    """Return the times of both runs as a whole."""
    a, b = tables.step_times(runs)
    return Change(float(np.median(a)), float(np.median(b)), ratio_interval(a, b))


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


def _unsure(runs: Runs, said: str = "") -> str:
    """Return how the times were made, and what is known of their noise.

    ``said``: the words before, which may have an interval to explain.
    """
    if runs.steps is not None and min(runs.steps) >= 2:
        apart = f"the steps of one run vary by {format_ns(tables.spread_of_steps(runs))}"
        interval = next((words for sign, words in _INTERVALS.items() if sign in said), "")
        return f"medians of {runs.steps[0]:,} and {runs.steps[1]:,} steps{interval}; {apart}"
    others = _others(runs)
    if _are_enough(runs) or (others and not differ(runs)):
        return others
    thing = "one step only" if runs.steps is not None else "not both have steps"
    unknown = f"{thing}, so noise and change cannot be distinguished"
    return f"{unknown}; {others}" if others else unknown


_INTERVALS = {" ± ": ", ± is their 95 % interval", " % to ": ", which give that 95 % interval"}
"""What explains an interval, by its sign in a sentence."""


def _others(runs: Runs) -> str:
    """Return how long other runs of a's code took, "" where none is known."""
    times = runs.earlier.times_ns
    if not times:
        return ""
    low, high = format_ns(min(times)), format_ns(max(times))
    took = low if low == high else f"{low} to {high}"
    return f"{format_count(len(times), 'other run')} of A's code took {took}"


def _made_by(runs: Runs) -> str:
    """Return ``, all of it in `aten::copy_` `` where one op made the difference, else "".

    Nothing is said where other ops work against it: then it takes two to make the difference.
    """
    table = tables.ops(runs, None)
    before, after = (float(np.mean(times)) for times in tables.step_times(runs))
    delta = after - before
    if not (len(table) and means_agree(runs)) or (
        table.attrs[MEASURE] != "cpu_self" and not _is_the_gpus(runs, delta)
    ):
        return ""
    shares = table["delta_ns"].to_numpy(float) / delta
    first = int(shares.argmax())
    against = -shares[shares < 0].sum()
    if shares[first] < MOST or shares.sum() > 1 + AGAINST or against > AGAINST:
        return ""
    row = table.iloc[first]
    if row["change"] == NOISE:
        return ""
    how_much = "all" if shares[first] >= ALL else "most"
    if DATALOADER.fullmatch(str(row["name"])):
        return f", {how_much} of it waiting for the DataLoader"
    is_python = row["name"] == STEPS or row["category"] == "user_annotation"
    where = "Python, outside of ops" if is_python else code(str(row["name"]))
    return f", {how_much} of it in {where}"


def means_agree(runs: Runs) -> bool:
    """Whether the means differ about as much as the medians, which no single slow step moves."""
    a, b = tables.step_times(runs)
    means, medians = float(b.mean() - a.mean()), float(np.median(b) - np.median(a))
    return means * medians > 0 and 1 / AGREE <= means / medians <= AGREE


def _is_the_gpus(runs: Runs, delta: float) -> bool:
    """Whether the GPU was busy for as much longer as the steps took longer."""
    steps = tables.steps(runs)
    paired = steps[(steps["a_ns"] > 0) & (steps["b_ns"] > 0)]
    busy: pd.Series[float] = paired["gpu_busy_b_ns"] - paired["gpu_busy_a_ns"]
    return len(paired) > 0 and abs(float(busy.mean()) - delta) <= AGAINST * abs(delta)

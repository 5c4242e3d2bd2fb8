"""How much slower the recorded steps of a loop were than those before them."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.recording_less import what_to_leave_out
from gpuprof_widgets.analyses.findings.wording import share_of
from gpuprof_widgets.analyses.iterations import iterations, usual_steps
from gpuprof_widgets.analyses.quantity import format_count, format_ns
from gpuprof_widgets.trace.model import Record

ENOUGH = 2  # steps of either kind: the median of a single one is whatever happened in it
SPREAD = 5  # unrecorded steps: of fewer it is unknown how much they differ by themselves

MORE_STEPS = "More steps would tell: a longer --warmup, and more --steps."
SHORT_OPS = "Short ops look slower than they are, long ones hardly"


def step_overhead(record: Record, *, step_slowdown: float = 1.1) -> list[Finding]:
    """Fires where the recorded steps of a bounded loop took 1.1 times as long or more.

    Also where that cannot be told: there are too few of either kind, or their times differ more
    among themselves.

    ``step_slowdown``: Times as slow as unrecorded steps; below it, it is the difference between any
        few steps.
    """
    table = iterations(record)
    if not (table["kind"] == "recorded").any():
        return []
    plain, recorded = usual_steps(record)
    if min(len(plain), len(recorded)) < ENOUGH:
        text = _too_few(len(plain), len(recorded))
        return [Finding(text, remedy=MORE_STEPS)]
    before, during = float(plain.median()), float(recorded.median())
    if share_of(during, before) < step_slowdown:
        return []
    if _is_noise(plain, recorded):
        return [Finding(_too_uneven(plain, recorded), remedy=MORE_STEPS)]
    cost = round((during - before) * len(recorded))
    text = (
        f"Profiling made a step {share_of(during, before):.1f}x slower: the median is "
        f"{format_ns(during)} in {format_count(len(recorded), 'recorded step')}, "
        f"{format_ns(before)} in {format_count(len(plain), 'unrecorded one')} before."
    )
    share = min(share_of(cost, int(recorded.sum())), 1.0)
    return [Finding(text, cost, share, remedy=_remedy(record))]


def _remedy(record: Record) -> str:
    without = what_to_leave_out(record)
    less = f"; record less (without {without}) for times nearer to the truth" if without else ""
    return f"{SHORT_OPS}{less}."


def _is_noise(plain: pd.Series, recorded: pd.Series) -> bool:
    """Whether the medians are no further apart than steps of one kind are from their own.

    Nor is it known where there are few unrecorded ones. Unless each recorded step took longer than
    every one before. As one may be an outlier, it is the median deviation that counts, not the
    range.
    """
    if float(recorded.min()) > float(plain.max()):
        return False
    apart = float(recorded.median() - plain.median())
    usual = max(float((kind - kind.median()).abs().median()) for kind in (plain, recorded))
    return len(plain) < SPREAD or apart <= usual


def _too_uneven(plain: pd.Series, recorded: pd.Series) -> str:
    return (
        "How much slower profiling made a step cannot be told: their times are too uneven, "
        f"{_range(recorded)} in {format_count(len(recorded), 'recorded step')}, "
        f"{_range(plain)} in {format_count(len(plain), 'unrecorded one')} before."
    )


def _range(times: pd.Series) -> str:
    return f"{format_ns(int(times.min()))} to {format_ns(int(times.max()))}"


def _too_few(plain: int, recorded: int) -> str:
    return (
        "How much slower profiling made a step cannot be told: that takes "
        f"{format_count(ENOUGH, 'step')} of either kind after the loop's first, and there are "
        f"{plain} unrecorded and {recorded} recorded."
    )

"""Stalls of the CPU: single calls that take far longer than others of their name.

Whatever op runs then is not to blame: something held up its thread, and with it the launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import code
from gpuprof_widgets.trace.model import Trace

TIMES_USUAL = 20
"""Times the median of its name: a call this much longer stalled."""
LEAST_CALLS = 5
"""Calls of a name from which on their median tells what is usual."""
LEAST_NS = 1_000_000
"""Length of a gap from which on a stall is looked for."""
MOST = 0.5
"""Share of a gap in which calls of that name ran, and of all idle time that is mostly stalls."""
REMEDY = (
    "Something held up the thread that launches, whatever op it was in: other programs, ranks or "
    "threads on its CPUs, garbage collection, first calls, or the recording itself. Give each rank "
    "CPUs of its own, warm up for longer, and record again."
)


@dataclass(frozen=True)
class Stalls:
    """The gaps of a GPU that stalls of the CPU caused, the longest first.

    ``gaps``: rows of `idle`; ``calls``: the stalled call in each (a slice); ``usual_ns``: the
    median duration of its name; ``share``: of all idle time.
    """

    gaps: pd.DataFrame
    calls: npt.NDArray[np.intp]
    usual_ns: npt.NDArray[np.float64]
    share: float

    def in_words(self, trace: Trace, span_ns: int) -> str:
        """Return their number and time, and what stalled in the longest gap."""
        took, longest = int(self.gaps["dur_ns"].sum()), int(self.gaps["dur_ns"].iloc[0])
        call = int(self.calls[0])
        return (
            f"{format_count(len(self.gaps), 'stall')} of the CPU ({format_ns(took)}, "
            f"{format_share(took / span_ns)} of the time); in the longest gap, "
            f"{format_ns(longest)}, {code(str(trace.index.names_of(self.calls[:1])[0]))} took "
            f"{format_ns(int(trace.index.dur[call]))}, where its median call takes "
            f"{format_ns(self.usual_ns[0])}"
        )


def stalled(dur: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the calls of one name stalled, by their durations."""
    if len(dur) < LEAST_CALLS:
        return np.zeros(len(dur), bool)
    return np.asarray(dur >= TIMES_USUAL * max(float(np.median(dur)), 1), bool)


def main_stalls(trace: Trace, gaps: pd.DataFrame) -> Stalls | None:
    """Return the stalls that caused most of a GPU's idle time; None where they did not.

    ``gaps``: those of the GPU, the longest first.
    """
    long = gaps[(gaps["dur_ns"] >= LEAST_NS) & (gaps["cpu"] >= 0) & (gaps["cpu_share"] >= MOST)]
    if 2 * int(long["dur_ns"].sum()) <= int(gaps["dur_ns"].sum()):
        return None
    calls, usual = zip(*(_stalled_call(trace, gap) for _, gap in long.iterrows()), strict=True)
    are_stalls = np.array(calls) >= 0
    found = long[are_stalls]
    share = int(found["dur_ns"].sum()) / max(int(gaps["dur_ns"].sum()), 1)
    if share <= MOST:
        return None
    return Stalls(found, np.array(calls)[are_stalls], np.array(usual)[are_stalls], share)


def _stalled_call(trace: Trace, gap: pd.Series) -> tuple[int, float]:
    """Return the call that stalled during a gap and the median of its name; -1: none did."""
    index = trace.index
    same = np.flatnonzero(index.name == index.name[int(gap["cpu"])])
    dur = index.dur[same]
    during = (index.ts[same] < gap["end_ns"]) & (index.end[same] > gap["start_ns"])
    found = np.flatnonzero(stalled(dur) & during)
    if not len(found):
        return -1, 0.0
    return int(same[found[dur[found].argmax()]]), float(np.median(dur))

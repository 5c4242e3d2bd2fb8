"""Each rank's time in a few parts that add up, for the first table of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.ranks.reduced import WHOLE, ReducedRank

PARTS = ("computing_ns", "waiting_ns", "moving_ns", "copying_ns", "idle_ns")
COLUMNS = ("rank", "span_ns", *PARTS)

COMPUTING, COMMUNICATION = "compute", "exposed communication"
COPYING = ("exposed copy", "memset")
OPS = "CPU ops"


def overview(ranks: Sequence[ReducedRank], waiting: pd.DataFrame) -> pd.DataFrame:
    """One row per rank: where its time went; the parts add up to the span.

    Columns (ns): ``rank``, ``span_ns`` (of all its GPUs together), ``computing_ns`` (compute
    kernels; without a GPU the main thread in ops), ``waiting_ns`` and ``moving_ns`` (in
    collectives with nothing computed meanwhile: before and after the last rank had come, split as
    the collectives are as a whole), ``copying_ns`` (copies and memsets that nothing hid),
    ``idle_ns`` (the rest).
    """
    rows = [_row(one, waiting[waiting["rank"] == one.rank]) for one in ranks]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(rank: ReducedRank, waiting: pd.DataFrame) -> dict[str, int]:
    whole = rank.breakdown[rank.breakdown["step"] == WHOLE]
    times = whole.groupby("class")["time_ns"].sum().to_dict()
    span = int(whole.groupby("device")["span_ns"].first().sum()) if len(whole) else 0
    computing = int(times.get(COMPUTING if COMPUTING in times else OPS, 0))
    exposed = int(times.get(COMMUNICATION, 0))
    copying = int(sum(times.get(name, 0) for name in COPYING))
    waited = round(exposed * _waited_share(waiting))
    return {
        "rank": rank.rank,
        "span_ns": span,
        "computing_ns": computing,
        "waiting_ns": waited,
        "moving_ns": exposed - waited,
        "copying_ns": copying,
        "idle_ns": span - computing - exposed - copying,
    }


def _waited_share(waiting: pd.DataFrame) -> float:
    """What share of the exposed time of collectives was waiting."""
    exposed = waiting["exposed_ns"].to_numpy(np.float64)
    lasted = waiting["dur_ns"].clip(lower=1).to_numpy(np.float64)
    waited = float((exposed * waiting["wait_ns"].to_numpy(np.float64) / lasted).sum())
    total = float(exposed.sum())
    return waited / total if total else 0.0

"""Which collective of one rank is which of the others: by group, order and name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.ranks.reduced import ReducedRank

Ints = npt.NDArray[np.int64]

POINT_TO_POINT = ("send", "recv", "send_recv")
"""Between two ranks, which do different things: nothing to be matched by name."""

COLUMNS = (
    *("collective", "rank", "name", "backend", "dtype", "bytes", "group", "ranks", "device"),
    *("start_ns", "end_ns", "dur_ns", "exposed_ns", "row"),
    *("lead_ns", "lead_compute_ns", "lead_input_ns", "lead_name", "lead_name_ns"),
)

MOST_SHIFT = 64
"""Collectives that one trace may lack at its beginning beyond what the numbers of them tell."""


def matched(ranks: Sequence[ReducedRank]) -> pd.DataFrame:
    """One row per collective and rank that took part in it; those of one rank alone are left out.

    ``collective`` numbers them in order of time. Where torch numbered the collectives of a group
    (``Seq``) that number decides. Else it is their order within the group: the n-th of one rank is
    the n-th of every other, if their names agree; where a trace lacks some, its sequence is moved
    against the longest one until most names agree, and of several such positions the one is taken
    at which the ends lie closest together. Times are ns since the epoch, on each rank's own clock.
    """
    tables = [rank.collectives.assign(rank=rank.rank) for rank in ranks if len(rank.collectives)]
    if not tables:
        return pd.DataFrame(columns=list(COLUMNS))
    calls = pd.concat(tables, ignore_index=True)
    calls = calls[~calls["name"].isin(POINT_TO_POINT)]
    groups = [_of_group(group) for _, group in calls.groupby(_group_key(calls), sort=False)]
    groups = [group for group in groups if len(group)]
    if not groups:
        return pd.DataFrame(columns=list(COLUMNS))
    return _numbered(groups)


def _group_key(calls: pd.DataFrame) -> pd.Series:
    """Collectives on the CPU and on GPUs are of different backends, so of different orders."""
    where = (calls["device"] < 0).map({True: "cpu ", False: "gpu "})
    return where.astype(str) + calls["group"].astype(str)


def _of_group(calls: pd.DataFrame) -> pd.DataFrame:
    """The rows of one group with ``position``, equal for the same collective on all ranks."""
    calls = calls.sort_values(["rank", "start_ns"], kind="stable")
    if (calls["sequence"] >= 0).all():
        nth = calls.groupby(["rank", "sequence"]).cumcount()
        calls = calls.assign(position=calls["sequence"] * (int(nth.max()) + 1) + nth)
    else:
        calls = _by_order(calls)
    alike = calls.groupby("position")["name"].transform("nunique") == 1
    many = calls.groupby("position")["rank"].transform("nunique") > 1
    return calls[alike & many & (calls["position"] >= 0)]


def _by_order(calls: pd.DataFrame) -> pd.DataFrame:
    sequences = [table for _, table in calls.groupby("rank", sort=True)]
    longest = max(sequences, key=len)
    names = _signatures(calls)
    reference = names[longest.index].to_numpy(), longest["end_ns"].to_numpy(np.int64)
    parts = []
    for table in sequences:
        here = names[table.index].to_numpy(), table["end_ns"].to_numpy(np.int64)
        shift = _best_shift(here, reference)
        position = np.arange(len(table)) + shift
        parts.append(table.assign(position=_where_alike(position, here[0], reference[0])))
    return pd.concat(parts)


def _signatures(calls: pd.DataFrame) -> pd.Series:
    """Number of each operation and data type; sizes may differ between ranks."""
    text = calls["name"].astype(str) + " " + calls["dtype"].astype(str)
    return pd.Series(pd.factorize(text)[0], index=calls.index)


def _best_shift(here: tuple[Ints, Ints], reference: tuple[Ints, Ints]) -> int:
    """By how many places to move a sequence so that it fits the reference best."""
    missing = len(reference[0]) - len(here[0])
    if not missing and np.array_equal(here[0], reference[0]):
        return 0
    shifts = range(-min(MOST_SHIFT, len(here[0])), missing + MOST_SHIFT + 1)
    return min(shifts, key=lambda shift: _misfit(shift, here, reference))


def _misfit(
    shift: int, here: tuple[Ints, Ints], reference: tuple[Ints, Ints]
) -> tuple[int, float, int]:
    """Smaller is better: names that agree (negated), how far apart ends lie, how far it moved."""
    low, high = max(0, -shift), min(len(here[0]), len(reference[0]) - shift)
    if high <= low:
        return 0, np.inf, abs(shift)
    alike = here[0][low:high] == reference[0][low + shift : high + shift]
    apart = (here[1][low:high] - reference[1][low + shift : high + shift])[alike]
    spread = float(np.abs(apart - np.median(apart)).mean()) if len(apart) else np.inf
    return -int(alike.sum()), spread, abs(shift)


def _where_alike(position: Ints, here: Ints, reference: Ints) -> Ints:
    """The positions at which the reference has the same operation, else -1."""
    inside = (position >= 0) & (position < len(reference))
    alike = inside & (reference[np.where(inside, position, 0)] == here)
    return np.where(alike, position, -1)


def _numbered(groups: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All groups in one table, their collectives numbered by when the first rank began."""
    table = pd.concat(
        [group.assign(of_group=number) for number, group in enumerate(groups)], ignore_index=True
    )
    keys = ["of_group", "position"]
    first = table.groupby(keys)["start_ns"].min().reset_index().sort_values("start_ns")
    first = first.assign(collective=np.arange(len(first)))[[*keys, "collective"]]
    table = table.merge(first, on=keys)
    return table.sort_values(["collective", "rank"], ignore_index=True)[list(COLUMNS)]

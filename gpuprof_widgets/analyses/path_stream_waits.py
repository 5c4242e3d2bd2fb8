"""Waits of GPU slices for other streams that no recorded event tells, inferred from the times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.path_streams import NEVER, GpuWork
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

NEAR_NS = 20_000
"""From the end of a slice until one of another stream that waited for it begins: 1 to 6 us in a
trace of A100s, up to 19 us in one of MI300Xs (where the event that joins them was traced)."""


def stream_waits(work: GpuWork, ready: Ints) -> tuple[Ints, Ints]:
    """Pairs of GPU slices: the second must have waited for the first, on another stream.

    ``ready``: when all that is known to let a slice begin usually had done so. A slice that begins
    at most `NEAR_NS` after the end of a slice of another stream of its device waited for that, by
    an event that was not traced or for room on the GPU, where that end was more than `NEAR_NS`
    after ``ready``: less may be chance. One whose launch is unknown may have been launched that
    late: it counts where a single slice of the other stream ran during all the time since
    ``ready``, or where it is communication, whose stream torch's process group makes wait for the
    work before it.
    """
    source = _last_ended(work, work.start - ready > NEAR_NS)
    ended, began = (np.append(times, NEVER)[source] for times in (work.end, work.start))
    near = (source >= 0) & (work.start - ended <= NEAR_NS) & (ended - ready > NEAR_NS)
    communication = work.kind == "communication"
    found = np.flatnonzero(near & ((work.launched != NEVER) | (began <= ready) | communication))
    return source[found], found


def _last_ended(work: GpuWork, wanted: npt.NDArray[np.bool_]) -> Ints:
    """Of each wanted slice the one of its device that ended last before it began; -1 for none."""
    device = work.names["device"].to_numpy()[work.stream]
    found = np.full(len(work), NONE, np.int64)
    for one in np.unique(device[wanted]):
        mine = np.flatnonzero(device == one)
        mine = mine[np.argsort(work.end[mine], kind="stable")]
        asked = np.flatnonzero(wanted & (device == one))
        at = np.searchsorted(work.end[mine], work.start[asked], side="right") - 1
        found[asked] = np.where(at >= 0, mine[np.maximum(at, 0)], NONE)
    return found

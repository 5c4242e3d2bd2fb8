"""What a slice of GPU work is: compute, communication, copy or memset; one place for the rule."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.op_rows import gpu_rows
from gpuprof_widgets.trace.model import Trace

COMPUTE, COMMUNICATION, COPY, MEMSET = "compute", "communication", "copy", "memset"
KINDS = (COMPUTE, COMMUNICATION, COPY, MEMSET)

COMMUNICATING = re.compile(
    r"\b(nccl|rccl|msccl)|deep_?ep|nvshmem|rocshmem|symm_mem|cross_device_reduce"
    r"|(one|two)_?shot_all_?reduce|multimem_(all|reduce)",
    re.IGNORECASE,
)
"""Names of kernels that move data between ranks: NCCL and RCCL, and those that are neither."""


def gpu_kinds(trace: Trace) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.object_]]:
    """The rows of all GPU slices, and for each one of `KINDS`.

    A kernel communicates when its name says so (`COMMUNICATING`) or when it carries the name of a
    collective. Names that merely start with ``hip`` do not: those are AMD's compute kernels.
    """
    rows = gpu_rows(trace)
    slices = trace.slices
    category = slices["category"].to_numpy(object)[rows]
    names = slices["name"].cat
    by_name = np.array([is_communicating(str(name)) for name in names.categories], bool)
    talks = np.append(by_name, False)[names.codes.to_numpy()[rows]]
    if (collective := trace.args.get("Collective name")) is not None:
        talks |= np.isin(rows, collective.index[collective.notna()])
    conditions = [category == "gpu_memcpy", category == "gpu_memset", talks]
    return rows, np.select(conditions, [COPY, MEMSET, COMMUNICATION], COMPUTE).astype(object)


@lru_cache(maxsize=10_000)
def is_communicating(name: str) -> bool:
    """Whether a kernel of that name moves data between ranks."""
    return bool(COMMUNICATING.search(name))

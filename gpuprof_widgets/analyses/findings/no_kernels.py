"""Launches without what they launched: nothing recorded the GPU's side."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code
from gpuprof_widgets.analyses.host_states import LAUNCHES
from gpuprof_widgets.analyses.lacking import NSYS, NVPROF, recorder_of
from gpuprof_widgets.trace.model import Record, Trace

EVIDENCE = 2_000
NAMED = 3  # calls
OF_HIP = re.compile(r"hip\w+")
HELD = "another profiler held {library} (one at a time may), or it had no permission ({permission})"
CUPTI = HELD.format(
    library="CUPTI",
    permission="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, NVIDIA's ERR_NVGPUCTRPERM; in a container: "
    "--cap-add=SYS_ADMIN",
)
ROCTRACER = HELD.format(
    library="roctracer",
    permission="in a container: --device=/dev/kfd --device=/dev/dri",
)
REMEDY = "Either ProfilerActivity.CUDA was not among the activities, or {held}."
UNDER_NSYS = "Record with nsys profile --trace=cuda; if it was, {held}."


def no_kernels(record: Record) -> list[Finding]:
    """Fires where calls that launch GPU work are in the trace, and no GPU work is.

    Not of a range in which the GPU did nothing, of a trace that has its work elsewhere.
    """
    trace = record.trace
    rows = unanswered_launches(trace)
    if not len(rows):
        return []
    names = pd.Series(trace.slices["name"].to_numpy(object)[rows]).value_counts()
    counted = ", ".join(f"{code(str(name))} {count:,}" for name, count in names.head(NAMED).items())
    counts = "1 launch" if len(rows) == 1 else f"{len(rows):,} launches"
    text = (
        f"The trace has {counts} of GPU work ({counted}) "
        "and none of that work itself: how long kernels and copies took is not known, and the time "
        "of an op is that of the CPU, which launches them."
    )
    held = ROCTRACER if all(OF_HIP.fullmatch(str(name)) for name in names.index) else CUPTI
    by_nsight = recorder_of(record) in (NSYS, NVPROF)
    remedy = (UNDER_NSYS if by_nsight else REMEDY).format(held=held)
    shown = tuple(int(row) for row in rows[:EVIDENCE])
    return [Finding(text, rows=shown, remedy=remedy)]


def unanswered_launches(trace: Trace) -> npt.NDArray[np.intp]:
    """Calls that launched GPU work, of a trace that has none at all; else none."""
    if trace.tracks["kind"].isin(["gpu", "copy"]).any():
        return np.empty(0, np.intp)
    calls = trace.index.is_launch
    counted = trace.slices["count"].to_numpy() > 0
    return np.flatnonzero(calls & trace.index.matching(LAUNCHES) & counted)

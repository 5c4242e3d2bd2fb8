"""Autograd's anomaly mode, which debugs: a NaN check per backward op, a stack per forward op."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import run_ns, share_of
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import is_engine

EVIDENCE = 2_000
CHECKS = frozenset(("aten::isnan", "aten::_is_any_true", "aten::item"))
"""What the engine runs after a backward op on each gradient (torch/csrc/autograd/engine.cpp,
`call_function`). The second is no function that users have."""
TELLING = frozenset(("aten::_is_any_true",))

REMEDY = (
    "Switch it off once the NaN is found: torch.autograd.set_detect_anomaly(False), no "
    "detect_anomaly() around it."
)


def anomaly_detection(record: Record) -> list[Finding]:
    """Fires where the mode was on at the start or the end of the recording, or left its checks."""
    trace = record.trace
    slices = trace.slices
    if not was_on(record):
        return []
    checks, gradients = _checks(trace)
    cost = int(slices["dur"].to_numpy()[checks].sum())
    share = share_of(cost, run_ns(record))
    text = "Autograd's anomaly mode was on: "
    if gradients:
        text += (
            f"it looked for NaN in {format_count(gradients, 'gradient')} of the backward pass, "
            f"which took {format_ns(cost)} ({format_share(share)} of the time), and "
        )
    text += "it noted the Python stack of each forward op, which counts as time of that op."
    return [
        Finding(
            text,
            cost,
            share,
            rows=tuple(checks[:EVIDENCE].tolist()),
            remedy=REMEDY,
        )
    ]


def was_on(record: Record) -> bool:
    """Whether the mode was on, and a forward that autograd noted or a backward pass ran."""
    noted = bool((record.trace.slices["sequence"].to_numpy() >= 0).any())
    told = noted and record.metadata.get("anomaly_mode") is True
    return told or _checks(record.trace)[1] > 0


def _checks(trace: Trace) -> tuple[npt.NDArray[np.intp], int]:
    """The ops of the checks, and how many gradients were looked at."""
    slices = trace.slices
    parent = slices["parent"].to_numpy()
    in_engine = np.append(is_engine(slices["name"]), False)[parent]
    telling = np.flatnonzero(in_engine & trace.index.named(TELLING))
    checked = np.zeros(len(trace) + 1, bool)
    checked[parent[telling]] = True
    return np.flatnonzero(checked[parent] & trace.index.named(CHECKS)), len(telling)

"""First calls, which load libraries and kernels while the GPU has nothing to do."""

from __future__ import annotations

from gpuprof_widgets.analyses.cold_start import cold_spans, cold_start
from gpuprof_widgets.analyses.device_busy import devices_at_work
from gpuprof_widgets.analyses.findings.device_idle import (
    COLD_KINDS,
    DEVICE_IDLE_SHARE,
    cold_ns,
    of_launches,
    tells_of_first_calls,
)
from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.wording import run_ns, share_of
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.trace.model import Record

EVIDENCE = 2_000
REMEDY = (
    "Warm up before what is timed: that is paid once per process, and neither CUDA graphs nor "
    "larger batches make it shorter."
)


@of_gpu_work
def cold_calls(
    record: Record, *, cold_calls_share: float = 0.05, device_idle_share: float = DEVICE_IDLE_SHARE
) -> list[Finding]:
    """One finding per GPU that had nothing to do for 5 % of the run while first calls were made.

    Not where `device_idle` puts most of the GPU's idle time down to them.

    ``cold_calls_share``: GPU idle while first calls load libraries and kernels.

    The other threshold is that of `device_idle`.
    """
    found = []
    for device in devices_at_work(record.trace):
        cost = sum(cold_ns(record, device, kind) for kind in COLD_KINDS)
        share = share_of(cost, run_ns(record))
        if cost and share >= cold_calls_share:
            found += (
                []
                if tells_of_first_calls(record, device, device_idle_share)
                else [_finding(record, device, cost, share)]
            )
    return found


def _finding(record: Record, device: int, cost: int, share: float) -> Finding:
    name = f"GPU {device}" if device >= 0 else "The GPU"
    text = (
        f"{name} had nothing to do for {format_ns(cost)} ({format_share(share)} of the time) while "
        f"the CPU made first calls, which load libraries and kernels{of_launches(record)}."
    )
    start, end = cold_spans(record)
    longest = int((end - start).argmax())
    place = (int(start[longest]), int(end[longest]))
    calls = cold_start(record).nlargest(EVIDENCE, "dur_ns")
    return Finding(text, cost, share, *place, tuple(calls["row"]), REMEDY)

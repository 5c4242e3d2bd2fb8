"""What was paid once, in the warm-up of a bounded loop, and what was still paid after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuprof_widgets.analyses.findings.compilation import COMPILATION_SHARE, compilation
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import share_of
from gpuprof_widgets.analyses.iterations import UNRECORDED, iterations, usual_steps
from gpuprof_widgets.analyses.quantity import format_bytes, format_count, format_ns
from gpuprof_widgets.trace.model import Record

GROWTH_BYTES = 1 << 20  # CUDA's allocator takes small blocks from segments of 2 MiB


def one_off(
    record: Record, *, first_step_ratio: float = 2.0, compilation_share: float = COMPILATION_SHARE
) -> list[Finding]:
    """Fires for a slow first step, compilation, allocator growth or retries in the warm-up.

    And for what torch.compile still compiled after it: that is in the recorded times.

    ``first_step_ratio``: Times the median step: from here on the first one did one-off work.

    The other threshold is that of `compilation`.
    """
    noted: Mapping[str, Any] = (record.metadata.get("steps") or {}).get("one_off") or {}
    said = [*_first_step(record, first_step_ratio), *_costs(noted)]
    found = []
    if said:
        text = f"One-off costs in warm-up, which the record leaves out: {'; '.join(said)}."
        found.append(Finding(text))
    late = noted.get("after_warmup") or {}
    # `compilation` knows what was compiled, and why.
    if late.get("graphs") and not compilation(record, compilation_share=compilation_share):
        cost = int(late["compile_ns"])
        text = (
            f"torch.compile still compiled {format_count(late['graphs'], 'graph')} after the "
            f"warm-up, in {format_ns(cost)}: the recorded steps hold one-off costs."
        )
        share = min(share_of(cost, record.trace.span_ns), 1.0)
        remedy = "Warm up longer (--warmup), or find what changes from step to step: shapes, flags."
        found.append(Finding(text, cost, share, remedy=remedy))
    return found


def _first_step(record: Record, ratio: float) -> Iterator[str]:
    table = iterations(record)
    whole = table[table["complete"] & table["kind"].isin(UNRECORDED)]
    if not (whole["step"] == 0).any():  # recorded, or before anybody counted
        return
    plain, recorded = usual_steps(record)
    others = plain if len(plain) else recorded
    first = int(table["dur_ns"].iloc[0])
    if not len(others) or first < ratio * float(others.median()):
        return
    kind = "the warm-up's others" if len(plain) else "the recorded ones"
    yield (
        f"the first step took {format_ns(first)}, {format_ns(first - float(others.median()))} more "
        f"than {kind}"
    )


def _costs(noted: Mapping[str, Any]) -> Iterator[str]:
    if noted.get("graphs"):
        graphs = format_count(noted["graphs"], "graph")
        yield f"torch.compile compiled {graphs} in {format_ns(noted['compile_ns'])}"
    if noted.get("reserved_bytes", 0) >= GROWTH_BYTES:
        yield f"CUDA's allocator reserved {format_bytes(noted['reserved_bytes'])} more"
    if noted.get("alloc_retries"):
        retries = format_count(noted["alloc_retries"], "time")
        yield f"it gave its cached memory back and tried again {retries}"
    if noted.get("cudnn_benchmark"):
        yield "cuDNN tries its algorithms on new shapes (torch.backends.cudnn.benchmark is on)"

"""Hand-made traces for the rules on launches and copies: one that fires, one just below."""

from __future__ import annotations

from dataclasses import replace

from gpuprof_widgets.trace.model import Record
from tests.traces import Row, annotation, copy, kernel, module, op, runtime, trace_of

HTOD = "Memcpy HtoD (Pageable -> Device)"
DTOH = "Memcpy DtoH (Device -> Pageable)"
PAGE = 4096


def launching(took: int) -> Record:
    """In a run of 1000 ns, kernels of 1 ns; all launches after the first take so long together."""
    each = [2, *[took // 10] * 9, took - took // 10 * 9]
    calls = [runtime("cudaLaunchKernel", ts=60 * i, dur=dur) for i, dur in enumerate(each)]
    gpu = [kernel("add", ts=40 + 60 * i, dur=1, launched_by=i) for i in range(len(each))]
    return trace_of(*calls, *gpu, op("end", ts=990, dur=10))


def from_pageable(held: int) -> Record:
    """A copy from pageable memory whose call holds the CPU up for so many of 1000 ns."""
    return trace_of(
        op("aten::to", ts=0, dur=100),
        runtime("cudaMemcpyAsync", ts=1, dur=held),
        copy(HTOD, ts=5, dur=40, bytes=8, launched_by=1),
        op("end", ts=990, dur=10),
    )


def there_and_back(took: int, *between: Row, bytes: int = PAGE) -> Record:
    """Two copies of one size, to the GPU and from it, of so many of 1000 ns together."""
    there = copy(HTOD, ts=0, dur=took // 2, bytes=bytes)
    back = copy(DTOH, ts=500, dur=took - took // 2, bytes=bytes)
    return trace_of(there, back, *between, op("end", ts=990, dur=10))


def in_every_step(took: int, *, steps: int = 3, sent: int | None = None) -> Record:
    """A copy within a module in each step, 1000 ns in all; in the first ``sent`` steps only."""
    rows: list[Row] = []
    for number in range(steps):
        ts = 100 * number
        rows.append(annotation(f"ProfilerStep#{number}", ts=ts, dur=100))
        rows.append(module("mask", ts=ts, dur=90))
        if number < (steps if sent is None else sent):
            rows.append(runtime("cudaMemcpyAsync", ts=ts + 1, dur=2))
            dur = took if number == 0 else 0
            rows.append(copy(HTOD, ts=ts + 5, dur=dur, bytes=64, launched_by=len(rows) - 1))
    return trace_of(*rows, op("end", ts=990, dur=10))


def between_gpus(took: int) -> Record:
    """A copy from GPU 0 to GPU 1 of so many of 1000 ns."""
    row = copy("Memcpy PtoP (Device -> Device)", ts=0, dur=took, bytes=64)
    row = replace(row, args=row.args | {"fromDevice": 0, "toDevice": 1})
    return trace_of(row, op("end", ts=990, dur=10))


CASES = {
    "short_kernels": (launching(took=30), launching(took=29)),
    "pageable_copies": (from_pageable(held=20), from_pageable(held=19)),
    "needless_copies": (there_and_back(took=10), there_and_back(took=9)),
    "peer_copies": (between_gpus(took=20), between_gpus(took=19)),
}

"""How the GPU's allocator had laid out its memory when a snapshot of it was taken."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.lacking import says_if_empty
from gpuprof_widgets.analyses.memory_stacks import lines_of_stacks
from gpuprof_widgets.analyses.whole_run import of_the_whole_run
from gpuprof_widgets.trace.memory_snapshot.segments import ALLOCATED, AWAITING, FREE
from gpuprof_widgets.trace.model import Record

COLUMNS = (
    "device",
    "stream",
    "pool",
    "kind",
    "expandable",
    "address",
    "bytes",
    "allocated_bytes",
    "awaiting_bytes",
    "free_bytes",
    "largest_free_bytes",
    "rounding_bytes",
    "blocks",
    "free_blocks",
    "line_name",
)
STATES = (ALLOCATED, AWAITING, FREE)


@says_if_empty(
    "only a CUDA memory snapshot (torch.cuda.memory._dump_snapshot) has the allocator's segments"
)
def memory_segments(record: Record) -> pd.DataFrame:
    """One row per segment that the allocator held of a GPU's memory, the largest first.

    Columns: ``device``, ``stream``, ``pool`` ("0.0": the usual one; others are of CUDA graphs and
    MemPools), ``kind`` ("small", "large"), ``expandable``, ``address``; ``bytes`` =
    ``allocated_bytes`` + ``awaiting_bytes`` (released, but another stream may still use it) +
    ``free_bytes``, of which ``largest_free_bytes`` is the largest piece; ``rounding_bytes``: how
    much of what is allocated was not asked for; ``blocks``, ``free_blocks``: their number;
    ``line_name``: whose line holds most of it ("" where unknown). A window does not cut it.
    """
    lines = lines_of_stacks(record)
    segments = record.metadata.get("memory_segments") or []
    table = pd.DataFrame([_row(segment, lines) for segment in segments], columns=list(COLUMNS))
    table = table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
    return of_the_whole_run(table, "a snapshot has the segments of its own moment alone")


def _row(segment: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    columns = segment["blocks"]
    # A saved profile that was changed may have columns of different lengths.
    blocks = list(zip(columns["state"], columns["bytes"], columns["requested"], strict=False))
    of = {state: [(b, r) for s, b, r in blocks if s == state] for state in STATES}
    size = {state: sum(b for b, _ in own) for state, own in of.items()}
    return {
        "device": f"GPU {segment['device']}",
        **{key: segment[key] for key in ("stream", "pool", "kind", "expandable", "address")},
        "bytes": segment["bytes"],
        "allocated_bytes": size[ALLOCATED],
        "awaiting_bytes": size[AWAITING],
        "free_bytes": segment["bytes"] - size[ALLOCATED] - size[AWAITING],
        "largest_free_bytes": max((b for b, _ in of[FREE]), default=0),
        "rounding_bytes": sum(b - r for b, r in of[ALLOCATED]),
        "blocks": len(blocks),
        "free_blocks": len(of[FREE]),
        "line_name": _holder(columns, lines),
    }


def _holder(columns: dict[str, Any], lines: list[str]) -> str:
    """The line that holds most of what is allocated."""
    held: Counter[str] = Counter()
    blocks = zip(columns["state"], columns["bytes"], columns["stack"], strict=False)
    for state, size, stack in blocks:
        if state == ALLOCATED and 0 <= stack < len(lines):
            held[lines[stack]] += size
    del held[""]
    return max(held, key=lambda line: held[line], default="")

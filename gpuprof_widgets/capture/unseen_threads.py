"""What a profile says of threads that the code started: torch records no ops of theirs."""

from __future__ import annotations

import re

import numpy as np

from gpuprof_widgets.trace.model import Calls

_CARRIERS = re.compile(
    r"[/\\](?:multiprocessing[/\\]queues\.py|torch[/\\]utils[/\\]data[/\\]|tqdm[/\\]_monitor\.py)"
)
"""Who starts threads that run no ops: they carry batches, or watch a progress bar."""


def note_on_threads(calls: Calls | None) -> list[str]:
    """One sentence where these calls started threads, with who did; none where nobody did.

    Threads are counted by the calls of ``threading.Thread.start``. Its callers are known but for
    code that was running already as cProfile began.
    """
    if calls is None:
        return []
    functions = calls.functions
    of_start = functions["file"].str.endswith("threading.py") & (functions["name"] == "start")
    total = int(functions["calls"][of_start].sum())
    edges = calls.edges[calls.edges["callee"].isin(np.flatnonzero(of_start))]
    callers = []
    for caller, count in zip(edges["caller"], edges["calls"], strict=True):
        file, name = functions["file"].iloc[caller], functions["name"].iloc[caller]
        if _CARRIERS.search(file):
            total -= int(count)
        else:
            place = "/".join(re.split(r"[/\\]", file)[-2:])
            callers.append(f"`{name}` in {place}")
    if total <= 0:
        return []
    by = f" (by {', '.join(callers)})" if callers else ""
    started = "1 thread was" if total == 1 else f"{total:,} threads were"
    return [
        f"{started} started{by}: torch's profiler does not follow them, so their ops and modules "
        "are not in the record"
    ]

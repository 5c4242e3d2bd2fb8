"""What a profile says of threads that the code started: torch records no ops of theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpuprof_widgets.trace.model import Calls

_THREAD = re.compile(r"(?:^|[/\\])threading\.py$")
_CARRIERS = re.compile(
    r"(?:^|[/\\])(?:multiprocessing[/\\](?:queues|pool)\.py|concurrent[/\\]futures[/\\]process\.py"
    r"|torch[/\\]utils[/\\]data[/\\]|tqdm[/\\]_monitor\.py)"
)
"""Who starts threads that run no ops: they carry work to processes, or watch a progress bar."""
_POOLS = re.compile(r"(?:^|[/\\])(?:concurrent[/\\]futures|multiprocessing|asyncio)[/\\]")
"""Who starts threads on behalf of others."""
_NAMED = 3


def note_on_threads(calls: Calls | None) -> list[str]:
    """One sentence where these calls started threads, with who did; none where nobody did.

    Known by the calls of ``threading.Thread.start``. Who called it is known but for code that was
    running already as cProfile began.
    """
    if calls is None:
        return []
    functions, edges = calls.functions, calls.edges
    file = functions["file"].to_numpy(object)
    is_start = np.array([bool(_THREAD.search(one)) for one in file], dtype=bool)
    is_start &= (functions["name"] == "start").to_numpy(dtype=bool)
    carries = np.array([bool(_CARRIERS.search(one)) for one in file], dtype=bool)
    of_start = edges[is_start[edges["callee"]]]
    carried = of_start["calls"][carries[of_start["caller"]]].sum()
    if functions["calls"][is_start].sum() <= carried:
        return []
    starters = [who for who in of_start["caller"] if not carries[who]]
    named = list(dict.fromkeys(_place(calls, who) for who in _on_behalf_of(calls, starters)))
    if len(named) > _NAMED:
        named = [*named[:_NAMED], "others"]
    by = f" (by {', '.join(named)})" if named else ""
    return [
        f"threads were started{by}: torch's profiler follows only the thread in which it starts, "
        "so ops and modules of theirs are not in the record"
    ]


def _on_behalf_of(calls: Calls, starters: list[int]) -> Iterator[int]:
    """These functions, or who called them where they are those of a pool."""
    caller, callee = calls.edges["caller"].to_numpy(), calls.edges["callee"].to_numpy()
    seen, waiting = set(starters), list(starters)
    while waiting:
        one = waiting.pop(0)
        if not _POOLS.search(calls.functions["file"].iloc[one]):
            yield one
            continue
        new = set(caller[callee == one].tolist()) - seen
        seen |= new
        waiting += sorted(new)


def _place(calls: Calls, function: int) -> str:
    file, name = calls.functions["file"].iloc[function], calls.functions["name"].iloc[function]
    place = "/".join(re.split(r"[/\\]", file)[-2:])
    return place if name == "<module>" else f"`{name}` in {place}"

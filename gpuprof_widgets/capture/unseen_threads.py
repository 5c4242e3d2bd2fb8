"""What a profile says of threads that the code started: torch records no ops of theirs."""

from __future__ import annotations

import re

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
_COMPILERS = re.compile(r"(?:^|[/\\])torch[/\\]_inductor[/\\]")
"""Who starts threads that compile, through a pool as well: they run no ops either."""
_NAMED = 3


def note_on_threads(calls: Calls | None) -> list[str]:
    """One sentence where these calls started threads, with who did; none where nobody did.

    Known by the calls of ``threading.Thread.start``. Who called it is known but for code that was
    running already as cProfile began.
    """
    if calls is None:
        return []
    starters, are_all = _starters(calls)
    if are_all and not starters:
        return []
    named = list(dict.fromkeys(_place(calls, who) for who in starters))
    if len(named) > _NAMED:
        named = [*named[:_NAMED], "others"]
    by = f" (by {', '.join(named)})" if named else ""
    return [
        f"threads were started{by}: torch's profiler follows only the thread in which it starts, "
        "so ops and modules of theirs are not in the record"
    ]


def _starters(calls: Calls) -> tuple[list[int], bool]:
    """Who started threads that may run ops, and whether all who did are known.

    Instead of a pool's functions those who called them.
    """
    functions, edges = calls.functions, calls.edges
    kinds = (_THREAD, _CARRIERS, _POOLS, _COMPILERS)
    in_thread, carries, pools, compiles = (
        functions["file"].str.contains(kind).to_numpy(dtype=bool) for kind in kinds
    )
    is_start = in_thread & (functions["name"] == "start").to_numpy(dtype=bool)
    starters: list[int] = []
    are_all, waiting = True, np.flatnonzero(is_start).tolist()
    seen = set(waiting)
    while waiting:
        one = waiting.pop(0)
        made = edges[edges["callee"] == one]
        are_all &= int(functions["calls"].iloc[one]) <= int(made["calls"].sum())
        runs_ops = ~(compiles | (carries & is_start[one]))
        new = [who for who in made["caller"] if runs_ops[who] and who not in seen]
        seen.update(new)
        waiting += [who for who in new if pools[who]]
        starters += [who for who in new if not pools[who]]
    return starters, are_all


def _place(calls: Calls, function: int) -> str:
    file, name = calls.functions["file"].iloc[function], calls.functions["name"].iloc[function]
    place = "/".join(re.split(r"[/\\]", file)[-2:])
    return place if name == "<module>" else f"`{name}` in {place}"

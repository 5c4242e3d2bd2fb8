"""Who is responsible for a slice: its owners from the Python frame down to the kernel."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.graph_replays import captured_calls
from gpuprof_widgets.analyses.module_frames import MODULE_FRAME
from gpuprof_widgets.analyses.stacks import frame_of
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import (
    GPU_CATEGORIES,
    LAUNCH_CATEGORIES,
    NVTX_RANGE,
    REGION_CATEGORIES,
)

REGION_ROLES = {"cell_line": "line", "module": "module", "module_backward": "module"}
ROLES = {
    "python_function": "python",
    "user_annotation": "annotation",
    NVTX_RANGE: "annotation",
    "cpu_op": "op",
    **REGION_ROLES,
    **dict.fromkeys(LAUNCH_CATEGORIES, "launch"),
    **dict.fromkeys(GPU_CATEGORIES, "gpu"),
}


def owners(record: Record, row: int) -> pd.DataFrame:
    """The chain of owners of one slice, the outermost first, the slice itself last.

    Columns: ``role`` (python, line, module, annotation, forward, op, launch, gpu or the slice's
    category), ``row``, ``name``. Of the Python frames: the innermost one, and the innermost
    ``nn.Module``. A backward op is followed to its forward op (role "forward"), to the lines and
    modules in which that ran, and to its Python frame; what a graph replays to the ops and regions
    in which it was captured (role "captured"), where the trace holds them.
    """
    slices = record.trace.slices
    if not len(slices):
        raise OptionError(f"there is no slice {row}: the record has no slices at all")
    if not 0 <= row < len(slices):
        raise OptionError(f"there is no slice {row}: the trace's rows are 0 to {len(slices) - 1}.")
    parent = slices["parent"].to_numpy()
    chain = [row]
    launch, op = (int(slices[link].iloc[row]) for link in ("launch", "op"))
    if launch >= 0 or op >= 0:
        chain.append(launch if launch >= 0 else op)
    while parent[chain[-1]] >= 0:
        chain.append(int(parent[chain[-1]]))
    category = slices["category"].to_numpy(object)
    names = slices["name"].to_numpy(object)
    captured = _captured_side(record, chain)
    forward = _forward_side(record, [*chain, *captured])
    frames = [] if category[row] == "python_function" else _frames(record, chain)
    found = [(_role(category[r], names[r]), r) for r in chain]
    found += [(REGION_ROLES.get(category[r], "captured"), r) for r in captured]
    found += [(REGION_ROLES.get(category[r], "forward"), r) for r in forward]
    found += [(_role(category[r], names[r]), r) for r in frames]
    rows = [{"role": role, "row": r, "name": names[r]} for role, r in reversed(found)]
    return pd.DataFrame(rows, columns=["role", "row", "name"])


def _captured_side(record: Record, chain: list[int]) -> list[int]:
    """The ops and regions in which the first of the chain was put into the graph it is replayed by,
    the innermost first.
    """
    at, parent = int(captured_calls(record.trace)[chain[0]]), record.trace.slices["parent"]
    found: list[int] = []
    while at >= 0 and (at := int(parent.iloc[at])) >= 0:
        found.append(at)
    return [row for row in found if row not in chain]


def _forward_side(record: Record, chain: list[int]) -> list[int]:
    """The forward op of the chain's backward op and the regions around it, the innermost first.

    Of a backward op's backward also the forward op behind that; nothing twice.
    """
    slices = record.trace.slices
    forward, parent = slices["forward"].to_numpy(), slices["parent"].to_numpy()
    category = slices["category"].to_numpy(object)
    found: list[int] = []
    at = next((int(forward[r]) for r in chain if forward[r] >= 0), -1)
    while at >= 0 and at not in (*chain, *found):
        found.append(at)
        behind, above = int(forward[at]), int(parent[at])
        while above >= 0:
            if category[above] in REGION_CATEGORIES and above not in (*chain, *found):
                found.append(above)
            behind = behind if behind >= 0 else int(forward[above])
            above = int(parent[above])
        at = behind
    return found


def _role(category: str, name: str) -> str:
    is_module = category == "python_function" and name.startswith(MODULE_FRAME)
    return "module" if is_module else ROLES.get(category, category)


def _frames(record: Record, chain: list[int]) -> list[int]:
    """The innermost Python frame of the chain's ops, and the innermost module around it."""
    slices = record.trace.slices
    forward, parent = slices["forward"].to_numpy(), slices["parent"].to_numpy()
    frame_of_slice = frame_of(record.trace)
    sources = [int(forward[r]) for r in chain if forward[r] >= 0] or chain
    frame = next((int(frame_of_slice[r]) for r in sources if frame_of_slice[r] >= 0), -1)
    if frame < 0:
        return []
    module = frame
    names = slices["name"].to_numpy(object)
    while module >= 0 and not names[module].startswith(MODULE_FRAME):
        module = int(parent[module])
    return [frame] if module in (-1, frame) else [frame, module]

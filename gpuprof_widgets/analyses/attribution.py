"""Who is responsible for a slice: its owners from the Python frame down to the kernel."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.stacks import frame_of
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, LAUNCH_CATEGORIES

ROLES = {
    "python_function": "python",
    "user_annotation": "annotation",
    "cpu_op": "op",
    **dict.fromkeys(LAUNCH_CATEGORIES, "launch"),
    **dict.fromkeys(GPU_CATEGORIES, "gpu"),
}


def owners(record: Record, row: int) -> pd.DataFrame:
    """The chain of owners of one slice, the outermost first, the slice itself last.

    Columns: ``role`` (python, module, annotation, op, launch, gpu or the slice's category),
    ``row``, ``name``. Of the Python frames: the innermost one, and the innermost ``nn.Module``.
    A backward op is followed up to the Python frame of its forward op.
    """
    slices = record.trace.slices
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
    if category[row] != "python_function":
        chain += _frames(record, chain)
    names = slices["name"].to_numpy(object)
    rows = [{"role": _role(category[r], names[r]), "row": r, "name": names[r]} for r in chain]
    return pd.DataFrame(rows[::-1], columns=["role", "row", "name"])


def _role(category: str, name: str) -> str:
    is_module = category == "python_function" and name.startswith("nn.Module: ")
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
    while module >= 0 and not names[module].startswith("nn.Module: "):
        module = int(parent[module])
    return [frame] if module in (-1, frame) else [frame, module]

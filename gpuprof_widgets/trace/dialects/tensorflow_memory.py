"""The tensors of a TensorFlow Timeline (``show_memory=True``).

Each output of a node is an object (phases N, O and D of the format): created when the node began,
with a snapshot that describes it, deleted after its last use that the Timeline saw. Its size is the
``requested_bytes`` in the text of the snapshot, as in TensorFlow's own counters of its allocators.
Of the tensors that a loop makes again and again under one name only the last is deleted: as in
those counters, the others are left out.
"""

from __future__ import annotations

import re

from gpuprof_widgets.trace.dialects.tensors import Life, Tensor, Thread, lives
from gpuprof_widgets.trace.events import Names
from gpuprof_widgets.trace.gather import Gathered, id_text
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.trace_events import Event

CATEGORY = "Tensor"
BYTES = re.compile(r"requested_bytes: (\d{1,18})")
ALLOCATOR = re.compile(r"allocator_name: (\S+)")
GPU_ALLOCATOR = re.compile(r"gpu_(?:(\d{1,4})_)?bfc", re.IGNORECASE)


def tensors(file: Gathered, names: Names) -> tuple[list[Tensor], list[str]]:
    """The tensors with a size and an end, and what could not be told of others, as notes."""
    by_name = {name.strip(): process for process, name in names.processes.items()}
    compute = {
        process: by_name.get(f"{name.strip().removesuffix('Tensors')}Compute", process)
        for process, name in names.processes.items()
    }
    made = [_tensor(life, compute) for life in lives(file, _is_tensor)]
    found = [one for one in made if one is not None]
    count = sum(map(_is_tensor, file.others["N"]))
    left = count - len(found)
    note = f"{left:,} of {count:,} tensors have no size or no end, and no part in the memory views"
    return found, [note] if left else []


def _is_tensor(event: Event) -> bool:
    return event.cat == CATEGORY


def _tensor(life: Life, compute: dict[str, str]) -> Tensor | None:
    text = str(life.description.get("tensor_description"))
    size, allocator = BYTES.search(text), ALLOCATOR.search(text)
    if size is None or life.deleted_ns is None:
        return None
    told = allocator[1] if allocator else ""
    gpu = GPU_ALLOCATOR.fullmatch(told)
    process = id_text(life.created.pid)
    holder: Thread = (process, "0")
    return Tensor(
        name=life.created.name,
        maker=(compute.get(process, process), id_text(life.created.tid)),
        holder=holder,
        made=life.created_ns,
        released=max(life.deleted_ns, life.created_ns),
        size=int(size[1]),
        gpu=int(gpu[1] or 0) if gpu else NONE,
        args={"allocator": told},
    )

"""The tensors of MegEngine's timelines of 1.0 to 1.3: objects called ``TensorLifetime``.

They are declared, described when they have memory (``shape``, ``dtype``, ``device``), and erased;
what is not erased was there to the end. Newer timelines have arrows between the uses of a tensor
instead, and no sizes at all times.
"""

from __future__ import annotations

import re
from math import prod

from gpuprof_widgets.trace.comp_nodes import comp_node
from gpuprof_widgets.trace.dialects.tensors import Life, Tensor, lives
from gpuprof_widgets.trace.gather import Gathered, id_text
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.trace_events import Event

OBJECT = "TensorLifetime"
NUMBER = re.compile(r"\d{1,12}")
ELEMENT_BYTES = {
    **dict.fromkeys(("Float64", "Int64"), 8),
    **dict.fromkeys(("Float32", "Int32"), 4),
    **dict.fromkeys(("Float16", "BFloat16", "Int16", "Uint16"), 2),
    **dict.fromkeys(("Int8", "Uint8", "Bool", "Byte"), 1),
}
"""Bytes of an element, by what MegEngine calls its format."""

TORCH_TYPES = {
    "Float64": "double",
    "Float32": "float",
    "Float16": "c10::Half",
    "BFloat16": "c10::BFloat16",
    "Int64": "long int",
    "Int32": "int",
    "Int16": "short int",
    "Int8": "signed char",
    "Uint8": "unsigned char",
    "Bool": "bool",
}
"""What torch calls these formats."""


def tensors(file: Gathered) -> tuple[list[Tensor], list[str]]:
    """The tensors whose size is told, and what could not be told of others, as notes."""
    found = [tensor for life in lives(file, _is_tensor) if (tensor := _tensor(life))]
    count = sum(map(_is_tensor, file.others["N"]))
    left = count - len(found)
    note = f"{left:,} of {count:,} tensors have no size, and no part in the memory views"
    return found, [note] if left else []


def _is_tensor(event: Event) -> bool:
    return event.name == OBJECT


def _tensor(life: Life) -> Tensor | None:
    told = {key: str(life.description.get(key, "")) for key in ("shape", "dtype", "device")}
    node = comp_node(told["device"])
    if told["dtype"] not in ELEMENT_BYTES:
        return None
    size = prod(map(int, NUMBER.findall(told["shape"]))) * ELEMENT_BYTES[told["dtype"]]
    process = id_text(life.created.pid)
    return Tensor(
        name=f"tensor {life.created.id}",
        maker=(process, id_text(life.described.tid)),
        holder=(process, "tensors"),
        made=life.described_ns,
        released=None if life.deleted_ns is None else max(life.deleted_ns, life.described_ns),
        size=min(size, 2**62),
        gpu=max(node.device, 0) if node and node.on_gpu else NONE,
        args={"shape": told["shape"], "dtype": told["dtype"]},
    )

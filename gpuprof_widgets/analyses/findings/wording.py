"""Names and numbers as the findings write them."""

from __future__ import annotations

import re

from gpuprof_widgets.trace.model import Record

LONGEST = 60

_SIGNATURE = re.compile(r"^(?:void |static )?(?P<name>[\w:~]+)(?:<.*)?(?:\(.*)?$", re.DOTALL)

_METHOD = re.compile(r"<(?:built-in )?method '?(?P<name>\w+)'? of '?(?P<owner>[\w.]+)")
_BUILTIN = re.compile(r"<(?:built-in )?(?:method|function) (?P<name>[\w.]+)>")
_OWNERS = {"TensorBase": "Tensor.", "Tensor": "Tensor.", "type": "torch."}


def code(name: str) -> str:
    """A name in backticks; a C++ kernel without namespace, template arguments and parameters."""
    short = name
    if "<" in name or name.startswith("void "):
        readable = name.replace("(anonymous namespace)::", "")
        if match := _SIGNATURE.match(readable):
            short = match["name"].rsplit("::", 1)[-1]
    if len(short) > LONGEST:
        short = short[: LONGEST - 1] + "…"
    return f"`{short}`"


def function_name(label: str) -> str:
    """A built-in function as users write it: ``Tensor.item``; any other label as it is."""
    if found := _METHOD.match(label):
        return _OWNERS.get(found["owner"].rsplit(".", 1)[-1], "") + found["name"]
    found = _BUILTIN.match(label)
    return found["name"] if found else label


def copies_counted(count: int) -> str:
    """``1 copy``, ``12 copies``."""
    return "1 copy" if count == 1 else f"{count:,} copies"


def run_ns(record: Record) -> int:
    """How long the run took: the trace's span, or the cell's time where nothing was traced."""
    return record.trace.span_ns or int(record.metadata.get("wall_ns") or 0)


def share_of(part: float, whole: float) -> float:
    """Part of the whole, 0 where there is no whole."""
    return part / whole if whole else 0.0

"""Names and numbers as the findings write them."""

from __future__ import annotations

import re

from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.trace.model import Record

LONGEST = 60
OF_THE_CELL = "The Python of the cell"
"""What cProfile has as the function `<module>` of the cell's first line."""

_SIGNATURE = re.compile(r"^(?:void |static )?(?P<name>[\w:~]+)(?:<.*)?(?:\(.*)?$", re.DOTALL)

_UNNAMED = re.compile(r"(\(anonymous namespace\)|<unnamed>)::")
"""Namespaces without a name, as compilers and Nsight Systems write them."""

_PARAMETERS = re.compile(r"(?<=\w)\([\w:*&, ]*\)$")

_METHOD = re.compile(r"<(?:built-in )?method '?(?P<name>\w+)'? of '?(?P<owner>[\w.]+)")
_BUILTIN = re.compile(r"<(?:built-in )?(?:method|function) (?P<name>[\w.]+)>")
_OWNERS = {"TensorBase": "Tensor.", "Tensor": "Tensor.", "type": "torch."}


def code(name: str) -> str:
    """A name in backticks; a C++ kernel without namespace, template arguments and parameters."""
    short = name
    if "<" in name or name.startswith("void "):
        readable = _UNNAMED.sub("", name)
        if match := _SIGNATURE.match(readable):
            short = match["name"].rsplit("::", 1)[-1]
    if len(short) > LONGEST:
        short = short[: LONGEST - 1] + "…"
    return f"`{short}`"


def kernel_code(name: str) -> str:
    """A kernel in backticks, without parameters even where it is written as ``name(Type)``."""
    return code(_PARAMETERS.sub("", name))


def function_name(label: str) -> str:
    """A built-in function as users write it: ``Tensor.item``; any other label as it is."""
    if found := _METHOD.match(label):
        return _OWNERS.get(found["owner"].rsplit(".", 1)[-1], "") + found["name"]
    found = _BUILTIN.match(label)
    return found["name"] if found else label


def statement(source: str) -> str:
    """The code in backticks: it holds none itself, and is short."""
    words = source.replace("`", "'")
    return f"`{words if len(words) <= LONGEST else words[: LONGEST - 1] + '…'}`"


def copies_counted(count: int) -> str:
    """``1 copy``, ``12 copies``."""
    return "1 copy" if count == 1 else f"{count:,} copies"


def shorter(saved_ns: int, record: Record) -> str:
    """``the run would be at most 12.0 ms (3.0 %) shorter``, or that it would not be."""
    if saved_ns <= 0:
        return "the run would be no shorter, as it waits for something else meanwhile"
    share = format_share(share_of(saved_ns, run_ns(record)))
    return f"the run would be at most {format_ns(saved_ns)} ({share}) shorter"


def run_ns(record: Record) -> int:
    """How long the run took: the trace's span, or the cell's time where nothing was traced."""
    return record.trace.span_ns or int(record.metadata.get("wall_ns") or 0)


def share_of(part: float, whole: float) -> float:
    """Part of the whole, 0 where there is no whole."""
    return part / whole if whole else 0.0

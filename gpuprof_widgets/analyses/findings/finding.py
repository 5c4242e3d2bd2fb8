"""One finding: a sentence with numbers, its cost, where to look and what to do.

Also what many rules share, such as names as users know them.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.blocking import BUILT_IN_METHOD
from gpuprof_widgets.analyses.columns import format_ns, format_share
from gpuprof_widgets.exceptions import printable
from gpuprof_widgets.trace.arrays import Mask, Rows
from gpuprof_widgets.trace.index import REGION
from gpuprof_widgets.trace.model import Record, Trace


@dataclass(frozen=True)
class Finding:
    """One reason why the run is slow, or one thing to know about its profile.

    ``rule``: the key in `FINDINGS`, set by `findings`; ``title``: what costs, in ten words at most;
    ``text``: a few short sentences, both with names in backticks; ``cost_ns``: the time it stands
    for, by which findings are ordered; ``share``: of the run's time; ``start_ns``, ``end_ns``: the
    range to look at (None: all); ``rows``: slices to highlight; ``remedy``: what to try, empty
    where there is nothing to do; ``line``: cell and number of the line with most of the evidence,
    also set by `findings`; ``function``: the Python function that it is about, as in the table of
    functions, where no slices show it; ``part_of``: the rule of the finding above it of whose cause
    it tells a part, also set by `findings`.
    """

    rule: str = field(default="", kw_only=True)
    title: str = field(default="", kw_only=True)
    line: tuple[str, int] | None = field(default=None, kw_only=True)
    function: str = field(default="", kw_only=True)
    part_of: str = field(default="", kw_only=True)
    text: str
    cost_ns: int = 0
    share: float = 0.0
    start_ns: int | None = None
    end_ns: int | None = None
    rows: tuple[int, ...] = ()
    remedy: str = ""

    def __post_init__(self) -> None:
        """Convert NumPy's numbers to Python's: JSON knows no others."""
        plain = {
            "cost_ns": int(self.cost_ns),
            "share": float(self.share),
            "start_ns": None if self.start_ns is None else int(self.start_ns),
            "end_ns": None if self.end_ns is None else int(self.end_ns),
            "rows": tuple(int(row) for row in self.rows),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)


class Findings(list[Finding]):
    """A list of findings that prints as sentences, each with its remedy below it.

    ``lacks``: what an empty list prints.
    """

    def __init__(self, findings: Iterable[Finding] = (), lacks: str = "nothing stands out") -> None:
        super().__init__(findings)
        self.lacks = lacks

    def __repr__(self) -> str:
        lines = []
        for number, finding in enumerate(self, 1):
            lines.append(f"{number}. {printable(finding.text)}")
            if finding.remedy:
                lines.append(f"   {printable(finding.remedy)}")
        return "\n".join(lines) or f"No findings: {self.lacks}."


EVIDENCE = 1_000
"""Slices that one finding highlights at most."""


def spread(rows: Sequence[int] | npt.NDArray[np.integer[Any]]) -> tuple[int, ...]:
    """Return at most `EVIDENCE` of the rows, from the first to the last at even distances.

    The first ones alone would look as if nothing came after them.
    """
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), EVIDENCE)).round().astype(np.intp)
    return tuple(np.asarray(rows, np.int64)[chosen].tolist())


WORTH_NS = 1_000_000
"""Nobody waits for less, whatever its share of the run."""

LATENCY_NS = 1_000_000
"""No launch takes that long to reach an idle GPU, and no call returns that late after the GPU work
that it waits for: microseconds are usual (`idle.BACK_TO_BACK_NS`)."""


class Place(TypedDict):
    """Where to look, as the arguments of a `Finding`."""

    start_ns: int
    end_ns: int
    rows: tuple[int, ...]


def place_of(trace: Trace, rows: Rows) -> Place:
    """Return these slices, at most `EVIDENCE` of them, and the range of the longest."""
    start, end = slice_range(trace, int(rows[trace.index.dur[rows].argmax()]))
    return Place(start_ns=start, end_ns=end, rows=spread(rows))


def place_in(table: pd.DataFrame, longest: Any) -> Place:
    """Return the slices of a table's rows, and the range of one of them, such as the longest."""
    start, end = table_range(longest)
    return Place(start_ns=start, end_ns=end, rows=tuple(table["row"].astype(int)))


def are_op_names(table: pd.DataFrame) -> Mask:
    """Return a mask of the rows of `operators()` that are ops, not regions."""
    region = np.array([bool(REGION.fullmatch(name)) for name in table["name"]], bool)
    return np.asarray((table["category"] == "cpu_op").to_numpy(bool) & ~region)


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


LONGEST = 60
"""Characters of a name or statement that is shown."""

_SIGNATURE = re.compile(r"^(?:void |static )?(?P<name>[\w:~]+)(?:<.*)?(?:\(.*)?$", re.DOTALL)

_UNNAMED = re.compile(r"(\(anonymous namespace\)|<unnamed>)::")
"""Unnamed namespaces, as compilers and Nsight Systems write them."""
_PARAMETERS = re.compile(r"(?<=\w)\([\w:*&, ]*\)$")
_BUILTIN = re.compile(r"<(?:built-in )?(?:method|function) (?P<name>[\w.]+)>")
_OWNERS = {"TensorBase": "Tensor.", "Tensor": "Tensor.", "type": "torch."}
_COMPILED_GRAPH = re.compile(r"## Call (CompiledFxGraph \w{6})\w* ##")
"""What torch calls a compiled graph; six of some fifty letters of its hash tell it from others."""


def code(name: str) -> str:
    """Put a name in backticks; C++ kernels lose namespace, template arguments and parameters.

    A backtick of the name's own, which would end it too early, becomes an apostrophe.
    """
    short = _COMPILED_GRAPH.sub(r"\1", name)
    if "<" in name or name.startswith("void "):
        readable = _UNNAMED.sub("", name)
        if match := _SIGNATURE.match(readable):
            short = match["name"].rsplit("::", 1)[-1]
    short = short.replace("`", "'") if short.strip() else "(no name)"
    if len(short) > LONGEST:
        short = short[: LONGEST - 1] + "…"
    return f"`{short}`"


def kernel_code(name: str) -> str:
    """Put a kernel's name in backticks, without parameters: ``name(Type)`` becomes ``name``."""
    return code(_PARAMETERS.sub("", name))


def function_name(label: str) -> str:
    """Return a built-in function as users write it (``Tensor.item``); other labels unchanged."""
    if match := BUILT_IN_METHOD.match(label):
        owner = match["owner"]
        built_in = f"{owner}." if isinstance(getattr(builtins, owner, None), type) else ""
        return _OWNERS.get(owner.rsplit(".", 1)[-1], built_in) + match["name"]
    match = _BUILTIN.match(label)
    return match["name"] if match else label


def statement(source: str) -> str:
    """Return a space and the source code in backticks, shortened; "" where it is redacted."""
    words = source.replace("`", "'")
    words = words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"
    return f" `{words}`" if words else ""


def gpu_name(device: int) -> str:
    """Return ``GPU 0``, or ``The GPU`` where the trace does not number its only one (-1)."""
    return "The GPU" if device < 0 else f"GPU {device}"


def copies_counted(count: int) -> str:
    """Return ``1 copy`` or ``12 copies``."""
    return "1 copy" if count == 1 else f"{count:,} copies"


def slice_range(trace: Trace, row: int) -> tuple[int, int]:
    """Return start and end of a slice in ns."""
    return int(trace.index.ts[row]), int(trace.index.end[row])


def table_range(row: Any) -> tuple[int, int]:
    """Return start and end in ns of a table's row that has ``start_ns`` and ``dur_ns``."""
    start = int(row["start_ns"])
    return start, start + int(row["dur_ns"])


def shorter(saved_ns: int, record: Record) -> str:
    """Return ``the run would be at most 12.0 ms (3.0 %) shorter``, or that it would not be."""
    if saved_ns <= 0:
        return "the run would be no shorter, as it waits for something else meanwhile"
    share = format_share(share_of(saved_ns, run_ns(record)))
    return f"the run would be at most {format_ns(saved_ns)} ({share}) shorter"


def run_ns(record: Record) -> int:
    """Return the run's time in ns: the trace's span, or the cell's time if nothing was traced."""
    return record.trace.span_ns or int(record.metadata.get("wall_ns") or 0)


def share_of(part: float, whole: float) -> float:
    """Return part / whole, 0 where the whole is 0."""
    return part / whole if whole else 0.0


def kind_of_run(record: Record) -> str:
    """Return "cell" where a cell of a notebook was recorded, else "run"."""
    return "run" if record.metadata.get("execution_count") is None else "cell"

"""Reader of collapsed (folded) stacks: a line per stack and a number, as flamegraph.pl draws them.

The format is that of Brendan Gregg's FlameGraph (stackcollapse-*.pl): names from the outside in
with semicolons between, a blank, a number. It says neither when nor of what the number is: samples
(perf, py-spy ``-f raw``) or ns (ours). Austin's files are such lines, with the process, the thread
and then ``file:function:line`` as names and µs as numbers, and say so in lines that begin with
``#``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import LANGUAGE, SAMPLED
from gpuprof_widgets.trace.stack_lanes import (
    NO_UNIT,
    CallTree,
    frame_name,
    lane_of_tree,
    trace_of_lanes,
)

ENDINGS = (".collapsed", ".folded")
AUSTIN = "Austin"

HEAD = 1 << 16
"""As many bytes are looked at to see whether this is such a file; and a line more at most."""
MOST_WRONG = 0.1
"""Where more of the lines are none, the file is of another kind."""
LONGEST_NS = 2**62
MOST_DIGITS = 20
SHOWN = 80
FREE_NODES, BYTES_PER_NODE = 500_000, 8
"""Functions on different paths that a file may have, some of them free: names take longer."""

_STACK = re.compile(rb"(?P<stack>.*\S)\s+(?P<number>-?\d+(?:\.\d*)?)")
_TWO_NUMBERS = re.compile(rb".*\S\s+\d+\s+\d+")
_SEPARATED = re.compile(rb"\S;\S")
_METADATA = re.compile(rb"#\s*(?P<key>[\w-]+)\s*:\s*(?P<value>.*)")
_AUSTIN_METRICS = re.compile(rb"(?P<stack>.*\S)\s+(?P<number>\d+)(?:,[01],-?\d+)?")
"""In its full mode also whether the thread was idle, and bytes."""
_PROCESS, _THREAD = re.compile(r"P\d+"), re.compile(r"T[\w:]+")
_PY_SPY = re.compile(r"(?P<name>.+) \((?P<file>[^()]+\.pyx?|<[^<>]+>):(?P<line>\d+)\)")
_AUSTIN_FRAME = re.compile(r"(?P<file>.+):(?P<name>[^:]+):(?P<line>\d+)")
_PYTHON = re.compile(r"\.pyx?\(\d+\): ")
_JSON = re.compile(rb'[\[{][\s\[{]*["}\]]')


def is_collapsed(data: bytes) -> bool:
    """Whether nearly all lines at the start are stacks with a number, and most have a semicolon."""
    if _JSON.match(data[:SHOWN].lstrip()):
        return False
    lines = [line for line in _head(data) if line and not _is_comment(line)]
    matched = [stack[1] for line in lines if (stack := _matched(line)) is not None]
    separated = sum(_SEPARATED.search(stack) is not None for stack in matched)
    return bool(matched) and (
        len(matched) >= len(lines) * (1 - MOST_WRONG) and 2 * separated >= len(matched)
    )


def _head(data: bytes) -> list[bytes]:
    """The first lines that are whole; a file of one line may do without its end."""
    end = data.rfind(b"\n", 0, HEAD)
    if end < 0:
        end = data.find(b"\n", HEAD)
    return [line.strip() for line in data[: end if end >= 0 else len(data)].splitlines()]


def _is_comment(line: bytes) -> bool:
    """Whether a line is about the file; names may begin with ``#`` too, as ``## forward ##``."""
    if not line.startswith(b"#"):
        return False
    is_words = re.match(rb"# .*\D.* ", line) is not None and b";" not in line
    return is_words or _matched(line) is None or _METADATA.fullmatch(line) is not None


def _matched(line: bytes) -> re.Match[bytes] | None:
    return _STACK.fullmatch(line) or _AUSTIN_METRICS.fullmatch(line)


@dataclass
class _Lane:
    """The stacks of one thread, merged: of each node its own time (ns, or what is counted)."""

    title: str
    tree: CallTree = field(default_factory=CallTree)
    own: list[float] = field(default_factory=lambda: [0])
    place: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, functions: list[int], number: float) -> int:
        """Count a stack; how many nodes are new."""
        node, before = 0, len(self.own)
        for function in functions:
            inner = self.place.get((node, function))
            if inner is None:
                inner = self.place[node, function] = self.tree.add(node, function)
                self.own.append(0)
            node = inner
        self.own[node] += number
        return len(self.own) - before


def parse_collapsed(data: bytes, path: Path) -> Record:
    """The record of the text; ``path`` is named in metadata and in errors."""
    told = _metadata(data)
    austin = b"austin" in told
    if told.get(b"mode") == b"memory":
        raise TraceError(
            f"{path}: stacks of {AUSTIN} that measure memory, not time. Record again without -m."
        )
    _check_one_run(data, path)
    lanes: dict[str, _Lane] = {}
    numbers: dict[str, int] = {}
    known: dict[bytes, int] = {}
    unit = 1000 if austin else 1
    total, nodes, decimals, cut_off = 0.0, 0, 0, 0
    for number, line, is_whole in _lines(data):
        found = (_AUSTIN_METRICS if austin else _STACK).fullmatch(line)
        if found is None:
            if not is_whole and lanes:
                cut_off = number
                continue
            raise TraceError(
                f"{path}: line {number:,} of collapsed stacks is not names with semicolons between "
                f"them, a blank and a number: {_shown(line)}. Write the file again, or remove it."
            )
        weight = _weight(found["number"], number, path) * unit
        total += weight
        if total >= LONGEST_NS:
            raise TraceError(
                f"{path}: the numbers up to line {number:,} add up to {total:.3g}, which is more "
                "than a profile can last (2**62 ns). Write the file again."
            )
        decimals += isinstance(weight, float)
        frames = found["stack"].split(b";")
        title = _thread(frames) if austin else "all stacks"
        lane = lanes.setdefault(title, _Lane(title))
        functions = []
        for frame in frames[2:] if austin and title else frames:
            code = known.get(frame)
            if code is None:
                name = _named(frame.decode("utf-8", "replace"), austin=austin)
                code = known[frame] = numbers.setdefault(name, len(numbers))
            functions.append(code)
        nodes += lane.add(functions, weight)
        if nodes > FREE_NODES + len(data) // BYTES_PER_NODE:
            raise TraceError(
                f"{path}: the stacks up to line {number:,} have {nodes:,} paths of calls, "
                f"more than names fit into {len(data):,} bytes. It was made to do harm."
            )
    laid_out = [
        lane_of_tree(lane.title or "all stacks", lane.tree, [round(own) for own in lane.own])
        for lane in lanes.values()
    ]
    laid_out = [lane for lane in laid_out if lane.ts]
    if not laid_out:
        raise TraceError(
            f"{path}: collapsed stacks without a number above 0: nothing was recorded. Record "
            "again."
        )
    is_python = austin or any(_PYTHON.search(name) for name in numbers)
    trace = trace_of_lanes(
        laid_out,
        list(numbers),
        AUSTIN if austin else "collapsed stacks",
        language="Python" if is_python else "",
    )
    metadata: dict[str, Any] = {"source": str(path), SAMPLED: True}
    metadata |= {"recorded_by": AUSTIN} if austin else {}
    metadata |= {} if is_python else {LANGUAGE: ""}
    return Record(
        trace, None, metadata | {"notes": _notes(austin=austin, decimals=decimals, cut=cut_off)}
    )


def _notes(*, austin: bool, decimals: int, cut: int) -> list[str]:
    notes = ["stacks laid out side by side: when anything ran is not in the file"]
    if not austin:
        notes.append(NO_UNIT)
    notes.append("calls are not counted")
    if decimals:
        notes.append(f"{decimals:,} numbers have decimals, which were rounded stack by stack")
    if cut:
        notes.append(f"line {cut:,}, the last one, is cut off and was left out")
    return notes


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """The number of each line that is a stack, its text, and whether the line has its end."""
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        number += 1
        line = data[start : end if end >= 0 else len(data)].strip()
        if line and not _is_comment(line):
            yield number, line, end >= 0
        start = end + 1 if end >= 0 else len(data)


def _metadata(data: bytes) -> dict[bytes, bytes]:
    """What the lines say with which Austin's files begin."""
    found = (_METADATA.fullmatch(line) for line in _head(data))
    return {each["key"].lower(): each["value"] for each in found if each}


def _check_one_run(data: bytes, path: Path) -> None:
    """A `TraceError` where every line has two numbers, as difffolded.pl writes two runs."""
    lines = [line for line in _head(data) if line and not _is_comment(line)]
    if lines and all(map(_TWO_NUMBERS.fullmatch, lines)):
        raise TraceError(
            f"{path}: collapsed stacks with two numbers in every line: that is what two runs "
            "differ in (difffolded.pl), and no run. Open the files of the runs, and compare these: "
            "gpuprof diff A B."
        )


def _weight(text: bytes, line: int, path: Path) -> float:
    number = int(text) if text.isdigit() and len(text) < MOST_DIGITS else float(text)
    if not 0 <= number < LONGEST_NS:
        raise TraceError(
            f"{path}: line {line:,} of collapsed stacks has the number {text[:SHOWN].decode()}, "
            "where one from 0 on was expected (in ns below 2**62). Write the file again."
        )
    return int(number) if number == int(number) else number


def _thread(frames: list[bytes]) -> str:
    """What Austin calls the thread of this stack; "" where it does not say."""
    process, thread = ([frame.decode("utf-8", "replace") for frame in frames[:2]] + ["", ""])[:2]
    if _PROCESS.fullmatch(process) and _THREAD.fullmatch(thread):
        return f"process {process[1:]}, thread {thread[1:]}"
    return ""


def _named(frame: str, *, austin: bool) -> str:
    """A frame as torch.profiler writes it, where it has a file and a line."""
    found = (_AUSTIN_FRAME if austin else _PY_SPY).fullmatch(frame)
    if not found or len(found["line"]) > 9:
        return frame
    return frame_name(found["name"], found["file"], int(found["line"]))


def _shown(line: bytes) -> str:
    text = line[:SHOWN].decode("utf-8", "replace")
    return repr(text) + (" ..." if len(line) > SHOWN else "")

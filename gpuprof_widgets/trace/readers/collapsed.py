"""Reader of collapsed (folded) stacks: a line per stack and a number, as flamegraph.pl draws them.

The format is that of Brendan Gregg's FlameGraph (stackcollapse-*.pl): names from the outside in
with semicolons between, a blank, a number. It has no times, and no unit for the number: samples
(perf, py-spy ``-f raw``) or ns (ours). Austin's files are such lines, with the process, the thread
and then ``file:function:line`` as names and µs as numbers; lines that begin with ``#`` say so.
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
"""`is_collapsed` looks at so many bytes, and at most one more line."""
MOST_WRONG = 0.1
"""With a larger share of lines that are no stacks, the file is of another kind."""
LONGEST_NS = 2**62
MOST_DIGITS = 20
SHOWN = 80
FREE_NODES, BYTES_PER_NODE = 500_000, 8
"""Limit of nodes in the call trees: some are free, the rest need bytes, as names are longer."""

_STACK = re.compile(rb"(?P<stack>.*\S)\s+(?P<number>-?\d+(?:\.\d*)?)")
_TWO_NUMBERS = re.compile(rb".*\S\s+\d+\s+\d+")
_SEPARATED = re.compile(rb"\S;\S")
_METADATA = re.compile(rb"#\s*(?P<key>[\w-]+)\s*:\s*(?P<value>.*)")
_AUSTIN_METRICS = re.compile(rb"(?P<stack>.*\S)\s+(?P<number>\d+)(?:,[01],-?\d+)?")
"""Austin's full mode adds whether the thread was idle, and bytes."""
_PROCESS, _THREAD = re.compile(r"P\d+"), re.compile(r"T[\w:]+")
_PY_SPY = re.compile(r"(?P<name>.+) \((?P<file>[^()]+\.pyx?|<[^<>]+>):(?P<line>\d+)\)")
_AUSTIN_FRAME = re.compile(r"(?P<file>.+):(?P<name>[^:]+):(?P<line>\d+)")
_PYTHON = re.compile(r"\.pyx?\(\d+\): ")
_JSON = re.compile(rb'[\[{][\s\[{]*["}\]]')


def is_collapsed(data: bytes) -> bool:
    """Return whether nearly all first lines are stacks with a number, and most have semicolons."""
    if _JSON.match(data[:SHOWN].lstrip()):
        return False
    lines = _stack_lines(data)
    matched = [stack[1] for line in lines if (stack := _matched(line)) is not None]
    separated = sum(_SEPARATED.search(stack) is not None for stack in matched)
    return bool(matched) and (
        len(matched) >= len(lines) * (1 - MOST_WRONG) and 2 * separated >= len(matched)
    )


def _stack_lines(data: bytes) -> list[bytes]:
    return [line for line in _head(data) if line and not _is_comment(line)]


def _head(data: bytes) -> list[bytes]:
    """Return the first complete lines; a single line need not end with a line break."""
    end = data.rfind(b"\n", 0, HEAD)
    if end < 0:
        end = data.find(b"\n", HEAD)
    return [line.strip() for line in data[: end if end >= 0 else len(data)].splitlines()]


def _is_comment(line: bytes) -> bool:
    """Return whether a line is about the file; names may begin with ``#``: ``## forward ##``."""
    if not line.startswith(b"#"):
        return False
    is_words = re.match(rb"# .*\D.* ", line) is not None and b";" not in line
    return is_words or _matched(line) is None or _METADATA.fullmatch(line) is not None


def _matched(line: bytes) -> re.Match[bytes] | None:
    return _STACK.fullmatch(line) or _AUSTIN_METRICS.fullmatch(line)


@dataclass
class _Lane:
    """The stacks of one thread as a call tree with each node's self value (ns, or counts)."""

    title: str
    tree: CallTree = field(default_factory=CallTree)
    self_values: list[float] = field(default_factory=lambda: [0])
    node_of: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, functions: list[int], value: float) -> int:
        """Count a stack; return how many nodes are new."""
        node, before = 0, len(self.self_values)
        for function in functions:
            inner = self.node_of.get((node, function))
            if inner is None:
                inner = self.node_of[node, function] = self.tree.add(node, function)
                self.self_values.append(0)
            node = inner
        self.self_values[node] += value
        return len(self.self_values) - before


@dataclass
class _Stacks:
    """The lines of a file read so far: a lane per thread, and functions by number."""

    austin: bool
    lanes: dict[str, _Lane] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    _number_of: dict[bytes, int] = field(default_factory=dict)
    nodes: int = 0

    def add(self, frames: list[bytes], value: float) -> None:
        """Count a stack on its thread."""
        title = _thread(frames) if self.austin else "all stacks"
        lane = self.lanes.setdefault(title, _Lane(title or "all stacks"))
        functions = frames[2:] if self.austin and title else frames
        self.nodes += lane.add([self._number(frame) for frame in functions], value)

    def _number(self, frame: bytes) -> int:
        number = self._number_of.get(frame)
        if number is None:
            name = _frame_name(frame.decode("utf-8", "replace"), austin=self.austin)
            number = self.functions.setdefault(name, len(self.functions))
            self._number_of[frame] = number
        return number


def parse_collapsed(data: bytes, path: Path) -> Record:
    """Return the record of the text; metadata and errors name ``path``."""
    head = _metadata(data)
    austin = b"austin" in head
    if head.get(b"mode") == b"memory":
        raise TraceError(
            f"{path}: stacks of {AUSTIN} that measure memory, not time. Record again without -m."
        )
    _check_one_run(data, path)
    stacks, decimals, cut_line = _stacks(data, austin, path)
    lanes = [
        lane_of_tree(lane.title, lane.tree, list(map(round, lane.self_values)))
        for lane in stacks.lanes.values()
    ]
    lanes = [lane for lane in lanes if lane.ts]
    if not lanes:
        raise TraceError(
            f"{path}: collapsed stacks without a number above 0: nothing was recorded. Record "
            "again."
        )
    functions = list(stacks.functions)
    language = "Python" if austin or any(map(_PYTHON.search, functions)) else ""
    process = AUSTIN if austin else "collapsed stacks"
    metadata: dict[str, Any] = {"source": str(path), SAMPLED: True}
    metadata |= {"recorded_by": AUSTIN} if austin else {}
    metadata |= {} if language else {LANGUAGE: ""}
    metadata |= {"notes": _notes(austin=austin, decimals=decimals, cut_line=cut_line)}
    return Record(trace_of_lanes(lanes, functions, process, language=language), None, metadata)


def _stacks(data: bytes, austin: bool, path: Path) -> tuple[_Stacks, int, int]:
    """Return the stacks, the count of numbers with decimals, and the line that is cut off or 0."""
    pattern, unit = (_AUSTIN_METRICS, 1000) if austin else (_STACK, 1)
    most_nodes = FREE_NODES + len(data) // BYTES_PER_NODE
    stacks = _Stacks(austin)
    total, decimals, cut_line = 0.0, 0, 0
    for number, line, is_whole in _lines(data):
        match = pattern.fullmatch(line)
        if match is None:
            if not is_whole and stacks.lanes:
                cut_line = number
                continue
            raise TraceError(
                f"{path}: line {number:,} is not a collapsed stack, which is names with semicolons "
                f"between them, a space and a number: {_shown(line)}. Write the file again, or "
                "remove the line."
            )
        value = _value(match["number"], number, path) * unit
        total += value
        if total >= LONGEST_NS:
            raise TraceError(
                f"{path}: the numbers up to line {number:,} add up to {total:.3g}, which is more "
                "than a profile can last (2**62 ns). Write the file again."
            )
        decimals += isinstance(value, float)
        stacks.add(match["stack"].split(b";"), value)
        if stacks.nodes > most_nodes:
            raise TraceError(
                f"{path}: the stacks up to line {number:,} have {stacks.nodes:,} paths of calls, "
                f"more than names fit into {len(data):,} bytes. It was made to do harm."
            )
    return stacks, decimals, cut_line


def _notes(*, austin: bool, decimals: int, cut_line: int) -> list[str]:
    notes = ["the stacks are laid out side by side: the file does not say when they ran"]
    if not austin:
        notes.append(NO_UNIT)
    notes.append("calls are not counted")
    if decimals:
        notes.append(f"{decimals:,} numbers have decimals, which were rounded stack by stack")
    if cut_line:
        notes.append(f"line {cut_line:,}, the last one, is cut off and was left out")
    return notes


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number and text of each line that is a stack, and whether the line is complete."""
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        number += 1
        line = data[start : end if end >= 0 else len(data)].strip()
        if line and not _is_comment(line):
            yield number, line, end >= 0
        start = end + 1 if end >= 0 else len(data)


def _metadata(data: bytes) -> dict[bytes, bytes]:
    """Return the keys and values in the comments at the start, as Austin writes them."""
    matches = map(_METADATA.fullmatch, _head(data))
    return {match["key"].lower(): match["value"] for match in matches if match}


def _check_one_run(data: bytes, path: Path) -> None:
    """Raise a `TraceError` where every line has two numbers: difffolded.pl writes two runs so."""
    lines = _stack_lines(data)
    if lines and all(map(_TWO_NUMBERS.fullmatch, lines)):
        raise TraceError(
            f"{path}: collapsed stacks with two numbers in every line: the difference of two runs "
            "(difffolded.pl), not a run. Open the files of both runs and compare them: "
            "gpuprof diff A B."
        )


def _value(text: bytes, line: int, path: Path) -> float:
    number = int(text) if text.isdigit() and len(text) < MOST_DIGITS else float(text)
    if not 0 <= number < LONGEST_NS:
        raise TraceError(
            f"{path}: line {line:,} of collapsed stacks has the number {text[:SHOWN].decode()}, "
            "where 0 or more was expected (in ns below 2**62). Write the file again."
        )
    return int(number) if number == int(number) else number


def _thread(frames: list[bytes]) -> str:
    """Return Austin's name of the thread of this stack; "" without one."""
    process, thread = ([frame.decode("utf-8", "replace") for frame in frames[:2]] + ["", ""])[:2]
    if _PROCESS.fullmatch(process) and _THREAD.fullmatch(thread):
        return f"process {process[1:]}, thread {thread[1:]}"
    return ""


def _frame_name(frame: str, *, austin: bool) -> str:
    """Return a frame as torch.profiler writes it, where it has a file and a line."""
    match = (_AUSTIN_FRAME if austin else _PY_SPY).fullmatch(frame)
    if not match or len(match["line"]) > 9:
        return frame
    return frame_name(match["name"], match["file"], int(match["line"]))


def _shown(line: bytes) -> str:
    text = line[:SHOWN].decode("utf-8", "replace")
    return repr(text) + (" ..." if len(line) > SHOWN else "")

"""Readers of pyinstrument's sessions (``.pyisession``) and call trees (``-r json``).

A session holds samples of the Python stack. ``pyinstrument/session.py`` writes it:
``frame_records`` is a list of a stack and its seconds, outermost frame first; a frame is
``function NUL file NUL line``, then attributes behind SOH (``pyinstrument/frame_info.py``), of
which ``c`` is the class.

A call tree is what ``pyinstrument/renderers/jsonrenderer.py`` makes of a session, from version 3 to
5: each frame holds those that it called. The tree has no order in time, and its times are rounded
to the µs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers.json_text import decoded
from gpuprof_widgets.trace.schema import SAMPLED
from gpuprof_widgets.trace.stack_lanes import (
    SELF_FRAME,
    CallTree,
    Lane,
    frame_name,
    lane_of_samples,
    lane_of_tree,
    trace_of_lanes,
)

PYINSTRUMENT = "pyinstrument"
"""The exporter in files of other formats that pyinstrument writes."""

ENDS = 1 << 16
"""The keys of a file are within so many bytes of its start or end."""
LONGEST_S = 2**62 / 1e9


class _Kind(NamedTuple):
    name: str
    again: str


SESSION = _Kind("a session of pyinstrument", "Save it again")
TREE = _Kind("a call tree of pyinstrument", "Save it again (pyinstrument -r json)")


class _Session(msgspec.Struct):
    frame_records: list[tuple[list[str], float]]
    start_time: float = 0.0
    duration: float = 0.0
    min_interval: float = 0.001
    sample_count: int = 0
    target_description: str = ""


_decode = msgspec.json.Decoder(_Session).decode


def is_pyinstrument(data: bytes) -> bool:
    """Return whether this is a JSON object with the keys that a session begins with."""
    head = data[:ENDS]
    return head.lstrip()[:1] == b"{" and b'"start_call_stack"' in head and b'"sample_count"' in head


def parse_pyinstrument(data: bytes, path: Path) -> Record:
    """Return the record of a session; metadata and errors name ``path``."""
    shape = "as its version 4 or 5 writes one"
    session = decoded(_decode, data, path, kind=SESSION.name, shape=shape, again=SESSION.again)
    numbers: dict[str, int] = {}
    samples = [
        [numbers.setdefault(_session_frame(frame), len(numbers)) for frame in stack]
        for stack, _ in session.frame_records
    ]
    weights = [_ns(seconds, SESSION, path) for _, seconds in session.frame_records]
    lane = lane_of_samples(session.target_description or "main thread", samples, weights, 0)
    if not lane.ts:
        raise TraceError(
            f"{path}: a session of pyinstrument without a single sample. Record something that "
            f"takes longer than its interval ({session.min_interval:g} s)."
        )
    every = f"{session.min_interval * 1e3:g} ms"
    notes = [f"sampled every {every}: calls are not counted, times are estimates"]
    epoch = _ns(session.start_time, SESSION, path)
    return _record(lane, list(numbers), epoch, notes, session.duration, path)


def _session_frame(frame: str) -> str:
    identifier, *attributes = frame.split("\x01")
    name, file, line = [*identifier.split("\x00"), "", ""][:3]
    class_name = next((text[1:] for text in attributes if text.startswith("c")), "")
    number = int(line) if line.isdecimal() and len(line) < 10 else 0
    return frame_name(f"{class_name}.{name}" if class_name else name, file, number)


def _ns(seconds: float, kind: _Kind, path: Path) -> int:
    if not 0 <= seconds < LONGEST_S:
        raise TraceError(
            f"{path}: {kind.name} with a time of {seconds!r} s, where 0 s or more "
            f"was expected. {kind.again}."
        )
    return round(seconds * 1e9)


def _record(
    lane: Lane, functions: Sequence[str], epoch: int, notes: list[str], seconds: float, path: Path
) -> Record:
    trace = trace_of_lanes([lane], functions, PYINSTRUMENT, epoch)
    metadata = {"source": str(path), "recorded_by": PYINSTRUMENT, SAMPLED: True, "notes": notes}
    return Record(trace, None, metadata | {"duration_s": seconds})


_TREE_KEYS = (re.compile(rb'"root_frame"\s*:'), re.compile(rb'"sample_count"\s*:'))
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
FREE_FRAMES, BYTES_PER_FRAME = 100_000, 100
"""Limit of frames: some are free, the rest need bytes (pyinstrument takes at least 170 each)."""
ROUNDING_NS = 1_000
"""Rounding error of each frame's time."""


class _Head(msgspec.Struct):
    start_time: float = 0.0
    duration: float = 0.0
    sample_count: int = 0
    target_description: str | None = None
    program: str | None = None


class _Frame(msgspec.Struct):
    function: str
    time: float
    file_path: str | None = None
    line_no: int | None = None
    class_name: str | None = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_frame = msgspec.json.Decoder(_Frame).decode


def is_pyinstrument_tree(data: bytes) -> bool:
    """Return whether this is a JSON object with a call tree's keys near its start or end."""
    if data[:64].lstrip()[:1] != b"{":
        return False
    ends = (data[:ENDS], data[-ENDS:])
    return all(any(key.search(end) for end in ends) for key in _TREE_KEYS)


def parse_pyinstrument_tree(data: bytes, path: Path) -> Record:
    """Return the record of a call tree; metadata and errors name ``path``."""
    texts, parents = _objects(data, path)
    if len(texts) > FREE_FRAMES + len(data) // BYTES_PER_FRAME:
        raise TraceError(
            f"{path}: a call tree of {len(texts):,} frames in {len(data):,} bytes, which is more "
            "than pyinstrument writes. It was made to do harm."
        )
    shape = "as its version 3 to 5 writes one"
    head, frames = decoded(
        lambda _: (_decode_head(texts[0]), list(map(_decode_frame, texts[1:]))),
        data,
        path,
        kind=TREE.name,
        shape=shape,
        again=TREE.again,
    )
    tree, self_ns, stretched = _tree(frames, [place - 1 for place in parents[1:]], path)
    numbers: dict[str, int] = {}
    tree.function[1:] = [
        numbers.setdefault(_tree_frame(frames[at]), len(numbers)) for at in tree.function[1:]
    ]
    lane = lane_of_tree(head.target_description or head.program or "main thread", tree, self_ns)
    if not lane.ts:
        raise TraceError(
            f"{path}: a call tree of pyinstrument without any time in it (of "
            f"{head.sample_count:,} samples). Record something that takes longer."
        )
    notes = [
        "the calls are laid out side by side: the file does not say when they ran",
        "recorded by samples: calls are not counted, times are estimates, rounded to the µs",
    ]
    if stretched:
        notes.append(
            f"{stretched:,} frames take less time than what they called: they were stretched"
        )
    epoch = _ns(head.start_time, TREE, path)
    return _record(lane, list(numbers), epoch, notes, head.duration, path)


def _tree_frame(frame: _Frame) -> str:
    name = f"{frame.class_name}.{frame.function}" if frame.class_name else frame.function
    return frame_name(name, frame.file_path or "", frame.line_no or 0)


def _tree(frames: list[_Frame], callers: list[int], path: Path) -> tuple[CallTree, list[int], int]:
    """Return the tree, whose functions are places in ``frames``, and each node's self time (ns).

    Also count the frames that are shorter than those in them by more than rounding makes.
    ``callers``: the place of each frame's caller, negative without one. pyinstrument's frame
    ``[self]`` is its caller's self time, and no call.
    """
    tree, self_ns, node = CallTree(), [0], [0] * len(frames)
    inside, calls = [0] * len(frames), [0] * len(frames)
    times = [_ns(frame.time, TREE, path) for frame in frames]
    for at, (frame, caller) in enumerate(zip(frames, callers, strict=True)):
        above = node[caller] if caller >= 0 else 0
        if frame.function == SELF_FRAME and caller >= 0:
            node[at] = above
            continue
        node[at] = tree.add(above, at)
        self_ns.append(times[at])
        if caller >= 0:
            inside[caller] += times[at]
            calls[caller] += 1
    stretched = 0
    for at, frame in enumerate(frames):
        if node[at] and inside[at] and frame.function != SELF_FRAME:
            stretched += inside[at] - times[at] > ROUNDING_NS * (calls[at] + 1)
            self_ns[node[at]] = max(times[at] - inside[at], 0)
    return tree, self_ns, stretched


def _objects(data: bytes, path: Path) -> tuple[list[bytes], list[int]]:
    """Return the text of each object in this JSON without its lists and objects, outer ones first.

    Also return the place of the object around each (-1: none). Frames are nested as deep as the
    program's calls, which is deeper than a decoder goes.
    """
    pieces: list[list[bytes]] = []
    around: list[int] = []
    opened: list[int] = []  # the places of objects; -1 is a list
    since = 0
    for token in _TOKEN.finditer(data):
        kind = data[token.start()]
        if kind in b'"':
            continue
        if kind in b"{[":
            if opened and opened[-1] >= 0:
                pieces[opened[-1]] += [data[since : token.start()], b"null"]
            if kind in b"[":
                opened.append(-1)
                continue
            around.append(next((place for place in opened[:-3:-1] if place >= 0), -1))
            opened.append(len(pieces))
            pieces.append([])
            since = token.start()
            continue
        if not opened or (opened[-1] >= 0) != (kind in b"}"):
            break
        place = opened.pop()
        if place >= 0:
            pieces[place].append(data[since : token.end()])
        since = token.end()
        if not opened:
            return [b"".join(parts) for parts in pieces], around
    raise TraceError(
        f"{path}: a call tree of pyinstrument that is not whole: its {len(data):,} bytes end "
        f"within {len(opened):,} frames and lists. Copy it again, or save it again."
    )

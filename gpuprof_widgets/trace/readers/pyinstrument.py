"""Reader of pyinstrument's sessions (``.pyisession``): samples of the Python stack.

``pyinstrument/session.py`` writes them: ``frame_records`` is a list of a stack and its seconds,
outermost frame first; a frame is ``function NUL file NUL line``, then attributes behind SOH
(``pyinstrument/frame_info.py``): of these ``c`` is the class.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED
from gpuprof_widgets.trace.stack_lanes import (
    SELF_FRAME,
    CallTree,
    frame_name,
    lane_of_samples,
    lane_of_tree,
    trace_of_lanes,
)

PYINSTRUMENT = "pyinstrument"
"""As it names itself in the files of other formats that it writes."""

HEAD = 1 << 16
LONGEST_S = 2**62 / 1e9


class _Session(msgspec.Struct):
    frame_records: list[tuple[list[str], float]]
    start_time: float = 0.0
    duration: float = 0.0
    min_interval: float = 0.001
    sample_count: int = 0
    target_description: str = ""


_decode = msgspec.json.Decoder(_Session).decode


def is_pyinstrument(data: bytes) -> bool:
    """Whether this is a JSON object with the keys that such a session begins with."""
    head = data[:HEAD]
    return head.lstrip()[:1] == b"{" and b'"start_call_stack"' in head and b'"sample_count"' in head


def parse_pyinstrument(data: bytes, path: Path) -> Record:
    """The record of the JSON text; ``path`` is named in metadata and in errors."""
    session = _decoded(data, path)
    numbers: dict[str, int] = {}
    samples = [
        [numbers.setdefault(_named(frame), len(numbers)) for frame in stack]
        for stack, _ in session.frame_records
    ]
    weights = [_ns(seconds, path) for _, seconds in session.frame_records]
    lane = lane_of_samples(session.target_description or "main thread", samples, weights, 0)
    if not lane.ts:
        raise TraceError(
            f"{path}: a session of pyinstrument without a single sample. Record something that "
            f"takes longer than its interval ({session.min_interval:g} s)."
        )
    every = f"{session.min_interval * 1e3:g} ms"
    note = f"sampled every {every}: calls are not counted, times are estimates"
    trace = trace_of_lanes([lane], list(numbers), "pyinstrument", _ns(session.start_time, path))
    metadata = {"source": str(path), "recorded_by": PYINSTRUMENT, SAMPLED: True, "notes": [note]}
    return Record(trace, None, metadata | {"duration_s": session.duration})


def _decoded(data: bytes, path: Path) -> _Session:
    try:
        return _decode(data)
    except msgspec.ValidationError as error:
        raise TraceError(
            f"{path}: a session of pyinstrument, but not as its version 4 or 5 writes one: "
            f"{error}. Save it again."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{path}: a session of pyinstrument that is not whole: {error} (it has {len(data):,} "
            "bytes). Copy it again, or save it again."
        ) from error


def _named(frame: str) -> str:
    identifier, *attributes = frame.split("\x01")
    name, file, line = [*identifier.split("\x00"), "", ""][:3]
    own_class = next((text[1:] for text in attributes if text.startswith("c")), "")
    number = int(line) if line.isdecimal() and len(line) < 10 else 0
    return frame_name(f"{own_class}.{name}" if own_class else name, file, number)


def _ns(seconds: float, path: Path) -> int:
    if not 0 <= seconds < LONGEST_S:
        raise TraceError(
            f"{path}: a session of pyinstrument with a time of {seconds!r} s, where seconds from 0 "
            "on were expected. Save it again."
        )
    return round(seconds * 1e9)


ENDS = 1 << 16
"""Bytes at either end of a file in which its keys stand."""

_KEYS = (re.compile(rb'"root_frame"\s*:'), re.compile(rb'"sample_count"\s*:'))
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_SAVE = "Save it again (pyinstrument -r json)"
FREE_FRAMES, BYTES_PER_FRAME = 100_000, 100
"""Frames that a file may have, some of them free: pyinstrument takes at least 170 bytes."""
ROUNDING_NS = 1_000
"""By so much a frame's time and those in it may differ, each."""


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
    """Whether this is a JSON object with the keys of such a tree near its start or end."""
    if data[:64].lstrip()[:1] != b"{":
        return False
    ends = (data[:ENDS], data[-ENDS:])
    return all(any(key.search(end) for end in ends) for key in _KEYS)


def parse_pyinstrument_tree(data: bytes, path: Path) -> Record:
    """The record of the JSON text; ``path`` is named in metadata and in errors."""
    texts, around = _objects(data, path)
    if len(texts) > FREE_FRAMES + len(data) // BYTES_PER_FRAME:
        raise TraceError(
            f"{path}: a call tree of {len(texts):,} frames in {len(data):,} bytes, which is more "
            "than pyinstrument writes. It was made to do harm."
        )
    try:
        head, frames = _decode_head(texts[0]), [_decode_frame(text) for text in texts[1:]]
    except msgspec.ValidationError as error:
        raise TraceError(
            f"{path}: a call tree of pyinstrument, but not as its version 3 to 5 writes one: "
            f"{error}. {_SAVE}."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{path}: a call tree of pyinstrument that is not whole: {error}. {_SAVE}."
        ) from error
    tree, own, longer = _tree(frames, around, path)
    numbers: dict[str, int] = {}
    tree.function[1:] = [
        numbers.setdefault(_pyinstrument_tree_named(frames[at]), len(numbers))
        for at in tree.function[1:]
    ]
    lane = lane_of_tree(head.target_description or head.program or "main thread", tree, own)
    if not lane.ts:
        raise TraceError(
            f"{path}: a call tree of pyinstrument without any time in it (of "
            f"{head.sample_count:,} samples). Record something that takes longer."
        )
    notes = [
        "a call tree, laid out side by side: when anything ran is not in the file",
        "recorded by samples: calls are not counted, times are estimates, rounded to the µs",
    ]
    if longer:
        notes.append(f"{longer:,} frames take less time than what they called: they were stretched")
    trace = trace_of_lanes(
        [lane], list(numbers), PYINSTRUMENT, _pyinstrument_tree_ns(head.start_time, path)
    )
    metadata = {"source": str(path), "recorded_by": PYINSTRUMENT, SAMPLED: True, "notes": notes}
    return Record(trace, None, metadata | {"duration_s": head.duration})


def _tree(frames: list[_Frame], around: list[int], path: Path) -> tuple[CallTree, list[int], int]:
    """The tree, whose functions are places in ``frames``, each node's own time (ns), and how many
    frames were less than those in them by more than rounding makes.

    pyinstrument's frame ``[self]`` is its caller's own time, and no call.
    """
    tree, own, node = CallTree(), [0], [0] * len(frames)
    inside, called = [0] * len(frames), [0] * len(frames)
    times = [_pyinstrument_tree_ns(frame.time, path) for frame in frames]
    for at, frame in enumerate(frames):
        above = around[at + 1] - 1
        is_self = frame.function == SELF_FRAME and above >= 0
        caller = node[above] if above >= 0 else 0
        node[at] = caller if is_self else tree.add(caller, at)
        if not is_self:
            own.append(times[at])
            if above >= 0:
                inside[above] += times[at]
                called[above] += 1
    longer = 0
    for at, frame in enumerate(frames):
        if node[at] and inside[at] and frame.function != SELF_FRAME:
            longer += inside[at] - times[at] > ROUNDING_NS * (called[at] + 1)
            own[node[at]] = max(times[at] - inside[at], 0)
    return tree, own, longer


def _objects(data: bytes, path: Path) -> tuple[list[bytes], list[int]]:
    """The text of every object in this JSON without what is in its lists and objects, outer ones
    first; and the place of the object around each (-1: none).

    Frames are nested as deep as the program's calls: deeper than a decoder goes.
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
            return [b"".join(each) for each in pieces], around
    raise TraceError(
        f"{path}: a call tree of pyinstrument that is not whole: its {len(data):,} bytes end "
        f"within {len(opened):,} frames and lists. Copy it again, or save it again."
    )


def _pyinstrument_tree_named(frame: _Frame) -> str:
    name = f"{frame.class_name}.{frame.function}" if frame.class_name else frame.function
    return frame_name(name, frame.file_path or "", frame.line_no or 0)


def _pyinstrument_tree_ns(seconds: float, path: Path) -> int:
    if not 0 <= seconds < LONGEST_S:
        raise TraceError(
            f"{path}: a call tree of pyinstrument with a time of {seconds!r} s, where seconds from "
            f"0 on were expected. {_SAVE}."
        )
    return round(seconds * 1e9)

"""Reader of pyinstrument's sessions (``.pyisession``): samples of the Python stack.

``pyinstrument/session.py`` writes them: ``frame_records`` is a list of a stack and its seconds,
outermost frame first; a frame is ``function NUL file NUL line``, then attributes behind SOH
(``pyinstrument/frame_info.py``): of these ``c`` is the class.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED
from gpuprof_widgets.trace.stack_lanes import frame_name, lane_of_samples, trace_of_lanes

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

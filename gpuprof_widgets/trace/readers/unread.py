"""Kinds of files that are recognised but not read, and what to do instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

HEAD_BYTES = 1 << 16
"""Bytes at the start of a file that tell whether it is collapsed stacks."""

SPEEDSCOPE = "https://www.speedscope.app"


Recognises = Callable[[bytes, Path], bool]


def is_protobuf_of_packets(data: bytes) -> bool:
    """Return whether this is a protobuf of one message, or of a message and another field.

    Perfetto's traces (field 1, packet) and TensorFlow's XPlane (field 1, plane) begin like this.
    """
    header = re.match(rb"\x0a([\x80-\xff]{0,4}[\x00-\x7f])", data)  # the field, the length
    if header is None:
        return False
    length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(header[1]))
    end = header.end() + length
    next_fields = (b"\x0a", b"\x12", b"\x1a", b"\x22")
    return length > 0 and (data[end : end + 1] in next_fields or end == len(data))


def _named(*ends: str) -> Recognises:
    return lambda _, path: path.name.lower().endswith(ends)


def _starts(*starts: bytes) -> Recognises:
    lower = tuple(start.lower() for start in starts)
    return lambda data, _: data[:64].lstrip().lower().startswith(lower)


def _json_with(*parts: bytes) -> Recognises:
    """Recognise a JSON object by what is anywhere in it; only what is no trace is asked for."""
    return lambda data, _: data[:64].lstrip()[:1] == b"{" and all(part in data for part in parts)


_JSON = re.compile(rb'[\[{][\s\[{]*["}\]]')
"""The start of JSON; names of stacks may begin with brackets, too."""


def is_collapsed(data: bytes) -> bool:
    """Return whether nearly all first lines are names and a number, most with semicolons."""
    head = data[:HEAD_BYTES]
    if _JSON.match(head[:80].lstrip()):
        return False
    if len(data) > HEAD_BYTES:
        head = head[: head.rfind(b"\n") + 1]
    lines = [line.strip() for line in head.splitlines()]
    lines = [line for line in lines if line and not line.startswith(b"#")]
    stacks = [names for line in lines if (names := _names_before_number(line))]
    separated = sum(b";" in names.strip(b"; ") for names in stacks)
    return bool(stacks) and len(stacks) >= 0.9 * len(lines) and 2 * separated >= len(stacks)


def _names_before_number(line: bytes) -> bytes:
    """Return the names of a stack, or the metrics of Austin; b"" where the line is none."""
    names, _, number = line.rpartition(b" ")
    is_number = number[:1].isdigit() and not number.strip(b"0123456789.,-")
    return names if is_number and not names.endswith(b";") else b""


def _nsys_export(path: Path) -> str:
    source, target = shlex.quote(str(path)), shlex.quote(str(path.with_suffix(".sqlite")))
    return f"nsys export --type sqlite --output {target} {source}; then open {target}"


def _traceconv(path: Path) -> str:
    source, target = shlex.quote(str(path)), shlex.quote(str(path.with_suffix(".json")))
    return (
        f"traceconv json {source} {target}; then open {target} (traceconv is Perfetto's converter: "
        "https://perfetto.dev/docs/quickstart/traceconv)"
    )


UNREAD: tuple[tuple[str, Recognises, Callable[[Path], str]], ...] = (
    ("a report of Nsight Systems", _named(".nsys-rep", ".qdrep"), _nsys_export),
    (
        "a report of Nsight Compute",
        _named(".ncu-rep"),
        lambda path: f"ncu --import {shlex.quote(str(path))} prints it; it holds no timeline",
    ),
    (
        "a TensorFlow or JAX profile (XPlane)",
        _named(".xplane.pb"),
        lambda _: 'open the "trace_viewer" page of TensorBoard or XProf and save its JSON',
    ),
    (
        "an Austin profile in its binary format (MOJO)",
        lambda data, _: data[:3] == b"MOJ" and data[3:4] < b" ",
        lambda path: (
            f"mojo2austin {shlex.quote(str(path))} stacks.austin (it comes with "
            "austin-python), and flamegraph.pl draws that"
        ),
    ),
    ("a Perfetto trace", lambda data, _: is_protobuf_of_packets(data), _traceconv),
    (
        "a file of speedscope (.speedscope.json)",
        _json_with(b"speedscope.app/file-format-schema.json"),
        lambda _: f"open it at {SPEEDSCOPE}",
    ),
    (
        "a session of pyinstrument (.pyisession)",
        _json_with(b'"frame_records"', b'"sample_count"'),
        lambda _: "pyinstrument --load shows it",
    ),
    (
        "a call tree of pyinstrument (-r json)",
        _json_with(b'"root_frame"', b'"sample_count"'),
        lambda _: "record with pyinstrument -o run.html, a page to open in a browser",
    ),
    (
        "a CPU profile of V8 (.cpuprofile), as node --cpu-prof writes",
        _json_with(b'"nodes"', b'"callFrame"'),
        lambda _: f"open it in the Performance panel of Chrome's DevTools, or at {SPEEDSCOPE}",
    ),
    (
        "a Python script",
        _named(".py"),
        lambda path: f"gpuprof run {shlex.quote(str(path))} profiles it",
    ),
    (
        "a file of collapsed stacks (.collapsed, .folded)",
        lambda data, path: is_collapsed(data) or _named(".collapsed", ".folded")(data, path),
        lambda _: f"flamegraph.pl draws it, and {SPEEDSCOPE} opens it",
    ),
    (
        "an HTML page",
        _starts(b"<!doctype html", b"<html"),
        lambda _: "open it in a browser; here open the trace or .gpuprof that it was made from",
    ),
    (
        "packed by bzip2, lz4, 7-Zip or RAR",
        _starts(b"BZh", b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"rar!\x1a\x07"),
        lambda _: "unpack it and open what is in it",
    ),
)
"""Kinds of files: the name, how it is recognised, and what to do with it."""


def advice(data: bytes, path: Path) -> str:
    """Return what this file is and what to do with it; "" where that is unknown."""
    for name, recognises, advise in UNREAD:
        if recognises(data, path):
            return f"this is {name}, which is not read. Instead: {advise(path)}."
    return ""

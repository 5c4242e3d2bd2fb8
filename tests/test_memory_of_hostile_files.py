"""Reading a file that was made to take memory takes little more than a good one of its size does.

Each is read by a process of its own, whose peak Linux tells. One Python imports the readers and
forks these processes: the peak of a child begins with what is in memory when it is forked.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from subprocess import PIPE

import pytest

from gpuprof_widgets.trace.chrome_trace import complete_record

pytestmark = pytest.mark.slow

SIZE = 5_000_000
"""Bytes of each file, good or bad."""

ALLOWANCE = 48 << 20
"""Bytes that a bad file may take beyond twice a good one: a batch of its events, and the parts
beside them that are free whatever the size of a file."""

EVENT = b'{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":1,"ts":1000,"dur":10,"args":{"a":1}}'

READ = """
import os, re, sys
from contextlib import suppress
from pathlib import Path
import gpuprof_widgets.trace.readers as readers
from gpuprof_widgets.exceptions import TraceError
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
for path in sys.stdin:
    if os.fork():
        os.wait()
        continue
    before = peak()
    with suppress(TraceError):
        readers.load(Path(path.rstrip("\\n")))
    print((peak() - before) * 1024, flush=True)
    os._exit(0)
"""


def _filled(before: bytes, part: bytes, after: bytes = b"") -> bytes:
    """As many of the part as make the file as large as the others."""
    return before + part * ((SIZE - len(before) - len(after)) // len(part)) + after


_KEY = b")\x03z\x01ai\x01\x00\x00\x00z\x01f"
ODD = EVENT.replace(b'"pid":1', b'"pid":1.0')
"""An event that only the complete reader knows, by which bad files are read as well."""
GOOD = _filled(b'{"traceEvents":[' + ODD + b",", EVENT + b",", EVENT + b"]}")
BAD = {
    "objects beside the events": _filled(
        b'{"deviceProperties":[', b"{},", b'{}],"traceEvents":[' + EVENT + b"]}"
    ),
    "lists beside events that are cut off": _filled(
        b'{"more":[', b"[],", b'[]],"traceEvents":[' + EVENT + b"," + EVENT[:-9]
    ),
    "events of nothing": _filled(b'{"traceEvents":[', b"{},", b"{}]}"),
    "events without a time": _filled(b"[", b'{"ph":"X"},', b"{}]"),
    "kinds without end": b"[" + b",".join(b'{"ph":"%d"}' % n for n in range(SIZE // 15)) + b"]",
    "name of quotes": _filled(
        b'{"traceEvents":[' + EVENT + b',{"ph":"X","name":"', b'"a', b'","ts":1}]}'
    ),
    "args that are cut off": _filled(
        b'{"traceEvents":[' + EVENT + b",", b'{"ph":"X","args":{"a":['
    ),
    "lists in the args of one event": _filled(
        b"[" + EVENT + b',{"ph":"X","ts":1,"dur":1,"args":{"a":[', b"[],", b"[]]}}]"
    ),
    "a list of numbers": _filled(b"[", b"1,", b"1]"),
    "a list of texts": _filled(b"[", b'"",', EVENT + b"]"),
    "frames below one long name": b'{"stackFrames":{"0":{"name":"%s"},%s},"traceEvents":[%s]}'
    % (
        b"n" * 20_000,
        b",".join(b'"%d":{"name":"a","parent":0}' % n for n in range(1, SIZE // 70)),
        b",".join(b'{"ph":"X","ts":1,"dur":1,"sf":%d}' % n for n in range(1, SIZE // 70)),
    ),
    "texts of their own": b"[%s]"
    % b",".join(
        EVENT.replace(b"op", b"op%d" % n).replace(b"1}", b'"%d"}' % n) for n in range(SIZE // 100)
    ),
    "pickle of dicts": _filled(b"\x80\x04", b"}", b"."),
    "pickle of tuples": _filled(b"\x80\x04", b"K\x01\x85", b"."),
    "pickle of marks": _filled(b"\x80\x04", b"(", b"."),
    "statistics of dicts": _filled(b"{" + _KEY + b"(" + (SIZE // 4).to_bytes(4, "little"), b"{0"),
}


@pytest.fixture(scope="module")
def peak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bytes], int]]:
    """Bytes by which reading a file of this content raises what its process has held at once."""
    path = tmp_path_factory.mktemp("hostile") / "file"
    command = [sys.executable, "-c", READ]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        asked, answers = reader.stdin, reader.stdout

        def peak_of(data: bytes) -> int:
            path.write_bytes(data)
            asked.write(f"{path}\n")
            return int(answers.readline())

        yield peak_of


@pytest.fixture(scope="module")
def good_peak(peak: Callable[[bytes], int]) -> int:
    return peak(GOOD)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is in /proc")
@pytest.mark.parametrize("name", BAD)
def test_a_hostile_file_takes_at_most_twice_the_memory_of_a_good_one(
    name: str, peak: Callable[[bytes], int], good_peak: int
) -> None:
    assert peak(BAD[name]) <= 2 * good_peak + ALLOWANCE


EVENTS = 15_000
"""In each of the files with many names, threads or processes."""


def _events(**fields: str) -> bytes:
    """A file of events whose fields are these, with their number in it."""
    plain = {"cat": "cpu_op", "name": "op", "pid": "1", "tid": "1"}
    event = ",".join(f'"{key}":"{value}"' for key, value in (plain | fields).items())
    events = (f'{{"ph":"X",{event},"ts":{n},"dur":1,"args":{{"a":1}}}}' for n in range(EVENTS))
    numbered = (text.replace("#", str(1_000_000 + n)) for n, text in enumerate(events))
    return f'{{"traceEvents":[{",".join(numbered)}]}}'.encode()


MANY = {
    "threads": {"tid": "#"},
    "processes": {"pid": "#"},
    "rows of another program": {"tid": "#", "cat": "x"},
    "names": {"name": "a name of its own #"},
    "categories": {"cat": "a category of its own #"},
}


def _traced_peak(data: bytes) -> int:
    """Bytes that Python and numpy have at once while the complete reader reads this."""
    tracemalloc.start()
    try:
        complete_record(data, Path("trace.json"))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@cache
def _traced_peak_of_a_plain_file() -> int:
    _traced_peak(_events())  # loads what is loaded when it is first used
    return _traced_peak(_events())


@pytest.mark.parametrize("of_what", MANY)
def test_many_of_a_kind_take_little_more_than_as_many_events(of_what: str) -> None:
    assert _traced_peak(_events(**MANY[of_what])) <= 2.5 * _traced_peak_of_a_plain_file()


@pytest.mark.parametrize("key", ["name", "cat", "tid", "args"])
def test_one_long_text_takes_little_more_than_a_plain_file_of_its_length(key: str) -> None:
    plain = _events()
    value = '{"a":"%s"}' if key == "args" else '"%s"'
    field = f'"{key}":{value % ("n" * len(plain))}'.encode()
    long = b'{"traceEvents":[{"ph":"X","ts":1,"dur":1,%s}]}' % field
    assert _traced_peak(long) <= 2 * _traced_peak_of_a_plain_file()

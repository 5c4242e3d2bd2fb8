"""The table of readers, and readers of other packages in it."""

from __future__ import annotations

import gzip
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import gpuprof_widgets
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.chrome_trace import record_of_events
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import READERS, Reader, guarded, parse
from tests.trace_files import kineto, tar_of, zip_of

ROWS = b"load 0 2.5\nstep 3 1.001\n"
"""A file of the format of `TOY`: a name, a start and a duration in us per line."""


def is_toy(data: bytes) -> bool:
    return re.match(rb"\S+ [\d.]+ [\d.]+\n", data) is not None


def parse_toy(data: bytes, path: Path) -> Record:
    rows = (line.split() for line in data.decode().splitlines())
    return record_of_events(
        ({"ph": "X", "name": name, "ts": float(ts), "dur": float(dur)} for name, ts, dur in rows),
        path,
    )


TOY = Reader("a toy trace (.toy)", is_toy, parse_toy, "toy")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Add a reader as the package toy-reader does, with some of its functions exchanged."""

    def add(recognises: Any = is_toy, parse: Any = parse_toy) -> None:
        reader = Reader(TOY.name, recognises, parse)
        monkeypatch.setitem(READERS, "toy", guarded("toy", reader, "toy-reader"))

    return add


def fail(*_: Any) -> NoReturn:
    raise KeyError("no such field")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("run.toy", ROWS),
        ("run.toy.gz", gzip.compress(ROWS)),
        ("run.zip", zip_of({"run.toy": ROWS, "readme.txt": b"hello\n"})),
        ("run.tar.gz", gzip.compress(tar_of({"run.toy.gz": gzip.compress(ROWS)}))),
        ("folder/run.toy", ROWS),
    ],
    # Not the data: gzip writes the time into it, and all workers have to collect the same names.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_format_of_another_package_is_read_wherever_ours_are(
    name: str, data: bytes, use: Callable[..., None], tmp_path: Path
) -> None:
    use()
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    profile = gpuprof_widgets.load(path.parent if "/" in name else path)
    slices = profile.trace.slices
    assert slices["name"].tolist() == ["load", "step"]
    assert slices["ts"].tolist() == [0, 3_000]
    assert slices["dur"].tolist() == [2_500, 1_001]


def test_what_can_be_read_is_listed_with_it(use: Callable[..., None]) -> None:
    use()
    for data in (b"hello there", b'{"a": 1}'):
        with pytest.raises(TraceError, match=r"What can be read: .*; a toy trace \(\.toy"):
            parse(data, Path("x"))


def test_a_reader_of_another_package_comes_before_that_of_chrome_traces_only(
    use: Callable[..., None],
) -> None:
    use(recognises=lambda data: True, parse=lambda data, path: fail())
    with pytest.raises(TraceError, match="toy-reader"):
        parse(kineto("aten::mm"), Path("x"))
    with pytest.raises(TraceError, match="the pickle of 3 bytes"):
        parse(b"\x80\x04.", Path("x"))


def test_one_that_cannot_say_what_it_recognises_is_named_once_and_left_out(
    use: Callable[..., None],
) -> None:
    use(recognises=fail)
    with pytest.warns(UserWarning, match="toy-reader failed to tell .*: KeyError: 'no such field'"):
        assert len(parse(kineto("aten::mm"), Path("x")).trace) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(parse(kineto("aten::mm"), Path("x")).trace) == 1


def test_one_that_fails_is_an_error_that_names_file_and_package(use: Callable[..., None]) -> None:
    use(parse=fail)
    with pytest.raises(TraceError, match=r"run\.toy: toy-reader, which .* KeyError: 'no such"):
        parse(ROWS, Path("run.toy"))
    use(parse=lambda data, path: [data])
    with pytest.raises(TraceError, match=r"run\.toy: toy-reader, which .*returns list, not Record"):
        parse(ROWS, Path("run.toy"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TraceError("run.toy: the second row has no name"), "^run.toy: the second row has no name"),
        (RecursionError(), "nested deeper than in any trace"),
        (MemoryError(), "does not fit in the memory of this machine"),
    ],
)
def test_its_own_words_and_what_any_reader_may_raise_stay(
    error: Exception, words: str, use: Callable[..., None]
) -> None:
    def raise_it(data: bytes, path: Path) -> NoReturn:
        raise error

    use(parse=raise_it)
    with pytest.raises(TraceError, match=words):
        parse(ROWS, Path("run.toy"))


def test_what_is_no_reader_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a function is no gpuprof_widgets\.trace\.readers\.Read"):
        guarded("toy", is_toy, "toy-reader")

"""What a path may be that is no file with a trace, and a file that is written while it is read."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.files import write_whole
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import READERS, Reader, load
from tests.command_lines import gpuprof
from tests.trace_files import kineto

NOBODY = 65534
Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(kineto("aten::mm"))
    return path


def refused(path: Path | str) -> str:
    """The words with which it is refused, at once."""
    with pytest.raises(TraceError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@contextmanager
def as_nobody(path: Path) -> Iterator[None]:
    """As a user who reaches the path, and whom its mode keeps from reading."""
    for folder in path.parents[:3]:
        folder.chmod(0o755)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_missing_file_says_what_is_there(trace: Path) -> None:
    error = refused(trace.with_name("trase.json"))
    assert "no such file; check the path. In" in error
    assert "trace.json" in error


def test_a_link_that_leads_to_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "a link that leads to itself" in refused(tmp_path / "a")


def test_a_path_that_is_none_is_named() -> None:
    with pytest.raises(TraceError, match="this is not a path"):
        load("trace\0.json")
    assert "File name too long" in refused("x" * 5_000)


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "this is a pipe; read it through standard input" in refused(tmp_path / "pipe")


def test_a_pipe_that_is_open_is_read(trace: Path) -> None:
    """As bash gives one for ``<(zcat trace.json.gz)``."""
    reading, writing = os.pipe()

    def fill() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(trace.read_bytes())

    writer = threading.Thread(target=fill)
    writer.start()
    try:
        assert len(load(f"/dev/fd/{reading}").trace) == 1
    finally:
        writer.join()
        os.close(reading)


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert "this is a socket" in refused("socket")


def test_a_file_that_may_not_be_read_is_named(trace: Path) -> None:
    trace.chmod(0)
    with as_nobody(trace):
        assert "no permission to read it; ask its owner" in refused(trace)


@pytest.mark.parametrize("content", [b"", b"\n", b"  \n\n "])
def test_a_file_of_nothing_is_named(trace: Path, content: bytes) -> None:
    trace.write_bytes(content)
    told = "the file is empty (0 bytes)" if not content else "it starts with"
    assert told in refused(trace)


# A file that grows


def reading_while(monkeypatch: pytest.MonkeyPatch, happens: Any) -> None:
    """Something happens to the file after its bytes were read, before they are understood."""

    def as_before(reader: Reader) -> Reader:
        def parse_later(data: bytes, path: Path) -> Record:
            happens(path)
            return reader.parse(data, path)

        return replace(reader, parse=parse_later)

    for name, reader in READERS.items():
        monkeypatch.setitem(READERS, name, as_before(reader))


def test_a_file_that_grows_while_it_is_read_says_so(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = trace.stat().st_size
    reading_while(monkeypatch, lambda path: path.write_bytes(path.read_bytes() + b" " * 1_000))
    record = load(trace)
    assert len(record.trace) == 1
    assert record.metadata["notes"] == [
        f"the file was written while it was read: it had {size} bytes then and has "
        f"{size + 1_000:,} now. Wait until its writer is done, and open it again"
    ]


def test_what_does_not_fit_the_memory_is_an_error(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(path: Path) -> None:
        raise MemoryError

    reading_while(monkeypatch, no_memory)
    with pytest.raises(TraceError, match="does not fit in the memory of this machine"):
        load(trace)


# Folders


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0)
    with as_nobody(closed):
        assert "no permission to read it" in refused(closed)


# On the command line


def test_a_folder_of_files_that_are_no_trace_is_no_reason_to_stop(
    tmp_path: Path, capsys: Capsys
) -> None:
    """Before a command writes it looks at what it reads, which may be a folder of .prof files."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "trace.pt").write_bytes(kineto("aten::mm"))
    (tmp_path / "out.json").write_text("from before")
    called = gpuprof(capsys, "convert", tmp_path / "in", tmp_path / "out.json")
    assert (called.code, called.err) == (0, "")
    assert b"aten::mm" in (tmp_path / "out.json").read_bytes()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("before")

    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(TraceError, match="cannot be written"):
        write_whole(target, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert target.read_text() == "before"

"""Saving under stress: the old file or the new one, never half of one, and what to do is said."""

from __future__ import annotations

import os
import resource
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets import Profile
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.options import Options
from gpuprof_widgets.profiling import check
from gpuprof_widgets.trace.files import write_whole
from tests.records import assert_same_record
from tests.traces import op, trace_of

OLD, NEW = b"the old content", b"the new content, which is longer"
NOBODY = 65534


def profile_of(calls: int = 3) -> Profile:
    rows = [op("aten::mm", ts=1_000 * n, dur=900) for n in range(calls)]
    record = trace_of(*rows, label="a run", notes=[])
    return Profile(record.trace, metadata=record.metadata)


def in_a_fork(work: Callable[[], Any]) -> int:
    """How a child process ended that did this work; the signal where one ended it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -1


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_first(file: Any) -> None:
    kill()


def killed_halfway(file: Any) -> None:
    file.write(NEW[:10])
    file.flush()
    kill()


@pytest.mark.parametrize("write", [killed_first, killed_halfway])
@pytest.mark.parametrize("before", [None, OLD])
def test_killed_while_it_writes_the_old_file_stands(
    tmp_path: Path, write: Callable[[Any], None], before: bytes | None
) -> None:
    target = tmp_path / "run.zip"
    if before is not None:
        target.write_bytes(before)
    assert in_a_fork(lambda: write_whole(target, write)) == signal.SIGKILL
    assert (target.read_bytes() if target.exists() else None) == before
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".unfinished"] == (
        [] if before is None else ["run.zip"]
    )
    write_whole(target, lambda file: file.write(NEW))
    assert target.read_bytes() == NEW


@pytest.mark.parametrize(
    ("call", "expected"), [("os.fsync", OLD), ("pathlib.Path.replace", OLD), ("", NEW)]
)
def test_killed_as_it_ends_the_file_is_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, expected: bytes
) -> None:
    target = tmp_path / "run.zip"
    target.write_bytes(OLD)
    if call:
        monkeypatch.setattr(call, lambda *_: kill())

    def work() -> None:
        write_whole(target, lambda file: file.write(NEW))
        kill()

    assert in_a_fork(work) == signal.SIGKILL
    assert target.read_bytes() == expected


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files of this process end here, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_the_old_file_stands_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    target = tmp_path / "run.zip"
    target.write_bytes(OLD)
    words = r"run\.zip: cannot be written .*make room there"
    with room_for(300), pytest.raises(TraceError, match=words):
        profile_of(calls=500).save(target)
    assert target.read_bytes() == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["run.zip"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    profile_of().save(pipe)
    reader.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "copy.zip").write_bytes(read[0])
    assert_same_record(Profile.load(tmp_path / "copy.zip"), profile_of())


def test_a_link_stays_one_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    link = tmp_path / "newest.zip"
    link.symlink_to("runs/3.zip")
    profile_of().save(link)
    assert link.is_symlink()
    assert_same_record(Profile.load(tmp_path / "runs" / "3.zip"), profile_of())


def test_two_at_once_leave_one_of_both_and_nothing_else(tmp_path: Path) -> None:
    """Two notebooks, or two threads of one, with the same name for their file."""
    target = tmp_path / "run.zip"
    both = threading.Barrier(2)
    failed: list[BaseException] = []

    def write(content: bytes) -> None:
        def meeting(file: Any) -> None:
            file.write(content[:5])
            both.wait(timeout=60)
            file.write(content[5:])

        try:
            write_whole(target, meeting)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in (OLD, NEW)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert target.read_bytes() in (OLD, NEW)
    assert [path.name for path in tmp_path.iterdir()] == ["run.zip"]


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder into which this process may not write, though it be root's."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/tmp")))  # not below one of root's
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.setresuid(NOBODY, NOBODY, 0)  # root ignores permissions
    try:
        yield folder
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        folder.chmod(0o755)
        folder.rmdir()


def test_a_folder_that_is_read_only_is_told_before_anything_runs(read_only: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot write .*run\.zip: permission denied"):
        check(Options(save=str(read_only / "run.zip")))
    with pytest.raises(TraceError, match=r"Permission denied.*that you may write to"):
        profile_of().save(read_only / "run.zip")


def test_a_home_that_is_not_known_is_told_before_anything_runs() -> None:
    with pytest.raises(OptionError, match="home folder is not known here; give the whole path"):
        check(Options(save="~nobody-of-this-name/run.zip"))

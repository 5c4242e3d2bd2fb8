"""Files of ranks read by several processes: the same as by one, and nothing is left of them."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.many_ranks import processes, reading
from gpuprof_widgets.many_ranks.profiles import RankProfiles
from gpuprof_widgets.many_ranks.reading import in_order, process_count
from gpuprof_widgets.trace.readers import READERS
from gpuprof_widgets.trace.remote import RemotePath
from tests import reading_jobs
from tests.displays import with_bars_at_once
from tests.job import STARTS, assert_same, in_lockstep, saved

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
REAL = sorted((ROOT / "tests/data/recorded").glob("training.rank*.gpuprof"))
WITHIN_S = 60.0
"""A bound against hanging."""


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes read, however small the files are, on however small a machine."""
    monkeypatch.setattr(reading, "PAYS_BYTES", 0)
    monkeypatch.setattr(reading, "cores", lambda: 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved(tmp_path, in_lockstep(STARTS))
    return tmp_path


def is_there(process: int) -> bool:
    """Whether the process runs, or has ended and was not waited for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def runs(process: int) -> bool:
    """Whether it still runs: who waits for one that lost its parent is up to the system."""
    state = Path(f"/proc/{process}/stat")
    return is_there(process) and not (state.exists() and ") Z " in state.read_text())


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether that comes to hold before long."""
    end = time.monotonic() + WITHIN_S
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def names(*given: str) -> list[Path]:
    return [Path(name) for name in given]


@pytest.mark.usefixtures("several")
class TestTheSameAsHere:
    @staticmethod
    def here(paths: Any) -> RankProfiles:
        """The ranks, read by this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "cores", lambda: 1)
            return gpuprof_widgets.ranks(paths)

    def test_of_real_ranks(self) -> None:
        assert_same(gpuprof_widgets.ranks(REAL), self.here(REAL))

    def test_of_files_some_of_which_are_no_traces(self, folder: Path) -> None:
        (folder / "rank7.json").write_text("{}")
        (folder / "rank8.json.gz").write_bytes(b"\x1f\x8b\x08")
        run = gpuprof_widgets.ranks(folder)
        assert_same(run, self.here(folder))
        assert len(run.notes) > 1

    def test_given_by_name_one_that_is_none_is_an_error(self, folder: Path) -> None:
        (folder / "rank7.json").write_text("{}")
        with pytest.raises(TraceError, match=r"rank7\.json"):
            gpuprof_widgets.ranks([*folder.iterdir()])

    def test_the_timelines(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rows, heading = gpuprof_widgets.ranks(folder)._timelines([2, 0])
        monkeypatch.setattr(reading, "cores", lambda: 1)
        same_rows, same_heading = gpuprof_widgets.ranks(folder)._timelines([2, 0])
        assert heading == same_heading
        for row, same in zip(rows, same_rows, strict=True):
            assert row.record.trace.slices.equals(same.record.trace.slices)
            assert replace(row, record=same.record) == same

    def test_a_timeline_that_went_away_is_an_error(self, folder: Path) -> None:
        run = gpuprof_widgets.ranks(folder)
        (folder / "run.rank1.gpuprof").unlink()
        with pytest.raises(TraceError, match=r"run\.rank1\.gpuprof"):
            run.report()

    def test_files_are_counted_as_they_are_read(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outputs = with_bars_at_once(monkeypatch)
        gpuprof_widgets.ranks(folder).report()
        assert [text[25:] for text in outputs.texts(0)] == [
            *(f"{number} of 3 ranks read" for number in (1, 2, 3)),
            "",
        ]
        assert [text[25:] for text in outputs.texts(1)][:1] == ["1 of 3 timelines read"]


@pytest.mark.usefixtures("several")
class TestInOrder:
    def test_several_processes_read(self) -> None:
        files = names(*"abcdef")
        read = list(in_order(reading_jobs.process_of, files))
        assert [name for name, _ in read] == [*"abcdef"]  # type: ignore[misc]
        assert os.getpid() not in {process for _, process in read}  # type: ignore[misc]

    def test_in_the_order_of_the_files_whatever_is_read_first(self, tmp_path: Path) -> None:
        files = [tmp_path / name for name in "01"]
        assert list(in_order(reading_jobs.read_after_the_next, files)) == ["0", "1"]

    def test_the_first_comes_before_the_last_is_read(self, tmp_path: Path) -> None:
        files = [tmp_path / name for name in "0123"]
        read = in_order(reading_jobs.read_after_the_next, files)
        assert next(read) == "0"
        read.close()

    def test_a_terminal_s_interrupt_is_for_this_process_alone(self) -> None:
        assert os.getsid(0) not in in_order(reading_jobs.session_of, names("a", "b"))

    def test_noise_does_not_get_into_the_pipes(self, capfd: pytest.CaptureFixture[str]) -> None:
        files = names("a", "b")
        assert list(in_order(reading_jobs.read_noisily, files)) == ["a", "b"]
        written = capfd.readouterr()
        assert written.out == ""
        for noise in ("printed", "written", "by a child", "logged", "not flushed"):
            assert written.err.count(noise) == 2

    def test_nor_what_python_prints_when_it_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text("print('hello')\nprint('you', end='')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        read = list(in_order(reading_jobs.process_of, names("a", "b")))
        assert os.getpid() not in {process for _, process in read}  # type: ignore[misc]

    def test_a_folder_of_the_path_may_be_called_anything_and_starts_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        odd = tmp_path / "it's: a \\ folder"
        odd.mkdir()
        (odd / "sitecustomize.py").write_text(f"open({str(odd / 'ran')!r}, 'w')")
        (odd / "odd_jobs.py").write_text("def name_of(file):\n    return file.name")
        monkeypatch.syspath_prepend(odd)
        read = in_order(importlib.import_module("odd_jobs").name_of, names("a", "b"))
        assert list(read) == ["a", "b"]
        assert not (odd / "ran").exists()

    def test_warnings_are_shown_here_once(self) -> None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            list(in_order(reading_jobs.read_with_a_warning, names("a", "b", "a")))
        assert sorted(str(one.message) for one in warned) == ["a is odd", "b is odd"]
        assert warned[0].filename == reading_jobs.__file__

    def test_what_a_worker_does_not_find_at_a_url_is_read_here(self) -> None:
        fsspec = pytest.importorskip("fsspec")
        memory = fsspec.filesystem("memory")
        content = REAL[0].read_bytes()
        memory.pipe_file("/here/a.gpuprof", content)
        memory.pipe_file("/here/b.gpuprof", content)
        try:
            files = [RemotePath.of(f"memory://here/{name}.gpuprof") for name in "abc"]
            a, b, c = in_order(reading.read_and_reduce, files)
        finally:
            memory.rm("/here", recursive=True)
        assert not isinstance(a, TraceError)
        assert not isinstance(b, TraceError)
        assert (a.sources, b.sources) == (("a.gpuprof",), ("b.gpuprof",))
        assert str(c) == "memory://here/c.gpuprof: there is no such file; check the URL."

    def test_how_fsspec_is_configured_holds_there_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = pytest.importorskip("fsspec.config")
        monkeypatch.setitem(config.conf, "http", {"headers": {"x": "y"}})
        read = in_order(reading_jobs.header_of_http, names("a", "b"))
        assert list(read) == ["y", "y"]


@pytest.mark.usefixtures("several")
class TestErrors:
    def read(self, file: str) -> list[Any]:
        return list(in_order(reading_jobs.fail, names("a", file, "b")))

    def test_an_exception_is_raised_here_and_says_where_it_was(self) -> None:
        with pytest.raises(ValueError, match="no such value") as raised:
            self.read("value")
        (note,) = raised.value.__notes__
        assert "in another process" in note
        assert "in fail\n    raise error" in note

    def test_that_a_file_is_no_trace_needs_no_traceback(self) -> None:
        a, error, b = self.read("trace")
        assert (a, str(error), b) == ("a", "trace: no trace", "b")
        assert isinstance(error, TraceError)
        assert not hasattr(error, "__notes__")

    def test_that_a_reader_leaves_python_is_for_the_user(self) -> None:
        with pytest.raises(SystemExit) as raised:
            self.read("exit")
        assert raised.value.code == 3

    def test_one_that_cannot_be_sent_is_told(self) -> None:
        with pytest.raises(RuntimeError, match="PickyError: it: not so") as raised:
            self.read("picky")
        assert "in fail\n    raise error" in raised.value.__notes__[0]

    def test_as_is_a_result_that_cannot_be_sent(self) -> None:
        with pytest.raises(Exception, match=r"pickle.*lambda|lambda.*pickle"):
            list(in_order(reading_jobs.unpicklable, names("a", "b")))

    def test_a_process_that_is_killed_is_replaced(self, tmp_path: Path) -> None:
        files = [tmp_path / name for name in ("a", "once", "b", "c")]
        assert list(in_order(reading_jobs.die, files)) == ["a", "once", "b", "c"]

    def test_of_one_that_is_killed_again_the_others_are_read(self, tmp_path: Path) -> None:
        files = [tmp_path / name for name in ("always", "a", "b", "c")]
        error, *others = in_order(reading_jobs.die, files)
        assert others == ["a", "b", "c"]
        assert isinstance(error, TraceError)
        assert str(error).startswith(f"{files[0]}: ")
        assert "SIGKILL" in str(error)
        assert "memory" in str(error)

    def test_one_that_is_killed_as_it_starts_has_died(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "START", "import os; os.kill(os.getpid(), 9)")
        read = list(in_order(reading_jobs.process_of, names("a", "b")))
        assert ["SIGKILL" in str(error) for error in read] == [True, True]

    def test_one_that_ends_without_a_word_has_died(self) -> None:
        read = list(in_order(reading_jobs.die_quietly, names("a", "b")))
        assert ["exit code 0" in str(error) for error in read] == [True, True]


@pytest.mark.usefixtures("several")
class TestReadHere:
    """Where no process can be started, this one reads."""

    def assert_read_here(self) -> None:
        read = list(in_order(reading_jobs.process_of, names("a", "b", "c")))
        assert read == [(name, os.getpid()) for name in "abc"]

    def test_without_that_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "python", lambda: "/nowhere/python")
        self.assert_read_here()

    def test_if_it_is_another_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "START", "print('another program')")
        self.assert_read_here()

    def test_if_that_program_never_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "START", "import time; time.sleep(600)")
        monkeypatch.setattr(processes, "GREETS_WITHIN_S", 0.1)
        self.assert_read_here()

    def test_but_not_where_another_one_can(self, monkeypatch: pytest.MonkeyPatch) -> None:
        start, starts = processes._started, iter(range(99))

        def started() -> subprocess.Popen[bytes]:
            if next(starts):
                return start()
            raise OSError("too many processes")

        monkeypatch.setattr(processes, "_started", started)
        read = list(in_order(reading_jobs.process_of, names(*"abcdef")))
        assert len({process for _, process in read} - {os.getpid()}) == 1  # type: ignore[misc]
        assert os.getpid() not in {process for _, process in read}  # type: ignore[misc]

    def test_if_it_cannot_be_asked(self) -> None:
        files = names("a", "b")
        assert list(in_order(lambda file: file.name, files)) == ["a", "b"]


class TestCount:
    FILES = (Path("a.json.gz"), Path("b.json.gz"), Path("c.json.gz"))

    @pytest.fixture(autouse=True)
    def large_files_on_a_large_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_text_bytes", lambda _: reading.PAYS_BYTES)
        monkeypatch.setattr(reading, "cores", lambda: 64)

    def test_a_file_is_read_by_one(self) -> None:
        assert [process_count(self.FILES[:number]) for number in (1, 2, 3)] == [1, 2, 3]

    def test_many_are_not_read_by_many(self) -> None:
        assert process_count(self.FILES * 9) == reading.MOST_PROCESSES

    def test_there_are_no_more_than_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "cores", lambda: 2)
        assert process_count(self.FILES) == 2

    @pytest.mark.parametrize("executable", ["", None])
    def test_a_program_that_contains_python_reads(
        self, executable: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "executable", executable)
        assert process_count(self.FILES) == 1

    def test_as_does_one_that_is_frozen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "frozen", True, raising=False)
        assert process_count(self.FILES) == 1

    def test_as_does_one_that_has_added_a_reader(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setitem(READERS, "toy", READERS["chrome"])
            assert process_count(self.FILES) == 1
        assert process_count(self.FILES) == 3


def test_small_files_are_read_here(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    for file in (plain, packed):
        file.write_bytes(b"x" * 1000)
    assert process_count([plain] * 9) == 1
    assert reading._text_bytes(packed) > reading._text_bytes(plain) == 1000
    assert reading._text_bytes(tmp_path / "nothing.json") == 0


def test_this_process_may_use_a_core() -> None:
    assert 1 <= processes.cores() <= (os.cpu_count() or 1)


@pytest.mark.usefixtures("several")
class TestNothingIsLeft:
    def test_when_all_is_read(self) -> None:
        read = list(in_order(reading_jobs.process_of, names(*"abcd")))
        assert [process for _, process in read if is_there(process)] == []  # type: ignore[misc]

    def test_when_no_more_is_wanted(self, tmp_path: Path) -> None:
        files = [tmp_path / name for name in ("quick", "slow", "never")]
        read = in_order(reading_jobs.wait_unless_quick, files)
        quick = next(read)
        assert eventually((tmp_path / "slow.pid").exists)
        read.close()
        assert not is_there(int(str(quick)))
        assert not is_there(int((tmp_path / "slow.pid").read_text()))

    def test_after_an_error(self, tmp_path: Path) -> None:
        files = [tmp_path / "value", tmp_path / "slow"]
        with pytest.raises(ValueError, match="no such value"):
            list(in_order(reading_jobs.fail_or_wait, files))
        assert not is_there(int((tmp_path / "slow.pid").read_text()))

    def test_of_an_interpreter_that_starts_another(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launcher = tmp_path / "python"
        launcher.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit 0\n')
        launcher.chmod(0o755)
        monkeypatch.setattr(processes, "python", lambda: str(launcher))
        read = in_order(reading_jobs.wait_unless_quick, [tmp_path / "quick", tmp_path / "slow"])
        next(read)
        assert eventually((tmp_path / "slow.pid").exists)
        read.close()
        assert eventually(lambda: not runs(int((tmp_path / "slow.pid").read_text())))


class TestScripts:
    """What a program does that has no ``if __name__ == "__main__"``."""

    FORCED = (
        "from gpuprof_widgets.many_ranks import reading\n"
        "reading.PAYS_BYTES, reading.cores = 0, lambda: 3\n"
        "from pathlib import Path\n"
        "import sys\n"
        "folder = Path(sys.argv[1])\n"
    )

    @pytest.fixture
    def start(self, tmp_path: Path) -> Iterator[Callable[[str, Path], subprocess.Popen[str]]]:
        """Start the script, in a folder with modules that nobody is to import."""
        wrong = tmp_path / "wrong"
        wrong.mkdir()
        for name in ("gpuprof_widgets", "pandas", "queue"):
            (wrong / f"{name}.py").write_text("raise SystemExit('imported from the folder')")
        started = []

        def start(text: str, folder: Path) -> subprocess.Popen[str]:
            script = tmp_path / "script.py"
            script.write_text(self.FORCED + text)
            process = subprocess.Popen(
                [sys.executable, str(script), str(folder)],
                cwd=wrong,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.communicate()

    @pytest.fixture
    def traces(self, tmp_path: Path) -> Path:
        folder = tmp_path / "traces"
        folder.mkdir()
        saved(folder, in_lockstep(STARTS))
        return folder

    def test_it_runs_once(self, start: Callable[..., Any], traces: Path) -> None:
        process = start(
            "with (folder / 'runs').open('a') as file:\n"
            "    print('run', file=file)\n"
            "import gpuprof_widgets\n"
            "run = gpuprof_widgets.ranks(str(folder / '*.gpuprof'))\n"
            "run.report()\n"
            "print(run.numbers)\n",
            traces,
        )
        assert process.communicate(timeout=WITHIN_S) == ("[0, 1, 2]\n", "")
        assert (traces / "runs").read_text() == "run\n"

    WAITING = (
        "from tests.reading_jobs import wait_unless_quick\n"
        "files = [folder / 'a', folder / 'b', folder / 'quick']\n"
        "try:\n"
        "    list(reading.in_order(wait_unless_quick, files))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "import os\n"
        "try:\n"
        "    os.waitpid(-1, os.WNOHANG)\n"
        "except ChildProcessError:\n"
        "    print('no child')\n"
    )

    def readers(self, folder: Path) -> list[int]:
        """The processes: two that read for good, and one that has read and waits for more."""
        files = [folder / "a.pid", folder / "b.pid", folder / "quick.pid"]
        assert eventually(lambda: all(file.exists() for file in files))
        return [int(file.read_text()) for file in files]

    def test_an_interrupt_ends_all_at_once(self, start: Callable[..., Any], traces: Path) -> None:
        process = start(self.WAITING, traces)
        readers = self.readers(traces)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal, and Jupyter
        assert process.communicate(timeout=WITHIN_S) == ("interrupted\nno child\n", "")
        assert [reader for reader in readers if is_there(reader)] == []

    def test_they_end_with_the_process_that_asks(
        self, start: Callable[..., Any], traces: Path
    ) -> None:
        process = start(self.WAITING, traces)
        readers = self.readers(traces)
        process.kill()
        _, written = process.communicate(timeout=WITHIN_S)
        assert eventually(lambda: not any(map(runs, readers)))
        assert written == ""

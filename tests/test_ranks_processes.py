"""Files of ranks read by several processes or by Dask: as by one, and nothing is left of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.many_ranks import reading
from gpuprof_widgets.many_ranks.reading import process_count
from gpuprof_widgets.trace.readers import READERS
from gpuprof_widgets.trace.remote import RemotePath
from tests import reading_jobs
from tests.job import STARTS, assert_same, in_lockstep, saved

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
REAL = sorted((ROOT / "tests/data/recorded").glob("training.rank*.gpuprof"))
WITHIN_S = 60.0
"""A bound against hanging."""


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes read, however small the files are, on however small a machine."""
    monkeypatch.setattr(reading, "process_count", lambda files: 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved(tmp_path, in_lockstep(STARTS))
    return tmp_path


def runs(process: int) -> bool:
    """Whether it runs: who waits for one that lost its parent is up to the system."""
    state = Path(f"/proc/{process}/stat")
    return state.exists() and ") Z " not in state.read_text()


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether that comes to hold before long."""
    end = time.monotonic() + WITHIN_S
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def read_all(job: Callable[[Path], Any], *names: str, folder: Path = Path()) -> list[Any]:
    return reading.read_all(job, [folder / name for name in names], noun="files read")


@pytest.mark.usefixtures("several")
class TestTheSameAsHere:
    @pytest.mark.parametrize("given", ["real", "some are no traces"])
    def test_the_ranks(self, given: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "rank7.json").write_text("{}")
        (folder / "rank8.json.gz").write_bytes(b"\x1f\x8b\x08")
        paths = REAL if given == "real" else folder
        run = gpuprof_widgets.ranks(paths)
        monkeypatch.setattr(reading, "process_count", lambda files: 1)
        assert_same(run, gpuprof_widgets.ranks(paths))

    def test_the_timelines(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = gpuprof_widgets.ranks(folder)
        rows, _ = run._timelines([2, 0])
        monkeypatch.setattr(reading, "process_count", lambda files: 1)
        same, _ = run._timelines([2, 0])
        for row, other in zip(rows, same, strict=True):
            assert row.record.trace.slices.equals(other.record.trace.slices)


def test_a_timeline_that_went_away_is_an_error(folder: Path) -> None:
    run = gpuprof_widgets.ranks(folder)
    (folder / "run.rank1.gpuprof").unlink()
    with pytest.raises(TraceError, match=r"run\.rank1\.gpuprof"):
        run.report()


@pytest.mark.usefixtures("several")
class TestReadAll:
    def test_other_processes_read_and_end(self) -> None:
        read = read_all(reading_jobs.process_of, *"abcd")
        assert [name for name, _ in read] == [*"abcd"]
        processes = {process for _, process in read}
        assert os.getpid() not in processes
        assert not any(map(runs, processes))

    def test_that_a_file_is_no_trace_is_its_result(self) -> None:
        a, error, b = read_all(reading_jobs.fail, "a", "trace", "b")
        assert (a, str(error), b) == ("a", "trace: no trace", "b")
        assert isinstance(error, TraceError)

    def test_another_error_is_raised_here_and_ends_them(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no such value") as raised:
            read_all(reading_jobs.wait_or_fail, "value", "slow", folder=tmp_path)
        assert 'raise ValueError("no such value")' in str(raised.value.__cause__)
        assert not runs(int((tmp_path / "slow.pid").read_text()))

    def test_a_file_whose_process_is_killed_is_read_again(self, tmp_path: Path) -> None:
        read = read_all(reading_jobs.die, "a", "once", "b", "c", folder=tmp_path)
        assert read == ["a", "once", "b", "c"]

    def test_of_one_that_is_killed_again_the_others_are_read(self, tmp_path: Path) -> None:
        error, *others = read_all(reading_jobs.die, "always", "a", "b", folder=tmp_path)
        assert others == ["a", "b"]
        assert isinstance(error, TraceError)
        assert str(error).startswith(f"{tmp_path / 'always'}: ")
        assert "memory" in str(error)

    def test_where_none_can_be_started_this_one_reads(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise BlockingIOError("too many processes")

        monkeypatch.setattr("loky.process_executor.ProcessPoolExecutor.submit", full)
        read = read_all(reading_jobs.process_of, *"ab")
        assert read == [("a", os.getpid()), ("b", os.getpid())]

    def test_what_a_process_does_not_find_at_a_url_is_read_here(self) -> None:
        fsspec = pytest.importorskip("fsspec")
        memory = fsspec.filesystem("memory")
        memory.pipe_file("/here/a.gpuprof", REAL[0].read_bytes())
        try:
            files = [RemotePath.of(f"memory://here/{name}.gpuprof") for name in "ab"]
            a, b = reading.read(files)
        finally:
            memory.rm("/here", recursive=True)
        assert not isinstance(a, TraceError)
        assert a.sources == ("a.gpuprof",)
        assert str(b) == "memory://here/b.gpuprof: there is no such file; check the URL."

    def test_how_fsspec_is_configured_holds_there_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = pytest.importorskip("fsspec.config")
        monkeypatch.setitem(config.conf, "http", {"headers": {"x": "y"}})
        assert read_all(reading_jobs.header_of_http, "a", "b") == ["y", "y"]


@pytest.mark.parametrize("value", ["", None])
def test_the_environment_of_this_process_stays(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if value is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", value)
    before = dict(os.environ)
    with reading._for_workers():
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert dict(os.environ) == before


class TestCount:
    FILES = (Path("a.json.gz"), Path("b.json.gz"), Path("c.json.gz"))

    @pytest.fixture(autouse=True)
    def large_files_on_a_large_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_text_bytes", lambda _: reading.PAYS_BYTES)
        monkeypatch.setattr("loky.cpu_count", lambda: 64)

    @pytest.mark.parametrize(
        ("files", "cores", "expected"),
        [(1, 64, 1), (2, 64, 2), (3, 64, 3), (27, 64, reading.MOST_PROCESSES), (3, 2, 2)],
    )
    def test_no_more_than_files_cores_and_a_few(
        self, files: int, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("loky.cpu_count", lambda: cores)
        assert process_count((self.FILES * 9)[:files]) == expected

    def test_a_program_that_has_added_a_reader_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(READERS, "toy", READERS["chrome"])
        assert process_count(self.FILES) == 1


def test_small_files_are_read_here(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    for file in (plain, packed):
        file.write_bytes(b"x" * 1000)
    assert process_count([plain] * 9) == 1
    assert reading._text_bytes(packed) > reading._text_bytes(plain) == 1000
    assert reading._text_bytes(tmp_path / "nothing.json") == 0


class TestScripts:
    """What a program does that has no ``if __name__ == "__main__"``."""

    FORCED = (
        "import sys\n"
        "from pathlib import Path\n"
        "from gpuprof_widgets.many_ranks import reading\n"
        "reading.process_count, reading.IDLE_S = lambda files: 3, 0.1\n"
        "folder = Path(sys.argv[1])\n"
    )

    @pytest.fixture
    def start(self, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
        """Start the script, in a folder with modules that nobody is to import."""
        wrong = tmp_path / "wrong"
        wrong.mkdir()
        for name in ("gpuprof_widgets", "loky", "multiprocessing", "pandas", "queue"):
            (wrong / f"{name}.py").write_text("raise SystemExit('imported from the folder')")
        started = []

        def start(text: str) -> subprocess.Popen[str]:
            script = tmp_path / "script.py"
            script.write_text(self.FORCED + text)
            process = subprocess.Popen(
                [sys.executable, str(script), str(tmp_path)],
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

    def test_it_runs_once(self, start: Callable[..., Any], folder: Path) -> None:
        process = start(
            "import gpuprof_widgets\n"
            "run = gpuprof_widgets.ranks(str(folder / '*.gpuprof'))\n"
            "run.report()\n"
            "print(run.numbers)\n"
        )
        assert process.communicate(timeout=WITHIN_S) == ("[0, 1, 2]\n", "")

    WAITING = (
        "from tests.reading_jobs import wait_unless_quick\n"
        "files = [folder / 'a', folder / 'b', folder / 'quick']\n"
        "try:\n"
        "    reading.read_all(wait_unless_quick, files, noun='files read')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )

    @pytest.fixture
    def waiting(self, start: Callable[..., Any], tmp_path: Path) -> tuple[Any, list[int]]:
        """A script whose processes read: two for good, and one that has read."""
        process = start(self.WAITING)
        files = [tmp_path / f"{name}.pid" for name in ("a", "b", "quick")]
        assert eventually(lambda: all(file.exists() for file in files))
        return process, [int(file.read_text()) for file in files]

    def test_an_interrupt_ends_all_at_once(self, waiting: tuple[Any, list[int]]) -> None:
        process, readers = waiting
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal, and Jupyter
        assert process.communicate(timeout=WITHIN_S) == ("interrupted\n", "")
        assert not any(map(runs, readers))

    def test_one_without_work_ends_when_the_script_is_killed(
        self, waiting: tuple[Any, list[int]]
    ) -> None:
        process, readers = waiting
        process.kill()
        assert eventually(lambda: not runs(readers[2]))
        for reader in filter(runs, readers):
            os.kill(reader, signal.SIGKILL)


def test_two_workers_give_what_one_process_gives(folder: Path) -> None:
    """In a process of its own: a cluster's workers are started anew from the process they serve."""
    pytest.importorskip("distributed")
    command = [sys.executable, "-W", "ignore", "-m", "tests.dask_ranks", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


def test_an_address_where_nobody_is_says_what_to_give(folder: Path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(OptionError, match="address of a scheduler"):
        gpuprof_widgets.ranks(folder, cluster="nonsense://nowhere")


def test_without_dask_it_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(OptionError, match=re.escape("gpuprof-widgets[dask]")):
        gpuprof_widgets.ranks(folder, cluster="tcp://127.0.0.1:8786")

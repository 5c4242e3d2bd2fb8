"""snakeviz on our data: its real server, with a browser and without, and nothing left behind."""

from __future__ import annotations

import os
import pstats
import signal
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof_widgets import snakeviz_server
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.snakeviz_server import SnakevizServer, local_browser
from gpuprof_widgets.trace.model import Record
from tests.traces import calls_of, op, python, trace_of

pytestmark = pytest.mark.slow

OPENED = "opened in"


class Browser:
    """Remembers what it was told to open."""

    def __init__(self, *, opens: bool = True) -> None:
        self.urls: list[str] = []
        self._opens = opens

    def open(self, url: str, new: int = 0) -> bool:
        self.urls.append(url)
        return self._opens


def profile_of(record: Record) -> Profile:
    return Profile(record.trace, record.calls, record.metadata)


def a_profile(label: str = "Cell [3]") -> Profile:
    calls = calls_of((None, "train_epoch", 1, 100), ("train_epoch", "decode_image", 3, 250))
    return profile_of(trace_of(op("aten::mm", ts=0, dur=9), calls=calls, label=label))


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    found = Browser()
    monkeypatch.setattr(snakeviz_server, "local_browser", lambda: found)
    return found


@pytest.fixture
def server(browser: Browser) -> Iterator[SnakevizServer]:
    started = a_profile().snakeviz()
    assert started is not None
    yield started
    started.close()


def test_the_real_snakeviz_answers_with_our_functions(
    server: SnakevizServer, browser: Browser
) -> None:
    assert browser.urls == [server.url]
    found = page(server.url)
    assert "SnakeViz" in found
    assert "cell.py:1(train_epoch)" in found
    assert "cell.py:2(decode_image)" in found
    assert server.url.endswith("Cell_3.prof")
    assert server.url.startswith("http://127.0.0.1:")


def test_closing_ends_the_process_and_removes_the_file(server: SnakevizServer) -> None:
    process = server._process
    assert process.poll() is None
    assert server.path.exists()
    server.close()
    assert process.poll() is not None
    assert not server.path.parent.exists()
    server.close()


SCRIPT = """
import os, sys, time
from tests.test_snakeviz import a_profile
from gpuprof_widgets.snakeviz_server import SnakevizServer
server = SnakevizServer(a_profile().calls, name="x")
print(server._process.pid, server.path, flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["", "1 / 0", "time.sleep(600)"])
def test_no_server_outlives_the_interpreter(ending: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(ending=ending)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdout is not None
    pid, path = process.stdout.readline().split()
    if "sleep" in ending:
        process.send_signal(signal.SIGKILL)  # no exit handler runs
    process.wait(timeout=60)
    process.stdout.close()
    for _ in range(600):
        if not is_running(int(pid)):
            break
        time.sleep(0.1)
    assert not is_running(int(pid))
    assert not Path(path).parent.exists()


def test_without_a_browser_the_path_of_the_file_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(snakeviz_server, "local_browser", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert a_profile().snakeviz() is None
    said = capsys.readouterr().out
    (path,) = tmp_path.rglob("*.prof")
    assert f"snakeviz {path}" in said
    assert pstats.Stats(str(path)).total_calls == 4  # type: ignore[attr-defined]


PRINTING = """
import pathlib, tempfile
from tests.test_snakeviz import a_profile
from gpuprof_widgets import snakeviz_server
snakeviz_server.local_browser = lambda: None
a_profile().snakeviz()
print(len(list(pathlib.Path(tempfile.gettempdir()).rglob("*.prof"))))
"""


@pytest.mark.parametrize("ending", ["", "1 / 0"])
def test_the_printed_file_stays_until_the_interpreter_ends(ending: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PRINTING + ending],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert f"are in {tmp_path}" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "1"
    assert list(tmp_path.rglob("gpuprof-snakeviz-*")) == []


def test_a_browser_that_does_not_open_leaves_the_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(snakeviz_server, "local_browser", lambda: Browser(opens=False))
    server = a_profile().snakeviz()
    assert server is not None
    server.close()
    assert capsys.readouterr().out == f"Open {server.url} in a browser\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="screens are found as on Linux")
@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, False),
        ({"SSH_CONNECTION": "1 2 3 4"}, False),
        ({"DISPLAY": ":0"}, True),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "1 2 3 4"}, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True),
        ({"BROWSER": "/opt/open-on-my-machine"}, True),
    ],
)
def test_a_browser_is_local_where_there_is_a_screen(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], found: bool
) -> None:
    monkeypatch.setattr(webbrowser, "get", lambda: OPENED)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert local_browser() == (OPENED if found else None)


def test_no_browser_is_local_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", missing)
    monkeypatch.setenv("DISPLAY", ":0")
    assert local_browser() is None


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(snakeviz_server, "SERVE", "raise SystemExit('no module named snakeviz')")
    with pytest.raises(RecordingError, match="snakeviz did not start: no module named snakeviz"):
        SnakevizServer(calls_of((None, "f", 1, 9)), name="x")
    assert list(tmp_path.iterdir()) == []


def test_recorded_frames_can_be_saved_without_cprofile(tmp_path: Path) -> None:
    profile = profile_of(trace_of(python("a.py(3): f", ts=0, dur=1000)))
    stats = pstats.Stats(str(profile.save_pstats(tmp_path / "x.prof"))).stats  # type: ignore[attr-defined]
    assert stats == {("a.py", 3, "f"): (1, 1, 1e-6, 1e-6, {})}


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"options": {"cprofile": False}}, "recorded without Python functions"),
        ({"options": {"python": "off"}}, "recorded without Python functions"),
        ({"source": "trace.json"}, r"the trace \(trace.json\) holds neither"),
        (
            {"notes": ["another Python profiler is already running and keeps the Python calls"]},
            "another Python profiler is already running",
        ),
        ({"notes": ["no Python calls: cProfile could not"]}, "no Python calls: cProfile could not"),
    ],
)
def test_without_calls_the_error_says_why_there_are_none(
    metadata: dict[str, object], words: str, tmp_path: Path
) -> None:
    profile = profile_of(trace_of(op("aten::mm", ts=0, dur=9), **metadata))
    with pytest.raises(RecordingError, match=words):
        profile.save_pstats(tmp_path / "x.prof")
    with pytest.raises(RecordingError, match=words):
        profile.snakeviz()
    assert list(tmp_path.iterdir()) == []

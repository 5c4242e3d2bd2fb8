"""The line on what is being done: when it is seen, where, and that nothing of it is left."""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets import Profile, progress, runtime_carrier
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import profiler_is_running
from gpuprof_widgets.options import Options
from gpuprof_widgets.views.report import REPORT_TYPE, static_text
from tests.displays import in_a_cell, with_lines_at_once
from tests.traces import kernel, op, runtime, trace_of

Capsys = pytest.CaptureFixture[str]

STAGES = [
    "PyTorch writes what it recorded",
    "reading what PyTorch wrote",
    "joining ops, lines and modules",
    "looking for findings",
    "making the tables",
]


def line_of(words: str) -> dict[str, str]:
    return {"text/plain": words} if words else {}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The lines that stderr shows, which is a terminal's."""
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
    return lambda: stderr.getvalue().split("\r\x1b[K")[1:]


class TestWhen:
    @pytest.mark.parametrize(
        ("seconds", "waited_s", "lines"),
        [(0.9, 0, []), (1.1, 0, ["read", ""]), (0, 1.1, ["read", ""])],
    )
    def test_once_a_second_has_passed(
        self,
        seconds: float,
        waited_s: float,
        lines: list[str],
        terminal: Callable[[], list[str]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        clock = iter([0.0, seconds])
        monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
        with progress.line(waited_s=waited_s):
            progress.say("read")
        assert terminal() == lines

    def test_outside_of_a_block_never(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outputs = with_lines_at_once(monkeypatch)
        progress.say("read")
        progress.erase()
        assert outputs.shown == []

    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
    def test_an_error_of_the_work_removes_it(
        self, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outputs = with_lines_at_once(monkeypatch)

        def work() -> None:
            with progress.line():
                progress.say("read")
                raise error

        with pytest.raises(error):
            work()
        assert outputs.now == [{}]

    def test_a_block_within_another_has_the_same_line(
        self, terminal: Callable[[], list[str]]
    ) -> None:
        with progress.line(waited_s=2):
            progress.say("read")
            with progress.line():
                progress.say("joined")
            progress.say("shown")
        assert terminal() == ["read", "joined", "shown", ""]


def closed() -> io.StringIO:
    """A stderr that was closed."""
    stderr = io.StringIO()
    stderr.close()
    return stderr


class TestWhere:
    def test_in_a_log_file_nowhere(self, capsys: Capsys) -> None:
        with progress.line(waited_s=2):
            progress.say("read")
        assert capsys.readouterr() == ("", "")

    @pytest.mark.parametrize("stderr", [lambda: None, closed, lambda: SimpleNamespace(write=print)])
    def test_what_a_program_put_for_stderr_does_not_matter(
        self, stderr: Callable[[], Any], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stderr", stderr())
        with progress.line(waited_s=2):
            progress.say("read")
        assert capsys.readouterr() == ("", "")

    def test_in_ipythons_terminal_in_the_terminal(
        self, terminal: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_a_cell(monkeypatch, lambda *_, **__: pytest.fail("this prints each line below another"))
        monkeypatch.setattr(builtins, "get_ipython", lambda: SimpleNamespace())
        with progress.line(waited_s=2):
            progress.say("read")
        assert terminal() == ["read", ""]

    def test_in_a_notebook_it_is_one_output_that_changes(
        self, terminal: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outputs = with_lines_at_once(monkeypatch)
        with progress.line():
            progress.say("half read")
            progress.say("all read")
        assert outputs.shown == [(0, line_of(words)) for words in ("half read", "all read", "")]
        assert terminal() == []


class TestErrors:
    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What a display that fails was asked to show, from now on."""
        with_lines_at_once(monkeypatch)
        words: list[str] = []

        def broken(bundle: dict[str, str], **_: Any) -> None:
            words.append(bundle.get("text/plain", ""))
            raise OSError("a full disk, a terminal that is gone, a front end's own error")

        in_a_cell(monkeypatch, broken)
        return words

    def test_one_of_the_display_costs_the_line_alone(self, calls: list[str]) -> None:
        with progress.line():
            progress.say("half read")
            progress.say("all read")
        assert calls == ["half read"]

    def test_a_ctrl_c_as_the_line_comes_is_passed_on_and_removes_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outputs = with_lines_at_once(monkeypatch)

        def pressed(bundle: dict[str, str], **keywords: Any) -> None:
            outputs.display(bundle, **keywords)
            if not keywords["update"]:
                raise KeyboardInterrupt

        in_a_cell(monkeypatch, pressed)
        with pytest.raises(KeyboardInterrupt), progress.line():
            progress.say("read")
        assert outputs.now == [{}]


class TestRecording:
    def test_after_a_block_all_stages_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outputs = with_lines_at_once(monkeypatch)
        with gpuprof_widgets.profile():
            assert outputs.shown == []
            torch.ones(3)
        assert outputs.texts(0) == [*STAGES, ""]
        assert outputs.now[0] == {}
        assert ["image/png" in bundle for bundle in outputs.now[1:]] == [False, True, False]

    def test_after_a_quiet_block_none_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outputs = with_lines_at_once(monkeypatch)
        with gpuprof_widgets.profile(quiet=True):
            torch.ones(3)
        assert outputs.shown == []

    def test_what_the_stop_took_counts(self, terminal: Callable[[], list[str]]) -> None:
        with Recorder(Options(), label="the run") as made:
            torch.ones(3)
        made._stop_ns = 2_000_000_000
        with made.waiting():
            progress.say("read")
        assert terminal() == ["read", ""]

    def test_it_is_made_after_the_recording_has_stopped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_lines_at_once(monkeypatch)
        running: list[object] = []
        made = progress._writer

        def noted() -> Any:
            running.append(Active.recorder or sys.getprofile() or profiler_is_running())
            return made()

        monkeypatch.setattr(progress, "_writer", noted)
        with gpuprof_widgets.profile():
            torch.ones(3)
        assert running == [False]


@pytest.fixture
def profile() -> Profile:
    record = trace_of(
        op("aten::mm", ts=0, dur=9_000),
        runtime("cudaLaunchKernel", ts=1_000, dur=500),
        kernel("gemm", ts=3_000, dur=4_000, launched_by=1),
    )
    return Profile(record.trace, record.calls, record.metadata)


class TestReport:
    def test_in_a_notebook_it_comes_after_its_line(
        self, profile: Profile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outputs = with_lines_at_once(monkeypatch)
        profile.show()
        assert outputs.texts(0) == [*STAGES[3:], ""]
        assert [number for number, _ in outputs.shown] == [0, 0, 0, 1, 2, 3]
        gone, static, picture, script = outputs.now
        assert gone == {}
        assert "<table" in static["text/html"]
        assert "image/png" in picture
        assert REPORT_TYPE in script

    def test_where_it_is_printed_the_line_goes_before(
        self,
        profile: Profile,
        terminal: Callable[[], list[str]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        before: list[tuple[str, list[str]]] = []

        def printed(words: str) -> None:
            before.append((words, terminal()))

        monkeypatch.setattr(runtime_carrier, "print", printed, raising=False)
        with progress.line(waited_s=2):
            profile.show()
        lines = [*STAGES[3:], ""]
        assert (before, terminal()) == ([(static_text(profile), lines)], lines)

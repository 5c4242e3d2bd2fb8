"""Progress bars: when they are seen, where, what they say, and that nothing of them is left."""

from __future__ import annotations

import builtins
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets import Profile, progress, runtime_carrier
from gpuprof_widgets.capture import recorder
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import profiler_is_running
from gpuprof_widgets.options import Options
from gpuprof_widgets.progress import (
    STAGES,
    AfterTheCell,
    MimeBundle,
    Progress,
    after_the_cell,
    place_of_bars,
)
from gpuprof_widgets.trace import event_json, scanned_events
from gpuprof_widgets.trace.chrome_trace import complete_record, parse_chrome_trace
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import report
from gpuprof_widgets.views.report import REPORT_TYPE, static_text
from tests.displays import in_a_cell, with_bars_at_once
from tests.records import assert_same_record
from tests.traces import kernel, op, runtime, trace_of

Capsys = pytest.CaptureFixture[str]

FIRST, SECOND, *_, LAST = STAGES
FOUND = {"text/html": "<p>slow</p>", "text/plain": "It is slow.\nMake it fast."}
ERASED = "\r\x1b[K"


@dataclass
class Wall:
    """A place for bars that keeps what it shows, with a clock that the test sets."""

    now: float = 0.0
    shown: list[tuple[str, MimeBundle]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def show(self, line: str, above: MimeBundle) -> None:
        self.shown.append((line, above))

    @property
    def words(self) -> list[str]:
        return [line.lstrip("█░ ") for line, _ in self.shown]

    @property
    def shares(self) -> list[float]:
        """The shares of the bars, as finely as `WIDTH` has them."""
        bars = [line for line, _ in self.shown if line]
        return [bar.count("█") / (bar.count("█") + bar.count("░")) for bar in bars]


@dataclass
class Broken(Wall):
    """A place that fails: a full disk, a terminal that is gone, a front end's own error."""

    raises: type[BaseException] = OSError

    def show(self, line: str, above: MimeBundle) -> None:
        super().show(line, above)
        raise self.raises


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def fine(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> Wall:
    """A wall as wide as to tell shares to a thousandth."""
    monkeypatch.setattr(progress, "WIDTH", 1000)
    return wall


@pytest.fixture
def cell(wall: Wall) -> AfterTheCell:
    """The time after a cell, of which two seconds are over."""
    shown = AfterTheCell(place=wall, clock=wall.clock)
    wall.now = 2.0
    return shown


class TestBar:
    def test_within_a_second_it_is_silent(self, wall: Wall) -> None:
        with Progress(place=wall, clock=wall.clock) as bar:
            for wall.now in (0.0, 0.5, 1.0):
                bar.reached(0.5, "half read")
        assert wall.shown == []

    @pytest.mark.parametrize(
        ("share", "filled"), [(-0.1, 0), (0, 0), (0.24, 6), (0.5, 12), (1, 24), (1.7, 24)]
    )
    def test_after_a_second_it_tells_the_share_and_what_is_done(
        self, wall: Wall, share: float, filled: int
    ) -> None:
        bar = Progress(place=wall, clock=wall.clock)
        wall.now = 1.1
        bar.reached(share, "files read")
        assert wall.shown == [("█" * filled + "░" * (24 - filled) + " files read", {})]

    def test_the_same_words_are_drawn_ten_times_a_second_at_most(self, fine: Wall) -> None:
        bar = Progress(place=fine, clock=fine.clock)
        for fine.now in (1.5, 1.5, 1.55, 1.59, 1.61, 1.69, 1.72):
            bar.reached(fine.now / 2, "files read")
        assert fine.shares == pytest.approx([0.75, 0.805, 0.86], abs=1e-3)

    def test_other_words_are_drawn_at_once(self, wall: Wall) -> None:
        bar = Progress(place=wall, clock=wall.clock)
        wall.now = 1.5
        for words in ("read", "read", "joined", "read", "read"):
            bar.reached(0, words)
        assert wall.words == ["read", "joined", "read"]

    def test_what_was_waited_before_counts(self, wall: Wall) -> None:
        bar = Progress(place=wall, clock=wall.clock, waited_s=0.7)
        for wall.now in (0.2, 0.4):
            bar.reached(0, str(wall.now))
        assert wall.words == ["0.4"]

    def test_by_default_nothing_was_waited_before(self, wall: Wall) -> None:
        for bar in (Progress(place=wall, clock=wall.clock), AfterTheCell(place=wall)):
            bar.reached(0, "read")
        assert wall.shown == []

    def test_at_the_end_it_is_removed(self, wall: Wall) -> None:
        with Progress(place=wall, clock=wall.clock) as bar:
            wall.now = 2.0
            bar.reached(1, "all read")
        assert wall.words == ["all read", ""]
        assert wall.shown[-1] == ("", {})

    def test_an_error_removes_it_and_goes_on(self, wall: Wall) -> None:
        bar = Progress(place=wall, clock=wall.clock)
        wall.now = 2.0
        bar.reached(0.5, "half read")
        with pytest.raises(ZeroDivisionError), bar:
            raise ZeroDivisionError
        assert wall.shown[-1] == ("", {})


class TestBrokenPlace:
    @pytest.fixture
    def broken(self) -> Broken:
        return Broken()

    def test_its_error_costs_the_bar_alone(self, broken: Broken) -> None:
        with Progress(place=broken, clock=broken.clock) as bar:
            for broken.now in (2.0, 3.0, 4.0):
                bar.reached(0.5, str(broken.now))
        assert broken.words == ["2.0"]

    def test_its_error_does_not_take_the_place_of_the_works_own(self, broken: Broken) -> None:
        bar = Progress(place=broken, clock=broken.clock)
        bar._shown = True  # as where the terminal goes only after the bar was drawn
        with pytest.raises(ZeroDivisionError), bar:
            raise ZeroDivisionError
        assert broken.words == [""]

    def test_its_error_does_not_keep_the_result_from_being_shown(self, broken: Broken) -> None:
        with AfterTheCell(place=broken, clock=broken.clock) as cell:
            cell._shown = True
            cell.end()
        assert broken.words == [""]

    @pytest.mark.parametrize("show", ["a stage", "the end"])
    def test_a_ctrl_c_in_it_is_passed_on(self, show: str) -> None:
        pressed = Broken(raises=KeyboardInterrupt)
        cell = AfterTheCell(place=pressed, clock=pressed.clock)
        pressed.now, cell._shown = 2.0, True
        with pytest.raises(KeyboardInterrupt):
            cell.stage(FIRST) if show == "a stage" else cell.end()


class TestStages:
    def test_their_shares_rise_in_their_order(self, fine: Wall, cell: AfterTheCell) -> None:
        for words in STAGES:
            for done in (0, 0.5, 1):
                cell.stage(words, done)
                fine.now += 1
        assert fine.words == [words for words in STAGES for _ in range(3)]
        assert fine.shares == sorted(fine.shares)
        assert fine.shares[::3] == pytest.approx([*STAGES.values()], abs=1e-3)
        assert fine.shares[-1] == 1

    def test_the_part_that_is_done_is_between_a_stage_and_the_next(
        self, fine: Wall, cell: AfterTheCell
    ) -> None:
        cell.stage(FIRST)
        for done in (0, 0.25, 1):
            fine.now += 1
            cell.stage(SECOND, done)
        assert fine.shares[1:] == pytest.approx([0.34, 0.34 + 0.34 / 4, 0.68], abs=1e-3)

    @pytest.mark.parametrize("number", range(1, len(STAGES)))
    def test_a_later_one_that_comes_first_begins_the_bar(
        self, fine: Wall, cell: AfterTheCell, number: int
    ) -> None:
        for words in [*STAGES][number:]:
            cell.stage(words)
            fine.now += 1
        first, *_ = shares = fine.shares
        assert first == 0
        assert shares == sorted(set(shares))
        cell.stage(LAST, 1)
        assert fine.shares[-1] == 1

    def test_one_that_passes_within_a_second_counts_as_the_first(self, fine: Wall) -> None:
        cell = AfterTheCell(place=fine, clock=fine.clock)
        cell.stage("looking for findings")
        fine.now = 2.0
        cell.stage("making the tables")
        assert fine.shares == pytest.approx([0.1 / 0.24], abs=1e-3)


class TestFound:
    def test_within_a_second_it_is_not_even_made(self, wall: Wall) -> None:
        with AfterTheCell(place=wall, clock=wall.clock) as cell:
            wall.now = 1.0
            cell.found(lambda: pytest.fail("there is no hurry"))
        assert wall.shown == []

    def test_it_stays_above_the_bar(self, wall: Wall, cell: AfterTheCell) -> None:
        cell.stage(FIRST)
        wall.now = 3.0
        cell.found(lambda: FOUND)
        for words in (LAST, "looking for findings"):
            wall.now += 1
            cell.stage(words)
        bars = [f"{'█' * 21}{'░' * 3} {LAST}", f"{'█' * 18}{'░' * 6} looking for findings"]
        assert wall.shown[-2:] == [(bar, FOUND) for bar in bars]

    def test_it_stays_after_an_interrupt_without_the_bar(
        self, wall: Wall, cell: AfterTheCell
    ) -> None:
        cell.stage(FIRST)
        cell.found(lambda: FOUND)
        with pytest.raises(KeyboardInterrupt), cell:
            raise KeyboardInterrupt
        assert wall.shown[-1] == ("", FOUND)


class TestResult:
    def test_before_it_the_bar_and_what_is_above_it_go(
        self, wall: Wall, cell: AfterTheCell
    ) -> None:
        with cell:
            cell.stage(FIRST)
            cell.found(lambda: FOUND)
            cell.stage(LAST)
            cell.end()
            assert wall.shown[-1] == ("", {})

    @pytest.mark.parametrize(("now", "words"), [(0.5, []), (2.0, [FIRST, ""])])
    def test_after_it_nothing_is_shown_nor_removed(
        self, wall: Wall, now: float, words: list[str]
    ) -> None:
        with AfterTheCell(place=wall, clock=wall.clock) as cell:
            wall.now = now
            cell.stage(FIRST)
            cell.end()
            wall.now += 9
            cell.found(lambda: FOUND)
            cell.stage(LAST)
            cell.end()
        assert wall.words == words


class TestCurrent:
    def test_without_one_all_is_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outputs = with_bars_at_once(monkeypatch)
        progress.stage(FIRST)
        progress.found(lambda: pytest.fail("there is no place for it"))
        assert outputs.shown == []

    def test_it_is_told_of_stages_and_of_what_is_found(
        self, wall: Wall, cell: AfterTheCell
    ) -> None:
        with cell:
            progress.stage(SECOND, 0.5)
            progress.found(lambda: FOUND)
        assert wall.words[0] == SECOND
        assert wall.shown[-1] == ("", FOUND)

    def test_after_the_inner_one_comes_the_outer_one(self, wall: Wall) -> None:
        with AfterTheCell(place=wall, clock=wall.clock) as outer:
            with AfterTheCell(place=wall, clock=wall.clock) as inner:
                assert progress._current.get() is inner
            assert progress._current.get() is outer
        assert progress._current.get() is None

    def test_an_error_ends_one_as_well(self, wall: Wall) -> None:
        with AfterTheCell(place=wall, clock=wall.clock) as outer:
            inner = AfterTheCell(place=wall, clock=wall.clock)
            with pytest.raises(ZeroDivisionError), inner:
                raise ZeroDivisionError
            assert progress._current.get() is outer
        assert progress._current.get() is None

    def test_what_is_shown_uses_it_and_does_not_end_it(
        self, wall: Wall, cell: AfterTheCell
    ) -> None:
        with cell:
            cell.stage(FIRST)
            with after_the_cell() as same:
                assert same is cell
            assert progress._current.get() is cell
            assert wall.words == [FIRST]

    def test_without_one_what_is_shown_has_its_own(self) -> None:
        with after_the_cell() as own:
            assert progress._current.get() is own
        assert progress._current.get() is None


def in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on stderr is a terminal's."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


class OnlyWrites:
    """What programs put in the place of stderr to have its text in a log."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> None:
        self.written += text

    def flush(self) -> None:
        """Do nothing."""


def closed() -> io.StringIO:
    """A stderr that was closed."""
    stderr = io.StringIO()
    stderr.close()
    return stderr


STDERRS: dict[str, Callable[[], Any]] = {
    "none, as in a service": lambda: None,
    "closed": closed,
    "only writes": OnlyWrites,
}


class TestPlace:
    def test_in_a_terminal_it_is_one_line_that_is_written_again(
        self, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_a_terminal(monkeypatch)
        clock = iter([0.0, 2.0, 3.0])
        with Progress(clock=lambda: next(clock)) as bar:
            bar.reached(0.5, "half read")
            bar.reached(1, "all read")
        lines = [f"{'█' * 12}{'░' * 12} half read", f"{'█' * 24} all read", ""]
        assert capsys.readouterr() == ("", "".join(f"{ERASED}{line}" for line in lines))

    def test_in_a_terminal_what_was_found_is_no_part_of_the_line(
        self, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_a_terminal(monkeypatch)
        with AfterTheCell(waited_s=2.0) as cell:
            cell.stage(FIRST)
            cell.found(lambda: FOUND)
            cell.stage(SECOND)
        bars = [f"{'█' * 5}{'░' * 19} {FIRST}", f"{'█' * 8}{'░' * 16} {SECOND}"]
        assert capsys.readouterr() == ("", "".join(f"{ERASED}{line}" for line in [*bars, ""]))

    def test_in_a_log_file_it_is_nowhere(self, capsys: Capsys) -> None:
        place = place_of_bars()
        place.show("the bar", FOUND)
        assert capsys.readouterr() == ("", "")

    @pytest.mark.parametrize("kind", STDERRS)
    def test_what_a_program_put_for_stderr_does_not_matter(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stderr = STDERRS[kind]()
        monkeypatch.setattr(sys, "stderr", stderr)
        with AfterTheCell(waited_s=2.0) as cell:
            cell.stage(FIRST)
            cell.end()
        assert getattr(stderr, "written", "") == ""

    def test_where_quiet_is_asked_for_it_is_nowhere(
        self, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_a_terminal(monkeypatch)
        place_of_bars(quiet=True).show("the bar", FOUND)
        outputs = with_bars_at_once(monkeypatch)
        place = place_of_bars(quiet=True)
        place.show("the bar", FOUND)
        assert outputs.shown == []
        assert capsys.readouterr() == ("", "")

    def test_in_ipythons_terminal_it_is_the_terminal(
        self, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_a_terminal(monkeypatch)
        in_a_cell(monkeypatch, lambda *_, **__: pytest.fail("this prints each bar below another"))
        monkeypatch.setattr(builtins, "get_ipython", lambda: SimpleNamespace())
        place_of_bars().show("the bar", FOUND)
        assert capsys.readouterr() == ("", f"{ERASED}the bar")

    def test_in_a_notebook_it_is_one_output_that_changes(
        self, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_a_terminal(monkeypatch)
        outputs = with_bars_at_once(monkeypatch)
        with Progress() as bar:
            bar.reached(0.5, "half read")
            bar.reached(1, "all read")
        texts = [f"{'█' * 12}{'░' * 12} half read", f"{'█' * 24} all read"]
        bars = [{"text/plain": text} for text in texts]
        assert outputs.shown == [(0, bundle) for bundle in [*bars, {}]]
        assert capsys.readouterr() == ("", "")

    def test_in_a_notebook_a_bar_that_was_interrupted_as_it_came_is_removed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outputs = with_bars_at_once(monkeypatch)

        def pressed(bundle: MimeBundle, **keywords: Any) -> None:
            outputs.display(bundle, **keywords)
            if not keywords["update"]:
                raise KeyboardInterrupt

        in_a_cell(monkeypatch, pressed)
        with pytest.raises(KeyboardInterrupt), AfterTheCell() as cell:
            cell.stage(FIRST)
        assert outputs.now == [{}]

    def test_in_a_notebook_what_was_found_is_above_the_bar(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outputs = with_bars_at_once(monkeypatch)
        place = place_of_bars()
        place.show("the bar", FOUND)
        assert outputs.now == [
            {
                "text/html": "<p>slow</p><pre>the bar</pre>",
                "text/plain": "It is slow.\nMake it fast.\nthe bar",
            }
        ]
        place.show("", FOUND)
        assert outputs.now == [FOUND]


def chrome_text(count: int) -> bytes:
    """A trace of so many ops, as JSON."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{n % 7}", "pid": 1, "tid": 1}
        | {"ts": 10 * n, "dur": 9, "args": {"Sequence number": n}}
        for n in range(count)
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


class TestReading:
    @pytest.mark.parametrize("parse", [parse_chrome_trace, complete_record])
    def test_a_trace_of_several_batches_tells_how_far_it_is(
        self, parse: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text, path = chrome_text(300), Path("trace.json")
        whole = parse(text, path)
        monkeypatch.setattr(event_json, "BATCH_BYTES", 1000)
        monkeypatch.setattr(scanned_events, "BLOCK_BYTES", 1000)
        shares: list[float] = []
        assert_same_record(parse(text, path, shares.append), whole)
        assert len(shares) > 9
        assert shares == sorted(shares)
        assert 0 < shares[0] < 0.1
        assert 0.9 < shares[-1] <= 1

    def test_what_pytorch_wrote_moves_the_bar(
        self, fine: Wall, cell: AfterTheCell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from gpuprof_widgets.capture import torch_profiler

        class Recording:
            """A torch.profiler that has stopped."""

            @staticmethod
            def export_chrome_trace(path: str) -> None:
                Path(path).write_bytes(chrome_text(300))

        monkeypatch.setattr(event_json, "BATCH_BYTES", 1000)
        monkeypatch.setattr(progress, "PAUSE_S", 0.0)
        with cell:
            torch_profiler._read(Recording())
        first, *others = fine.words[:-1]
        assert (first, {*others}) == (FIRST, {SECOND})
        assert fine.shares == sorted(fine.shares)
        assert fine.shares[-1] == pytest.approx(STAGES["joining ops, lines and modules"], abs=0.02)


class TestRecording:
    def test_after_a_block_all_stages_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outputs = with_bars_at_once(monkeypatch)
        with gpuprof_widgets.profile():
            assert outputs.shown == []
            torch.ones(3)
        last_lines = [text.splitlines()[-1] for text in outputs.texts(0)[:-1]]
        assert [*dict.fromkeys(line.lstrip("█░ ") for line in last_lines)] == [*STAGES]
        assert outputs.now[0] == {}
        assert ["image/png" in bundle for bundle in outputs.now[1:]] == [False, True, False]

    def test_after_a_quiet_block_none_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outputs = with_bars_at_once(monkeypatch)
        with gpuprof_widgets.profile(quiet=True):
            torch.ones(3)
        assert outputs.shown == []

    def test_what_the_stop_took_counts_for_the_bar(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with Recorder(Options(), label="the run") as made:
            torch.ones(3)
        made._stop_ns = 2_000_000_000
        with made.waiting() as bar:
            pass
        assert 2 <= monotonic() - bar._began < 60

    @pytest.mark.parametrize("quiet", [True, False])
    def test_the_bar_is_made_after_the_recording_has_stopped(
        self, quiet: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_bars_at_once(monkeypatch)
        running: list[object] = []

        def noted(**keywords: Any) -> Any:
            running.append(Active.recorder or sys.getprofile() or profiler_is_running())
            return place_of_bars(**keywords)

        monkeypatch.setattr(recorder, "place_of_bars", noted)
        with gpuprof_widgets.profile(quiet=quiet):
            torch.ones(3)
        assert running == [False]

    @pytest.mark.parametrize("quiet", [True, False])
    def test_no_frame_of_it_is_in_a_recording_with_stacks(
        self, quiet: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_bars_at_once(monkeypatch)
        with gpuprof_widgets.profile(quiet=quiet, stack=True) as run:
            torch.ones(3)
        frames = run.trace.slices.query("category == 'python_function'")["name"].astype(str)
        assert len(frames) > 0
        assert [name for name in frames if "gpuprof_widgets/" in name] == []


@pytest.fixture
def profile() -> Profile:
    record = trace_of(
        op("aten::mm", ts=0, dur=9_000),
        runtime("cudaLaunchKernel", ts=1_000, dur=500),
        kernel("gemm", ts=3_000, dur=4_000, launched_by=1),
    )
    return Profile(record.trace, record.calls, record.metadata)


class TestReport:
    def test_it_comes_after_its_bar_above_which_the_findings_were_first(
        self, profile: Profile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outputs = with_bars_at_once(monkeypatch)
        profile.show()
        assert [number for number, _ in outputs.shown] == [0, 0, 0, 1, 2, 3]
        looking, found, emptied, last, picture, script = [bundle for _, bundle in outputs.shown]
        assert outputs.now == [emptied, last, picture, script]
        assert emptied == {}
        assert looking == {"text/plain": f"{'░' * 24} looking for findings"}
        assert found["text/html"].startswith('<div class="gpuprof-static"><ol><li><strong>')
        assert found["text/html"].endswith(f"░ {LAST}</pre>")
        assert found["text/plain"].startswith("* ")
        assert found["text/plain"].endswith(f"░ {LAST}")
        assert "<table" not in found["text/html"]
        assert "<table" in last["text/html"]
        assert "image/png" in picture
        assert REPORT_TYPE in script
        assert not {*"█░"} & {*json.dumps(outputs.now, ensure_ascii=False)}

    def test_an_error_in_its_tables_leaves_the_findings(
        self, profile: Profile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

        outputs = with_bars_at_once(monkeypatch)
        monkeypatch.setattr(report, "static_tables", broken)
        with pytest.raises(ZeroDivisionError):
            profile.show()
        (only,) = outputs.now
        assert only == report._found(profile)

    def test_where_it_is_printed_the_bar_goes_before(
        self, profile: Profile, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_a_terminal(monkeypatch)
        monkeypatch.setattr(progress, "PATIENCE_S", -1.0)
        before: list[str] = []

        def printed(words: str) -> None:
            assert words == static_text(profile)
            before.append(capsys.readouterr().err)

        monkeypatch.setattr(runtime_carrier, "print", printed, raising=False)
        with AfterTheCell() as cell:
            cell.stage(FIRST)
            profile.show()
        bars = [(5, FIRST), (18, "looking for findings"), (21, LAST)]
        lines = [f"{'█' * filled}{'░' * (24 - filled)} {words}" for filled, words in bars]
        assert before == ["".join(f"{ERASED}{line}" for line in [*lines, ""])]
        assert capsys.readouterr() == ("", "")

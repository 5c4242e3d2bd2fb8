"""Names in traces are other people's: they stay text in HTML, in a terminal and in pictures.

What a browser makes of the same trace is in `browser/test_hostile_pages.py`.
"""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.cli import main
from gpuprof_widgets.exceptions import TraceError, printable, printable_values
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.writers.tables import csv_bytes
from gpuprof_widgets.views.report import static_html, static_text
from tests import hostile
from tests.job import STARTS, in_lockstep
from tests.job import saved as saved_ranks

pytestmark = pytest.mark.slow

ALLOWED = {
    "div": {"class", "style"},
    "table": {"style"},
    "td": {"role", "style"},
    **dict.fromkeys(("tr", "ol", "li", "strong", "em", "code"), frozenset[str]()),
    "span": {"style"},
}
"""Elements and attributes of the part of a report that needs no script."""

OWN_STYLE = re.compile(r"[\w\s:;.%,()-]*")
"""What our inline styles are made of: no quotes, no escapes, and no `url(`."""


class Checked(HTMLParser):
    """Collects what is not allowed in our HTML, and the text of it."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name not in ALLOWED.get(tag, ()):
                self.foreign.append(f"<{tag} {name}={value}>")
            if name == "style" and ("url" in value or not OWN_STYLE.fullmatch(value or "")):
                self.foreign.append(f"<{tag} style={value}>")
        if tag not in ALLOWED:
            self.foreign.append(f"<{tag}>")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        self.foreign.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.foreign.append(f"<!{decl}>")


def checked(html: str) -> Checked:
    """The HTML, parsed."""
    parser = Checked()
    parser.feed(html)
    parser.close()
    return parser


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> gpuprof_widgets.Profile:
    """The hostile trace, as it comes from a file that somebody has sent."""
    return gpuprof_widgets.load(hostile.saved(tmp_path_factory.mktemp("mail") / "sent.gpuprof"))


def shown_of(value: Any) -> dict[str, str]:
    """What a notebook shows of a value without running a script."""
    bundle: dict[str, str] = value._repr_mimebundle_()
    return bundle


@pytest.fixture(params=["profile", "comparison", "ranks"])
def bundle(
    request: pytest.FixtureRequest, profile: gpuprof_widgets.Profile, tmp_path: Path
) -> dict[str, str]:
    """HTML and text of a profile, of two side by side, and of several ranks."""
    if request.param == "profile":
        return shown_of(profile)
    if request.param == "comparison":
        return shown_of(profile.compare(profile.window(0, profile.trace.span_ns // 2)))
    return shown_of(gpuprof_widgets.ranks(hostile_ranks(tmp_path)))


def hostile_ranks(folder: Path) -> Path:
    """Three ranks whose collectives, hosts and files have hostile names."""
    name = hostile.PAYLOADS["event handler"]
    records = in_lockstep(STARTS, label=name, host=name, notes=[name])
    names = [f"<img src=x onerror=window.broken=1>\x1b[31m.rank{n}.gpuprof" for n in range(3)]
    saved_ranks(folder, records, names)
    return folder


def test_what_a_notebook_shows_has_our_own_elements_and_no_control_code(
    bundle: dict[str, str],
) -> None:
    found = checked(bundle["text/html"])
    assert found.foreign == []
    assert len("".join(found.words)) > 200
    assert printable_values(bundle["text/html"]) == bundle["text/html"]
    assert bundle["text/plain"].replace("\n", "").isprintable()


def test_a_name_of_several_lines_is_one_line_of_a_table(profile: gpuprof_widgets.Profile) -> None:
    lines = static_text(profile, top=1_000).splitlines()
    assert [line for line in lines if line.startswith("first\\nGPU")]
    assert not [line for line in lines if line.startswith("GPU 0 was busy all the time")]


def test_names_are_legible_as_they_are_written(profile: gpuprof_widgets.Profile) -> None:
    page = "".join(checked(static_html(profile, top=1_000)).words)
    for name in hostile.PAYLOADS.values():
        assert printable(name, keep="\n\t") in page


@pytest.mark.parametrize("text", ["\x1b[31m", "\u202e", "a\nb", "\ud800", "\x9b", "\u2028"])
def test_no_value_for_a_page_keeps_a_control_code(text: str) -> None:
    told = printable_values({text: [text, (text, 1.5, None)], "x": {"y": text}})
    shown = printable(text, keep="\n")
    assert told == {shown: [shown, [shown, 1.5, None]], "x": {"y": shown}}
    assert shown.replace("\n", "").isprintable()


def test_an_error_quotes_a_file_without_its_control_codes_or_lines() -> None:
    error = TraceError("bad\x1b]0;owned\x07.json: found '\u202e'\nexpected a list")
    assert str(error) == "bad\\x1b]0;owned\\x07.json: found '\\u202e'\\nexpected a list"


COMMANDS = [
    ("findings", "--all"),
    ("ops", "--top", "99"),
    ("kernels", "--top", "99"),
    ("collectives",),
    ("memory",),
    ("idle",),
    ("critical_path",),
    ("analyze",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_sends_a_control_code(
    command: tuple[str, ...], profile: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile.saved(tmp_path / "\x1b[31msent.gpuprof")
    name, *options = command
    assert main([name, str(path), *options]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") > 1
    for stream in said:
        assert stream.replace("\n", "").isprintable()


def test_no_wrong_call_sends_a_control_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["ops", str(tmp_path / "\x1b]0;owned\x07.json")],
        ["ops", "--sort", "\x1b[31m", str(hostile.saved(tmp_path / "a.gpuprof"))],
        ["\x1b[31mops"],
        ["ops", "--\x1b[31m", "x"],
        ["ops", "--window", "\x1b[31m", "x"],
    ):
        assert main(words) > 0
        said = capsys.readouterr().err
        assert said
        assert said.replace("\n", "").isprintable(), words


class Screen(io.TextIOWrapper):
    """A terminal, and what it was sent."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def isatty(self) -> bool:
        return True

    def sent(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_table_on_a_terminal_is_shown_not_obeyed(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hostile.saved(tmp_path / "sent.gpuprof")
    monkeypatch.setattr("sys.stdout", screen := Screen())
    assert main(["ops", str(path), f"--{form}", "-"]) == 0
    assert "red" in screen.sent()
    assert screen.sent().replace("\n", "").replace("\t", "").isprintable()


def test_no_cell_of_a_table_is_a_formula(profile: gpuprof_widgets.Profile, tmp_path: Path) -> None:
    """As LibreOffice and Excel take them: what begins so, without the quotes around it."""
    for name in ("operators", "kernels", "counters", "modules", "lines"):
        table = getattr(profile, name)()
        rows = list(csv.reader(io.StringIO(csv_bytes(table).decode(), newline="")))
        texts = [cell for row in rows for cell in row if not is_number(cell)]
        assert len(texts) > len(table.columns)
        assert [text for text in texts if re.match(r"[=+\-@\t\r\n]", text)] == []


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell and not cell.startswith("+")

"""Rows that are added to our tables are found everywhere: at run time, and by entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gpuprof_widgets import registry
from gpuprof_widgets.analysed import Analysed
from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.analyses.added import TAKEN, TAKEN_OPTIONS, added_analysis
from gpuprof_widgets.cli import ALIASES, COMMANDS
from gpuprof_widgets.commands.analysis import SHARED, command_of
from gpuprof_widgets.exceptions import GpuprofError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.registry import Registry
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.page_panels import panels
from gpuprof_widgets.views.table_renderers import listed, page_table
from scripts import make_docs
from tests.command_lines import TIMEOUT_S, gpuprof, small_trace
from tests.reader import Page
from tests.traces import op, trace_of

ROOT = Path(__file__).parents[1]
EXTENDING = Page("extending.md", (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"))


def text_of(name: str, row: object, package: str) -> str:
    if not isinstance(row, str):
        raise TypeError(f"no text: {row}")
    return f"{row} of {package}"


def with_entry_points(monkeypatch: pytest.MonkeyPatch, **named: str) -> None:
    points = [EntryPoint(name, value, "a.group") for name, value in named.items()]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: points if group == "a.group" else []
    )


def test_rows_set_by_hand_are_in_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, name="sys:platform")
    table = Registry("a.group", {"ours": "row"}, text_of)
    assert table.is_as_installed
    table["hand"] = "made"
    assert not table.is_as_installed
    del table["hand"]
    assert table.is_as_installed
    del table["name"]
    assert not table.is_as_installed


def test_rows_of_others_stand_behind_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, name="sys:platform", code="sys:byteorder")
    table = Registry("a.group", {"ours": "row"}, text_of)
    assert list(table) == ["ours", "name", "code"]
    assert table["ours"] == "row"
    assert table["code"] == f"{sys.byteorder} of sys"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("not_installed_anywhere:ROW", "ModuleNotFoundError"),
        ("sys:not_there", "AttributeError"),
        ("sys:maxsize", "TypeError: no text"),
    ],
)
def test_what_cannot_be_added_is_left_out_with_a_warning(
    value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_entry_points(monkeypatch, bad=value, good="sys:platform")
    table = Registry("a.group", {"ours": "row"}, text_of)
    with pytest.warns(UserWarning, match=f"entry point bad of .* in a.group.* left out: {why}"):
        assert list(table) == ["ours", "good"]


def test_a_name_that_is_taken_stays_whose_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, ours="sys:platform")
    table = Registry("a.group", {"ours": "row"}, text_of)
    with pytest.warns(UserWarning, match="the name ours is taken"):
        assert dict(table) == {"ours": "row"}


def test_the_table_can_be_read_while_others_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, name="sys:platform")
    seen: list[list[str]] = []

    def checked(name: str, row: object, package: str) -> str:
        seen.append(list(table))
        return text_of(name, row, package)

    table = Registry("a.group", {"ours": "row"}, checked)
    assert len(table) == 2
    assert seen == [["ours"]]


@pytest.mark.parametrize("path", make_docs.PATHS)
def test_what_is_made_from_the_tables_is_as_they_are(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == make_docs.made(path), "run `make tables`"


def test_every_method_is_the_function_of_its_row() -> None:
    for name, row in ANALYSES.ours.items():
        assert getattr(Analysed, name).__wrapped__ is row.function
        assert row.name == name
        assert row.function.__doc__


@pytest.mark.filterwarnings("error")
def test_warnings_that_are_errors_leave_the_table_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, bad="sys:not_there", good="sys:platform")
    table = Registry("a.group", {"ours": "row"}, text_of)
    with pytest.raises(UserWarning, match="entry point bad of"):
        len(table)
    assert list(table) == ["ours", "good"]


def test_every_thread_sees_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, name="sys:platform")
    begun, seen = threading.Event(), []

    def checked(name: str, row: object, package: str) -> str:
        begun.set()
        reader.join(0.2)  # it waits for this to end
        return text_of(name, row, package)

    def read() -> None:
        begun.wait()
        seen.extend(table)

    table = Registry("a.group", {"ours": "row"}, checked)
    reader = threading.Thread(target=read)
    reader.start()
    assert list(table) == ["ours", "name"]
    reader.join()
    assert seen == ["ours", "name"]


def many_ops(record: Record, *, least: int = 2) -> pd.DataFrame:
    """A row per op with ``least`` calls: ``name``, ``calls``, ``total_ns``."""
    ops = record.trace.slices.groupby("name", observed=True)["dur"]
    rows = ops.agg(calls="size", total_ns="sum").reset_index()
    return rows[rows["calls"] >= least].reset_index(drop=True)


def test_an_analysis_is_a_function_and_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Analysis(many_ops, "Which ops come again and again?", tab="Many ops")
    monkeypatch.setitem(ANALYSES, "many_ops", row)
    trace = str(small_trace(tmp_path))

    assert "Which ops come again" in gpuprof(capsys, "--help").out
    assert "--least" in gpuprof(capsys, "many_ops", "--help").out
    written = gpuprof(capsys, "many_ops", trace, "--least", "1", "--csv", "-").out
    assert written.startswith('"name","calls","total_ns"\n')
    target = tmp_path / "many_ops.csv"
    assert gpuprof(capsys, "convert", trace, str(target), "--what", "many_ops").code == 0
    assert target.read_text().startswith('"name","calls","total_ns"\n')

    record = trace_of(op("aten::mm", ts=0, dur=5), op("aten::mm", ts=9, dur=5))
    shown = panels(record)["many_ops"]
    assert (shown.title, shown.notes) == ("Many ops", ("Which ops come again and again?",))
    assert [(c.label, c.unit) for c in shown.columns] == [
        ("Name", "text"), ("Calls", "count"), ("Total", "ns")
    ]  # fmt: skip
    assert shown.rows.values.tolist() == [["aten::mm", 2, 10]]

    assert "| Which ops come again and again? | `many_ops()` |" in make_docs.questions()

    profile = Profile(record.trace)
    assert profile.many_ops(least=3).empty  # type: ignore[attr-defined]
    assert "many_ops" in dir(profile)
    with pytest.raises(AttributeError, match="'Profile' object has no attribute 'many_opps'"):
        profile.many_opps()  # type: ignore[attr-defined]


ODD = {
    "lists": [[1, 2], []],
    "arrays": [np.zeros(2), None],
    "bools": [True, False],
    "complex": [1j, 2j],
    "whole": pd.array([1, None], "Int64"),
    "day": pd.to_datetime(["2026-01-01", None]),
    "kind": pd.Categorical(["a", None]),
    "dur_ns": [0.5, float("nan")],
    "start_ns": [5, -1],
    "row": ["x", "y"],
}


def test_a_table_of_any_columns_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(record: Record) -> pd.DataFrame:
        return pd.DataFrame(ODD, index=[7, 9])

    monkeypatch.setitem(ANALYSES, "odd", Analysis(odd, "What?", tab="Odd"))
    profile = Profile(trace_of(op("aten::mm", ts=0, dur=5)).trace)
    shown = panels(profile)["odd"]
    units = {column.key: column.unit for column in shown.columns}
    numbers = {"whole": "count", "dur_ns": "ns", "start_ns": "moment"}
    assert units == dict.fromkeys(ODD, "text") | numbers
    page = page_table(listed(shown, 9))
    values = dict(zip(units, page["values"], strict=True))
    assert values["lists"] == ["[1, 2]", "[]"]
    assert values["arrays"] == ["[0. 0.]", ""]
    assert values["bools"] == ["yes", "no"]
    assert values["whole"] == [1, None]
    assert values["day"] == ["2026-01-01 00:00:00", ""]
    assert values["kind"] == ["a", ""]
    assert values["dur_ns"] == [0.5, None]
    assert values["start_ns"] == [5, None]
    assert shown.events is None
    assert "Odd" in profile.report()


def test_rows_with_times_are_ranges_of_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    def slices(record: Record) -> pd.DataFrame:
        return pd.DataFrame({"row": [0, -1], "start_ns": [3, 9], "dur_ns": [2, 1]}, index=[4, 2])

    monkeypatch.setitem(ANALYSES, "slices", Analysis(slices, "Which?", tab="Slices"))
    shown = panels(trace_of(op("aten::mm", ts=3, dur=2)))["slices"]
    assert shown.events is not None
    assert shown.events.to_dict("list") == {
        "start_ns": [3, 9], "end_ns": [5, 10], "row": [0, -1], "group": [0, 1]
    }  # fmt: skip
    assert [(c.key, c.aggregate) for c in shown.columns] == [("start_ns", ""), ("dur_ns", "time")]


def test_a_tab_whose_analysis_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(record: Record) -> pd.DataFrame:
        raise KeyError("depth")

    monkeypatch.setitem(ANALYSES, "failing", Analysis(failing, "Why?", tab="Failing"))
    with pytest.warns(UserWarning, match=r"the tab Failing is left out: KeyError\('depth'\)"):
        assert "failing" not in panels(trace_of(op("aten::mm", ts=0, dur=5)))


def of(name: str, parameters: str = "record", **about: Any) -> Analysis:
    """A row whose function has this name and takes that."""
    names: dict[str, Any] = {}
    exec(f"def {name}({parameters}): ...", names)
    return Analysis(names[name], "?", **about)


@pytest.mark.parametrize(
    ("name", "row", "why"),
    [
        ("plain", of("plain").function, "an Analysis is expected, not <function plain"),
        ("plain", Analysis("kernels", "?"), "an analysis is a function, not 'kernels'"),
        ("other", of("plain"), "the entry point needs the name of its function, plain"),
        ("save", of("save"), "neither a method nor a command can be called save"),
        ("<lambda>", Analysis(lambda record: pd.DataFrame(), "?"), "can be called <lambda>"),
        ("told", of("told", "record, name"), "its row needs an example if an option"),
        ("plain", of("plain", example="x"), "its row needs an example if an option has no default"),
        ("f", of("f", "record, *, what: dict = None"), "the type of its option what.* is none of"),
        ("f", of("f", "record, *, csv: str = ''"), "every command has an option csv already"),
        ("f", of("f", "record, **options: int"), r"\*\*options: .* is no option with a name"),
        ("f", of("f", ""), "it takes no record"),
        ("f", of("f", "record: 'Unknown'"), "a type hint of f is not known"),
    ],
)
def test_an_analysis_that_could_not_be_called_is_refused(name: str, row: object, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        ANALYSES._checked(name, row, "their-package")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (None, "a NoneType, where a DataFrame is expected"),
        (pd.Series([1]), "a Series, where a DataFrame is expected"),
        (pd.DataFrame({0: [1]}), "a table whose columns are not texts that differ"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "a table whose columns are not texts"),
        (pd.DataFrame({"a": [1]}, pd.Index([1], name="b")), r"a table with a named index: call"),
    ],
)
def test_what_is_no_table_names_its_package(table: Any, why: str) -> None:
    def odd(record: Record) -> Any:
        return table

    function = added_analysis("odd", odd, "their-package", "")
    with pytest.raises(GpuprofError, match=f"odd of their-package returned {why}"):
        function(trace_of())


def test_the_names_that_are_taken_are_those_of_profiles_and_commands() -> None:
    of_profiles = {name for name in dir(Profile) if not name.startswith("_")}
    commands = set(COMMANDS) | set(ALIASES)
    names = of_profiles | set(Profile.__dataclass_fields__) | commands
    assert names - set(ANALYSES) == TAKEN
    options = {str(option.name) for option in command_of("iterations").params}
    assert options - set(SHARED) == TAKEN_OPTIONS


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of docs/extending.md, as pip would have installed it."""
    folder = tmp_path_factory.mktemp("site")
    code = [block.code for block in EXTENDING.blocks if block.language == "python"]
    analysis, finding, reader = code[::2]  # the others try them by hand
    (folder / "my_rules.py").write_text(f"{analysis}\n{finding}")
    (folder / "my_formats.py").write_text(reader)
    (points,) = (block.code for block in EXTENDING.blocks if block.language == "toml")
    groups = tomllib.loads(points)["project"]["entry-points"]
    about = folder / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    lines = [
        line
        for group, rows in groups.items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in rows.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return folder


def in_its_process(installed: Path, *words: str) -> str:
    """What a Python prints beside which the package is installed; only notes go to stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=installed,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{installed}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    others = [line for line in done.stderr.splitlines() if not line.startswith("Note: ")]
    assert (done.returncode, others) == (0, [])
    return done.stdout


@pytest.fixture(scope="module")
def many_adds(installed: Path) -> str:
    about = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "dur": 2, "pid": 1, "tid": 1}
    events = [{"ts": 10 * n, **about} for n in range(120)]
    path = installed / "adds.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


@pytest.mark.slow
def test_an_analysis_of_another_package_has_method_command_and_tab(
    installed: Path, many_adds: str
) -> None:
    code = f"""
import gpuprof_widgets
profile = gpuprof_widgets.load({many_adds!r})
print(profile.short_ops(limit_ns=3_000).to_dict("records"), "short_ops" in dir(profile))
print("Short ops" in profile.report(), profile.short_ops.__doc__[:12])
"""
    rows, page = in_its_process(installed, "-c", code).splitlines()
    assert rows == "[{'name': 'aten::add', 'calls': 120, 'total_ns': 240000}] True"
    assert page.endswith("A row per op")

    gpuprof = ("-m", "gpuprof_widgets")
    assert "Which ops are short and many?" in in_its_process(installed, *gpuprof, "--help")
    printed = in_its_process(installed, *gpuprof, "short_ops", many_adds, "--limit-ns", "3us")
    assert printed.split() == ["name", "calls", "total", "aten::add", "120", "240", "µs"]


@pytest.mark.slow
def test_a_package_may_import_what_it_adds_to(installed: Path, many_adds: str) -> None:
    """Whichever is imported first."""
    rules = installed / "my_rules.py"
    rules.write_text(f"from gpuprof_widgets import Profile, load\n{rules.read_text()}")
    code = f"gpuprof_widgets.load({many_adds!r}).short_ops()['calls'].tolist()"
    for first in ("import my_rules, gpuprof_widgets", "import gpuprof_widgets, my_rules"):
        assert in_its_process(installed, "-c", f"{first}; print({code})") == "[120]\n"


@pytest.mark.slow
def test_a_finding_of_another_package_is_said_and_has_its_limit(
    installed: Path, many_adds: str
) -> None:
    words = ("-m", "gpuprof_widgets", "findings", many_adds, "--all")
    sentence = "`aten::add` ran 120 times, each in a few µs."
    assert sentence in in_its_process(installed, *words)
    higher = in_its_process(installed, *words, "--limit", "short_ops_calls=121")
    assert sentence not in higher


def test_a_format_of_another_package_is_read(installed: Path) -> None:
    (installed / "run.durations").write_text("load 0 2.5\nstep 3 1.001\n")
    words = ("-m", "gpuprof_widgets", "operators", "run.durations", "--csv", "-")
    rows = in_its_process(installed, *words).splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ['"load"', '"step"']

"""The pages of reference have everything that there is, and nothing that there is not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gpuprof_widgets
from gpuprof_widgets import Profile, exceptions
from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.analyses.docstrings import (
    COLUMNS,
    OPTIONS,
    lists_of,
    meanings_of,
)
from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.findings.thresholds import thresholds_of
from gpuprof_widgets.analyses.ranks.findings import FINDINGS as OF_RANKS
from gpuprof_widgets.commands.analysis import command_of, keywords_of
from gpuprof_widgets.trace.model import Record
from scripts import make_findings, make_reference
from tests.command_lines import gpuprof

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"

RECORDS = (
    "gpu/ddp_with_nccl.gpuprof",
    "gpu/out_of_memory.pickle",
    "recorded/a_dataloader_with_workers.gpuprof",
)
"""Together they have rows for most analyses; an empty table has all of its columns too."""

WAYS: dict[str, tuple[dict[str, Any], ...]] = {
    "operators": ({}, {"by_shape": True}, {"stack_depth": 1}),
    "copies": ({}, {"by": "kind"}, {"by": "op"}),
    "streams": ({}, {"by": "pair"}, {"by": "concurrency"}),
    "critical_path": ({}, *({"by": by} for by in ("kind", "op", "name", "module", "line"))),
    "roofline": ({}, {"by": "shape"}, {"by": "kernel"}),
    "analyze": ({}, {"side": "host", "by": "type"}),
    "collectives": ({}, {"instances": True}),
    "attribution": ({"level": "module"},),
    "owners": ({"row": 0},),
    "worker_calls": ({"worker": 0},),
    "what_if": ({"name": "aten::mm"},),
}
"""The options of each analysis that change its columns."""

PAGE = make_reference.analyses()
ITEM = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)


@pytest.fixture(scope="module", params=RECORDS)
def profile(request: pytest.FixtureRequest) -> Profile:
    return Profile.load(DATA / request.param)


def section(name: str) -> str:
    _, _, rest = PAGE.partition(f"\n## `{name}()`\n")
    return rest.partition("\n## ")[0]


def listed(name: str, heading: str) -> set[str]:
    """The names in the tables below such headings of a section."""
    tables = re.findall(rf"^\*\*{heading}.*\n\n((?:\|.*\n)+)", section(name), re.MULTILINE)
    items = (item for table in tables for item in ITEM.findall(table))
    return {word for item in items for word in re.findall(r"\w+", item)}


def tables(profile: Profile, name: str) -> Iterator[pd.DataFrame]:
    for options in WAYS.get(name, ({},)):
        try:
            yield ANALYSES[name].function(profile, **options)
        except exceptions.OptionError:
            assert name in ("worker_calls", "what_if", "owners")  # what is asked for is not there


@pytest.mark.parametrize("name", ANALYSES.ours)
def test_every_column_is_described_and_every_described_column_is_there(
    profile: Profile, name: str
) -> None:
    there = {str(column) for table in tables(profile, name) for column in table.columns}
    described = listed(name, COLUMNS)
    assert described
    assert not there or there == described


def test_the_records_have_the_columns_of_all_analyses() -> None:
    whole = [Profile.load(DATA / path) for path in RECORDS]
    silent = {
        name for name in ANALYSES.ours if not any(list(tables(profile, name)) for profile in whole)
    }
    assert silent == {"worker_calls"}  # no record here has any; it returns what python_calls does
    assert listed("worker_calls", COLUMNS) == listed("python_calls", COLUMNS)


@pytest.mark.parametrize("name", ANALYSES.ours)
def test_every_option_is_described(name: str) -> None:
    assert listed(name, OPTIONS) == set(keywords_of(ANALYSES[name].function))


@pytest.mark.parametrize("name", ANALYSES.ours)
def test_columns_of_one_item_have_one_unit(name: str) -> None:
    for items in lists_of(ANALYSES[name].function, COLUMNS).values():
        for names in items:
            assert len({make_reference.unit_of(column) for column in names}) == 1, names


@pytest.mark.parametrize("name", ANALYSES.ours)
def test_every_section_says_where_it_comes_from_and_how_to_ask(name: str) -> None:
    text = section(name)
    assert text.count("\n**Source:** ") == 1
    assert f"`profile.{name}(" in text
    assert f"`gpuprof {name} trace.json.gz" in text
    assert f"*{ANALYSES[name].question}*" in text


def test_names_in_docstrings_are_those_of_analyses() -> None:
    for name, row in ANALYSES.ours.items():
        docstring = inspect.getdoc(row.function) or ""
        names = set(re.findall(r"(?<!`)`([^`]+)`(?!`)", docstring))
        assert names <= {*ANALYSES.ours, *make_reference.ELSEWHERE}, name


def test_options_are_described_in_the_help_of_their_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = " ".join(gpuprof(capsys, "idle", "--help").out.split())
    assert shown.count("Options:") == 1
    meaning = meanings_of(ANALYSES["idle"].function, OPTIONS)["by"].removesuffix(".")
    assert f"--by TEXT {meaning}; default: device" in shown
    shown = " ".join(gpuprof(capsys, "attribution", "--help").out.split())
    assert 'Arguments: - level: "line", "module", "op"' in shown


@pytest.mark.parametrize(
    ("docstring", "kept"),
    [
        (None, "Which ops?"),
        ("", "Which ops?"),
        ("A row per op.\n\nOptions:", "Options:"),
        ("A row per op.\n\nOptions:\n\nThe limit is in ns.", "The limit is in ns."),
        ("A row per op.\n\nOptions:\n- ``limit_ns``: ns.", "A row per op."),
        ("A row per op.\n\nOptions:\n\n- ``gone``: No longer there.", "A row per op."),
        ("A row per op.\n\nOptions:\n\n- ``word``: What to find.", "- word: What to find."),
        ("Parameters\n----------\nword : str", "word : str"),
    ],
)
def test_any_docstring_of_another_package_is_a_help(
    docstring: str | None, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_ops(record: Record, word: str, *, limit_ns: int = 5) -> pd.DataFrame:
        return record.trace.slices.head(limit_ns).query("name == @word")

    short_ops.__doc__ = docstring
    monkeypatch.setitem(ANALYSES, "short_ops", Analysis(short_ops, "Which ops?", example="x"))
    assert kept in str(command_of("short_ops").help)


@pytest.fixture(scope="module")
def rules() -> str:
    return make_findings.rules()


@pytest.mark.parametrize("name", [*FINDINGS.ours, *OF_RANKS])
def test_every_rule_has_a_section_with_its_cost_and_an_example(name: str, rules: str) -> None:
    _, _, rest = rules.partition(f"\n### `{name}`\n")
    text = rest.partition("\n### ")[0]
    assert text.count("\n**Cost:** ") == 1
    assert text.count("\nExample, ") == 1
    for limit in thresholds_of({**FINDINGS.ours, **OF_RANKS}[name]):
        assert f"\n| `{limit}` | " in text


def test_rules_are_explained_by_the_names_of_rules_and_analyses() -> None:
    known = {*FINDINGS.ours, *OF_RANKS, *ANALYSES.ours}
    for name, rule in {**FINDINGS.ours, **OF_RANKS}.items():
        prose = rule.__doc__ or ""
        assert set(re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)) <= known, name


API_PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
DIRECTIVE = re.compile(r"^\.\. auto\w+:: ([\w.]+)((?:\n   :.*)*)", re.MULTILINE)


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    shown = {name for name, _ in DIRECTIVE.findall(API_PAGE)}
    public = {f"gpuprof_widgets.{name}" for name in gpuprof_widgets.__all__}
    assert public - shown == {"gpuprof_widgets.__version__"}
    assert "`gpuprof_widgets.__version__`" in API_PAGE


OF_TRAINERS = "gpuprof_widgets.integrations."
"""What cannot be imported without its framework."""


@pytest.mark.parametrize(
    ("name", "options"),
    [row for row in DIRECTIVE.findall(API_PAGE) if not row[0].startswith(OF_TRAINERS)],
)
def test_what_the_page_of_the_api_shows_is_there(name: str, options: str) -> None:
    shown = shown_object(name)
    for members in re.findall(r":(?:exclude-)?members: (.+)", options):
        for member in members.split(", "):
            assert hasattr(shown, member) or member in getattr(shown, "__dataclass_fields__", {})


def shown_object(name: str) -> Any:
    home, _, last = name.rpartition(".")
    try:
        return getattr(import_module(home), last)
    except ModuleNotFoundError:
        return getattr(shown_object(home), last)

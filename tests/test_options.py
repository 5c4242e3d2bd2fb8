"""One definition of the options serves the magic, `profile()` and the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.commands.run import run
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.option_parsing import complete, help_text, parse
from gpuprof_widgets.options import OPTIONS, TOPICS, Options, ProfileOptions, options_of
from scripts import make_docs

ROOT = Path(__file__).parents[1]


def keywords_of(function: Any) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


def test_profile_shows_its_keywords_with_their_types_and_defaults() -> None:
    keywords = keywords_of(gpuprof_widgets.profile)
    assert {name: (shown.annotation, shown.default) for name, shown in keywords.items()} == {
        row.name: (row.type, row.default) for row in fields(ProfileOptions)
    }
    assert set(OPTIONS) - set(keywords) == {
        "compare",  # `gpuprof_widgets.history.compare()` after it
        "explore",  # `run.explore()` after it
        "output",  # `-o run` in the magic is `as run` in a with statement
        *(name for name, option in OPTIONS.items() if option.group == "loop"),
    }


def test_profile_takes_no_other_keyword() -> None:
    for wrong in ({"steps": 3}, {"shape": True}):
        with pytest.raises(TypeError, match=r"^profile\(\) got an unexpected keyword argument"):
            gpuprof_widgets.profile(**wrong)


def test_profile_ranks_shows_the_keywords_of_profile() -> None:
    keywords = keywords_of(gpuprof_widgets.profile_ranks)
    assert set(keywords_of(gpuprof_widgets.profile)) <= set(keywords)
    assert keywords["top"] == keywords_of(gpuprof_widgets.profile)["top"]


def test_the_keywords_of_steps_have_the_defaults_of_the_options() -> None:
    names = {"active": "steps", "cprofile": "cprofile_steps"}
    for name, shown in keywords_of(gpuprof_widgets.steps).items():
        if name != "active":  # a loop that nobody bounds has no number of steps
            assert shown.default == OPTIONS[names.get(name, name)].default, name


def test_the_table_has_every_option_and_a_line_without_any_is_the_default() -> None:
    assert list(OPTIONS) == [row.name for row in fields(Options)]
    assert parse("") == (Options(), "")


@dataclass(frozen=True, kw_only=True)
class MoreOptions(Options):
    """The options with one more."""

    colour: str = field(
        default="red", metadata={"help": "of the bars", "group": "output", "metavar": "NAME"}
    )


def test_a_further_row_of_the_table_is_an_option_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(OPTIONS, "colour", options_of(MoreOptions)["colour"])  # type: ignore[arg-type]
    assert parse("--colour 'dark red' f( x)", MoreOptions()) == (
        MoreOptions(colour="dark red"),
        "f( x)",
    )
    with pytest.raises(OptionError, match=r"No such option.*--colour"):
        parse("--color blue", MoreOptions())
    shown = "--colour NAME of the bars [default: red]"
    assert shown in " ".join(help_text().split())
    assert shown in " ".join(run.get_help(run.make_context("run", ["a.py"])).split())
    assert run.make_context("run", ["--colour", "blue", "a.py"]).params["colour"] == "blue"
    assert complete("%%gpuprofile --col") == ["--colour"]
    assert "| `--colour NAME` |  | of the bars | `red` |" in make_docs.options()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--shapes", {"shapes": True}),
        ("--python sampled", {"python": "sampled"}),
        ("--no-python", {"python": "off"}),
        ("--sort cpu_total --top 3", {"sort": "cpu_total", "top": 3}),
        ("--top=3", {"top": 3}),
        ("--name 'two words'", {"name": "two words"}),
        ('--save="my runs/a.zip"', {"save": "my runs/a.zip"}),
        (r"--save C:\runs\a.zip", {"save": r"C:\runs\a.zip"}),
        ("-o run -q", {"output": "run", "quiet": True}),
        ("--modules", {"modules": "all"}),
        ("--modules=model,head", {"modules": "model,head"}),
        ("--no-modules", {"modules": "none"}),
        ("--no-lines", {"lines": False}),
        ("--steps 8 --warmup 2 --wait 1", {"steps": 8, "warmup": 2, "wait": 1}),
    ],
)
def test_every_option_can_be_given_on_the_line(line: str, expected: dict[str, Any]) -> None:
    assert parse(line) == (Options(**expected), "")


@pytest.mark.parametrize(
    ("line", "statement"),
    [
        ("f(x)", "f(x)"),
        ("--shapes f('a  b', --x)", "f('a  b', --x)"),
        ("-o run y = f(x)", "y = f(x)"),
        ("--top 3 -- -x", "-x"),
        ("'--top'", "'--top'"),
        ("--modules model(x)", "model(x)"),
        ("--modules=model model(x)", "model(x)"),
        ("--modules --shapes model(x)", "model(x)"),
        ("--name '--top 3' f( x)  ", "f( x)"),
        ("--shapes print('it''s', \"it's\")", "print('it''s', \"it's\")"),
        ("--top 3 f(x) -- --shapes", "f(x) -- --shapes"),
        ("-q x = - 1", "x = - 1"),
        ("-q - x", "- x"),
        ("-qo run  f(x)", "f(x)"),
        ("-qo run --modules f(x)", "f(x)"),
        ("-o=run f(x)", "f(x)"),
        ('--top "3" f(x)', "f(x)"),
        ('"--x".upper()', '"--x".upper()'),
    ],
)
def test_what_follows_the_options_is_left_as_it_stands(line: str, statement: str) -> None:
    assert parse(line)[1] == statement


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--shape", r"^No such option --shape\. Did you mean --shapes\? %%gpuprofile\? lists them"),
        ("--sha", r"^No such option --sha\. "),
        ("-x", r"^No such option -x\. %%gpuprofile\? lists them\.$"),
        ("--top", "Option '--top' requires an argument: --top N"),
        ("--top x", "Invalid value for '--top': 'x' is not a valid integer."),
        ("--python no", r"^python takes cprofile, sampled or off, not 'no'\.$"),
        ("--shapes=yes", "Option '--shapes' does not take a value."),
        ("-o class", "output takes the name of a variable, not 'class'"),
        ("-o run.a", "output takes the name of a variable"),
        ("--modules=", "modules is all, none or the names of variables"),
        ("--warmup 5", "--warmup is for a bounded loop: give --steps N as well"),
        (
            "--record ops,shape",
            r"no topic 'shape'. Did you mean shapes\? Topics are ops, shapes.*; ALL is",
        ),
        ("--record ''", "record knows no topic ''"),
        ("--record lines --no-lines", "record asks for lines, which another switch leaves out"),
        ("--record ops,modules --no-modules", "record asks for modules, which another switch"),
    ],
)
def test_a_wrong_option_says_what_is_wrong_with_it(line: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        parse(line)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"top": "3"}, "top takes a whole number, not '3'"),
        ({"top": True}, "top takes a whole number, not True"),
        ({"top": 0}, "at least 1"),
        ({"shapes": 1}, "shapes takes True or False, not 1"),
        ({"name": 3}, "name takes text, not 3"),
        ({"python": "sample"}, "or off, not 'sample'. Did you mean sampled?"),
        ({"python": False}, "python takes text, not False"),
        ({"sort": "cpu_slef"}, "Did you mean 'cpu_self'?"),
        ({"save": ""}, "save is the path of a file"),
        ({"record": "lines", "lines": False}, "record asks for lines, which lines=False leaves"),
        ({"record": "modules", "modules": "none"}, "which modules='none' leaves out"),
    ],
)
def test_profile_refuses_a_wrong_value_before_anything_runs(
    wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError) as raised:
        gpuprof_widgets.profile(**wrong)
    assert words in str(raised.value)


def test_help_lists_every_option_its_default_and_one_example() -> None:
    text = help_text()
    words = " ".join(text.split())
    for option in OPTIONS.values():
        shown = [re.search(rf"{flag}(?![\w-])", words) for flag in option.flags]
        assert all(shown), option.flags
    assert "unrecorded iterations right before the recorded ones [default: 3]" in words
    assert max(map(len, text.splitlines())) <= 88
    assert text.count("Example:") == 1
    first = next(line for line in text.splitlines() if "%%gpuprofile --shapes" in line).split()
    assert parse(" ".join(first[1:])) == (Options(shapes=True, top=20, output="run"), "")


def test_help_keeps_the_opposites_back() -> None:
    for hidden in ("--no-stack", "--no-python", "--no-save"):
        assert hidden not in help_text()


@pytest.mark.parametrize(
    ("typed", "expected", "missing"),
    [
        ("%%gpuprofile ", {"--shapes", "-o", "--save"}, set()),
        ("%%gpuprofile --sh", {"--shapes"}, set()),
        ("%%gpuprofile --shapes ", {"--stack"}, {"--shapes"}),
        ("%%gpuprofile -o run ", {"--quiet"}, {"-o", "--output"}),
        ("%%gpuprofile --sort ", {"cpu_self"}, {"--top"}),
        ("%%gpuprofile --sort cpu", {"cpu_self"}, {"--top"}),
        ("%%gpuprofile --sort to", {"tottime"}, {"--top"}),
        ("%%gpuprofile --python ", {"cprofile", "sampled", "off"}, {"--top"}),
        ("%%gpuprofile --python=o", {"off"}, {"sampled"}),
        ("%%gpuprofile --top ", set(), {"--sort"}),
        ("%%gpuprofile --top x --so", {"--sort"}, set()),
        ("%%gpuprofile --modules ", {"--shapes"}, {"--modules"}),
        ("%gpuprofile --modules mo", set(), {"--modules"}),
        ("%gpuprofile f(x) ", set(), {"--shapes"}),
    ],
)
def test_completion_offers_what_may_come_next(
    typed: str, expected: set[str], missing: set[str]
) -> None:
    offered = set(complete(typed))
    assert expected <= offered
    assert not missing & offered


SWITCHES_THAT_ARE_OFF = ("shapes", "stack", "memory", "sync", "flops", "workers")
NOTHING_BUT_OPS = {"lines": False, "modules": "none"}


def topics_of(options: Options) -> dict[str, Any]:
    """The switches of the topics that differ from those of `Options()`."""
    names = ["shapes", "stack", "modules", "lines", "memory", "sync", "flops", "workers"]
    plain = Options()
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(plain, name)}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("ops", NOTHING_BUT_OPS),
        ("shapes", NOTHING_BUT_OPS | {"shapes": True}),
        ("ops, stacks", NOTHING_BUT_OPS | {"stack": True}),
        ("lines", {"modules": "none"}),
        ("modules", {"lines": False}),
        (
            "memory,sync,flops,workers",
            NOTHING_BUT_OPS | dict.fromkeys(("memory", "sync", "flops", "workers"), True),
        ),
        (",".join(TOPICS), dict.fromkeys(SWITCHES_THAT_ARE_OFF, True)),
        ("ALL", dict.fromkeys(SWITCHES_THAT_ARE_OFF, True)),
        ("COMMAND,OPERATOR", NOTHING_BUT_OPS),
        ("SHAPE_INFER", NOTHING_BUT_OPS | {"shapes": True}),
        (
            "TENSOR_LIFETIME,TENSOR_PROP,SYNC",
            NOTHING_BUT_OPS | dict.fromkeys(("memory", "shapes", "sync"), True),
        ),
        ("SCOPE", {"lines": False}),
    ],
)
def test_record_names_exactly_what_is_recorded(record: str, expected: dict[str, Any]) -> None:
    options = Options(record=record)
    assert topics_of(options) == expected
    assert options.counts_calls  # not a topic: Python functions have their own option


def test_the_record_that_a_profile_keeps_lists_every_topic_in_one_order() -> None:
    assert Options(record="lines, shapes").record == "ops,shapes,lines"
    assert (
        Options(record="lines", memory=True, modules="model").record == "ops,modules,lines,memory"
    )
    assert Options(record="ops", modules="model").modules == "model"
    assert Options().record is None


def test_options_that_were_resolved_once_stay_as_they_are() -> None:
    once = Options(record="shapes,lines", memory=True)
    assert replace(once) == once
    assert Options(**asdict(once)) == once


@pytest.mark.parametrize(
    ("defaults", "line", "expected"),
    [
        ({"shapes": True}, "", {"shapes": True}),
        ({"shapes": True}, "--no-shapes", {}),
        ({"lines": False}, "--lines", {}),
        ({"python": "off"}, "--python cprofile", {}),
        ({"python": "sampled"}, "--no-python", {"python": "off"}),
        ({"steps": 8}, "--no-steps", {}),
        ({"steps": 8}, "--warmup 5", {"steps": 8, "warmup": 5}),
        ({"top": 30}, "--top 3", {"top": 3}),
        ({"save": "a.zip"}, "--no-save", {}),
        ({"shapes": True}, "--record ops", {"record": "ops"}),
        ({"modules": "model"}, "--record modules", {"record": "modules", "modules": "model"}),
        ({"lines": False}, "--record lines", {"record": "lines"}),
        ({"record": "ops"}, "--lines", {"record": "lines"}),
        ({"record": "ops,memory"}, "--shapes", {"record": "memory,shapes"}),
        ({"record": "ops,memory"}, "--no-memory", {"record": "ops"}),
        ({"record": "ops,memory"}, "--record shapes", {"record": "shapes"}),
        ({"record": "ops,memory"}, "--no-record", {}),
    ],
)
def test_what_the_line_says_is_stronger_than_the_defaults(
    defaults: dict[str, Any], line: str, expected: dict[str, Any]
) -> None:
    assert parse(line, Options(**defaults)) == (Options(**expected), "")


def test_a_line_has_no_loop_to_bound() -> None:
    with pytest.raises(OptionError, match=r"--steps bounds the loop of a cell: put %%gpuprofile"):
        parse("--steps 3 f(x)", loop=False)
    # A default meant for cells does not stand in the way of a line.
    bounded = Options(steps=3, warmup=1, cprofile_steps=9, shapes=True)
    assert parse("f(x)", bounded, loop=False) == (Options(shapes=True), "f(x)")


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("%%gpuprofile --record ", set()),
        ("%%gpuprofile --record sh", set()),
        ("%%gpuprofile --record ops,", {"ops"}),
        ("%%gpuprofile --record ops,lines,m", {"ops", "lines"}),
    ],
)
def test_completion_offers_the_topics_not_yet_named(typed: str, named: set[str]) -> None:
    begun = re.split("[, ]", typed)[-1]
    free = [topic for topic in TOPICS if topic not in named and topic.startswith(begun)]
    assert complete(typed) == free


def test_completion_keeps_the_opposites_back_until_one_is_typed() -> None:
    assert not {"--no-shapes", "--lines", "--no-steps"} & set(complete("%%gpuprofile --"))
    assert "--no-shapes" in complete("%%gpuprofile --no-s")
    assert "--modules" not in complete("%%gpuprofile --modules=model --")


def test_the_documentation_has_every_topic() -> None:
    text = re.sub(r"[`\s]+", "", (ROOT / "docs/options.md").read_text(encoding="utf-8"))
    assert ",".join(TOPICS) in text

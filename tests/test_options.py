"""One definition of the options serves the magic, `profile()` and the command line."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses.sort_keys import SORT_KEYS, sort_column
from gpuprof_widgets.capture.command_line import complete, help_text, parse
from gpuprof_widgets.capture.options import Options, arguments
from gpuprof_widgets.exceptions import OptionError

MAGIC_ONLY = {
    "output",
    "steps",
    "warmup",
    "wait",
    "repeat",
    "cprofile_steps",
}  # `-o run` in the magic is `as run` in a with statement


def keywords_of_profile() -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(gpuprof_widgets.profile).parameters
    return {name: one for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def test_profile_takes_the_magics_names_with_the_same_defaults() -> None:
    keywords = {name: one.default for name, one in keywords_of_profile().items()}
    expected = {one.name: one.default for one in fields(Options) if one.name not in MAGIC_ONLY}
    assert keywords == expected
    assert list(keywords) == list(expected)


def test_profile_takes_the_magics_types() -> None:
    types = get_type_hints(Options)
    for name, one in keywords_of_profile().items():
        declared = str(one.annotation).replace("os.PathLike[str] | ", "")
        assert declared == str(types[name]).replace("<class '", "").replace("'>", ""), name


def test_the_magics_parser_has_every_option_with_the_same_default() -> None:
    assert [argument.field for argument in arguments()] == [one.name for one in fields(Options)]
    assert parse("") == (Options(), "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--shapes", {"shapes": True}),
        ("--stack --memory --flops", {"stack": True, "memory": True, "flops": True}),
        ("--no-cprofile", {"cprofile": False}),
        ("--sort cpu_total --top 3", {"sort": "cpu_total", "top": 3}),
        ("--top=3", {"top": 3}),
        ("--name 'two words'", {"name": "two words"}),
        ('--save "my runs/a.zip"', {"save": "my runs/a.zip"}),
        (r"--save C:\runs\a.zip", {"save": r"C:\runs\a.zip"}),
        ("-o run -q", {"output": "run", "quiet": True}),
        ("--output run --quiet", {"output": "run", "quiet": True}),
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
    ],
)
def test_what_follows_the_options_is_left_as_it_stands(line: str, statement: str) -> None:
    assert parse(line)[1] == statement


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--shape", "unknown option --shape. Did you mean --shapes?"),
        ("--sha", "unknown option --sha."),
        ("-x", "unknown option -x."),
        ("--top", "--top needs a value: --top N"),
        ("--top x", "invalid int value: 'x'"),
        ("--top -3", "at least 1, not -3"),
        ("--shapes=yes", "ignored explicit argument"),
        ("-o class", "output names a variable, which 'class' cannot be"),
        ("-o run.a", "output names a variable"),
        ("--save ''", "save is the path of a file"),
    ],
)
def test_a_wrong_option_says_what_is_wrong_with_it(line: str, words: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse(line)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"top": "3"}, "top takes a whole number, not '3'"),
        ({"top": True}, "top takes a whole number, not True"),
        ({"top": 0}, "at least 1"),
        ({"shapes": 1}, "shapes takes True or False, not 1"),
        ({"name": 3}, "name takes text, not 3"),
        ({"sort": "cpu_slef"}, "Did you mean 'cpu_self'?"),
        ({"save": ""}, "save is the path of a file"),
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
    for argument in arguments():
        assert all(flag in words for flag in argument.flags), argument.field
    assert "rows of the op table in the static output (default: 15)" in words
    assert text.count("example:") == 1
    first = next(line for line in text.splitlines() if "%%gpuprofile --shapes" in line).split()
    assert parse(" ".join(first[1:])) == (Options(shapes=True, top=20, output="run"), "")


def test_the_default_sort_key_is_one() -> None:
    assert sort_column(Options().sort) == SORT_KEYS[Options().sort]


@pytest.mark.parametrize(
    ("typed", "expected", "missing"),
    [
        ("%%gpuprofile ", {"--shapes", "-o", "--save"}, set()),
        ("%%gpuprofile --sh", {"--shapes"}, set()),
        ("%%gpuprofile --shapes ", {"--stack"}, {"--shapes"}),
        ("%%gpuprofile -o run ", {"--quiet"}, {"-o", "--output"}),
        ("%%gpuprofile --sort ", {"cpu_self"}, {"--top"}),
        ("%%gpuprofile --sort cpu", {"cpu_self"}, {"--top"}),
        ("%%gpuprofile --top ", set(), {"--sort"}),
    ],
)
def test_completion_offers_what_may_come_next(
    typed: str, expected: set[str], missing: set[str]
) -> None:
    offered = set(complete(typed, {"sort": tuple(SORT_KEYS)}))
    assert expected <= offered
    assert not missing & offered

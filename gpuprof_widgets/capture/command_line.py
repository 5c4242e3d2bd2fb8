"""The line behind `%gpuprofile` and `%%gpuprofile`: options, then (on a line) the statement."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gpuprof_widgets.capture.arguments import Argument, arguments
from gpuprof_widgets.capture.options import GROUPS, LOOP, TOPICS, Options
from gpuprof_widgets.exceptions import OptionError

_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+|\S+""")
_QUOTES = re.compile(r""""([^"]*)"|'([^']*)'""")

_DESCRIPTION = """\
Profile a PyTorch cell, or one statement, and show under it why it is slow.

  %%gpuprofile [options]      over a cell
  %gpuprofile [options] code  on a line

The code runs once, as it would without the magic. Its last value stays the cell's output."""

_EXAMPLE = f"""\
topics of --record, separated by commas (ops are always recorded):
  {", ".join(TOPICS)}

defaults of the cells that follow, each undone by its opposite (--no-shapes, --lines, --no-steps):
  %config GpuProfile.shapes = True      and `%config GpuProfile` lists them all

example:
  %%gpuprofile --shapes --top 20 -o run
  for images, labels in loader:
      train_step(images, labels)

`run` is then the profile: `run.operators()`, `run.findings()`, `run.save("step.zip")`."""


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=88)  # not the terminal's: a kernel has none

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        # A value that may be missing has to come with "=": what follows a space may be the code.
        if action.nargs == argparse.OPTIONAL:
            return f"[={action.metavar}]"
        return super()._format_args(action, default_metavar)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "%%gpuprofile",
        usage=argparse.SUPPRESS,
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_Help,
    )
    groups = {name: parser.add_argument_group(heading) for name, heading in GROUPS.items()}
    for argument in arguments():
        keywords = argument.keywords if argument.listed else _unlisted(argument)
        groups[argument.group].add_argument(*argument.flags, **keywords)
    return parser


def _unlisted(argument: Argument) -> dict[str, Any]:
    return argument.keywords | {"help": argparse.SUPPRESS}


def help_text() -> str:
    """What `%%gpuprofile?` shows: every option with its default, and an example."""
    return _parser().format_help()


def parse(line: str, defaults: Options | None = None, *, loop: bool = True) -> tuple[Options, str]:
    """The options at the start of the line, and the rest of it, untouched.

    What is not given is as in ``defaults``; a line has no ``loop`` to bound. `--` ends the options.
    An unknown option or a wrong value is an `OptionError`.
    """
    words, rest = _split(line)
    given = vars(_parser().parse_args(words))
    if loop:
        return options_given(given, defaults), rest
    options = (defaults or Options()).changed(**given)
    if bounding := _bounding(given):
        raise OptionError(
            f"{_flag(bounding[0])} bounds the loop of a cell: put %%gpuprofile over the cell"
        )
    return options.changed(**_unbounded()), rest


def options_given(given: Mapping[str, Any], defaults: Options | None = None) -> Options:
    """The options that these make of the ``defaults``, for code whose loop can be bounded."""
    options = (defaults or Options()).changed(**given)
    bounding = _bounding(given)
    if bounding and options.steps is None and bounding != ["steps"]:
        raise OptionError(f"{_flag(bounding[0])} is for a bounded loop: give --steps N as well")
    return options


def _bounding(given: Mapping[str, Any]) -> list[str]:
    return [name for name in LOOP if name in given]


def _flag(field: str) -> str:
    return next(argument.flags[-1] for argument in arguments() if argument.field == field)


def _unbounded() -> dict[str, Any]:
    plain = Options()
    return {name: getattr(plain, name) for name in LOOP}


def _split(line: str) -> tuple[list[str], str]:
    known = _known()
    words: list[str] = []
    rest = line.strip()
    while rest.startswith("-"):
        word, rest = _first_word(rest)
        if word == "--":
            break
        flag, equals, value = word.partition("=")
        if flag not in known:
            raise OptionError(_unknown(flag, known))
        if known[flag].needs_value and not equals:
            if not rest:
                raise OptionError(f"{flag} needs a value: {flag} {known[flag].keywords['metavar']}")
            value, rest = _first_word(rest)
            word = f"{flag}={value}"
        words.append(word)
    return words, rest


def _known() -> dict[str, Argument]:
    return {flag: argument for argument in arguments() for flag in argument.flags}


def _first_word(text: str) -> tuple[str, str]:
    found = _WORD.match(text)
    end = found.end() if found else len(text)
    word = _QUOTES.sub(lambda quoted: quoted[1] or quoted[2] or "", text[:end])
    return word, text[end:].lstrip()


def _unknown(flag: str, known: Mapping[str, Argument]) -> str:
    close = difflib.get_close_matches(flag, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    listed = ", ".join(flag for flag, argument in known.items() if argument.listed)
    return f"unknown option {flag}.{hint} Options are {listed}."


def complete(text_until_cursor: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """What may stand where the cursor is: the options not yet given, or an option's ``values``.

    The opposites of flags are offered once what is being typed can only be one of them.
    """
    _, *words = text_until_cursor.split()
    typed = words.pop() if words and not text_until_cursor[-1].isspace() else ""
    known = _known()
    before = known.get(words[-1]) if words else None
    if before is not None and before.needs_value:
        return _completed(before, typed, values)
    given = {
        known[word.partition("=")[0]].field for word in words if word.partition("=")[0] in known
    }
    free = {flag: one for flag, one in known.items() if one.field not in given}
    listed = [flag for flag, one in free.items() if one.listed]
    return listed if any(flag.startswith(typed) for flag in listed) else list(free)


def _completed(argument: Argument, typed: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """The values of an option; of a list of topics the next one, as IPython completes by words."""
    if argument.field != "record":
        return list(values.get(argument.field, ()))
    named = typed.split(",")[:-1]
    return [topic for topic in TOPICS if topic not in named]

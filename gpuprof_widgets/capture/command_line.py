"""The line behind `%gpuprofile` and `%%gpuprofile`: options, then (on a line) the statement."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gpuprof_widgets.capture.options import Argument, Options, arguments
from gpuprof_widgets.exceptions import OptionError

_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+|\S+""")
_QUOTES = re.compile(r""""([^"]*)"|'([^']*)'""")

_DESCRIPTION = """\
Profile a PyTorch cell, or one statement, and show under it why it is slow.

  %%gpuprofile [options]      over a cell
  %gpuprofile [options] code  on a line

The code runs once, as it would without the magic. Its last value stays the cell's output."""

_EXAMPLE = """\
example:
  %%gpuprofile --shapes --top 20 -o run
  for images, labels in loader:
      train_step(images, labels)

`run` is then the profile: `run.operators()`, `run.findings()`, `run.save("step.zip")`."""


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=88)  # not the terminal's: a kernel has none


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "%%gpuprofile",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        add_help=False,
        allow_abbrev=False,
        formatter_class=_Help,
    )
    for argument in arguments():
        parser.add_argument(*argument.flags, **argument.keywords)
    return parser


def help_text() -> str:
    """What `%%gpuprofile?` shows: every option with its default, and an example."""
    return _parser().format_help()


def parse(line: str) -> tuple[Options, str]:
    """The options at the start of the line, and the rest of it, untouched.

    `--` ends the options. An unknown option or a wrong value is an `OptionError`.
    """
    words, rest = _split(line)
    return Options(**vars(_parser().parse_args(words))), rest


def _split(line: str) -> tuple[list[str], str]:
    known = {flag: argument for argument in arguments() for flag in argument.flags}
    words: list[str] = []
    rest = line.strip()
    while rest.startswith("-"):
        word, rest = _first_word(rest)
        if word == "--":
            break
        flag, equals, value = word.partition("=")
        if flag not in known:
            raise OptionError(_unknown(flag, known))
        if _takes_value(known[flag]) and not equals:
            if not rest:
                raise OptionError(f"{flag} needs a value: {flag} {known[flag].keywords['metavar']}")
            value, rest = _first_word(rest)
            word = f"{flag}={value}"
        words.append(word)
    return words, rest


def _first_word(text: str) -> tuple[str, str]:
    found = _WORD.match(text)
    end = found.end() if found else len(text)
    word = _QUOTES.sub(lambda quoted: quoted[1] or quoted[2] or "", text[:end])
    return word, text[end:].lstrip()


def _takes_value(argument: Argument) -> bool:
    return "action" not in argument.keywords


def _unknown(flag: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(flag, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"unknown option {flag}.{hint} Options are {', '.join(known)}."


def complete(text_until_cursor: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """What may stand where the cursor is: the options not yet given, or an option's ``values``."""
    _, *words = text_until_cursor.split()
    if words and not text_until_cursor[-1].isspace():
        words.pop()  # the word being typed
    known = {flag: argument for argument in arguments() for flag in argument.flags}
    before = known.get(words[-1]) if words else None
    if before is not None and _takes_value(before):
        return list(values.get(before.field, ()))
    given = {known[word].field for word in words if word in known}
    return [flag for flag, argument in known.items() if argument.field not in given]

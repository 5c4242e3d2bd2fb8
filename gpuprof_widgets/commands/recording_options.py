"""The options of a recording as those of a command, which end where the script begins."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from gpuprof_widgets.capture.arguments import Argument, arguments

_GIVEN = "gpuprof_widgets.options"


class RecordingCommand(click.Command):
    """A command whose options end at the script: the words after it are the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A flag whose value may be missing takes none from the next word: that is the script."""
        return super().parse_args(ctx, list(with_bare_values(args)))


def with_bare_values(words: list[str]) -> Iterator[str]:
    """The words of a command line, with its value at each flag that was given without one."""
    known = {flag: argument for argument in arguments() for flag in argument.flags}
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "--":
            yield word
            break
        argument = known.get(word)
        keywords = argument.keywords if argument is not None else {}
        bare = keywords["const"] if keywords.get("nargs") == "?" else None
        yield word if bare is None else f"{word}={bare}"
        if argument is not None and argument.needs_value:
            yield from islice(rest, 1)
    yield from rest


def recording_options() -> Iterator[click.Option]:
    """Those of the magic, but for the variable that it makes; opposites are not listed."""
    for argument in arguments():
        if argument.field != "output":
            yield _option(argument)


def _option(argument: Argument) -> click.Option:
    spelled = argument.keywords
    shared: dict[str, Any] = {
        "help": spelled.get("help"),
        "hidden": not argument.listed,
        "expose_value": False,
        "callback": _note_given(argument),
    }
    name = argument.field if argument.listed else f"not_{argument.field}"
    if _is_switch(argument):
        return click.Option([*argument.flags, name], is_flag=True, **shared)
    kind = {"type": spelled["type"], "metavar": spelled["metavar"]}
    return click.Option([*argument.flags, name], **kind, **shared)


def _is_switch(argument: Argument) -> bool:
    return argument.keywords.get("action") == "store_const"


def _note_given(argument: Argument) -> Any:
    """What keeps the values of options that are given, in their order."""

    def callback(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        source = ctx.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            given = argument.keywords["const"] if _is_switch(argument) else value
            ctx.meta.setdefault(_GIVEN, {})[argument.field] = given

    return callback


def options_of(ctx: click.Context) -> dict[str, Any]:
    """The options that were given, by the names that `Options` has for them."""
    return dict(ctx.meta.get(_GIVEN, {}))

"""The options of the table on a command line, parsed by click: `gpuprof run`, and the magics'."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import islice
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete

from gpuprof_widgets.exceptions import OptionError, did_you_mean
from gpuprof_widgets.options import GROUPS, OPTIONS, TOPICS, Option, Options

_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+|\S+""")
_QUOTES = re.compile(r""""([^"]*)"|'([^']*)'""")


def _values(ctx: click.Context, parameter: _Parameter, typed: str) -> list[str]:
    """Return what completes the value of an option: sort keys, further topics, or its choices."""
    named: list[str] = []
    words: Iterable[str] = parameter.option.choices
    if parameter.option.metavar == "KEY":
        from gpuprof_widgets.analyses.columns import PSTATS_KEYS, SORT_KEYS

        words = SORT_KEYS | PSTATS_KEYS
    elif parameter.option.metavar == "TOPICS":
        *named, typed = typed.split(",")
        words = [topic for topic in TOPICS if topic not in named]
    return [",".join([*named, word]) for word in words if word.startswith(typed)]


class _Parameter(click.Option):
    """A row of the table for click: a flag and its unlisted opposite, or a flag with a value.

    Options that are not given are left out of the values: their defaults are those of `Options`.
    """

    def __init__(self, option: Option) -> None:
        kind: dict[str, Any] = {
            "type": option.kind,
            "metavar": f"[={option.metavar}]" if option.bare else option.metavar,
            "default": option.default,
            "show_default": option.default is not None,
            "shell_complete": _values,
        }
        if option.is_flag:
            kind = {"is_flag": True, "flag_value": not option.default}
        super().__init__([*option.flags, option.name], help=option.help, **kind)
        self.option = option

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value, without quotes on a notebook's line, where no shell removes them."""
        quoted = ctx.command is _MAGIC and isinstance(value, str)
        return super().type_cast_value(
            ctx, _QUOTES.sub(lambda part: part[1] or part[2] or "", value) if quoted else value
        )

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        opposite, const = self.option.opposite, self.option.undone
        if opposite:
            parser.add_option(self, [opposite], self.name, action="store_const", const=const)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        is_given = self.name in opts
        return super().handle_parse_result(ctx, opts, args) if is_given else (None, args)


_parameter = cache(_Parameter)


class RecordingCommand(click.Command):
    """A command with the options of a recording; they end where the code begins.

    Its values are the options that were given, under their names in `Options`. It leaves out
    options that are named by ``without``, and those whose flags another option of the command has.
    """

    allow_interspersed_args = False

    def __init__(self, *args: Any, without: AbstractSet[str] = frozenset(), **about: Any) -> None:
        super().__init__(*args, **about)
        self.without = without

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        taken = {flag for parameter in self.params for flag in parameter.opts}
        options = [
            option
            for name, option in OPTIONS.items()
            if taken.isdisjoint(option.flags) and name not in self.without
        ]
        return [*map(_parameter, options), *super().get_params(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(self.with_bare_values(ctx, args)))

    def with_bare_values(self, ctx: click.Context, words: Sequence[str]) -> Iterator[str]:
        """Yield the words, with its value added to each flag that is given without one.

        click would take the next word for the value, which may be the first one of the code.
        """
        options = [row for row in self.get_params(ctx) if isinstance(row, click.Option)]
        bare = {option.flag: option.bare for option in OPTIONS.values() if option.bare}
        valued = {flag for option in options if not option.is_flag for flag in option.opts}
        rest = iter(words)
        for word in rest:
            if re.match(r"-\w+=", word):  # click accepts the equals sign for long options alone
                word = word.replace("=", "", 1)
            yield f"{word}={bare[word]}" if word in bare else word
            if _wants_value(word, valued - bare.keys()):
                yield from islice(rest, 1)
            elif word in ("-", "--") or not word.startswith("-"):
                break
        yield from rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of the table by their groups, then those of the command itself."""
        listed: dict[str, list[tuple[str, str]]] = {heading: [] for heading in GROUPS.values()}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                row = parameter.option if isinstance(parameter, _Parameter) else None
                listed.setdefault(GROUPS[row.group] if row else "Options", []).append(record)
        for heading, records in listed.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options not yet given, or opposites where no option matches."""
        opposites = [option.opposite for option in OPTIONS.values() if option.opposite]
        return super().shell_complete(ctx, incomplete) or [
            CompletionItem(flag) for flag in opposites if flag.startswith(incomplete)
        ]


def options_given(
    given: Mapping[str, Any], defaults: Options | None = None, *, loop: bool = True
) -> Options:
    """Return the defaults with these options, for code with or without a ``loop``."""
    options = (defaults or Options()).changed(**given)
    bounding = [option for option in OPTIONS.values() if option.group == "loop"]
    flags = [option.flag for option in bounding if option.name in given]
    if flags and not loop:
        raise OptionError(f"{flags[0]} bounds the loop of a cell: put %%gpuprofile over the cell")
    if not loop:
        return options.changed(**{option.name: option.default for option in bounding})
    if flags and options.steps is None and flags != ["--steps"]:
        raise OptionError(f"{flags[0]} is for a bounded loop: give --steps N as well")
    return options


def _wants_value(word: str, valued: AbstractSet[str]) -> bool:
    """Whether the next word is the value of an option, in a bundle of letters that of the last."""
    if word.startswith("--") or not word.startswith("-"):
        return word in valued
    with_value = (place for place, letter in enumerate(word) if f"-{letter}" in valued)
    return next(with_value, None) == len(word) - 1


_HELP = """\
Profile a PyTorch cell, or one statement, and show under it why it is slow.

The code runs once, as it would without the magic. Its last value stays the cell's output."""

_EPILOG = f"""\
\b
Topics of --record, separated by commas (ops are always recorded):
  {", ".join(TOPICS)}

\b
Defaults of the cells that follow, each undone by its opposite (--no-shapes, --lines):
  %config GpuProfile.shapes = True      and `%config GpuProfile` lists them all

\b
Example:
  %%gpuprofile --shapes --top 20 -o run
  for images, labels in loader:
      train_step(images, labels)

`run` is then the profile: `run.operators()`, `run.findings()`, `run.save("step.gpuprof")`."""


_CODE = click.Argument(
    ["code"],
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="(over a cell) | %gpuprofile [OPTIONS] CODE (on a line)",
    shell_complete=lambda ctx, _, typed: (
        [] if typed or ctx.params["code"] else ctx.command.shell_complete(ctx, "-")
    ),
)
_MAGIC = RecordingCommand(
    "%%gpuprofile", params=[_CODE], help=_HELP, epilog=_EPILOG, add_help_option=False
)


def help_text() -> str:
    """Return what `%%gpuprofile?` shows: every option with its default, and an example."""
    # A fixed width: a kernel has no terminal.
    return _MAGIC.get_help(click.Context(_MAGIC, info_name=_MAGIC.name, terminal_width=88))


def parse(line: str, defaults: Options | None = None, *, loop: bool = True) -> tuple[Options, str]:
    """Return the options at the start of the line, and the rest of it, unchanged.

    Other options are as in ``defaults``; a line has no ``loop`` to bound. `--` ends the options. An
    unknown option or a wrong value is an `OptionError`.
    """
    words = list(_WORD.finditer(line))
    try:
        given = _MAGIC.make_context(None, [word[0] for word in words]).params
    except click.ClickException as error:
        raise OptionError(_message(error)) from None
    code = given.pop("code")
    start = words[-len(code)].start() if code else len(line)
    return options_given(given, defaults, loop=loop), line[start:].rstrip()


def _message(error: click.ClickException) -> str:
    """Return in one sentence what is wrong with a line, and what to type instead."""
    if isinstance(error, click.NoSuchOption):
        flags = [flag for option in OPTIONS.values() for flag in option.flags]
        hint = did_you_mean(error.option_name, flags)
        return f"No such option {error.option_name}.{hint} %%gpuprofile? lists them."
    if isinstance(error, click.BadOptionUsage):
        options = (option for option in OPTIONS.values() if error.option_name in option.flags)
        wanted = next((f": {error.option_name} {option.metavar}" for option in options), "")
        return error.format_message().removesuffix(".") + wanted
    return error.format_message()


def complete(text_until_cursor: str) -> list[str]:
    """Return the completions at the cursor: options not yet given, or an option's values.

    In a list of topics only the next topic is returned, because IPython completes by words.
    """
    _, *words = text_until_cursor.split()
    typed = words.pop() if words and not text_until_cursor[-1].isspace() else ""
    words = list(_MAGIC.with_bare_values(click.Context(_MAGIC), words))
    items = ShellComplete(_MAGIC, {}, "", "").get_completions(words, typed)
    return [str(item.value).rpartition(",")[2] for item in items]

"""`gpuprof` on the command line: `COMMANDS` lists the commands, which are loaded when called.

Each command is a function of a module of `commands`. The analyses need no row: there is a command
for each in `ANALYSES`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from gpuprof_widgets import __version__
from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.commands.analysis import command_of
from gpuprof_widgets.exceptions import (
    GpuprofError,
    did_you_mean,
    in_words,
    missing_package,
    printable,
)

SIGPIPE_STATUS = 141
"""Exit code of a process that a closed pipe has ended, as in a shell: 128 + SIGPIPE."""

ALIASES = {"ops": "operators"}


COMMANDS = {
    "run": ("run", "record a script, and say why it is slow"),
    "view": ("reports", "the linked views of a trace, as one HTML page"),
    "findings": ("reports", "why it is slow, in sentences with numbers"),
    "analyze": ("analysis", "ops with FLOPs and bandwidth, filtered and added up"),
    "diff": ("reports", "what changed from one trace to another"),
    "ranks": ("reports", "the ranks of a distributed run, side by side"),
    "convert": ("reports", "a trace in another format: .json, stacks, table, page, picture"),
    "kernelspec": ("kernelspec", "install a Jupyter kernel that runs under Nsight Systems"),
}
"""The module in `commands` of each command, and its line in the list of commands."""


class Commands(click.Group):
    """`gpuprof`: the commands of `COMMANDS`, and one for each analysis."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(dict.fromkeys([*COMMANDS, *ANALYSES]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return the command of that name."""
        if cmd_name in COMMANDS:
            module = import_module(f"gpuprof_widgets.commands.{COMMANDS[cmd_name][0]}")
            command: click.Command = getattr(module, cmd_name)
            return command
        name = cmd_name.replace("-", "_")
        name = ALIASES.get(name, name)
        return command_of(name) if name in ANALYSES else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words call; the error suggests the nearest name."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = did_you_mean(name, [*self.list_commands(ctx), *ALIASES], quoted=True)
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])
        aliases = {name: alias for alias, name in ALIASES.items()}
        questions = [
            (", ".join(filter(None, (name, aliases.get(name)))), analysis.question)
            for name, analysis in ANALYSES.items()
            if name not in COMMANDS
        ]
        with formatter.section("Analyses (each takes --sort, --top, --window, --csv, ...)"):
            formatter.write_dl(questions)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Return the names of commands that start with what is typed, without loading any."""
        from click.shell_completion import CompletionItem

        helps = {name: analysis.question for name, analysis in ANALYSES.items()}
        helps |= {name: line for name, (_, line) in COMMANDS.items()}
        items = [
            CompletionItem(name, help=helps.get(name))
            for name in [*helps, *ALIASES]
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a program that reads its output, such as head, may stop reading."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The interpreter would still write, as it ends, what is left of the output.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            ctx.exit(SIGPIPE_STATUS)
        return result


GPUPROF = Commands(
    name="gpuprof",
    help="Why is this program slow? TRACE is a profile that gpuprof saved (.gpuprof), a Chrome "
    "trace (.json: torch.profiler, TensorFlow, VizTracer, MegEngine), a database of Nsight Systems "
    "or nvprof, a CUDA memory snapshot, or a file of cProfile. It may be packed or in an archive, "
    "and it may be at a URL (s3://, https://). A TRACE of - is standard input.",
    epilog="\b\nExample:\n  gpuprof run -o run.gpuprof train.py && gpuprof kernels run.gpuprof",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def show_version(context: click.Context, option: click.Parameter, is_wanted: bool) -> None:
    """Print the version, and how this installation reads Chrome traces; then end."""
    if is_wanted and not context.resilient_parsing:
        from gpuprof_widgets.trace.scanned_events import is_compiled

        by = "the compiled scanner" if is_compiled() else "msgspec: there is no compiled scanner"
        click.echo(f"gpuprof {__version__}\nChrome traces are read by {by}")
        context.exit()


click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)(GPUPROF)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for an error, 2 for a wrong call.

    An error is one line on stderr.
    """
    try:
        result = GPUPROF.main(words, "gpuprof", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except GpuprofError as error:
        print(f"gpuprof: {printable(str(error))}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if missing_package(error) is None:
            raise
        print(f"gpuprof: {printable(in_words(error))}", file=sys.stderr)
        return 1
    except click.Abort:  # an interrupted script has printed its traceback by now
        sys.excepthook = lambda *_: None
        _INTERRUPTED.append(True)
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0


_INTERRUPTED: list[bool] = []


@atexit.register  # before torch registers its handlers: the last one to run
def _end_by_the_signal() -> None:
    """End the process by SIGINT if its script was interrupted, so that a shell's loop ends as well.

    Python does so by itself, but not if an exit handler evaluates code, and torch's imports
    ``tabulate`` where that is installed.
    """
    ended_so = getattr(sys, "last_type", None) is KeyboardInterrupt  # nobody caught it
    if _INTERRUPTED and ended_so and os.name == "posix":
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

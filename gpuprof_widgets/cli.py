"""`gpuprof` on the command line: each command is one file and one row."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gpuprof_widgets import __version__
from gpuprof_widgets.commands import kernelspec
from gpuprof_widgets.exceptions import GpuprofError

COMMANDS = (kernelspec.COMMAND,)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; its errors are one line on stderr and the exit code 1."""
    parser = argparse.ArgumentParser(
        "gpuprof",
        description="Why is this PyTorch cell slow? The tools beside %%gpuprofile.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuprof {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        one = commands.add_parser(
            command.name, help=command.help, description=command.help, allow_abbrev=False
        )
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    arguments = parser.parse_args(words)
    try:
        arguments.run(arguments)
    except GpuprofError as error:
        print(f"gpuprof: {error}", file=sys.stderr)
        return 1
    return 0

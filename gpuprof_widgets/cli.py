"""`gpuprof` on the command line: each command is one file of `commands` and one row here.

The analyses need no row: there is a command for each in `ANALYSES`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from gpuprof_widgets import __version__
from gpuprof_widgets.commands.analysis import command_of
from gpuprof_widgets.commands.group import Commands, Interrupted, Row
from gpuprof_widgets.exceptions import GpuprofError
from gpuprof_widgets.printable import printable

COMMANDS = (
    Row("run", "record a script, and say why it is slow"),
    Row("view", "the linked views of a trace, as one HTML page"),
    Row("findings", "why it is slow, in sentences with numbers"),
    Row("analyze", "ops with FLOPs and bandwidth, filtered and added up"),
    Row("diff", "what changed from one trace to another"),
    Row("ranks", "the ranks of a distributed run, side by side"),
    Row("convert", "a trace in another format: .json, stacks, table, page, picture"),
    Row("kernelspec", "install a Jupyter kernel that runs under Nsight Systems"),
)

GPUPROF = Commands(
    COMMANDS,
    command_of,
    name="gpuprof",
    help="Why is this program slow? TRACE is what gpuprof saved (.gpuprof), a Chrome trace (.json: "
    "torch.profiler, TensorFlow, VizTracer, MegEngine), a database of Nsight Systems or nvprof, a "
    "CUDA memory snapshot, a file of cProfile, speedscope or pyinstrument, a CPU profile of V8, "
    "collapsed stacks, each packed or in an archive as well, or - for standard input.",
    epilog="\b\nExample:\n  gpuprof run -o run.gpuprof train.py && gpuprof kernels run.gpuprof",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, message="gpuprof %(version)s")(GPUPROF)


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
    except (Interrupted, click.Abort):
        # The interpreter then ends by the signal, so that a shell's loop ends as well.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0

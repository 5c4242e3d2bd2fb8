"""`gpuprof kernelspec --nsys`: a Jupyter kernel that runs under Nsight Systems.

It records nothing by itself: each cell under `%%gpuprofile --nvtx` becomes one report.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gpuprof_widgets.exceptions import OptionError

NAME = "gpuprof-nsys"
MARK = {"gpuprof_widgets": "nsys"}
"""Metadata of the kernels that we install; other kernels are never replaced."""

# Reports are numbered, one for each capture; the kernel goes on (the default would end it).
# Processes that the kernel leaves behind, such as DataLoader workers, do not hold nsys up.
_NSYS_OPTIONS = (
    ("-c", "--capture-range", "cudaProfilerApi"),
    ("", "--capture-range-end", "repeat"),
    ("-t", "--trace", "cuda,nvtx,osrt"),
    ("-s", "--sample", "none"),
    ("-w", "--wait", "primary"),
    ("-o", "--output", "gpuprof-%p"),
)
"""Options of `nsys profile`: the short one, the long one, and the value."""

_KERNEL = ("-m", "ipykernel_launcher", "-f", "{connection_file}")


def nsys_command(nsys: str, python: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a kernel; given options replace ours."""
    given = {option.partition("=")[0] for option in options}
    given |= {option[:2] for option in options}  # a short one may include its value: ``-tcuda``
    ours = [f"{long}={value}" for short, long, value in _NSYS_OPTIONS if not {short, long} & given]
    return [nsys, "profile", *ours, *options, python, *_KERNEL]


@click.command(
    "kernelspec",
    epilog="\b\nExamples:\n  gpuprof kernelspec --nsys\n"
    "  gpuprof kernelspec --nsys /opt/nsys/bin/nsys -- --trace=cuda,cudnn",
)
@click.option(
    "--nsys",
    is_flag=False,
    flag_value="nsys",
    required=True,
    metavar="[PATH]",
    help="the nsys that starts the kernel (without PATH: the one that the shell finds)",
)
@click.option("--name", default=NAME, show_default=True, help="name of the kernel")
@click.option(
    "--display-name",
    default="Python 3 (Nsight Systems)",
    metavar="TEXT",
    help="name that Jupyter shows",
)
@click.option("--user", is_flag=True, help="install for this user, in every environment")
@click.option(
    "--prefix",
    metavar="PATH",
    help="install in PATH/share/jupyter/kernels (default: this environment)",
)
@click.argument("nsys_options", nargs=-1, metavar="[-- NSYS_OPTION]...")
def kernelspec(
    nsys: str,
    name: str,
    display_name: str,
    user: bool,
    prefix: str | None,
    nsys_options: tuple[str, ...],
) -> None:
    """Install a Jupyter kernel that runs under Nsight Systems.

    NSYS_OPTION: an option of `nsys profile`, in addition to ours or in place of one of them.
    """
    if user and prefix is not None:
        raise click.UsageError("give one of --user and --prefix")
    path = shutil.which(nsys)
    if path is None:
        raise OptionError(
            f"{nsys} is not found: install Nsight Systems (it comes with the CUDA toolkit), "
            "or say where it is: gpuprof kernelspec --nsys /path/to/nsys"
        )
    command = nsys_command(str(Path(path).absolute()), sys.executable, nsys_options)
    kernel = {
        "argv": command,
        "display_name": display_name,
        "language": "python",
        # A signal would reach nsys as well, which then ends; a message reaches the kernel alone.
        "interrupt_mode": "message",
        "metadata": {"debugger": True, **MARK},
    }
    folder = _install(name.lower(), None if user else prefix or sys.prefix, kernel)
    click.echo(f"installed the kernel {display_name!r} in {folder}")
    click.echo(f"  it starts as: {' '.join(command)}")
    click.echo("  %%gpuprofile --nvtx over a cell writes one report of it, beside the notebook")
    click.echo(f"  to remove it: jupyter kernelspec remove {name.lower()}")


def _install(name: str, prefix: str | None, kernel: dict[str, Any]) -> str:
    """Install the kernel, without a prefix for this user, and return its folder."""
    from jupyter_client.kernelspec import KernelSpecManager

    manager = KernelSpecManager()
    kernels = Path(prefix, "share/jupyter/kernels") if prefix else Path(manager.user_kernel_dir)
    there = kernels / name / "kernel.json"
    if there.exists() and json.dumps(MARK).strip("{}") not in there.read_text(errors="replace"):
        raise OptionError(f"{name} is another kernel: choose another name by --name")
    with tempfile.TemporaryDirectory(prefix="gpuprof-") as source:
        Path(source, "kernel.json").write_text(json.dumps(kernel, indent=1) + "\n")
        try:
            return str(
                manager.install_kernel_spec(source, name, user=prefix is None, prefix=prefix)
            )
        except (OSError, ValueError) as error:
            raise OptionError(f"the kernel {name} cannot be installed: {error}") from error

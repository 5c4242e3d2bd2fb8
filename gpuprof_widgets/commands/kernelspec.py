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
"""Metadata of the kernels that we install; other kernels are never replaced or removed."""

# Reports are numbered, one for each capture; the kernel goes on (the default would end it).
# Processes that the kernel leaves behind, such as DataLoader workers, do not hold nsys up.
_NSYS_OPTIONS = {
    ("-c", "--capture-range"): "cudaProfilerApi",
    ("--capture-range-end",): "repeat",
    ("-t", "--trace"): "cuda,nvtx,osrt",
    ("-s", "--sample"): "none",
    ("-w", "--wait"): "primary",
    ("-o", "--output"): "gpuprof-%p",
}
"""Options of `nsys profile`: all their spellings, the one used last, and the value."""

_KERNEL = ("-m", "ipykernel_launcher", "-f", "{connection_file}")


def nsys_command(nsys: str, python: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a kernel; given options replace ours."""
    given = [option.partition("=")[0] for option in options]
    ours = [
        f"{flags[-1]}={value}"
        for flags, value in _NSYS_OPTIONS.items()
        if not any(_spells(option, flags) for option in given)
    ]
    return [nsys, "profile", *ours, *options, python, *_KERNEL]


def _spells(option: str, flags: Sequence[str]) -> bool:
    """Whether the option is one of the flags; a short one may include its value: ``-ccuda``."""
    short = [flag for flag in flags if not flag.startswith("--")]
    return option in flags or any(option.startswith(flag) for flag in short)


def kernel_json(command: Sequence[str], display_name: str) -> dict[str, Any]:
    """Return the kernel's specification as Jupyter reads it."""
    return {
        "argv": list(command),
        "display_name": display_name,
        "language": "python",
        # A signal would reach nsys as well, which then ends; a message reaches the kernel alone.
        "interrupt_mode": "message",
        "metadata": {"debugger": True, **MARK},
    }


@click.command(
    "kernelspec",
    epilog="\b\nExamples:\n  gpuprof kernelspec --nsys\n"
    "  gpuprof kernelspec --nsys /opt/nsys/bin/nsys -- --trace=cuda,cudnn",
)
@click.option(
    "--nsys",
    is_flag=False,
    flag_value="nsys",
    metavar="[PATH]",
    help="install a kernel that starts under this nsys (without PATH: the one that is found)",
)
@click.option("--remove", is_flag=True, help="remove it again")
@click.option("--name", default=NAME, show_default=True, help="name of the kernel")
@click.option("--display-name", default="Python 3 (Nsight Systems)", metavar="TEXT")
@click.option("--user", is_flag=True, help="for this user, in every environment")
@click.option("--prefix", metavar="PATH", help="in PATH/share/jupyter/kernels")
@click.option("--sys-prefix", is_flag=True, help="in this Python's environment (the default)")
@click.argument("nsys_options", nargs=-1, metavar="[-- NSYS_OPTION]...")
def kernelspec(
    nsys: str | None,
    remove: bool,
    name: str,
    display_name: str,
    user: bool,
    prefix: str | None,
    sys_prefix: bool,
    nsys_options: tuple[str, ...],
) -> None:
    """Install a Jupyter kernel that runs under Nsight Systems.

    NSYS_OPTION: further options of `nsys profile`, or others in place of ours.
    """
    if (nsys is None) == (not remove):
        raise click.UsageError("give one of --nsys and --remove")
    if user + (prefix is not None) + sys_prefix > 1:
        raise click.UsageError("give one of --user, --prefix and --sys-prefix")
    name = name.lower()
    place = {"user": True} if user else {"prefix": prefix or sys.prefix}
    if nsys is None:
        click.echo(f"removed the kernel {name} from {_remove(name, place)}")
        return
    command = nsys_command(_path_of(nsys), sys.executable, nsys_options)
    folder = _install(name, place, kernel_json(command, display_name))
    click.echo(f"installed the kernel {display_name!r} ({name}) in {folder}")
    click.echo(f"  it starts as: {' '.join(command)}")
    click.echo("  %%gpuprofile --nvtx over a cell writes one report of it, beside the notebook")


def _path_of(nsys: str) -> str:
    path = shutil.which(nsys)
    if path is None:
        raise OptionError(
            f"{nsys} is not found: install Nsight Systems (it comes with the CUDA toolkit), "
            "or say where it is: gpuprof kernelspec --nsys /path/to/nsys"
        )
    return str(Path(path).absolute())


def _install(name: str, place: dict[str, Any], kernel: dict[str, Any]) -> str:
    """Install the kernel and return its folder."""
    manager, is_ours = _manager_of(name, place)
    if is_ours is False:
        raise OptionError(f"{name} is another kernel: choose a name of its own by --name")
    with tempfile.TemporaryDirectory(prefix="gpuprof-") as source:
        Path(source, "kernel.json").write_text(json.dumps(kernel, indent=1) + "\n")
        try:
            return str(manager.install_kernel_spec(source, name, **place))
        except (OSError, ValueError) as error:
            raise OptionError(f"the kernel {name} cannot be installed: {error}") from error


def _remove(name: str, place: dict[str, Any]) -> str:
    """Remove the kernel and return its former folder."""
    manager, is_ours = _manager_of(name, place)
    if is_ours is None:
        folder = manager.kernel_dirs[0]
        raise OptionError(f"there is no kernel {name} in {folder}; say which by --name")
    if not is_ours:
        raise OptionError(f"the kernel {name} is not one that gpuprof installed")
    return str(manager.remove_kernel_spec(name))


def _manager_of(name: str, place: dict[str, Any]) -> tuple[Any, bool | None]:
    """Return the manager of a place's kernels, and whether the one of this name is ours.

    None: there is no kernel of this name.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    manager = KernelSpecManager(ensure_native_kernel=False)
    prefix = place.get("prefix")
    folder = (
        Path(prefix).absolute() / "share/jupyter/kernels" if prefix else manager.user_kernel_dir
    )
    manager.kernel_dirs = [str(folder)]
    if name not in manager.find_kernel_specs():
        return manager, None
    return manager, MARK.items() <= manager.get_kernel_spec(name).metadata.items()

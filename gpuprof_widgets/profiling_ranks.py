"""`gpuprof_widgets.profile_ranks(...)`: a distributed run and its profiles from one cell.

The module is not called ``ranks``: ``gpuprof_widgets.ranks`` is the function that compares them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.options import OPTIONS, Options, ProfileOptions, with_keywords
from gpuprof_widgets.profiling import check, keep_as_last
from gpuprof_widgets.profiling import profile as profile_block

if TYPE_CHECKING:
    from gpuprof_widgets.profiles import Profile


@dataclass(frozen=True)
class _Body:
    """The user's function under a profile, as a rank runs it; picklable."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    save: str
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, rank: int) -> None:
        with profile_block(quiet=True, save=self.save, **self.options):
            self.function(rank, *self.args)


@with_keywords(ProfileOptions)
def profile_ranks(
    fn: Callable[..., Any],
    nprocs: int = 4,
    *,
    args: Sequence[Any] = (),
    backend: str = "gloo",
    save: str | os.PathLike[str] = "run",
    quiet: bool = True,
    **options: Any,
) -> Profile:
    """Run ``fn(rank, *args)`` in ``nprocs`` processes of one group, and record each of them.

    Returns the profile of rank 0. Its ``metadata["rank_files"]`` has the paths of all profiles:
    ``run.rank0.gpuprof``, ... for ``save="run"``. With ``quiet=False`` the profile of rank 0 is
    shown. The other keywords are those of `profile`. If a rank raises an exception, the other ranks
    are ended, and the exception is raised here.

    With gloo on Linux the ranks are forked, unless this process has used CUDA: functions of a
    notebook work, and each rank has one CPU thread. Otherwise the ranks are spawned, and ``fn`` has
    to be importable.
    """
    from gpuprof_widgets.capture.distributed import (
        Group,
        ProcessRank,
        free_port,
        name_for_ranks,
        rank_file,
        run_ranks,
        start_method,
    )
    from gpuprof_widgets.capture.part import Active
    from gpuprof_widgets.profiles import load

    if Active.recorder is not None:
        raise OptionError(
            "profile_ranks records its own processes: call it outside of a profiled block or cell"
        )
    if not callable(fn):
        raise OptionError(f"profile_ranks runs a function fn(rank, *args), not {fn!r}")
    if not isinstance(nprocs, int) or nprocs < 1:
        raise OptionError(f"nprocs is a number of processes, at least 1, not {nprocs!r}")
    OPTIONS["quiet"].check(quiet)
    options = {"name": getattr(fn, "__qualname__", "profile_ranks"), **options}
    body = _Body(fn, tuple(args), str(name_for_ranks(_target(save))), options)
    checked = _checked(body)
    paths = [rank_file(body.save, ProcessRank(rank, nprocs)) for rank in range(nprocs)]
    method = start_method(fn, body.args, backend)
    try:
        run_ranks(body, Group(nprocs, backend, free_port()), method)
    finally:
        for path in paths:  # what a rank was writing when it was ended
            for unfinished in path.parent.glob(f".{path.name}.*.unfinished"):
                unfinished.unlink(missing_ok=True)
    profile = load(paths[0])
    keep_as_last(profile)
    if not quiet:
        profile.show(sort=checked.sort, top=checked.top)
    return profile


def _target(save: str | os.PathLike[str]) -> Path:
    """Return the file from which the ranks' names derive; "run" may be a folder as well."""
    path = Path(save).expanduser().absolute()
    return path if path.suffix in (".gpuprof", ".zip") else path.with_name(f"{path.name}.gpuprof")


def _checked(body: _Body) -> Options:
    """Return the options of a rank, or raise an `OptionError` before any process starts."""
    try:
        inspect.signature(profile_block).bind(**body.options)
    except TypeError as error:
        raise OptionError(f"profile_ranks: {error}") from None
    options = Options(quiet=True, save=body.save, **body.options)
    check(options)
    return options

"""Ranks of a distributed job: which one this process is, their files, and starting them.

- `process_rank` asks the process group, else the environment variables of the launcher.
- `rank_file` and its like name the files of the ranks' profiles.
- `Rank` is the part that writes the rank into a record.
- `GroupLifetimes` is the part that keeps DDP on gloo from hanging at its end.
- `run_ranks` starts the ranks of `profile_ranks` in processes of its own.

The variables are those that the launchers document:
`torchrun <https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables>`_,
`Open MPI <https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html>`_,
`Slurm <https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES>`_ and
`PMIx <https://docs.openpmix.org>`_. Hydra, the ``mpiexec`` of MPICH, Intel MPI and MVAPICH 3, sets
those of the
`PMI <https://flux-framework.readthedocs.io/projects/flux-rfc/en/latest/spec_13.html>`_.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import platform
import re
import shutil
import signal
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from gpuprof_widgets.capture.interrupts import keep_folders_within, temporary_folder
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.exceptions import OptionError, RecordingError
from gpuprof_widgets.trace.model import Trace

PROFILE = (".gpuprof", ".zip")
"""Endings of saved profiles; the file of a rank ends with the first."""

_PLACEHOLDER = re.compile("%[rhp%]")
_PATIENCE_S = 5.0  # for a process that was asked to end, before it is killed

Body = Callable[[int], None]
"""What a rank runs, given its number; it must be picklable where processes are spawned."""


class ProcessRank(NamedTuple):
    """A process of a job; ``world_size`` is None where the launcher does not tell it."""

    rank: int
    world_size: int | None

    @property
    def is_alone(self) -> bool:
        """Whether it is the only process of its job."""
        return self.world_size == 1


@dataclass(frozen=True)
class Launcher:
    """A program that starts the ranks of a job, and the variables that give each its rank."""

    name: str
    rank: str
    world_size: str | None

    def rank_in(self, environment: Mapping[str, str]) -> ProcessRank | None:
        """Return the rank that this launcher has set; None without one, or with a senseless one."""
        names = [self.rank] if self.world_size is None else [self.rank, self.world_size]
        texts = [environment.get(name, "") for name in names]
        if not all(text.isdecimal() for text in texts):
            return None
        rank, *size = map(int, texts)
        return None if size and rank >= size[0] else ProcessRank(rank, size[0] if size else None)


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE"),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    Launcher("MPICH and Intel MPI", "PMI_RANK", "PMI_SIZE"),
    # Not SLURM_NTASKS: a batch script has it too, with SLURM_PROCID 0, but is no rank of a job.
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    Launcher("PMIx", "PMIX_RANK", None),
)
"""The inner launchers first: torchrun runs inside of a Slurm job, never the other way."""


def process_rank() -> ProcessRank | None:
    """Return this process's rank; None where nothing gives it one.

    A launcher that started several ranks precedes one that started this process alone: of several
    programs in one Slurm step, each may be the only rank of a torchrun of its own.
    """
    ranks = _launched()
    # Not imported: a program without torch.distributed has no process group.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        ranks.insert(0, ProcessRank(distributed.get_rank(), distributed.get_world_size()))
    of_several = (rank for rank in ranks if rank.world_size is not None and not rank.is_alone)
    return next(of_several, ranks[0] if ranks else None)


def _launched() -> list[ProcessRank]:
    """Return the ranks that launchers gave this process."""
    return list(filter(None, (launcher.rank_in(os.environ) for launcher in LAUNCHERS)))


def rank_file(
    name: str | os.PathLike[str], rank: ProcessRank | None, endings: Sequence[str] = PROFILE
) -> Path:
    """Return the file of a rank; ``endings`` are those of the format that is written.

    In the name (not in its folder) ``%r`` is the rank (0 without one), ``%h`` the host, ``%p`` the
    process and ``%%`` a per cent sign. Where there are other ranks and the name does not tell them
    apart, by ``%r`` or by ``%h`` and ``%p`` together, the rank is put before the ending:
    ``run.rank2.gpuprof`` for "run", "run.gpuprof" and "run.zip", ``report.rank2.html``.
    """
    path = Path(name)
    known = _placeholders(path.name)
    # Process numbers differ only within a host; in containers they may all be the same.
    tells_apart = "%r" in known or {"%h", "%p"} <= known
    keeps_name = rank is None or rank.is_alone or tells_apart
    pattern = path.name if keeps_name else _with_rank(path.name, endings)
    values = _of_this_process() | {"%r": str(rank.rank if rank else 0), "%%": "%"}
    return path.parent / _filled(pattern, values)


def files_of_ranks(name: str | os.PathLike[str], rank: ProcessRank | None) -> list[Path]:
    """Return the profile files of all ranks; none where this process cannot know them."""
    if rank is None or rank.world_size is None or {"%h", "%p"} & _placeholders(Path(name).name):
        return []
    size = rank.world_size
    return [rank_file(name, ProcessRank(number, size)) for number in range(size)]


def name_for_ranks(name: str | os.PathLike[str]) -> Path:
    """Return the name for all ranks that this process starts; ``%h`` and ``%p`` are its own."""
    path = Path(name)
    pattern = path.name if "%r" in _placeholders(path.name) else _with_rank(path.name, PROFILE)
    return path.parent / _filled(pattern, _of_this_process())


def _placeholders(name: str) -> set[str]:
    return set(_PLACEHOLDER.findall(name))


def _with_rank(name: str, endings: Sequence[str]) -> str:
    length = next((len(end) for end in endings if name.lower().endswith(end)), 0)
    stem, ending = name[: len(name) - length], name[len(name) - length :]
    return f"{stem}.rank%r{PROFILE[0] if endings == PROFILE else ending}"


def _of_this_process() -> dict[str, str]:
    host = re.sub(r"[^\w.-]+", "_", platform.node(), flags=re.ASCII)
    return {"%h": host, "%p": str(os.getpid())}


def _filled(pattern: str, values: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values.get(match[0], match[0]), pattern)


def rank_in(metadata: Mapping[str, Any]) -> ProcessRank | None:
    """Return the rank in a recording's metadata; None for a program that ran alone."""
    if "rank" not in metadata:
        return None
    return ProcessRank(metadata["rank"], metadata.get("world_size"))


def rank_part(context: Context) -> Rank:
    """Return the part that knows the rank; in a program that runs alone it does nothing."""
    runs_script = context.code is not None and not context.cell_labels
    others_record = not runs_script or any(not rank.is_alone for rank in _launched())
    return Rank(others_record=others_record)


class Rank(Part):
    """Writes the rank into the tracks and the metadata.

    It asks for the rank at the start and at the end, because a process group may be gone at the
    end, or not be there yet at the start. ``others_record``: the other ranks run the same commands
    as this one, as a launcher starts them; they write files of their own.
    """

    loses = "the rank is not known"

    def __init__(self, *, others_record: bool = True) -> None:
        self._others_record = others_record
        self._rank: ProcessRank | None = None

    def start(self) -> None:
        """Ask for the rank; that of a process group outlives the group."""
        rank = process_rank()
        if self._rank is None or (rank is not None and not rank.is_alone):
            self._rank = rank

    stop = start

    def refine(self, trace: Trace) -> Trace:
        if self._rank is None:
            return trace
        return replace(trace, tracks=trace.tracks.assign(rank=np.int32(self._rank.rank)))

    def metadata(self) -> dict[str, Any]:
        if self._rank is None:
            return {}
        return {key: number for key, number in self._rank._asdict().items() if number is not None}

    def notes(self) -> list[str]:
        """Return that the other ranks are not in this record, where no launcher started them."""
        if self._others_record or self._rank is None or self._rank.is_alone:
            return []
        return [
            f"this record has only rank {self._rank.rank} of {self._rank.world_size}: ranks that "
            "a script starts itself, as Lightning does, run without gpuprof. To record each of "
            "them, let torchrun start them: torchrun --no-python --nproc-per-node N gpuprof run ..."
        ]


class GroupLifetimes(Part):
    """Keeps a process group until the DDP model that uses it is gone, so that a script can end.

    A group of gloo waits for its threads as it goes. Often DDP's reducer has the last reference,
    and goes with the GIL held. A thread that has yet to free a recorded op needs the GIL, and both
    wait for ever. Where the last reference is one of Python, torch releases the GIL.
    """

    loses = "a script with DDP on gloo may hang at its end"
    starts_before_loop = True

    def __init__(self, _: Context) -> None:
        import torch

        # The class of which a user's own is a subclass; not in every build of torch.
        self._reducer: Any = getattr(getattr(torch._C, "_distributed_c10d", None), "Reducer", None)
        self._make: Any = None
        self._ours: Any = None

    def start(self) -> None:
        if self._reducer is None:
            return
        from torch.distributed import ProcessGroup

        make = self._make = vars(self._reducer)["__init__"]

        @wraps(make)
        def init(reducer: Any, *args: Any, **kwargs: Any) -> None:
            make(reducer, *args, **kwargs)
            values = (*args, *kwargs.values())
            groups = [value for value in values if isinstance(value, ProcessGroup)]
            weakref.finalize(reducer, groups.clear).atexit = False

        self._ours = self._reducer.__init__ = init

    def stop(self) -> None:
        # Otherwise it is the user's own by now.
        if self._reducer is not None and self._reducer.__init__ is self._ours:
            self._reducer.__init__ = self._make


@dataclass(frozen=True)
class Group:
    """The process group that every rank joins before its work."""

    size: int
    backend: str
    port: int


@dataclass(frozen=True)
class Answer:
    """What a rank sends at its end: when that was (ns), and the exception that ended it, if any."""

    at: int
    error: bytes = b""
    traceback: str = ""
    done: bool = False


@dataclass
class _Rank:
    number: int
    process: BaseProcess
    answer: Connection


def start_method(function: Callable[..., Any], arguments: Any, backend: str) -> str:
    """Return how the ranks start: forked where possible, so that functions of a notebook work.

    CUDA does not work in a forked process: with it the ranks are spawned, and an `OptionError` says
    so where they could not import the function.
    """
    import torch

    on_cpu = backend == "gloo" and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if on_cpu and sys.platform == "linux":
        return "fork"
    name = getattr(function, "__name__", str(function))
    in_notebook = not hasattr(sys.modules["__main__"], "__file__")
    if in_notebook and getattr(function, "__module__", None) == "__main__":
        raise OptionError(
            f"each rank is a new process here, which cannot see `{name}` of this notebook: "
            "put it into a .py file beside the notebook and import it"
        )
    try:
        pickle.dumps((function, arguments))
    except Exception as error:
        raise OptionError(
            f"each rank is a new process here, to which `{name}` and its arguments cannot be sent "
            f"({error}): pass a function of a module, and arguments that can be pickled"
        ) from error
    return "spawn"


def free_port() -> int:
    """Return a port of this machine that is free at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_ranks(body: Body, group: Group, method: str) -> list[int]:
    """Run the body in every rank of a new group; return the process ids when all are done.

    When a rank fails the others are ended, and its exception is raised here, from an error with
    the rank and its traceback.
    """
    context = multiprocessing.get_context(method)
    ranks: list[_Rank] = []
    folder = temporary_folder()
    try:
        for number in range(group.size):
            receiving, sending = context.Pipe(duplex=False)
            target = (body, number, group, sending, folder, method == "fork")
            process = context.Process(target=_run_rank, args=target, name=f"rank {number}")  # type: ignore[attr-defined]
            process.start()
            sending.close()
            ranks.append(_Rank(number, process, receiving))
        for rank, answer in _as_they_end(ranks):
            _raise_if_failed(rank, answer)
        return [rank.process.pid or 0 for rank in ranks]
    finally:
        _end(ranks)
        shutil.rmtree(folder, ignore_errors=True)


def _as_they_end(ranks: list[_Rank]) -> Iterator[tuple[_Rank, Answer]]:
    """Yield the ranks with their answers as they end, of several at once the earliest first.

    The order matters because ranks that wait for a failed one in a collective fail as well, later.
    """
    running: dict[Any, _Rank] = {rank.answer: rank for rank in ranks}
    while running:
        ended = [running.pop(ready) for ready in wait(list(running))]
        answers: list[tuple[_Rank, Answer]] = []
        for rank in ended:
            try:
                answers.append((rank, rank.answer.recv()))
            except EOFError:  # it died silently, before any other rank could notice
                answers.append((rank, Answer(at=0)))
        yield from sorted(answers, key=lambda pair: pair[1].at)


def _raise_if_failed(rank: _Rank, answer: Answer) -> None:
    if answer.done:
        return
    if not answer.at:
        rank.process.join(_PATIENCE_S)
        raise RecordingError(
            f"rank {rank.number} (pid {rank.process.pid}) ended with exit code "
            f"{rank.process.exitcode} before it was done; the other ranks were ended"
        )
    cause = RecordingError(
        f"rank {rank.number} failed; the other ranks were ended\n\n{answer.traceback}"
    )
    error = None
    with contextlib.suppress(Exception):  # the code of the user's class may raise anything
        error = pickle.loads(answer.error)
    if not isinstance(error, BaseException):
        raise cause
    raise error from cause


def _end(ranks: list[_Rank]) -> None:
    """End all ranks: those that are done get a moment, the others are terminated."""
    done = sys.exc_info()[0] is None
    for rank in ranks:
        if done:
            rank.process.join(_PATIENCE_S)
        if rank.process.is_alive():
            rank.process.terminate()
    for rank in ranks:
        rank.process.join(_PATIENCE_S)
        if rank.process.is_alive():
            rank.process.kill()
            rank.process.join()
        rank.answer.close()


def _run_rank(
    body: Body, rank: int, group: Group, answer: Connection, folder: Path, forked: bool
) -> None:
    """Run the body in the process of one rank."""
    from torch import multiprocessing as torch_multiprocessing

    # Imports torch, which a process that only asks for its rank does not need.
    from gpuprof_widgets.capture.frame_filter import below_profiler_frames

    keep_folders_within(folder)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork inherits the kernel's handler
    with contextlib.suppress(Exception):  # Linux only: end with the main process, however it ends
        torch_multiprocessing._prctl_pr_set_pdeathsig(signal.SIGTERM)  # type: ignore[attr-defined]
    try:
        _joined(body, rank, group, forked)
    except BaseException as error:
        packed = b""
        with contextlib.suppress(Exception):  # as where it is loaded
            packed = pickle.dumps(error)
        entries = below_profiler_frames(error.__traceback__)
        text = "".join(traceback.format_exception(type(error), error, entries)).rstrip()
        answer.send(Answer(perf_counter_ns(), packed, text))
        sys.exit(1)
    answer.send(Answer(perf_counter_ns(), done=True))


def _joined(body: Body, rank: int, group: Group, forked: bool) -> None:
    import torch
    from torch import distributed

    if forked:
        # OpenMP's threads do not survive a fork, and using them would hang. torchrun also gives
        # each rank one thread.
        torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(group.port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(group.size),
        "LOCAL_WORLD_SIZE": str(group.size),
    }
    if group.backend == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    distributed.init_process_group(group.backend, rank=rank, world_size=group.size)
    try:
        body(rank)
    finally:
        # Not after a failure: the other ranks may wait for us, and we for them.
        if sys.exc_info()[0] is None:
            distributed.destroy_process_group()

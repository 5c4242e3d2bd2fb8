"""The processes of a distributed run from one cell: start them, watch them, leave none behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from gpuprof_widgets.capture.own_tracebacks import below_ours
from gpuprof_widgets.capture.temporary import keep_folders_within, temporary_folder
from gpuprof_widgets.exceptions import OptionError, RecordingError

_PATIENCE_S = 5.0  # for a process that was asked to end, before it is killed

Body = Callable[[int], None]
"""What a rank does, given its number; it must be picklable where processes are spawned."""


@dataclass(frozen=True)
class Group:
    """The process group that every rank joins before its work."""

    size: int
    backend: str
    port: int


@dataclass(frozen=True)
class Answer:
    """What a rank says at its end: when (ns), and the exception that ended it, if one did."""

    at: int
    error: bytes | None = None
    traceback: str = ""
    done: bool = False


@dataclass
class _Rank:
    number: int
    process: BaseProcess
    answer: Connection


def start_method(function: Callable[..., Any], arguments: Any, backend: str) -> str:
    """How the ranks start: by fork, so that functions of a notebook work, where that is possible.

    CUDA does not work in a forked process: then they are spawned, and what they run has to be
    importable there; an `OptionError` says so.
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
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_ranks(body: Body, group: Group, method: str) -> list[int]:
    """Run the body in every rank of a new group, and return their process ids when all are done.

    When one fails the others are ended, and its exception is raised here, from an error with its
    rank and traceback.
    """
    context = multiprocessing.get_context(method)
    ranks: list[_Rank] = []
    folder = temporary_folder()
    try:
        for number in range(group.size):
            receiving, sending = context.Pipe(duplex=False)
            target = (body, number, group, sending, folder, method == "fork")
            process = context.Process(target=_rank, args=target, name=f"rank {number}")  # type: ignore[attr-defined]
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
    """The ranks with what they answered, of several at once the earliest first.

    When a rank fails, those that wait for it in a collective fail as well, a moment later.
    """
    left: dict[Any, _Rank] = {rank.answer: rank for rank in ranks}
    while left:
        ended = [left.pop(ready) for ready in wait(list(left))]
        yield from sorted(((rank, _answer(rank)) for rank in ended), key=lambda pair: pair[1].at)


def _answer(rank: _Rank) -> Answer:
    try:
        answer: Answer = rank.answer.recv()
    except EOFError:
        return Answer(at=0)  # it died without a word, so before any other could notice
    return answer


def _raise_if_failed(rank: _Rank, answer: Answer) -> None:
    if answer.done:
        return
    if not answer.at:
        rank.process.join(_PATIENCE_S)
        raise RecordingError(
            f"rank {rank.number} (pid {rank.process.pid}) ended with exit code "
            f"{rank.process.exitcode} before it was done; the other ranks were ended"
        )
    told = RecordingError(
        f"rank {rank.number} failed; the other ranks were ended\n\n{answer.traceback}"
    )
    error = _unpacked(answer.error)
    if error is None:
        raise told
    raise error from told


def _unpacked(packed: bytes | None) -> BaseException | None:
    """The rank's exception; None where it cannot be sent from process to process."""
    if packed is None:
        return None
    try:
        error = pickle.loads(packed)
    except Exception:  # code of the user's class runs, and may raise anything
        return None
    return error if isinstance(error, BaseException) else None


def _end(ranks: list[_Rank]) -> None:
    """Let no rank run on: those that are done have a moment to end, the others are ended."""
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


def _rank(
    body: Body, rank: int, group: Group, answer: Connection, folder: Path, forked: bool
) -> None:
    """A rank's process, from its first line to its last."""
    keep_folders_within(folder)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a kernel's own handler came along
    _die_with_parent()
    try:
        _joined(body, rank, group, forked)
    except BaseException as error:
        answer.send(Answer(perf_counter_ns(), _packed(error), _traceback_of_body(error)))
        sys.exit(1)
    answer.send(Answer(perf_counter_ns(), done=True))


def _joined(body: Body, rank: int, group: Group, forked: bool) -> None:
    import torch
    from torch import distributed

    if forked:
        # OpenMP's threads do not survive a fork, and using them would hang. torchrun, too, gives
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
        # Not where it failed: there the others may wait for us, and we for them.
        if sys.exc_info()[0] is None:
            distributed.destroy_process_group()


def _die_with_parent() -> None:
    """End with the main process, however that ends (Linux alone)."""
    from torch import multiprocessing as torch_multiprocessing

    with contextlib.suppress(Exception):
        torch_multiprocessing._prctl_pr_set_pdeathsig(signal.SIGTERM)  # type: ignore[attr-defined]


def _packed(error: BaseException) -> bytes | None:
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:  # as in `_unpacked`, and of what the exception holds, too
        return None
    return packed


def _traceback_of_body(error: BaseException) -> str:
    """The traceback from the user's function on, ours above it left out."""
    entries = below_ours(error.__traceback__)
    return "".join(traceback.format_exception(type(error), error, entries)).rstrip()

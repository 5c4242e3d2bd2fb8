"""Jobs shared out among processes of our own, which read files beside one another.

`results` is the side of the caller, `serve` that of a worker: a new Python, not a fork, which would
take over locks and CUDA, nor one of multiprocessing, which would run the user's script again. Jobs
and answers are pickles in its stdin and stdout; it ends with its stdin, so none outlives the call.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Lock, Thread, Timer
from typing import IO, Any, Generic, TypeVar

from gpuprof_widgets.exceptions import GpuprofError

Result = TypeVar("Result")
Job = Callable[[], Result]
"""What is to be done; it and its result can be pickled."""

GREETING = b"gpuprof_widgets is ready\n"
"""What a worker writes before its answers; a line before it is from somebody's sitecustomize."""

START = f"from {__name__} import serve; serve()"
GREETS_WITHIN_S = 60.0  # another program may never say a word
PATIENCE_S = 1.0  # for a process whose pipe is closed, before it is killed

_warned: dict[str | tuple[str, type[Warning], int], int] = {}
"""The warnings that were shown, as Python keeps them for each module."""


class DiedError(Exception):
    """A process ended before it had answered; the message says how."""


class _NotSentError(Exception):
    """No process can be started, or the job cannot be pickled."""


class _NoStartError(Exception):
    """A worker cannot be started, or it is another program."""


@dataclass(frozen=True)
class Answer:
    """What became of a job: its result or its exception, pickled apart, and its warnings.

    ``warned``: text, category, file and line of each.
    """

    result: Any = None
    error: bytes | None = None
    warned: list[tuple[str, type[Warning], str, int]] = field(default_factory=list)


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    allowed = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def python() -> str:
    """Return the interpreter that a worker runs; "" in a program that only contains Python."""
    return "" if getattr(sys, "frozen", False) else sys.executable or ""


def results(jobs: Sequence[Job[Result]], count: int) -> Generator[Result | DiedError, None, None]:
    """Yield the results of the jobs in order, done by ``count`` processes.

    An exception of a job is raised here, and its warnings are shown. A job whose process dies is
    done again after all others, because memory may have run out. If that process dies too, its
    result is a `DiedError`. A job that cannot be sent to a process is done here. If the generator
    is closed early, it ends the processes at once.
    """
    with _Workers[Result](count) as workers:
        futures = [workers.submit(job) for job in jobs]
        for job, future in zip(jobs, futures, strict=True):
            try:
                yield workers.result(job, future)
            except DiedError:
                wait(futures)
                yield workers.last_result(job)


class _Workers(Generic[Result]):
    """So many workers, and a thread for each; at the end none of them is left."""

    def __init__(self, count: int) -> None:
        self._all = [_Worker() for _ in range(count)]
        self._counting = Lock()
        self._left = count  # those that can be started
        self._idle: SimpleQueue[_Worker | None] = SimpleQueue()
        """None stands for all workers, where none is left."""
        for worker in self._all:
            self._idle.put(worker)

    def __enter__(self) -> _Workers[Result]:
        self._threads = ThreadPoolExecutor(len(self._all), "gpuprof_widgets reads")
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self._all:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.close()

    def submit(self, job: Job[Result]) -> Future[Answer]:
        """Have the job done by the worker that is free next."""
        return self._threads.submit(self._done, job)

    def last_result(self, job: Job[Result]) -> Result | DiedError:
        """Have the job done once more, and wait for its result."""
        try:
            return self.result(job, self.submit(job))
        except DiedError as error:
            return error

    def result(self, job: Job[Result], future: Future[Answer]) -> Result:
        """Wait for the result of the job; raise its exception."""
        try:
            answer = future.result()
        except _NotSentError:
            return job()
        for text, category, file, line in answer.warned:
            warnings.warn_explicit(text, category, file, line, registry=_warned)
        if answer.error is not None:
            raise pickle.loads(answer.error)
        result: Result = answer.result
        return result

    def _done(self, job: Job[Result]) -> Answer:
        try:
            packed = pickle.dumps(job)
        except Exception as error:  # of whatever is in the job
            raise _NotSentError from error
        while (worker := self._idle.get()) is not None:
            try:
                answer = worker.answer(packed)
            except _NoStartError:
                self._leave_out()
                continue
            except DiedError:
                self._idle.put(worker)
                raise
            self._idle.put(worker)
            return answer
        self._idle.put(None)
        raise _NotSentError

    def _leave_out(self) -> None:
        """Have the others do its jobs; without others, let all who wait know."""
        with self._counting:
            self._left -= 1
            if not self._left:
                self._idle.put(None)


class _Worker:
    """A process that does one job at a time; it starts with the first, and again where it died.

    A thread asks for answers, another one kills.
    """

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None
        self._may_start = True
        self._starting = Lock()

    def answer(self, job: bytes) -> Answer:
        """Have the job done; raise an error where there is no process, or where it dies."""
        process = self._running()
        try:
            pickle.dump(job, _open(process.stdin))
            _open(process.stdin).flush()
            answer: Answer = pickle.load(_open(process.stdout))
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise DiedError(self._end_of(process)) from error
        return answer

    def kill(self) -> None:
        """End the process at once, and start no other."""
        with self._starting:
            self._may_start = False
            process = self._process
        if process is not None:
            _kill(process)

    def close(self) -> None:
        """Wait for the end of the process, so that the system forgets it; close its pipes."""
        if self._process is not None:
            with suppress(BrokenPipeError), self._process:
                pass  # of a job that it did not read

    def _running(self) -> Popen[bytes]:
        with self._starting:
            if self._process is not None:
                return self._process
            if not self._may_start:
                raise _NoStartError
            try:
                process = self._process = _started()
            except OSError as error:  # too many processes, too little memory
                raise _NoStartError from error
        limit = Timer(GREETS_WITHIN_S, _kill, [process])
        limit.start()
        try:
            if any(line.endswith(GREETING) for line in _open(process.stdout)):
                return process
        finally:
            in_time = limit.is_alive()
            limit.cancel()
        how = self._end_of(process)
        if in_time and how.startswith("SIG"):
            raise DiedError(how)
        self._may_start = False  # whatever runs there, it is not we
        raise _NoStartError

    def _end_of(self, process: Popen[bytes]) -> str:
        """Say how the process ended that has closed its pipe, and forget it."""
        try:
            code = process.wait(PATIENCE_S)
        except TimeoutExpired:
            _kill(process)
            code = process.wait()
        self.close()
        self._process = None
        with suppress(ValueError):  # a signal without a name
            return signal.Signals(-code).name
        return f"exit code {code}"


def _kill(process: Popen[bytes]) -> None:
    """End the process at once, with what it has started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # as `_started` asks for pipes
    return pipe


def _started() -> Popen[bytes]:
    """Start a worker that imports what this process would, away from the Ctrl-C of its terminal.

    Its path is replaced once it has started, so that no sitecustomize of these folders runs.
    ``-P``: nor is anything imported from the working directory, unless this process does that too.
    """
    imports = f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; {START}"
    return Popen([python(), "-P", "-c", imports], stdin=PIPE, stdout=PIPE, start_new_session=True)


def serve() -> None:
    """Do the jobs that come in through stdin, and answer through stdout, until stdin ends."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    _take_pipes_away()
    _die_before_others()
    waiting: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_receive, args=(jobs, waiting), daemon=True).start()
    with suppress(BrokenPipeError):
        answers.write(GREETING)
        while True:
            answers.flush()
            answer = _packed(_answer(waiting.get()))
            print(end="", flush=True)  # this process may be killed once it has answered
            answers.write(answer)
    os._exit(1)  # nobody reads it: a flush at the end would fail again


def _take_pipes_away() -> None:
    """Let what is printed go to stderr, and nobody else read jobs: the pipes are for us alone."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def _die_before_others() -> None:
    """Have Linux, where memory runs out, end this process and not the user's notebook."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _receive(jobs: IO[bytes], waiting: SimpleQueue[bytes]) -> None:
    """Take jobs from the pipe; when it is closed end the process, in the middle of a job too."""
    try:
        while True:
            waiting.put(pickle.load(jobs))
    finally:
        os._exit(0)


def _answer(packed: bytes) -> Answer:
    """Do the job."""
    with _warnings() as warned:
        try:
            return Answer(pickle.loads(packed)(), warned=warned)
        except (
            BaseException
        ) as error:  # SystemExit too: it is for the user, as if it were raised here
            return Answer(error=_packed_error(error), warned=warned)


@contextmanager
def _warnings() -> Iterator[list[tuple[str, type[Warning], str, int]]]:
    """Collect all warnings: the process that gets them knows which ones to show."""
    collected: list[tuple[str, type[Warning], str, int]] = []
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            yield collected
        finally:
            collected += [(str(w.message), w.category, w.filename, w.lineno) for w in raised]


def _packed_error(error: BaseException) -> bytes:
    """Return the exception as a pickle; one that is not raised on purpose says where it was."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    note = f"It was raised in another process, which read the file:\n\n{trace}"
    if not isinstance(error, GpuprofError):
        error.add_note(note)
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:  # of a value in the exception, or of its class
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.add_note(note)
        return pickle.dumps(plain)
    return packed


def _packed(answer: Answer) -> bytes:
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(Answer(error=_packed_error(error)))

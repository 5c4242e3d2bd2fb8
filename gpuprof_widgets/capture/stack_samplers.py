"""Read stacks about every 2 ms: the main thread's at signals, those of others from a thread.

A thread that reads stacks gets Python's lock (the GIL) only where other code lets go of it. PyTorch
does so in every op: of a loop in which Python took 57 % of the time, between ops of a few µs, a
thread found Python in 0 % of its samples. A signal interrupts the main thread wherever it is, and
its handler runs before the next jump or call: 57 %. So the main thread has a timer of its own,
which needs Linux; elsewhere, and for other threads, a thread reads the stacks, and code between
ops is found too rarely.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import ctypes
import os
import signal
import sys
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, count, cycle
from random import Random
from time import perf_counter_ns
from types import CodeType, FrameType

# `_signal`, because signal's own functions are Python, which a running cProfile would count.

INTERVAL_NS = 2_000_000
"""Mean time between two samples."""

Handler = Callable[[int, FrameType | None], None]

_CLOCK_MONOTONIC, _TO_THREAD, _ABSOLUTE = 1, 4, 1
"""CLOCK_MONOTONIC, the clock of `perf_counter_ns`, SIGEV_THREAD_ID and TIMER_ABSTIME of Linux."""
_NANOSECONDS = 1_000_000_000
_SIGNALS_AFTER_FIRST = 11
"""The number of the signal above SIGRTMIN: debuggers and C libraries take the first of these."""
_LONGEST_STOP_S = 5.0
_LOOP_HANDLES_SIGNALS = "each signal wakes an event loop that handles signals"
"""It does so by a byte in a pipe, which would fill up while the loop is busy."""
_GAPS = 4_096
_LONG_AGO_NS = 50_000_000
_REST_NS = 4_000
"""A stack is read again after so long for each of its numbers, 30 times what reading takes.

A clock would not do: a garbage collection that the reading sets off may take 0.2 s.
"""


class Stacks:
    """Every distinct stack once, with a number of its own, and the codes in them.

    A stack is a tuple, the innermost frame first, of two numbers for each frame: the `id` of its
    code, and the instruction at which it stood (``f_lasti``).
    """

    def __init__(self) -> None:
        self.number: dict[tuple[int, ...], int] = {}
        self.codes: dict[int, CodeType] = {}
        self.next_number: Callable[[], int] = count().__next__


class ThreadSamples:
    """The samples of one thread as long as it existed, `FIELDS` numbers for each.

    They are: the first and the last planned moment at which the thread had this stack (several
    where it was in a call that let no signal in, or did not move); when it was read; and the number
    of the stack. Times are `perf_counter_ns`.
    """

    FIELDS = 4

    def __init__(self, thread: int = 0, native: int = 0) -> None:
        self.numbers = array("q")
        self.thread, self.native = thread, native
        """Python's and the system's number of the thread; 0: not known."""

    def add(self, now: int, stack: int) -> None:
        """Add what a look at all threads found."""
        numbers = self.numbers
        if numbers and numbers[-1] == stack:
            numbers[-3] = numbers[-2] = now
        else:
            numbers.extend((now, now, now, stack))


class TimerSampler:
    """Samples the main thread, from which it is started, at a timer's signals.

    Each signal is sent for the next moment of a plan, in which the time between two is random: a
    loop whose rounds take as long as a fixed one would be found at the same place every time. The
    plan does not depend on when a handler ran, which is right after the ops that kept it waiting.

    The handler is one function that calls only built-in ones: whatever it called would be the
    user's to a profiler and to dynamo.
    """

    def __init__(self, stacks: Stacks) -> None:
        self.samples = ThreadSamples(threading.get_ident())
        self.handler: Handler | None = None
        self.lost = ""
        """Why signals cannot sample; "" where they do."""
        self._stacks = stacks
        self._timer: ctypes.c_void_p | None = None
        self._times = _Times()  # when the next signal comes; 0 s while one is handled
        self._awaited = 0
        self._process = 0

    def _why_not(self) -> str:
        """Return what keeps signals from sampling; "" if nothing does."""
        is_as_laid_out = sys.platform == "linux" and ctypes.sizeof(ctypes.c_long) == 8  # `_Time`
        if not is_as_laid_out or not hasattr(ctypes.CDLL(None), "timer_create"):
            return "signals can sample only on Linux"
        if threading.current_thread() is not threading.main_thread():
            return "signals can sample only Python's main thread"
        if _signal.getsignal(_number()) is not _signal.SIG_DFL:
            return f"signal {_number()} has another handler"
        wakes = _signal.set_wakeup_fd(-1)
        if wakes != -1:
            _signal.set_wakeup_fd(wakes)
            return _LOOP_HANDLES_SIGNALS
        return ""

    def start(self) -> None:
        """Start; where that is not possible ``lost`` says why."""
        self.lost = self._why_not()
        if self.lost:
            return
        number, timer = _number(), ctypes.c_void_p()
        event = _Event(None, number, _TO_THREAD, threading.get_native_id())
        create = ctypes.CDLL(None).timer_create
        if create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
            self.lost = "the system gave no timer"
            return
        self._timer, self._process = timer, os.getpid()
        planned = perf_counter_ns() + INTERVAL_NS
        self.handler = _handler(self, self._stacks, planned, timer, self._times)
        _signal.signal(number, self.handler)
        _signal.siginterrupt(number, False)  # most calls of the system go on by themselves
        self._send(planned)

    def keep_going(self, now: int) -> None:
        """Send a signal if none is awaited for long: an error, as of Ctrl-C, ended a handler early.

        One that comes late is no reason: it waits for the end of a long call, which each further
        signal might interrupt. May be called in any thread, until `stop`.
        """
        if self._times.first.seconds:
            self._awaited = now
        is_late = now - self._awaited > _LONG_AGO_NS and self._timer is not None and not self.lost
        if is_late and _signal.getsignal(_number()) is self.handler:
            self._send(now)

    def _send(self, at: int) -> None:
        self._awaited = at
        self._times.first = _Time(*divmod(at, _NANOSECONDS))
        times = ctypes.byref(self._times)
        ctypes.CDLL(None).timer_settime(self._timer, _ABSOLUTE, times, None)

    def stop(self) -> None:
        """Stop; may be called twice. A forked process has no timer."""
        timer, self._timer = self._timer, None
        if timer is None:
            return
        if os.getpid() == self._process:
            ctypes.CDLL(None).timer_delete(timer)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and _signal.getsignal(_number()) is self.handler:  # else it is the user's now
            # A last signal came as the timer was deleted, and was handled right after that; one
            # that a mask holds back would end the process later, and is dropped when ignored.
            _signal.signal(_number(), _signal.SIG_IGN)
            _signal.signal(_number(), _signal.SIG_DFL)


def _handler(
    sampler: TimerSampler, stacks: Stacks, planned: int, timer: ctypes.c_void_p, times: _Times
) -> Handler:
    now, add, find = perf_counter_ns, sampler.samples.numbers.extend, stacks.number.setdefault
    wake = _signal.set_wakeup_fd
    keep, next_number = stacks.codes.setdefault, stacks.next_number
    next_moment = accumulate(cycle(random_gaps()), initial=planned).__next__
    first, times_at = times.first, ctypes.byref(times)
    set_time = ctypes.PyDLL(None).timer_settime  # unlike CDLL's it does not let go of the GIL

    def sample_stack(number: int, frame: FrameType | None) -> None:
        nonlocal planned
        first.seconds = 0  # until the next is set, unless an error ends this early
        began, first_moment = now(), planned
        wakes = wake(-1)
        if wakes != -1:
            wake(wakes)
            sampler.lost = _LOOP_HANDLES_SIGNALS
            return
        stack: list[int] = []
        while frame is not None:
            code = frame.f_code
            of_code = id(code)
            keep(of_code, code)
            stack += (of_code, frame.f_lasti)
            frame = frame.f_back
        last_moment = first_moment
        while planned <= began:
            last_moment, planned = planned, next_moment()
        add((first_moment, last_moment, began, find(tuple(stack), next_number())))
        rested = now() + _REST_NS * len(stack)
        while planned <= rested:
            planned = next_moment()
        first.seconds, first.nanoseconds = divmod(planned, _NANOSECONDS)
        set_time(timer, _ABSOLUTE, times_at, None)  # last: no other signal may come before

    return sample_stack


def random_gaps() -> list[int]:
    """Return times between samples in ns, from half of `INTERVAL_NS` to one and a half of it."""
    random = Random()
    return [INTERVAL_NS // 2 + random.randrange(INTERVAL_NS) for _ in range(_GAPS)]


class ThreadSampler:
    """Samples threads from one of its own that `threading` does not know: all but the timer's.

    Of the timer's, ``of_main`` has the times at which it let another thread run, mostly in ops,
    each with the number of its stack: they tell where ops are called, not for how long. The sampler
    also keeps the timer going, and hides its handler from dynamo as soon as that is imported.
    ``error`` is what ended it early.
    """

    def __init__(self, stacks: Stacks, timer: TimerSampler) -> None:
        self.samples: list[ThreadSamples] = []
        self.of_main = array("q")
        self.error: Exception | None = None
        self._stacks = stacks
        self._timer = timer
        self._is_hidden = False
        self._walked = 0
        self._stopping, self._stopped = _thread.allocate_lock(), _thread.allocate_lock()
        self._process = 0

    def start(self) -> None:
        """Start the thread."""
        self._process = os.getpid()
        self._stopping.acquire()
        self._stopped.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except BaseException:
            self._stopped.release()
            raise

    def stop(self) -> None:
        """Stop, and wait until the thread has ended; may be called twice, and in a fork."""
        if self._stopping.locked():
            self._stopping.release()
            if os.getpid() == self._process and self._stopped.acquire(timeout=_LONGEST_STOP_S):
                self._stopped.release()

    def _run(self) -> None:
        me, alive = _thread.get_ident(), dict[int, ThreadSamples]()
        gaps, rest = cycle(random_gaps()), 0
        try:
            while not self._stopping.acquire(timeout=max(next(gaps), rest) / _NANOSECONDS):
                now, before, alive, self._walked = perf_counter_ns(), alive, {}, 0
                main = 0 if self._timer.lost else self._timer.samples.thread
                for thread, frame in sys._current_frames().items():
                    if thread == main:
                        self.of_main.extend((now, self._number(frame)))
                    elif thread != me:
                        samples = alive[thread] = before.get(thread) or self._samples_of(thread)
                        samples.add(now, self._number(frame))
                del frame  # which would keep the user's variables alive
                rest = _REST_NS * self._walked
                self._timer.keep_going(now)
                self._hide_from_dynamo()
        except Exception as error:
            self.error = error
        finally:
            self._stopped.release()

    def _number(self, frame: FrameType | None) -> int:
        """Return the number of a thread's stack."""
        stack: list[int] = []
        while frame is not None:
            code = frame.f_code
            self._stacks.codes.setdefault(id(code), code)
            stack += (id(code), frame.f_lasti)
            frame = frame.f_back
        self._walked += len(stack)
        return self._stacks.number.setdefault(tuple(stack), self._stacks.next_number())

    def _samples_of(self, thread: int) -> ThreadSamples:
        """Return where the samples of a thread go that was not there at the last look."""
        known = [one.native_id for one in threading.enumerate() if one.ident == thread]
        self.samples.append(ThreadSamples(thread, (known[0] or 0) if known else 0))
        return self.samples[-1]

    def _hide_from_dynamo(self) -> None:
        skip = getattr(sys.modules.get("torch._dynamo.decorators"), "skip", None)
        if skip is not None and not self._is_hidden and self._timer.handler is not None:
            with suppress(Exception):  # it may be half imported
                skip(self._timer.handler)
                self._is_hidden = True


class _Event(ctypes.Structure):
    """Linux's ``struct sigevent``, for a signal to one thread."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_char * 44),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Times(ctypes.Structure):
    _fields_ = (("every", _Time), ("first", _Time))


def _number() -> int:
    return int(signal.SIGRTMIN) + _SIGNALS_AFTER_FIRST

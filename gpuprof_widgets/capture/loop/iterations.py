"""The iterations of one loop: counted and timed, with a recorder's windows opened around some.

A step lasts from the fetch of its item to the end of its body. Where we wait for the device (after
the loop's first step, before a window and at its end), the wait is spread over the steps since the
previous wait, whose work was not done yet.

`StepLoop` counts, `Schedule` says what becomes of which iteration, and `Costs` tells what the first
iterations paid once (compilation, memory).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any, Literal, Self

import numpy as np
import torch

from gpuprof_widgets.capture.environment import allocator_totals, uses_cuda
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.edit import kept_slices
from gpuprof_widgets.trace.model import Trace

Kind = Literal["wait", "warmup", "recorded", "cprofile"]
"""What becomes of an iteration."""

_COMPILATION = ("_compile.compile_inner", "entire_frame_compile")
"""Names of torch's timer of whole compilations, that of the newest version first."""


class Step:
    """One iteration: its kind, its duration (ns), and whether it was left in the middle.

    No dataclass: cProfile would count its `__init__`, which has no file, as the user's.
    """

    def __init__(self, number: int, kind: Kind) -> None:
        self.number = number
        self.kind = kind
        self.dur_ns = 0
        self.left = False

    @property
    def name(self) -> str:
        """Its annotation, named as by torch's own schedule."""
        return f"ProfilerStep#{self.number}"

    def metadata(self) -> dict[str, Any]:
        """Return the step as JSON can hold it."""
        row = {"step": self.number, "kind": self.kind, "dur_ns": self.dur_ns}
        return row | {"left": True} if self.left else row


class StepLoop:
    """Counts one loop: `next_step` before each iteration, `pause` or `close` at its end.

    A loop inside another one ends and begins anew; in between it is at a `pause`. ``before``
    iterations had run, unrecorded, when the loop was noticed. It tells the `Recorder` when to open
    and close windows, of which no method raises an Exception: a failure becomes a note.
    """

    def __init__(
        self, recorder: Any, schedule: Schedule, *, place: str, explicit: bool, before: int = 0
    ) -> None:
        self._recorder = recorder
        # Without cProfile nothing goes on after the recorded iterations.
        calls = schedule.calls if recorder.has_cprofile else schedule.active
        self._schedule = replace(schedule, calls=calls)
        self._place = place
        self.explicit = explicit
        """Whether the code itself bounds the loop; it then precedes one that an option bounds."""
        self.left_out: Counter[str] = Counter()
        """The names of steps that were taken back, and how often each was."""
        self._steps: list[Step] = []
        self._running: Step | None = None
        self._not_drained: list[Step] = []
        self._skipped = min(before, schedule.unrecorded)  # iterations of the cycle that ran before
        self._first = self._ran = before  # number of the first step; iterations so far
        self._paused: str | None = None  # how the loop ended, if it may begin anew
        self._prepared: int | None = None  # the position that `_prepare` was called for
        self._began = 0
        self._ending: str | None = None  # how the loop ended; None while it runs
        self._in_window = False
        self._costs: list[Costs] = []

    @property
    def recorded(self) -> int:
        """How many steps were recorded, incomplete ones included."""
        return sum(step.kind == "recorded" for step in self._steps)

    @property
    def goes_on(self) -> bool:
        """Whether the loop runs to its own end, unrecorded from now on."""
        return self._ending in ("given up", "kept going")

    @property
    def has_all(self) -> bool:
        """Whether all the steps asked for were recorded."""
        return self.recorded == self._schedule.recorded

    @property
    def waits_for_cycle(self) -> bool:
        """Whether the loop will be recorded again, and no window is open yet."""
        return self._schedule.every is not None and not self._in_window

    def next_step(self) -> bool:
        """End the running step, if any, and begin the next; return whether the loop goes on."""
        every = self._schedule.every
        if self._ending == "kept going" and every is not None and self._ran % every == 0:
            self._recorder.begin_cycle()
            self._first, self._skipped, self._ending = self._ran, 0, None
            self._steps, self._not_drained, self._costs = [], [], []
            self.left_out.clear()
            self._prepared = None
        if self._ending is None:
            self._end_step()
            self._paused = None
            position = self._skipped + len(self._steps)
            if position < self._schedule.total:
                if position != self._prepared:  # else a step began there and was taken back
                    self._prepare(position)
                    self._prepared = position
                self._begin_step(position)
            else:
                self._end("kept going" if self._schedule.keep_going else "bounded")
                if every is not None:
                    self._recorder.keep_cycle()
        self._ran += 1
        return self._ending is None or self.goes_on

    def _begin_step(self, position: int) -> None:
        """Begin a step, in a frame that cProfile sees begin: it knows what that calls as ours."""
        self._running = Step(self._first + len(self._steps), self._schedule.kind(position))
        self._steps.append(self._running)
        self._not_drained.append(self._running)
        self._began = perf_counter_ns()
        if self._running.kind == "recorded":
            self._recorder.enter_step(self._running.name)

    def pause(self, *, exhausted: bool) -> None:
        """Note that the loop has ended, and may begin anew with its next step.

        Where it has no further item, the step that was begun is taken back.
        """
        running = self._running
        if not exhausted and running is not None:
            running.left = True
        self._end_step()
        if exhausted:
            self._ran -= 1
            if running is not None:
                self._steps.remove(running)
                if running in self._not_drained:
                    self._not_drained.remove(running)
                self.left_out[running.name] += 1
        self._paused = "exhausted" if exhausted else "left"

    def close(self) -> None:
        """End a loop that was left by `break` or by an exception, unless it has ended before."""
        if self._ending is None:
            if self._running is not None:
                self._running.left = True
            self._end_step()
            self._end(self._paused or "left")

    def give_up(self) -> None:
        self._recorder.leave_step()
        self._ending = "given up"

    def _prepare(self, number: int) -> None:
        """Do what lies between two steps: open and close windows, wait for the device."""
        schedule, position = self._schedule, self._schedule.position(number)
        if not self._costs:
            self._costs.append(Costs.now())
        elif position == 0:
            self._end_window()
        if len(self._steps) == 1 and schedule.unrecorded:
            self._drain()  # so that the extra cost of the first step stays with it
        if position == schedule.unrecorded:
            self._drain()
            if len(self._costs) == 1:
                self._costs.append(Costs.now())
            self._in_window = True
            self._recorder.begin_window(self._first + len(self._steps))
        elif position == schedule.unrecorded + schedule.active:
            self._spread(self._recorder.end_trace())

    def _end_step(self) -> None:
        self._recorder.leave_step()
        if self._running is not None:
            self._running.dur_ns = perf_counter_ns() - self._began
            self._running = None

    def _end(self, how: str) -> None:
        self._ending = how
        self._end_window()
        self._costs.append(Costs.now())

    def _end_window(self) -> None:
        if self._in_window:
            self._in_window = False
            self._spread(self._recorder.end_window())

    def _drain(self) -> None:
        began = perf_counter_ns()
        if uses_cuda():
            torch.cuda.synchronize()
        self._spread(perf_counter_ns() - began)

    def _spread(self, waited_ns: int) -> None:
        """Give every step since the last wait its share of this one."""
        steps, self._not_drained = self._not_drained, []
        for step in steps:
            step.dur_ns += waited_ns // len(steps)

    def notes(self) -> list[str]:
        """Return what a reader would not expect: an early end, and a longer window of cProfile."""
        recorded, wanted = self.recorded, self._schedule.recorded
        counted = sum(step.kind == "cprofile" for step in self._steps)
        notes: list[str] = []
        if self._ending in ("exhausted", "left") and recorded != wanted:
            how = "ended" if self._ending == "exhausted" else "was left"
            number = len(self._steps)
            ran = f"the loop {how} after {number} iteration{'s' * (number != 1)}"
            before = self._schedule.unrecorded - self._skipped
            first = f"{before} iterations run" if before > 1 else "iteration runs"
            was = "was" if recorded == 1 else "were"
            notes.append(
                f"{ran}: {recorded} of the {wanted} steps asked for {was} recorded"
                if recorded
                else f"{ran}; the first {first} unrecorded, so nothing was recorded"
            )
        if recorded and counted:
            notes.append(
                f"cProfile counted {recorded + counted} steps, of which the trace has {recorded}"
            )
        return notes

    def metadata(self) -> dict[str, Any]:
        """Return the metadata's ``steps``: the place, the schedule, and every iteration."""
        return {
            "place": self._place,
            "explicit": self.explicit,
            "ended": self._ending,
            "asked": vars(self._schedule),
            "iterations": [step.metadata() for step in self._steps],
            "one_off": self._one_off(),
        }

    def _one_off(self) -> dict[str, Any]:
        """Return what was paid once before the first window, and what still was after that."""
        if not self._costs:
            return {}
        before, then = self._costs[0], self._costs[1] if len(self._costs) > 2 else self._costs[-1]
        return {
            **then.since(before),
            # Whether cuDNN tries its algorithms on the first call of every shape.
            "cudnn_benchmark": uses_cuda() and bool(torch.backends.cudnn.benchmark),
            "after_warmup": self._costs[-1].since(then),
        }


@dataclass(frozen=True)
class Schedule:
    """``repeat`` times: ``wait`` and ``warmup`` iterations unrecorded, then ``active`` recorded.

    cProfile goes on for ``calls`` iterations in all, longer than the trace. Then the loop ends, or
    goes on unrecorded (``keep_going``); ``every`` repeats it all after so many iterations.
    """

    wait: int
    warmup: int
    active: int
    repeat: int
    calls: int
    keep_going: bool = False
    every: int | None = None

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return the schedule that the options ask for."""
        active = options.steps or 1
        calls = max(active, options.cprofile_steps or 0)
        cycle = options.wait, options.warmup, active, options.repeat, calls
        return cls(*cycle, options.keep_going, options.every)

    @property
    def unrecorded(self) -> int:
        """Iterations of each cycle before the recorded ones."""
        return self.wait + self.warmup

    @property
    def cycle(self) -> int:
        """Iterations of one repetition."""
        return self.unrecorded + self.calls

    @property
    def total(self) -> int:
        """Iterations after which the loop ends, or goes on unrecorded."""
        return self.repeat * self.cycle

    @property
    def recorded(self) -> int:
        """Iterations that are recorded in total."""
        return self.repeat * self.active

    def position(self, number: int) -> int:
        """Return the place of an iteration in its cycle, both counted from 0."""
        return number % self.cycle

    def kind(self, number: int) -> Kind:
        """Return what becomes of an iteration, counted from 0."""
        position = self.position(number)
        if position < self.wait:
            return "wait"
        if position < self.unrecorded:
            return "warmup"
        return "recorded" if position < self.unrecorded + self.active else "cprofile"

    def in_words(self, *, ends: bool = True) -> str:
        """Return the schedule in words: "3 iterations to warm up, 8 recorded, then it ends"."""
        counts = [(self.wait, "to wait"), (self.warmup, "to warm up"), (self.active, "recorded")]
        (count, purpose), *rest = [(count, purpose) for count, purpose in counts if count]
        word = "iteration" if count == 1 else "iterations"
        parts = [f"{count} {word} {purpose}", *(f"{count} {purpose}" for count, purpose in rest)]
        times = f", {self.repeat} times" if self.repeat > 1 else ""
        end = "it ends" if ends and not self.keep_going else "it goes on unrecorded"
        again = f", and again every {self.every:,}" if self.every else ""
        return f"{', '.join(parts)}{times}, then {end}{again}"


@dataclass(frozen=True)
class Costs:
    """What this process has spent so far on work that is done once.

    ``compile_ns`` and ``graphs`` of torch.compile; ``reserved_bytes`` and ``alloc_retries`` of
    CUDA's caching allocator on all devices.
    """

    compile_ns: int = 0
    graphs: int = 0
    reserved_bytes: int = 0
    alloc_retries: int = 0

    @classmethod
    def now(cls) -> Self:
        """Return the costs so far, without importing or starting anything."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        # Private names of torch, which may disappear: then the counts are 0.
        timers = getattr(utils, "compilation_time_metrics", {})
        seconds = next((sum(timers[name]) for name in _COMPILATION if name in timers), 0.0)
        graphs = getattr(utils, "counters", {}).get("stats", {}).get("unique_graphs", 0)
        keys = "reserved_bytes.all.current", "num_alloc_retries"
        return cls(round(seconds * 1e9), int(graphs), *allocator_totals(*keys))

    def since(self, before: Costs) -> dict[str, int]:
        """Return what was spent since then."""
        return {name: value - getattr(before, name) for name, value in vars(self).items()}


def without_steps_taken_back(trace: Trace, names: Mapping[str, int]) -> Trace:
    """Return the trace without the first annotations of each name, as many as ``names`` says.

    Their spans on a GPU go too: those that begin before the next step of that name does.
    """
    if not names:
        return trace
    slices = trace.slices
    steps = slices[slices["name"].isin(list(names))]
    keep = np.ones(len(slices), dtype=bool)
    for name, number in names.items():
        named = steps[steps["name"] == name]
        begun = sorted(named.loc[named["category"] == "user_annotation", "ts"])
        since = begun[number] if number < len(begun) else math.inf
        keep[named.index[named["ts"] < since]] = False
    return kept_slices(trace, keep)

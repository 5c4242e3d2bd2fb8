"""The iterations of one loop: counted and timed, with a recorder's windows opened around some.

The time of a step reaches from the fetch of its item to the end of its body. Where the device had
to be waited for (after the loop's first step, before a window and at its end), the wait is spread
over the steps since the wait before: it is their work that was not done.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any, Literal, Self

import torch

from gpuprof_widgets.capture.part import Windows
from gpuprof_widgets.options import Options


class Step:
    """One iteration: its kind, how long it took (ns), and whether it was left in the middle."""

    def __init__(self, number: int, kind: Kind) -> None:
        self.number = number
        self.kind = kind
        self.dur_ns = 0
        self.left = False

    @property
    def name(self) -> str:
        """Its annotation, as torch's own schedule calls it."""
        return f"ProfilerStep#{self.number}"

    def metadata(self) -> dict[str, Any]:
        """As JSON can hold it."""
        row = {"step": self.number, "kind": self.kind, "dur_ns": self.dur_ns}
        return row | {"left": True} if self.left else row


class StepLoop:
    """Counts one loop: `next_step` before each iteration, `exhausted` or `close` at its end.

    A loop inside of another one ends and begins anew: between the two it is at a `pause`.
    ``before`` iterations of it had run, unrecorded, when somebody noticed that it is a loop.
    """

    def __init__(
        self,
        recorder: Windows,
        schedule: Schedule,
        *,
        place: str,
        explicit: bool,
        before: int = 0,
    ) -> None:
        self._recorder = recorder
        self._schedule = schedule if recorder.has_cprofile else schedule.without_cprofile()
        self._place = place
        self._explicit = explicit
        self._steps: list[Step] = []
        self._running: Step | None = None
        self._not_drained: list[Step] = []
        self._annotation: Any = None
        self._no_steps: Counter[str] = Counter()
        self._skipped = min(before, schedule.unrecorded)  # of the cycle, before the first step
        self._first = self._ran = before  # the first step's number; iterations until now
        self._paused: str | None = None  # how the loop ended that may begin anew
        self._prepared: int | None = None  # the position for which that was done
        self._began = 0
        self._ending: str | None = None  # how the loop ended; None while it runs
        self._in_window = False
        self._costs: list[Costs] = []

    @property
    def explicit(self) -> bool:
        return self._explicit

    @property
    def recorded(self) -> int:
        """How many steps were recorded, as far as they got."""
        return sum(step.kind == "recorded" for step in self._steps)

    @property
    def goes_on(self) -> bool:
        """Whether the loop runs to its own end, unrecorded from now on."""
        return self._ending in ("given up", "kept going")

    @property
    def has_all(self) -> bool:
        """Whether all steps were recorded that were asked for."""
        return self.recorded == self._schedule.recorded

    @property
    def waits_for_cycle(self) -> bool:
        """Whether it will be recorded again, and nothing of that is recorded yet."""
        return self._schedule.every is not None and not self._in_window

    def next_step(self) -> bool:
        """End the step that runs, if any, and begin the next; False when the loop has to end."""
        if self._begins_anew():
            self._begin_cycle()
        if self._ending is None:
            self._end_step()
            self._begin_next()
        self._ran += 1
        return self._ending is None or self.goes_on

    def _begin_next(self) -> None:
        self._paused = None
        position = self._skipped + len(self._steps)
        if position < self._schedule.total:
            if position != self._prepared:  # else a step began there that turned out to be none
                self._prepare(position)
                self._prepared = position
            self._begin_step(position)
            return
        self._end("kept going" if self._schedule.keep_going else "bounded")
        if self._schedule.every is not None:
            self._recorder.keep_cycle()

    def _begins_anew(self) -> bool:
        every = self._schedule.every
        return self._ending == "kept going" and every is not None and self._ran % every == 0

    def _begin_cycle(self) -> None:
        self._recorder.begin_cycle()
        self._first, self._skipped, self._ending = self._ran, 0, None
        self._steps, self._not_drained, self._costs = [], [], []
        self._no_steps.clear()
        self._prepared = None

    def pause(self, *, exhausted: bool) -> None:
        """The loop has ended, and may begin anew with its next step."""
        if exhausted:
            self._take_back_step()
        elif self._running is not None:
            self._running.left = True
        self._end_step()
        self._paused = "exhausted" if exhausted else "left"

    def exhausted(self) -> None:
        """The loop has no further item: what was begun as its next step is none."""
        if self._ending is None:
            self._take_back_step()
            self._end("exhausted")

    def _take_back_step(self) -> None:
        self._ran -= 1
        running, self._running = self._running, None
        self._leave_annotation()
        if running is not None:
            self._steps.remove(running)
            if running in self._not_drained:
                self._not_drained.remove(running)
            self._no_steps[running.name] += 1

    def close(self) -> None:
        """The loop was left, by `break` or by an exception, unless it has ended before."""
        if self._ending is None:
            if self._running is not None:
                self._running.left = True
            self._end_step()
            self._end(self._paused or "left")

    def give_up(self) -> None:
        self._leave_annotation()
        self._ending = "given up"

    def _prepare(self, number: int) -> None:
        """Everything that lies between two steps and belongs to neither."""
        schedule, position = self._schedule, self._schedule.position(number)
        if not self._costs:
            self._costs.append(Costs.now())
        elif position == 0:
            self._end_window()
        if len(self._steps) == 1 and schedule.unrecorded:
            self._drain()  # so that what the first step costs more stays with it
        if position == schedule.unrecorded:
            self._begin_window(self._first + len(self._steps))
        elif position == schedule.unrecorded + schedule.active:
            self._spread(self._recorder.end_trace())

    def _begin_window(self, number: int) -> None:
        self._drain()
        if len(self._costs) == 1:
            self._costs.append(Costs.now())
        self._in_window = True
        self._recorder.begin_window(number)

    def _begin_step(self, position: int) -> None:
        self._running = Step(self._first + len(self._steps), self._schedule.kind(position))
        self._steps.append(self._running)
        self._not_drained.append(self._running)
        self._began = perf_counter_ns()
        if self._running.kind == "recorded":
            enter = torch._C._autograd._record_function_with_args_enter
            self._annotation = enter(self._running.name)

    def _end_step(self) -> None:
        self._leave_annotation()
        if self._running is not None:
            self._running.dur_ns = perf_counter_ns() - self._began
            self._running = None

    def _leave_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            torch._C._autograd._record_function_with_args_exit(annotation)

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
        """Give every step since the last wait its part of this one."""
        steps, self._not_drained = self._not_drained, []
        for step in steps:
            step.dur_ns += waited_ns // len(steps)

    def left_out(self) -> Mapping[str, int]:
        return self._no_steps

    def notes(self) -> list[str]:
        """What a reader would not expect: an early end, and a longer window of cProfile's."""
        count = Counter(step.kind for step in self._steps)
        notes = self._early_end(count["recorded"])
        if count["recorded"] and count["cprofile"]:
            notes.append(
                f"cProfile counted {count['recorded'] + count['cprofile']} steps, of which the "
                f"trace has {count['recorded']}"
            )
        return notes

    def _early_end(self, recorded: int) -> list[str]:
        wanted = self._schedule.recorded
        if self._ending not in ("exhausted", "left") or recorded == wanted:
            return []
        how = "ended" if self._ending == "exhausted" else "was left"
        ran = f"the loop {how} after {_iterations(len(self._steps))}"
        if not recorded:
            before = self._schedule.unrecorded - self._skipped
            first = f"{before} iterations run" if before > 1 else "iteration runs"
            return [f"{ran}; the first {first} unrecorded, so nothing was recorded"]
        was = "was" if recorded == 1 else "were"
        return [f"{ran}: {recorded} of the {wanted} steps asked for {was} recorded"]

    def metadata(self) -> dict[str, Any]:
        """The ``steps`` of the metadata: where, what was asked for, and every iteration."""
        return {
            "place": self._place,
            "explicit": self._explicit,
            "ended": self._ending,
            "asked": vars(self._schedule),
            "iterations": [step.metadata() for step in self._steps],
            "one_off": self._one_off(),
        }

    def _one_off(self) -> dict[str, Any]:
        """What was paid once before the first window, and what still was from then on."""
        if not self._costs:
            return {}
        before, then = self._costs[0], self._costs[1] if len(self._costs) > 2 else self._costs[-1]
        return {
            **then.since(before),
            "cudnn_benchmark": searches_algorithms(),
            "after_warmup": self._costs[-1].since(then),
        }


def _iterations(count: int) -> str:
    return "1 iteration" if count == 1 else f"{count} iterations"


Kind = Literal["wait", "warmup", "recorded", "cprofile"]


@dataclass(frozen=True)
class Schedule:
    """``repeat`` times: ``wait`` and ``warmup`` iterations unrecorded, then ``active`` recorded.

    cProfile goes on until it has had ``calls`` of them: those after the recorded ones are only its.
    Then the loop ends, or goes on unrecorded (``keep_going``), and all of it again after ``every``
    iterations.
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
        """The schedule that the options ask for; they have steps."""
        active = options.steps or 1
        calls = max(active, options.cprofile_steps or 0)
        return cls(
            options.wait,
            options.warmup,
            active,
            options.repeat,
            calls,
            options.keep_going,
            options.every,
        )

    @property
    def unrecorded(self) -> int:
        """Iterations of each cycle before the recorded ones."""
        return self.wait + self.warmup

    @property
    def cycle(self) -> int:
        """Iterations until it begins anew."""
        return self.unrecorded + self.calls

    @property
    def total(self) -> int:
        """Iterations after which the loop ends, or goes on unrecorded."""
        return self.repeat * self.cycle

    @property
    def recorded(self) -> int:
        """Iterations that are recorded, all together."""
        return self.repeat * self.active

    def position(self, number: int) -> int:
        """The place of an iteration, counted from 0, in its cycle."""
        return number % self.cycle

    def kind(self, number: int) -> Kind:
        """What becomes of an iteration, counted from 0."""
        position = self.position(number)
        if position < self.wait:
            return "wait"
        if position < self.unrecorded:
            return "warmup"
        return "recorded" if position < self.unrecorded + self.active else "cprofile"

    def in_words(self, *, ends: bool = True) -> str:
        """What becomes of the loop: "3 iterations to warm up, 8 recorded, then it ends"."""
        counts = [(self.wait, "to wait"), (self.warmup, "to warm up"), (self.active, "recorded")]
        (count, what), *rest = [(count, what) for count, what in counts if count]
        word = "iteration" if count == 1 else "iterations"
        parts = [f"{count} {word} {what}", *(f"{count} {what}" for count, what in rest)]
        times = f", {self.repeat} times" if self.repeat > 1 else ""
        end = "it ends" if ends and not self.keep_going else "it goes on unrecorded"
        again = f", and again every {self.every:,}" if self.every else ""
        return f"{', '.join(parts)}{times}, then {end}{again}"

    def without_cprofile(self) -> Schedule:
        """The same where cProfile does not run: nothing goes on after the recorded ones."""
        return replace(self, calls=self.active)


_COMPILATION = ("_compile.compile_inner", "entire_frame_compile")
"""Under which of its timers torch's versions keep a whole compilation, the newest first."""


@dataclass(frozen=True)
class Costs:
    """What this process has spent so far on things that are paid once.

    ``compile_ns`` and ``graphs`` of torch.compile; ``reserved_bytes`` and ``alloc_retries`` of
    CUDA's caching allocator, all devices together.
    """

    compile_ns: int = 0
    graphs: int = 0
    reserved_bytes: int = 0
    alloc_retries: int = 0

    @classmethod
    def now(cls) -> Self:
        """As it stands. Nothing is imported or started in order to look."""
        return cls(*_compiled(), *_allocated())

    def since(self, before: Costs) -> dict[str, int]:
        """What came since then."""
        return {name: value - getattr(before, name) for name, value in vars(self).items()}


def _compiled() -> tuple[int, int]:
    counts: Any = sys.modules.get("torch._dynamo.utils")
    if counts is None:
        return 0, 0
    # torch keeps these in private names, which may go: then there is nothing to tell.
    timers = getattr(counts, "compilation_time_metrics", {})
    seconds = next((sum(timers[name]) for name in _COMPILATION if name in timers), 0.0)
    stats = getattr(counts, "counters", {}).get("stats", {})
    return round(seconds * 1e9), int(stats.get("unique_graphs", 0))


def _allocated() -> tuple[int, int]:
    if not uses_cuda():
        return 0, 0
    reserved = retries = 0
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        reserved += int(stats.get("reserved_bytes.all.current", 0))
        retries += int(stats.get("num_alloc_retries", 0))
    return reserved, retries


def uses_cuda() -> bool:
    """Whether this process has a CUDA context; asking makes none."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def searches_algorithms() -> bool:
    """Whether cuDNN tries its algorithms on the first call of every shape."""
    return uses_cuda() and bool(torch.backends.cudnn.benchmark)

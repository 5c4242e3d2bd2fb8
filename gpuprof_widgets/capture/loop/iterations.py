"""The iterations of one loop: counted and timed, with a recorder's windows opened around some.

The time of a step reaches from the fetch of its item to the end of its body. Where the device had
to be waited for (after the loop's first step, before a window and at its end), the wait is spread
over the steps since the wait before: it is their work that was not done.
"""

from __future__ import annotations

from collections import Counter
from time import perf_counter_ns
from typing import Any

import torch

from gpuprof_widgets.capture.active import Windows
from gpuprof_widgets.capture.loop.one_off import Costs, searches_algorithms, uses_cuda
from gpuprof_widgets.capture.loop.schedule import Kind, Schedule


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
    """Counts one loop: `next_step` before each iteration, `exhausted`, `close`."""

    def __init__(
        self, recorder: Windows, schedule: Schedule, *, place: str, explicit: bool
    ) -> None:
        self._recorder = recorder
        self._schedule = schedule if recorder.has_cprofile else schedule.without_cprofile()
        self._place = place
        self._explicit = explicit
        self._steps: list[Step] = []
        self._running: Step | None = None
        self._not_drained: list[Step] = []
        self._annotation: Any = None
        self._no_step: str | None = None
        self._began = 0
        self._ending: str | None = None  # how the loop ended; None while it runs
        self._in_window = False
        self._costs: list[Costs] = []

    @property
    def explicit(self) -> bool:
        return self._explicit

    def next_step(self) -> bool:
        """End the step that runs, if any, and begin the next; False when all of them ran."""
        if self._ending is not None:
            return self._ending == "given up"
        self._end_step()
        number = len(self._steps)
        if number == self._schedule.total:
            self._end("bounded")
            return False
        self._prepare(number)
        self._begin_step(number)
        return True

    def exhausted(self) -> None:
        """The loop has no further item: what was begun as its next step is none."""
        if self._ending is None:
            if self._running is not None:
                self._steps.remove(self._running)
                self._not_drained.remove(self._running)
                self._no_step, self._running = self._running.name, None
            self._leave_annotation()
            self._end("exhausted")

    def close(self) -> None:
        """The loop was left, by `break` or by an exception, unless it has ended before."""
        if self._ending is None:
            if self._running is not None:
                self._running.left = True
            self._end_step()
            self._end("left")

    def give_up(self) -> None:
        self._leave_annotation()
        self._ending = "given up"

    def _prepare(self, number: int) -> None:
        """Everything that lies between two steps and belongs to neither."""
        schedule, position = self._schedule, self._schedule.position(number)
        if number == 0:
            self._costs.append(Costs.now())
        elif position == 0:
            self._end_window()
        if number == 1 and schedule.unrecorded:
            self._drain()  # so that what the first step costs more stays with it
        if position == schedule.unrecorded:
            self._begin_window(number)
        elif position == schedule.unrecorded + schedule.active:
            self._spread(self._recorder.end_trace())

    def _begin_window(self, number: int) -> None:
        self._drain()
        if len(self._costs) == 1:
            self._costs.append(Costs.now())
        self._in_window = True
        self._recorder.begin_window(number)

    def _begin_step(self, number: int) -> None:
        self._running = Step(number, self._schedule.kind(number))
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

    def left_out(self) -> str | None:
        return self._no_step

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
        wanted = self._schedule.repeat * self._schedule.active
        if self._ending not in ("exhausted", "left") or recorded == wanted:
            return []
        how = "ended" if self._ending == "exhausted" else "was left"
        ran = f"the loop {how} after {_iterations(len(self._steps))}"
        if not recorded:
            before = self._schedule.unrecorded
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

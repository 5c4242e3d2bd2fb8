"""Which iterations of a loop are recorded, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from gpuprof_widgets.options import Options

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

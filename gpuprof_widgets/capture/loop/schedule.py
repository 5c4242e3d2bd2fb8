"""Which iterations of a loop are recorded, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from gpuprof_widgets.capture.options import Options

Kind = Literal["wait", "warmup", "recorded", "cprofile"]


@dataclass(frozen=True)
class Schedule:
    """``repeat`` times: ``wait`` and ``warmup`` iterations unrecorded, then ``active`` recorded.

    cProfile goes on until it has had ``calls`` of them: those after the recorded ones are only its.
    """

    wait: int
    warmup: int
    active: int
    repeat: int
    calls: int

    @classmethod
    def of(cls, options: Options) -> Self:
        """The schedule that the options ask for; they have steps."""
        active = options.steps or 1
        calls = max(active, options.cprofile_steps or 0)
        return cls(options.wait, options.warmup, active, options.repeat, calls)

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
        """Iterations after which the loop ends."""
        return self.repeat * self.cycle

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

    def without_cprofile(self) -> Schedule:
        """The same where cProfile does not run: nothing goes on after the recorded ones."""
        return replace(self, calls=self.active)

"""Callbacks for trainers that run the loop themselves: Lightning and Hugging Face.

`gpuprof_widgets.integrations.lightning` and `gpuprof_widgets.integrations.transformers` are
imported where they are used, because each needs the package that it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuprof_widgets.profiling import steps

if TYPE_CHECKING:
    from gpuprof_widgets.capture.loop.steps import Counting, Steps


class TrainingSteps:
    """Records some steps of each training, and says when enough are recorded.

    The keywords are those of `gpuprof_widgets.steps`; they are checked at once.
    """

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords
        self._steps: Steps[Any] = steps((), **keywords)
        self._counting: Counting | None = None

    def __reduce__(self) -> tuple[Callable[..., TrainingSteps], tuple[()]]:
        # A trainer that spawns its ranks pickles its callbacks; a running recording stays here.
        return partial(TrainingSteps, **self._keywords), ()

    def begin(self) -> None:
        """Begin a training and its first step, before the batch is fetched."""
        self.end()
        counting = self._steps.counting()
        counting.__enter__()
        self._counting = counting
        counting.next_step()

    def next_step(self) -> bool:
        """End a step and begin the next; False, once, when the training should stop."""
        if self._counting is None or self._counting.next_step():
            return True
        self.end()
        return False

    def begin_again(self) -> None:
        """Leave what ran since the last step ended, such as a validation, out of the next."""
        if self._counting is not None:
            self._counting.begin_again()

    def end(self, error: BaseException | None = None) -> None:
        """End the recording, unless it has ended: the step that was begun last did not run."""
        counting, self._counting = self._counting, None
        if counting is None:
            return
        if error is None:
            counting.exhausted()
            counting.__exit__(None, None, None)
        else:
            counting.__exit__(type(error), error, error.__traceback__)

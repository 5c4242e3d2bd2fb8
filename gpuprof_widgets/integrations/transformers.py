"""`GpuprofCallback` for Hugging Face: `Trainer(..., callbacks=[GpuprofCallback(active=8)])`."""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.integrations import TrainingSteps

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        "gpuprof_widgets.integrations.transformers needs Hugging Face's Trainer: "
        'pip install "transformers[torch]"'
    ) from error


class GpuprofCallback(TrainerCallback):
    """Records some of the steps of `Trainer.train`, then asks the trainer to stop.

    The keywords are those of `gpuprof_widgets.steps`. A step is one optimizer step. It begins at
    the end of the last step, evaluation or saving, or at the start of an epoch, so it includes
    fetching the batches. Pass the callback in ``Trainer(callbacks=[...])``; one that is added later
    raises an `OptionError` when training begins.
    """

    def __init__(self, **keywords: Any) -> None:
        self._steps = TrainingSteps(**keywords)
        self._hears_of_errors = False

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        trainer = _trainer_above(sys._getframe(1))
        trainer.__class__ = _reporting_errors(type(trainer), self._steps)
        self._hears_of_errors = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if not self._hears_of_errors:
            raise OptionError(
                "GpuprofCallback has to be among Trainer(callbacks=[...]): one that is added later "
                "does not learn of errors, and would go on recording after them"
            )
        self._steps.begin()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._steps.begin_again()

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._steps.begin_again()

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._steps.begin_again()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if not self._steps.next_step():
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._steps.end()


def _trainer_above(frame: FrameType | None) -> Trainer:
    """Return the trainer that is being made, which callbacks are not given."""
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    raise LookupError("no Trainer is being made")


def _reporting_errors(kind: type[Trainer], steps: TrainingSteps) -> type[Trainer]:
    """Return the class of one trainer, whose training ends the recording however it is left.

    The Trainer does not tell its callbacks of errors. This is a subclass, because a method in the
    trainer itself would form a cycle that keeps the model until the next garbage collection.
    """

    def train(self: Trainer, *args: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        try:
            return kind.train(self, *args, **keywords)
        except BaseException as error:
            steps.end(error)
            raise
        finally:
            steps.end()

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**names, "train": functools.wraps(kind.train)(train)})

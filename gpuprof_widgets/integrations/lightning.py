"""`GpuprofCallback` for Lightning: `Trainer(callbacks=[GpuprofCallback(warmup=3, active=8)])`."""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.integrations import TrainingSteps

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # the same package under its older name
    except ImportError as error:
        raise ImportError(
            "gpuprof_widgets.integrations.lightning needs Lightning: pip install lightning"
        ) from error


class GpuprofCallback(Callback):
    """Records some of the batches that `Trainer.fit` trains on, then asks the trainer to stop.

    The keywords are those of `gpuprof_widgets.steps`. A step is one training batch. It begins at
    the end of the last batch or validation, or at the start of an epoch, so it includes fetching
    the batch. Lightning trains on, unrecorded, if ``min_epochs`` or ``min_steps`` demand it. It
    validates once more when it stops.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        self._steps = TrainingSteps(**keywords)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps.begin()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps.begin_again()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps.begin_again()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._steps.next_step():
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._steps.end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._steps.end()  # a tuner leaves `fit` without calling any of the two above

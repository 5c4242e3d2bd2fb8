"""The callback for Hugging Face's Trainer, in real trainings: what is recorded, when they end."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.exceptions import OptionError
from tests.cells import recorded
from tests.leftovers import freeze
from tests.published_case import declare_missing_operators
from tests.test_lightning import ops_by_step
from tests.test_steps import kinds, last, notes, recorded_steps

# Tests that run side by side send their warnings to one process, which imports the packages of
# these to read them; there torchvision's operators are not declared.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

OURS = "gpuprof_widgets.integrations.transformers"


@pytest.fixture(scope="module")
def case() -> ModuleType:
    """The model and the trainer of these tests."""
    declare_missing_operators()
    module = importlib.import_module("tests.transformers_case")
    freeze()
    return module


@pytest.fixture(autouse=True)
def quiet(case: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    gpuprof_widgets.last = None


def callback(**keywords: Any) -> Any:
    from gpuprof_widgets.integrations.transformers import GpuprofCallback

    return GpuprofCallback(**{"warmup": 2, "active": 3} | keywords)


def test_a_training_is_warmed_up_recorded_and_stopped(case: ModuleType, tmp_path: Path) -> None:
    net = case.Net()
    case.trainer(net, tmp_path, callback()).train()
    assert net.profiled == [False] * 2 + [True] * 3
    assert recorded_steps() == [2, 3, 4]
    assert kinds() == ["warmup"] * 2 + ["recorded"] * 3
    assert notes() == []


def test_with_accumulation_a_step_is_one_of_the_optimizers(
    case: ModuleType, tmp_path: Path
) -> None:
    net = case.Net()
    case.trainer(net, tmp_path, callback(), gradient_accumulation_steps=2).train()
    assert net.profiled == [False] * 4 + [True] * 6
    assert recorded_steps() == [2, 3, 4]
    steps = ops_by_step()
    assert len(steps) == 3
    for ops in steps:
        assert (ops.count("aten::full"), ops.count("aten::addmm")) == (2, 2)  # its own batches
        assert sum(name.startswith("Optimizer.step") for name in ops) == 1


def test_batches_of_an_evaluation_are_no_steps(case: ModuleType, tmp_path: Path) -> None:
    net = case.Net()
    evaluation = {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}
    case.trainer(net, tmp_path, callback(), **evaluation).train()
    assert net.evaluated == 3 + 3 + 3  # at the start, and twice between
    assert len(net.profiled) == 5
    assert recorded_steps() == [2, 3, 4]
    assert last().trace.slices["name"].tolist().count("aten::zeros") == 3 + 3  # recorded, but
    assert not any("aten::zeros" in ops for ops in ops_by_step())
    assert all("aten::full" in ops for ops in ops_by_step())


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_is_the_users_and_what_ran_is_recorded(
    case: ModuleType, tmp_path: Path, error: type[BaseException]
) -> None:
    def fail(number: int) -> None:
        if number == 4:
            raise error

    with pytest.raises(error):
        case.trainer(case.Net(fail), tmp_path, callback()).train()
    assert Active.recorder is None
    assert recorded_steps() == [2, 3, 4]
    assert last().iterations()["complete"].tolist() == [True] * 4 + [False]
    assert last().metadata["interrupted"] == (error is KeyboardInterrupt)
    assert last().metadata["error"] == (None if error is KeyboardInterrupt else "ZeroDivisionError")


def test_a_callback_that_would_not_learn_of_errors_is_refused_before_anything_runs(
    case: ModuleType, tmp_path: Path
) -> None:
    net = case.Net()
    trainer = case.trainer(net, tmp_path)
    trainer.add_callback(callback())
    with pytest.raises(OptionError, match=r"callbacks=\[\.\.\.\]"):
        trainer.train()
    assert net.profiled == []
    assert Active.recorder is None


def test_the_trainer_stays_what_it_is_and_is_freed_as_ever(
    case: ModuleType, tmp_path: Path
) -> None:
    plain, watched = (
        case.trainer(case.Net(), tmp_path),
        case.trainer(case.Net(), tmp_path, callback()),
    )
    assert repr(type(watched)) == repr(type(plain))
    assert isinstance(watched, type(plain))
    watched.train()
    trainer = weakref.ref(watched)
    gc.disable()
    try:
        del watched
        assert trainer() is None
    finally:
        gc.enable()


def test_steps_of_a_cell_count_its_batches_without_a_callback(
    case: ModuleType, tmp_path: Path
) -> None:
    net = case.Net()
    names = {"__name__": "__main__", "trainer": case.trainer(net, tmp_path, num_train_epochs=1)}
    outcome, record = recorded("trainer.train()", names, steps=4, warmup=2, quiet=True)
    assert outcome.error == ""
    assert (len(net.profiled), any(net.profiled[6:])) == (100, False)
    assert (record.trace.slices["name"] == "aten::addmm").sum() == 4
    (note,) = record.metadata["notes"]
    assert "could not be ended and ran on, unrecorded" in note


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    with pytest.raises(ImportError, match=r'pip install "transformers\[torch\]"'):
        importlib.import_module(OURS)

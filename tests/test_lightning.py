"""The callback for Lightning, in real trainings: what is recorded, and when the training ends."""

from __future__ import annotations

import importlib
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.exceptions import OptionError
from tests.cells import recorded
from tests.leftovers import freeze
from tests.published_case import declare_missing_operators
from tests.test_steps import kinds, last, notes, recorded_steps

# Tests that run side by side send their warnings to one process, which imports the packages of
# these to read them; there torchvision's operators are not declared.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

OURS = "gpuprof_widgets.integrations.lightning"


@pytest.fixture(scope="module")
def case() -> ModuleType:
    """The model and the trainer of these tests."""
    declare_missing_operators()
    module = importlib.import_module("tests.lightning_case")
    freeze()
    return module


@pytest.fixture(autouse=True)
def quiet(case: ModuleType, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    gpuprof_widgets.last = None
    interrupts = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, interrupts)  # Lightning takes Ctrl-C away for good


def callback(**keywords: Any) -> Any:
    from gpuprof_widgets.integrations.lightning import GpuprofCallback

    return GpuprofCallback(**{"warmup": 2, "active": 3} | keywords)


def test_a_training_is_warmed_up_recorded_and_stopped(case: ModuleType) -> None:
    net = case.Net()
    case.trainer(callback()).fit(net, case.batches(100))
    assert net.profiled == [False] * 2 + [True] * 3
    assert recorded_steps() == [2, 3, 4]
    assert kinds() == ["warmup"] * 2 + ["recorded"] * 3
    assert notes() == []


def test_the_profile_is_shown_and_labelled_with_the_place_of_the_callback(
    case: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    line = sys._getframe().f_lineno + 3
    from gpuprof_widgets.integrations.lightning import GpuprofCallback

    made = GpuprofCallback(warmup=1, active=2)
    case.trainer(made).fit(case.Net(), case.batches(100))
    assert last().metadata["label"] == f"test_lightning.py:{line}"
    assert "aten::addmm" in capsys.readouterr().out


def test_a_step_covers_the_fetch_of_its_batch_and_what_is_done_with_it(case: ModuleType) -> None:
    case.trainer(callback()).fit(case.Net(), case.batches(100))
    steps = ops_by_step()
    assert len(steps) == 3
    for ops in steps:
        assert (ops.count("aten::full"), ops.count("aten::addmm")) == (1, 1)


def ops_by_step() -> list[list[str]]:
    """The names of what lies in each recorded step."""
    slices = last().trace.slices
    begun, ended = slices["ts"], slices["ts"] + slices["dur"]
    steps = slices.index[slices["name"].str.startswith("ProfilerStep")]
    inside = [(begun > begun[step]) & (ended <= ended[step]) for step in steps]
    return [slices.loc[one, "name"].tolist() for one in inside]


def test_several_windows_of_a_training_that_spans_epochs(case: ModuleType) -> None:
    net = case.Net()
    case.trainer(callback(repeat=2, wait=1), max_epochs=9).fit(net, case.batches(4))
    assert net.profiled == ([False] * 3 + [True] * 3) * 2
    assert recorded_steps() == [3, 4, 5, 9, 10, 11]


def test_batches_of_a_validation_are_no_steps(case: ModuleType) -> None:
    net = case.Net()
    trainer = case.trainer(callback(), val_check_interval=2)
    trainer.fit(net, case.batches(100), case.batches(3))
    assert net.validated == 2 + 3 + 3 + 3  # sanity check, twice between, once when it stops
    assert len(net.profiled) == 5
    assert recorded_steps() == [2, 3, 4]
    assert last().trace.slices["name"].tolist().count("aten::zeros") == 3 + 3  # recorded, but
    assert not any("aten::zeros" in ops for ops in ops_by_step())
    assert all("aten::full" in ops for ops in ops_by_step())


def test_a_training_that_ends_sooner_is_recorded_as_far_as_it_went(case: ModuleType) -> None:
    case.trainer(callback(), max_epochs=1).fit(case.Net(), case.batches(4))
    assert kinds() == ["warmup"] * 2 + ["recorded"] * 2
    assert recorded_steps() == [2, 3]
    assert notes() == [
        "the loop ended after 4 iterations: 2 of the 3 steps asked for were recorded"
    ]


def test_where_the_trainer_may_not_stop_it_goes_on_unrecorded(case: ModuleType) -> None:
    net = case.Net()
    case.trainer(callback(), min_epochs=2, max_epochs=9).fit(net, case.batches(8))
    assert net.profiled == [False] * 2 + [True] * 3 + [False] * 11
    assert recorded_steps() == [2, 3, 4]
    assert notes() == []


def test_a_training_that_keeps_going_runs_to_its_own_end(case: ModuleType, tmp_path: Path) -> None:
    net = case.Net()
    again = callback(keep_going=True, every=8, save=tmp_path / "run.gpuprof")
    case.trainer(again).fit(net, case.batches(7), case.batches(3))
    assert net.profiled == [False] * 2 + [True] * 3 + [False] * 5 + [True] * 3 + [False]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "run_step10.gpuprof",
        "run_step2.gpuprof",
    ]


def test_a_recording_around_it_has_the_steps(case: ModuleType) -> None:
    with gpuprof_widgets.profile(quiet=True, name="outer", stack=True) as run:
        case.trainer(callback()).fit(case.Net(), case.batches(100), case.batches(3))
    assert run is last()
    assert last().metadata["label"] == "outer"
    assert recorded_steps() == [2, 3, 4]
    slices = last().trace.slices
    frames = slices.loc[slices["category"] == "python_function", "name"].tolist()
    assert any("lightning_case.py" in name for name in frames)
    assert not any("gpuprof_widgets" in name for name in frames)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_is_the_users_and_what_ran_is_recorded(
    case: ModuleType, error: type[BaseException]
) -> None:
    def fail(number: int) -> None:
        if number == 4:
            raise error

    # Lightning turns Ctrl-C into the end of the program.
    with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
        case.trainer(callback()).fit(case.Net(fail), case.batches(100))
    assert Active.recorder is None
    assert recorded_steps() == [2, 3, 4]
    assert last().iterations()["complete"].tolist() == [True] * 4 + [False]
    assert last().metadata["interrupted"] == (error is KeyboardInterrupt)
    assert last().metadata["error"] == (None if error is KeyboardInterrupt else "ZeroDivisionError")


def test_a_training_that_is_left_without_a_word_is_recorded_too(case: ModuleType) -> None:
    from lightning.pytorch.utilities.exceptions import _TunerExitException

    def leave(number: int) -> None:
        if number == 4:
            raise _TunerExitException  # as a tuner does: neither an error nor an end

    case.trainer(callback()).fit(case.Net(leave), case.batches(100))
    assert Active.recorder is None
    assert recorded_steps() == [2, 3]


def test_every_training_is_recorded(case: ModuleType) -> None:
    used = callback()
    for _ in range(2):
        gpuprof_widgets.last = None
        net = case.Net()
        case.trainer(used).fit(net, case.batches(100))
        assert len(net.profiled) == 5
        assert recorded_steps() == [2, 3, 4]


def test_a_validation_alone_records_nothing(case: ModuleType) -> None:
    case.trainer(callback()).validate(case.Net(), case.batches(3), verbose=False)
    assert gpuprof_widgets.last is None


def test_it_can_be_sent_to_the_processes_of_other_ranks(case: ModuleType) -> None:
    sent = pickle.loads(pickle.dumps(callback(active=1)))
    net = case.Net()
    case.trainer(sent).fit(net, case.batches(100))
    assert net.profiled == [False] * 2 + [True]
    assert recorded_steps() == [2]


def test_its_keywords_are_checked_at_once() -> None:
    with pytest.raises(OptionError, match="warmup is at least 0"):
        callback(warmup=-1)
    with pytest.raises(TypeError, match="warm_up"):
        callback(warm_up=1)


def test_the_older_name_of_the_package_serves_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    import pytorch_lightning

    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    found = importlib.import_module(OURS).GpuprofCallback
    assert issubclass(found, pytorch_lightning.Callback)


def test_a_trainer_of_the_older_name_calls_it_too(case: ModuleType) -> None:
    import pytorch_lightning

    class Net(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.layer(batch).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = case.trainer(callback(), kind=pytorch_lightning.Trainer)
    trainer.fit(Net(), case.batches(100))
    assert trainer.global_step == 5
    assert recorded_steps() == [2, 3, 4]


def test_steps_of_a_cell_count_its_batches_without_a_callback(case: ModuleType) -> None:
    net, nothing = case.Net(), importlib.import_module("lightning.pytorch").Callback()
    trainer = case.trainer(nothing, max_epochs=2)
    names = {"__name__": "__main__", "trainer": trainer, "net": net}
    names |= {"loader": case.batches(30), "val_loader": case.batches(5)}
    cell = "trainer.fit(net, loader, val_loader)"
    outcome, record = recorded(cell, names, steps=4, warmup=2, quiet=True)
    assert outcome.error == ""
    assert (len(net.profiled), any(net.profiled[6:])) == (60, False)
    assert (record.trace.slices["name"] == "aten::addmm").sum() == 4
    kinds_of_steps = {row["step"]: row["kind"] for row in record.metadata["steps"]["iterations"]}
    assert [step for step, kind in kinds_of_steps.items() if kind == "recorded"] == [2, 3, 4, 5]
    (note,) = record.metadata["notes"]
    assert "could not be ended and ran on, unrecorded" in note
    assert "gpuprof_widgets.integrations" in note


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    with pytest.raises(ImportError, match="pip install lightning"):
        importlib.import_module(OURS)

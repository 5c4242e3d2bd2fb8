"""What `with profile() as run` hands out: a `Profile`, whose content comes when the block ends."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace

import pandas as pd
import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets import OptionError, Profile, RecordingError
from gpuprof_widgets.capture.torch_profiler import TorchRecording

USES: tuple[Callable[[Profile], object], ...] = (
    *(lambda run: run.trace, lambda run: run.calls, lambda run: run.metadata),
    *(lambda run: run.operators(), lambda run: run.findings(), lambda run: run.report()),
    *(lambda run: run.window(0, 5), lambda run: run.redacted(), lambda run: run.explore()),
    *(copy.copy, copy.deepcopy, pickle.dumps, replace),
)


@pytest.fixture(scope="module")
def ended() -> Profile:
    with gpuprof_widgets.profile(quiet=True, shapes=True) as run:
        torch.ones(3).sum()
    return run


def used_in_every_way(run: Profile, words: str) -> None:
    """Whatever is done with it says why nothing is there."""
    for use in USES:
        with pytest.raises(RecordingError, match=words):
            use(run)


def test_until_the_block_ends_any_use_says_so_and_the_block_goes_on() -> None:
    with gpuprof_widgets.profile(quiet=True) as run:
        torch.ones(3)
        assert isinstance(run, Profile)
        assert repr(run).startswith("<Profile: the block of this profile has not ended yet")
        used_in_every_way(run, "the block of this profile has not ended yet")
        torch.zeros(3)
    assert {"aten::ones", "aten::zeros"} <= set(run.operators()["name"])


def test_once_the_block_has_ended_it_is_a_profile_like_any_other(ended: Profile) -> None:
    assert type(ended) is Profile
    assert set(vars(ended)) == {field.name for field in fields(Profile)}
    for other in (
        copy.copy(ended),
        copy.deepcopy(ended),
        pickle.loads(pickle.dumps(ended)),
        replace(ended, metadata=ended.metadata),
    ):
        assert type(other) is Profile
        pd.testing.assert_frame_equal(other.trace.slices, ended.trace.slices)
    with pytest.raises(FrozenInstanceError):
        ended.calls = None  # type: ignore[misc]
    assert set(ended.compare(ended).ops()["change"]) == {"same"}


def test_there_is_no_attribute_of_that_name() -> None:
    with gpuprof_widgets.profile(quiet=True) as run:
        with pytest.raises(AttributeError, match="has no attribute 'profile'"):
            _ = run.profile  # type: ignore[attr-defined]
        assert not hasattr(run, "operator")
    with pytest.raises(AttributeError, match="'Profile' object has no attribute 'profile'"):
        _ = run.profile  # type: ignore[attr-defined]


def test_one_entered_twice_gives_two_profiles() -> None:
    profile = gpuprof_widgets.profile(quiet=True)
    with profile as first:
        torch.ones(3)
    with profile as second:
        torch.zeros(3)
    assert first is not second
    assert "aten::zeros" not in set(first.operators()["name"])
    assert "aten::ones" not in set(second.operators()["name"])
    assert gpuprof_widgets.last is second


def test_one_inside_another_says_that_the_outer_one_has_it() -> None:
    with gpuprof_widgets.profile(quiet=True) as outer:
        runs = []
        for _ in range(2):  # the second one says it, too: nothing else does
            with gpuprof_widgets.profile(quiet=True) as inner:
                torch.ones(3)
            runs.append(inner)
    for inner in runs:
        used_in_every_way(inner, "already being profiled by an outer gpuprof profile")
    assert "aten::ones" in set(outer.operators()["name"])
    assert gpuprof_widgets.last is outer


def test_where_recording_failed_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: TorchRecording) -> None:
        raise RuntimeError("no such driver")

    before = gpuprof_widgets.last
    monkeypatch.setattr(TorchRecording, "start", broken)
    with gpuprof_widgets.profile(quiet=True) as run:
        result = torch.ones(3).sum().item()
    assert result == 3
    used_in_every_way(run, "could not start: RuntimeError: no such driver")
    assert gpuprof_widgets.last is before


def test_where_reading_was_interrupted_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuprof_widgets.capture.recorder.Recorder.record", interrupted)
    with pytest.raises(KeyboardInterrupt), gpuprof_widgets.profile(quiet=True) as run:
        torch.ones(3)
    used_in_every_way(run, "the recording was not read to its end")


def test_the_context_manager_is_no_profile(ended: Profile) -> None:
    with pytest.raises(OptionError, match="not a ProfileRun: the profile of a block is `run`"):
        ended.compare(gpuprof_widgets.profile(quiet=True))  # type: ignore[arg-type]

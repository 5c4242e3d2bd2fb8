"""Whatever is given for an option of an analysis: a table, or an error that says what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gpuprof_widgets.analysed import Analysed
from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.added import WORDS
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.archive import save
from tests.command_lines import gpuprof
from tests.traces import annotation, kernel, op, runtime, trace_of

EXAMPLES = {"attribution": "op", "what_if": "gemm", "owners": 0, "worker_calls": 0}
"""Of what an analysis is asked of, something that it takes in the trace below."""

VALUES = (
    *(5, -1, 0, 2.5, float("nan"), float("inf"), True, None, "x", "", b"x", object(), int, {}),
    *([], ["x"], [None], (1,), (1, 2, 3), ("a", "b"), (None, 1), (5, 1), (-5, -1), (5.5, 9)),
    *(np.float32(3), np.int16(-7), np.str_("y"), np.zeros(2, np.int64), pd.Series([1]), 2**80),
)


@pytest.fixture(scope="module")
def profile() -> Profile:
    record = trace_of(
        annotation("ProfilerStep#1", ts=0, dur=60),
        op("aten::mm", ts=2, dur=20, shapes=[[4, 4], [4, 4]]),
        runtime("cudaLaunchKernel", ts=5, dur=5),
        kernel("gemm", ts=12, dur=40, launched_by=2),
    )
    return Profile(record.trace, record.calls, record.metadata)


LIMITS = ["device_idle_share", "dataloader_share"]


def options_of(name: str) -> list[str]:
    """The options of that method; of thresholds two of their names."""
    _, *parameters = inspect.signature(getattr(Analysed, name)).parameters.values()
    names = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    return names if len(names) == len(parameters) else LIMITS


METHODS = ("findings", *(one.name for one in ANALYSES.values()))
OPTIONS = [(name, option) for name in METHODS for option in options_of(name)]


def called(profile: Profile, name: str, /, **given: object) -> object:
    """The answer, with an example of what the method has to be told."""
    _, *parameters = inspect.signature(getattr(Analysed, name)).parameters.values()
    for one in parameters:
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD:
            given.setdefault(one.name, EXAMPLES[name])
    return getattr(profile, name)(**given)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_any_value_is_taken_or_refused_in_words(name: str, option: str, profile: Profile) -> None:
    refused = 0
    for value in VALUES:
        try:
            called(profile, name, **{option: value})
        except OptionError:
            refused += 1
    assert refused > len(VALUES) / 2


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("critical_path", {"region": 5}, "region takes text or a pair of whole numbers or None"),
        ("critical_path", {"region": (1, 2, 3)}, r"or None, not \(1, 2, 3\)"),
        ("critical_path", {"region": "aten::nm"}, "did you mean 'aten::mm'"),
        ("critical_path", {"region": (-9, -1)}, r"not within the trace, which is \[0, 60\) ns"),
        ("critical_path", {"region": (61, 70)}, r"\[61, 70\) ns is not within the trace"),
        ("critical_path", {"step": -1}, "there is no step -1: the trace has 1"),
        ("what_if", {"name": 5}, "name takes text, not 5"),
        ("what_if", {"name": ""}, "Python function of this trace is called ''; what_ifs"),
        ("what_if", {"scale": "half"}, "scale takes a number, not 'half'"),
        ("what_if", {"scale": -1}, r"a scale is 0 \(no time at all\) to 1,000, not -1"),
        ("operators", {"by_shape": 1}, "by_shape takes True or False, not 1"),
        ("operators", {"top": 0}, "top is at least 1, not 0"),
        ("operators", {"stack_depth": -1}, "stack_depth is at least 0, not -1"),
        ("idle", {"back_to_back_ns": -1}, "back_to_back_ns is at least 0, not -1"),
        ("idle", {"back_to_back_ns": 0.5}, "back_to_back_ns takes a whole number, not 0.5"),
        ("findings", {"dataloader_share": float("nan")}, "share takes a finite number, not nan"),
        ("analyze", {"types": "aten::mm"}, "types takes a list of texts, not 'aten::mm'"),
        ("roofline", {"peaks": 5}, "peaks takes a Peaks or None, not 5"),
        ("findings", {"critical_path_share": "x"}, "critical_path_share takes a number, not 'x'"),
    ],
)
def test_a_wrong_value_is_told_with_what_would_be_right(
    name: str, given: dict[str, Any], words: str, profile: Profile
) -> None:
    with pytest.raises(OptionError, match=words):
        called(profile, name, **given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("critical_path", {"region": [10, np.int64(20)]}),
        ("critical_path", {"region": (-5, 20)}),
        ("critical_path", {"region": np.str_("aten::mm")}),
        ("critical_path", {"step": np.int32(1)}),
        ("what_if", {"scale": 1}),
        ("what_if", {"scale": np.float32(0.5)}),
        ("operators", {"by_shape": np.bool_(True), "top": np.int64(1)}),
        ("analyze", {"types": ("aten::mm",)}),
    ],
)
def test_numbers_of_numpy_and_lists_for_pairs_are_taken(
    name: str, given: dict[str, Any], profile: Profile
) -> None:
    assert len(called(profile, name, **given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("operators", "top", 1e0),
        ("operators", "stack_depth", np.float32(2)),
        ("critical_path", "step", 1.0),
        ("idle", "back_to_back_ns", 1e3),
    ],
)
def test_a_whole_float_is_a_whole_number(
    name: str, option: str, value: float, profile: Profile
) -> None:
    given, meant = (called(profile, name, **{option: one}) for one in (value, int(value)))
    assert isinstance(given, pd.DataFrame)
    assert isinstance(meant, pd.DataFrame)
    pd.testing.assert_frame_equal(given, meant)


def test_every_type_of_an_option_has_a_name(profile: Profile) -> None:
    """But for the class of peaks, which is called by its own."""
    for name, option in OPTIONS:
        with pytest.raises(OptionError) as raised:
            called(profile, name, **{option: object()})
        kinds, _, _ = str(raised.value).partition(", not ")
        said = kinds.removeprefix(f"{option} takes ").split(" or ")
        known = {part for words in WORDS.values() for part in words.split(" or ")}
        assert set(said) <= {*known, "a Peaks"}


def test_an_option_that_is_not_there_is_an_error_as_of_any_function(profile: Profile) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'regoin'"):
        called(profile, "critical_path", regoin="x")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        profile.what_if()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (["critical_path", "--region", "5"], 1, "no region or op of the CPU is called '5'"),
        (["critical_path", "--region", "aten::nm"], 1, "did you mean 'aten::mm'"),
        (["critical_path", "--step", "x"], 2, "'x' is not a valid integer"),
        (["critical_path", "--by", "5"], 1, "not by '5'"),
        (["what_if", "aten::mm", "--scale", "x"], 2, "'x' is not a valid float"),
        (["what_if", "aten::mm", "--scale", "nan"], 1, "not nan"),
        (["what_if", "5"], 1, "is called '5'"),
    ],
)
def test_the_command_line_says_the_same(
    line: Sequence[str],
    code: int,
    words: str,
    profile: Profile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(profile, tmp_path / "run.zip")
    name, *rest = line
    said = gpuprof(capsys, name, tmp_path / "run.zip", *rest)
    assert (said.code, said.out) == (code, "")
    assert words in said.err
    assert "Traceback" not in said.err

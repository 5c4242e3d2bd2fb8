"""The code around calls of modules: torch's own, for a while, and nothing else that anyone sees."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gpuprof_widgets.capture import module_calls, overhead
from gpuprof_widgets.capture.modules import ModuleMarks
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from tests.cells import recorded
from tests.leftovers import PACKAGE_FOLDER

CALL: Any = nn.Module._call_impl
PLAIN = CALL.__code__


class Failing(nn.Module):
    def forward(self, x: Any) -> Any:
        warnings.warn("odd", stacklevel=3)
        raise ValueError(x)


@pytest.fixture
def marks() -> Iterator[ModuleMarks]:
    made = ModuleMarks()
    made.start()
    yield made
    made.stop()


def raised_by(model: nn.Module) -> tuple[list[str], list[tuple[str, int]]]:
    """The lines of the traceback, and where the warning is said to come from."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model(1)
        except ValueError as error:
            lines = traceback.format_exception(error)
    return lines[2:], [(one.filename, one.lineno) for one in caught]


def test_tracebacks_and_warnings_are_torchs_own_to_the_column(marks: ModuleMarks) -> None:
    seen = raised_by(Failing())
    marks.stop()
    assert raised_by(Failing()) == seen
    assert not any(PACKAGE_FOLDER in line for line in seen[0])


def test_the_marked_code_differs_from_torchs_by_what_we_add() -> None:
    marked, plain = module_calls._marked_by_placeholders(), module_calls._PLAIN
    assert set(plain.co_names) == set(marked.co_names)
    assert set(marked.co_varnames) - set(plain.co_varnames) == {module_calls.REGION}
    assert (marked.co_firstlineno, marked.co_qualname) == (plain.co_firstlineno, plain.co_qualname)


@pytest.mark.parametrize("lacks", [OSError("no source"), None])
def test_without_the_source_of_torch_a_note_says_that_modules_are_missing(
    lacks: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = inspect.getsource

    def source(function: Any) -> str:
        if function is not nn.Module._call_impl:
            return original(function)
        if lacks is not None:
            raise lacks
        return "    def _call_impl(self, *args, **kwargs):\n        return None\n"

    overhead.trace_costs.cache_clear()
    module_calls._marked_by_placeholders.cache_clear()
    monkeypatch.setattr(inspect, "getsource", source)
    model = nn.Linear(3, 3)
    recorder = Recorder(Options(python="off"), label="run", namespace={"model": model})
    with recorder:
        model(torch.ones(1, 3))
    record = recorder.record()
    (note,) = record.metadata["notes"]
    assert note.startswith("no modules: its recording could not start: torch's source ")
    assert "aten::linear" in set(record.trace.slices["name"])
    module_calls._marked_by_placeholders.cache_clear()
    overhead.trace_costs.cache_clear()


class Recursive(nn.Module):
    def forward(self, x: int) -> int:
        return x if x == 0 else self(x - 1)


def test_a_module_may_call_itself_as_deep_as_without_us(marks: ModuleMarks) -> None:
    assert Recursive()(200) == 0
    with pytest.raises(RecursionError):
        Recursive()(100_000)


def test_modules_that_die_leave_no_entrance_for_the_next_of_their_id(marks: ModuleMarks) -> None:
    for _ in range(50):
        nn.Identity()(1)
    assert len(marks._known) <= 1
    assert len(marks.instances) == 50


def test_the_code_can_be_hashed_as_tools_for_tracebacks_do() -> None:
    marks = ModuleMarks()
    marks.start()
    try:
        assert CALL.__code__ is not PLAIN
        assert isinstance(hash(CALL.__code__), int)
    finally:
        marks.stop()
    assert CALL.__code__ is PLAIN


def test_of_two_at_once_neither_leaves_its_code_behind() -> None:
    first, second = ModuleMarks(), ModuleMarks()
    first.start()
    second.start()
    first.stop()
    second.stop()
    assert CALL.__code__ is PLAIN
    handler = torch._dynamo.callback_handler  # type: ignore[attr-defined]
    assert "clear" not in vars(handler)
    assert not handler.start_callbacks


@pytest.mark.parametrize("reset", ["torch._dynamo.reset()", "torch.compiler.reset()"])
def test_what_is_compiled_after_a_reset_is_compiled_as_without_us(reset: str) -> None:
    body = f"""
import torch, torch._dynamo
{reset}
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
model[0].register_forward_hook(lambda *_: None)
fast = torch.compile(model, backend="eager", fullgraph=True)
y = fast(torch.ones(1, 2))
"""
    outcome, _ = recorded(body)
    assert not outcome.error
    handler = torch._dynamo.callback_handler  # type: ignore[attr-defined]
    assert "clear" not in vars(handler)
    assert not handler.start_callbacks
    torch._dynamo.reset()

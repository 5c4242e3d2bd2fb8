"""Lines of functions defined before: marked by hand, with --stack, and left to compilers."""

from __future__ import annotations

import gc
import importlib
import pickle
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.capture.lines.regions import LineMarks
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from tests.cells import line_calls, line_rows, recorded, value

MODULE = '''"""A module."""
import functools
import gpuprof_widgets
import torch

@gpuprof_widgets.lines
def step(x):
    """Add one."""
    def inner(y):
        return y + 1
    return inner(x)

class Net(torch.nn.Module):
    @gpuprof_widgets.lines
    def forward(self, x):
        return super().__class__.__name__, step(x)

    @gpuprof_widgets.lines
    @staticmethod
    def static(x):
        return step(x)

@functools.lru_cache
@gpuprof_widgets.lines
def cached(n):
    total = 0
    for i in range(n):
        total += i
    return total

def unmarked(x):
    return x
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with marked functions, imported from a file."""
    (tmp_path / "marked_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("marked_module")
    del sys.modules["marked_module"]


def record_of(function: Any, *arguments: Any, **options: Any) -> Record:
    with gpuprof_widgets.profile(quiet=True, **options) as run:
        function(*arguments)
    return Record(run.trace, run.calls, run.metadata)


def test_a_marked_function_shows_its_lines_in_a_script(module: ModuleType) -> None:
    record = record_of(lambda: (module.Net()(torch.ones(2)), module.unmarked(1)))
    assert line_calls(record, "marked_module.py") == {9: 1, 10: 1, 11: 1, 16: 1}
    (cell,) = record.metadata["lines"]["cells"]
    text = MODULE.splitlines()
    assert cell["source"].splitlines() == text[cell["first_line"] - 1 : 29]
    assert text[cell["first_line"] - 1] == "@gpuprof_widgets.lines"
    names = {str(record.trace.slices["name"][row]) for row in line_rows(record)}
    assert "10: return y + 1" in names


def test_it_is_the_same_function_before_while_and_after(module: ModuleType) -> None:
    functions = [module.step, module.Net.forward, module.Net.static, module.cached.__wrapped__]
    codes = [one.__code__ for one in functions]
    seen = []
    record_of(lambda: seen.extend(one.__code__ for one in functions))
    assert all(mine is not theirs for mine, theirs in zip(seen, codes, strict=True))
    assert [one.__code__ for one in functions] == codes
    assert all(mine.__code__ is theirs for mine, theirs in zip(functions, codes, strict=True))
    assert pickle.loads(pickle.dumps(module.step)) is module.step


def test_a_function_that_the_collector_no_longer_lists_is_as_before(module: ModuleType) -> None:
    code = module.step.__code__
    record_of(lambda: (module.step(1), gc.freeze()))
    assert module.step.__code__ is code


def test_a_function_that_the_code_deletes_is_gone(module: ModuleType) -> None:
    known = weakref.ref(module.step)
    kept = []

    def delete() -> None:
        del module.step
        gc.collect()
        kept.append(known())

    record_of(delete)
    assert kept == [None]


def test_static_and_wrapped_functions_can_be_marked(module: ModuleType) -> None:
    record = record_of(lambda: (module.Net.static(1), module.cached(3)))
    assert line_calls(record, "marked_module.py") == {9: 1, 10: 1, 11: 1, 21: 1, 26: 1, 27: 1} | {
        28: 3,
        29: 1,
    }


def test_an_error_leaves_the_functions_as_they_were(module: ModuleType) -> None:
    code = module.step.__code__
    with pytest.raises(TypeError) as raised:
        record_of(module.step, "text")
    last = raised.traceback[-1]
    assert (last.name, last.lineno + 1) == ("inner", 10)
    assert module.step.__code__ is code


def test_the_text_of_functions_that_did_not_run_is_not_kept(module: ModuleType) -> None:
    record = record_of(module.unmarked, 1)
    assert "lines" not in record.metadata
    names: dict[str, Any] = {"__name__": "__main__"}
    _, cell = recorded("x = 1", names)
    assert [kept["label"] for kept in cell.metadata["lines"]["cells"]] == ["Cell [7]"]
    names["step"] = module.step
    _, cell = recorded("step(1)", names)
    kept = [one["label"] for one in cell.metadata["lines"]["cells"]]
    assert kept == ["Cell [7]", "marked_module.py"]


def test_a_function_whose_source_has_changed_is_told_and_left_alone(
    module: ModuleType,
) -> None:
    path = Path(str(module.__file__))
    path.write_text(MODULE.replace("y + 1", "y + 2"))
    record = record_of(module.step, 1)
    assert 10 not in line_calls(record, "marked_module.py")
    (note,) = [note for note in record.metadata["notes"] if "step" in note]
    assert "marked_module.py" in note


def test_a_function_without_source_is_told() -> None:
    names: dict[str, Any] = {}
    exec("def f(): return 1", names)
    gpuprof_widgets.lines(names["f"])
    record = record_of(names["f"])
    assert any(note.startswith("no lines inside of f") for note in record.metadata["notes"])


@pytest.mark.parametrize("thing", [int, 3, print, lambda x: x + 1])
def test_only_functions_written_in_python_can_be_marked(thing: Any) -> None:
    with pytest.raises(OptionError, match="lines marks a function written in Python"):
        gpuprof_widgets.lines(thing)


EARLIER = """import torch
def helper(x):
    return x * 2
class Model:
    def run(self):
        return helper(torch.ones(2))
    @property
    def size(self):
        return 2
    @classmethod
    def made(cls):
        return cls()
    decorated = staticmethod(helper)
@torch.no_grad()
def without_gradients(x):
    return x"""


def test_functions_of_earlier_cells_show_their_lines_with_stacks_only() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    recorded(EARLIER, names)
    body = "model = Model.made()\nmodel.run(), model.size, without_gradients(1)"
    _, without = recorded(body, names)
    assert line_calls(without) == {2: 1, 3: 1}
    _, record = recorded(body, names, stack=True)
    # Both cells have the same number here; the later one has two lines.
    lines = [int(value(record, "line", row)) for row in line_rows(record)]
    assert lines == [2, 13, 3, 7, 4, 10, 17]


def test_a_pickled_region_does_nothing() -> None:
    entrance = LineMarks("Cell [1]", "x").mark(1).next
    with pickle.loads(pickle.dumps(entrance))() as nothing:
        assert nothing is None


def test_steps_leave_every_line_its_limit_and_show_the_loop_around() -> None:
    body = "n = 0\nfor i in range(9):\n    [torch.ones(1)]\n    n += 1\ndef after(): return n"
    outcome, record = recorded(body, {"torch": torch}, steps=2, warmup=1, quiet=True)
    assert outcome.names["n"] == "3"
    assert line_calls(record) == {4: 2, 5: 2}
    slices = record.trace.slices
    (loop,) = [row for row in line_rows(record) if value(record, "line", row) == 3]
    steps = slices.index[slices["name"].astype(str).str.startswith("ProfilerStep#")]
    assert [slices["parent"][row] for row in steps] == [loop, loop]

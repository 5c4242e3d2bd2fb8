"""A cell whose functions torch.compile reaches unseen runs, is compiled and ends as without us."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.cells import FIRST_LINE, line_calls, line_rows, plain, recorded

pytestmark = pytest.mark.slow

BEFORE = """
import torch
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
def make_fast(function): return torch.compile(function, backend=counter)
"""
CELLS = {
    "a helper compiles its argument": """
def double(x):
    y = x * 2
    return y + 1
fast = make_fast(double)
shown = [fast(torch.ones(3)).tolist() for _ in range(3)]
""",
    "a decorated function": """
@torch.compile(fullgraph=True, backend=counter)
def double(x):
    y = x * 2
    return y + 1
shown = double(torch.ones(3)).tolist()
""",
    "functions that it calls": """
def inner(x):
    y = x.sin()
    return y + 1
def outer(x):
    for _ in range(2):
        x = inner(x)
    return x
shown = make_fast(outer)(torch.ones(3)).tolist()
""",
    "a method": """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
    def forward(self, x):
        y = self.linear(x)
        return y.relu()
torch.manual_seed(0)
shown = make_fast(Model())(torch.ones(3)).tolist()
""",
    "a method of an object without attributes": """
class Settings(dict):
    def __getattr__(self, name):
        return self[name]
    def scaled(self, x):
        return x * self["scale"]
shown = make_fast(Settings(scale=3).scaled)(torch.ones(3)).tolist()
""",
    "a closure, and a function in it": """
def outer(x, scale=3):
    def inner(y):
        z = y * scale
        return z + x
    return inner(x) + inner(x + 1)
shown = make_fast(outer)(torch.ones(3)).tolist()
def made(scale):
    def of_it(x):
        y = x * scale
        return y
    return of_it
shown += make_fast(made(5))(torch.ones(3)).tolist()
""",
    "graph breaks": """
def breaking(x):
    y = x * 2
    print("broken")
    z = y.sum().item()
    return y + z
shown = make_fast(breaking)(torch.ones(3)).tolist()
""",
    "generators and comprehensions": """
def pieces(x):
    for number in range(3):
        y = x * number
        yield y
def joined(x):
    with torch.no_grad():
        total = sum(pieces(x))
    return total + [one * 2 for one in pieces(x)][-1]
shown = make_fast(joined)(torch.ones(3)).tolist()
""",
    "torch.cond": """
def many(x):
    y = x.sin()
    return y
def few(x):
    y = x.cos()
    return y
shown = torch.cond(torch.tensor(True), many, few, (torch.ones(3),)).tolist()
""",
}
GRAPHS = "\nshown, counter.frame_count, counter.op_count"


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CELLS)
def test_a_function_that_is_compiled_unseen_makes_the_same_graphs(name: str) -> None:
    cell = BEFORE + CELLS[name] + GRAPHS
    expected = plain(cell)
    assert not expected.error
    torch._dynamo.reset()
    outcome, record = recorded(cell, python="off")
    assert (outcome.error, outcome.result) == ("", expected.result)
    assert outcome.stdout == expected.stdout
    assert any("compiled code has none" in note for note in record.metadata["notes"])


def test_what_is_compiled_has_no_lines_and_all_else_has() -> None:
    cell = BEFORE + CELLS["a helper compiles its argument"]
    _, record = recorded(cell, python="off")
    calls = line_calls(record)
    text = [FIRST_LINE, *cell.splitlines()]
    double, loop = text.index("    y = x * 2") + 1, len(text)
    assert double not in calls
    assert calls[loop] == 1
    (note,) = [note for note in record.metadata["notes"] if "no lines" in note]
    assert note == "no lines inside of double: compiled code has none"


def test_what_an_earlier_cell_compiled_has_no_lines_with_stacks_either() -> None:
    names = {"__name__": "__main__"}
    recorded(BEFORE + CELLS["a helper compiles its argument"], names, python="off")
    _, later = recorded("fast(torch.ones(2))", names, stack=True, python="off")
    assert len(line_rows(later)) == 1


NET = """
import torch
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
def helper(x):
    y = x.sin()
    return y + 1
class Part(torch.nn.Module):
    def forward(self, x):
        y = helper(x)
        return y
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
    def forward(self, x):
        y = self.part(x)
        return y * 2
def called(x):
    y = helper(x)
    print("a graph break")
    return helper(y)
net = Net()
{fast}
fast(torch.ones(3))
"""
COMPILED = {
    "a function": "fast = torch.compile(called, backend=counter)",
    "a module": "fast = torch.compile(net, backend=counter)",
    "a module in its place": "fast = net\nnet.compile(backend=counter)",
}


@pytest.mark.parametrize("what", COMPILED)
def test_what_a_profiled_cell_compiled_is_not_compiled_again_in_the_next(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("users_notebook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    outcome, _ = recorded(NET.format(fast=COMPILED[what]), vars(module), python="off")
    assert outcome.error == ""
    compiled = module.counter.frame_count
    module.fast(torch.ones(3))
    assert module.counter.frame_count == compiled > 0


OTHER_COMPILERS = {
    "scripted": """
@torch.jit.script
def double(x):
    y = x * 2
    return y
class Net(torch.nn.Module):
    def forward(self, x):
        for i in range(2):
            x = x + i
        return x
double.code, torch.jit.script(Net()).code
""",
    "traced": """
def double(x):
    for i in range(2):
        x = x * i
    return x
str(torch.jit.trace(double, torch.ones(2)).graph), torch.fx.symbolic_trace(double).code
""",
    "exported": """
class Net(torch.nn.Module):
    def forward(self, x):
        for i in range(2):
            x = x + i
        return x
[torch.export.export(Net(), (torch.ones(2),), strict=s).graph_module.code for s in (False, True)]
""",
}


@pytest.mark.parametrize("how", OTHER_COMPILERS)
def test_what_is_made_of_a_function_is_the_same(how: str) -> None:
    cell = f"import torch{OTHER_COMPILERS[how]}"
    expected = plain(cell)
    assert not expected.error
    outcome, _ = recorded(cell, python="off")
    assert (outcome.error, outcome.result) == ("", expected.result)


NUMBA = {
    "__init__": "from numba.core.dispatcher import njit",
    "core/__init__": "",
    "core/dispatcher": (
        "from numba.core import bytecode\ndef get_code_object(function): return None\n"
        "def njit(function):\n    return lambda: bytecode.get_code_object(function).co_consts"
    ),
    "core/bytecode": "def get_code_object(function): return function.__code__",
}
"""What reads functions where numba does."""


def test_numba_reads_functions_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in NUMBA.items():
        file = tmp_path / "numba" / f"{name}.py"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    for name in [name for name in sys.modules if name.split(".")[0] == "numba"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    cell = "import numba\ndef double(x):\n    y = x * 2\n    return y\nnumba.njit(double)()"
    outcome, record = recorded(cell, python="off")
    assert outcome.result == "(None, 2)"
    assert "no lines inside of double: compiled code has none" in record.metadata["notes"]
    for name in [name for name in sys.modules if name.split(".")[0] == "numba"]:
        monkeypatch.delitem(sys.modules, name)


def test_nothing_of_dynamo_stays_replaced() -> None:
    from torch._dynamo import convert_frame
    from torch._dynamo.variables.functions import UserFunctionVariable

    before = convert_frame._compile, UserFunctionVariable.get_code, list(sys.meta_path)
    recorded(BEFORE + CELLS["a method"], python="off")
    assert (convert_frame._compile, UserFunctionVariable.get_code, list(sys.meta_path)) == before


FRESH = """
import sys, types, torch
from gpuprof_widgets.capture.lines.sources import CodeSwap

def plain(x):
    return x + 1

finders = list(sys.meta_path)
assert "torch._dynamo" not in sys.modules
swap = CodeSwap()
changed = plain.__code__.replace(co_consts=(None, object()))  # which nobody can trace
swap.add(changed, plain.__code__)
function = types.FunctionType(changed, globals())
print(torch.compile(function, backend="eager")(torch.ones(2)).tolist(), list(swap.compiled))
swap.take()
assert sys.meta_path == finders
from torch._dynamo import convert_frame
assert convert_frame._compile.__module__ == convert_frame.__name__
"""


def test_torch_dynamo_may_be_imported_while_code_is_changed() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True)
    assert done.stdout == "[2.0, 2.0] ['plain']\n", done.stderr
    assert done.returncode == 0, done.stderr

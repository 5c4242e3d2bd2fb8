"""The Python calls of a recorded cell are those that torch's and Python's profilers see alone."""

from __future__ import annotations

import cProfile
import gc
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpuprof_widgets.capture.cell import CellCode
from gpuprof_widgets.capture.torch_profiler import _read
from gpuprof_widgets.trace.pstats import calls_of_stats
from tests.cells import compiled, recorded

pytestmark = pytest.mark.slow

MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.act = nn.ReLU()
    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x))
        return x

model = Net()
x = torch.ones(2, 4)
"""
CELLS = {
    "modules": "for _ in range(5):\n    y = model(x)\n",
    "modules of one line": "for _ in range(5): y = model(x); z = model(y)\n",
    "hooks of the user's": """\
model.act.register_forward_hook(lambda module, args, result: result + 1)
model.layers[0].register_forward_pre_hook(lambda module, args: None)
for _ in range(5):
    y = model(x)
""",
    "an error": """\
for wrong in (x, None, x):
    try:
        model(wrong)
    except TypeError as error:
        text = str(error)
""",
    "training": """\
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
""",
    "calls": """\
def inner(n):
    return n and inner(n - 1)
found = sum(inner(n) for n in range(9)), sorted({3: "a", 1: "b"}, key=lambda n: -n)
""",
    "compiled": """\
for _ in range(4):
    y = model.act(fast(x)) * len([y])
""",
    "compiled in place": "for _ in range(4):\n    y = in_place(x)\n",
    "compiled with hooks": "for _ in range(4):\n    y = hooked(x)\n",
}
COMPILED = """
fast = torch.compile(Net(), backend="eager")
in_place = Net()
in_place.compile(backend="eager")
hooked = torch.compile(Net(), backend="eager")
hooked.act.register_forward_hook(lambda module, args, result: result + 1)
y = fast(x), in_place(x), hooked(x)
"""
COMPILED_NAMES = ("fast", "in_place", "hooked")
RUNNERS = re.compile(
    r"cells\.py|capture/cell\.py|asyncio|<frozen|\.profiler|_lsprof|_record_function_with_args"
    r"|(builtins\.|function )(eval|any)\b"
)
"""What runs the cell; and `<frozen ...>`, which caches what was imported and asked before."""


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Whoever listens to Python's garbage collector, as hypothesis does, is called at any time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def with_dynamo() -> Any:
    """Loaded, as in the kernel of anyone who has taken a step of an optimizer."""
    import torch._dynamo

    yield
    torch._dynamo.reset()


def names_for(cell: str) -> dict[str, Any]:
    """What the cell finds: models, compiled by then where it needs such."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(MODEL + (COMPILED if any(word in cell for word in COMPILED_NAMES) else ""), names)
    return names


def prepared(cell: str) -> CellCode:
    return compiled(cell, names_for(cell))


def plain_counts(cell: str) -> Counter[tuple[str, str]]:
    code = prepared(cell)
    profiler = cProfile.Profile()
    with profile(activities=[ProfilerActivity.CPU]):  # under it compiled code calls other functions
        profiler.enable()
        eval(code.statements, code.names)
        profiler.disable()
    profiler.create_stats()
    stats: Any = profiler.stats
    return counted(calls_of_stats(stats).functions)


def counted(functions: Any) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for file, name, calls in zip(
        functions["file"], functions["name"], functions["calls"], strict=True
    ):
        if not RUNNERS.search(f"{file} {name}"):
            found["Cell [7]" if "ipykernel" in file or "ipython" in file else _same(file),
                  _same(name)] += calls  # fmt: skip
    return found


@pytest.mark.parametrize("lines", [True, False], ids=["lines", "no lines"])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_calls_are_those_that_cprofile_counts_alone(cell: str, lines: bool) -> None:
    plain_counts(cell)  # what is done once has been done
    _, made = recorded(cell, names_for(cell), lines=lines)
    assert made.calls is not None
    found, expected = counted(made.calls.functions), plain_counts(cell)
    assert found - expected == Counter()
    assert expected - found == Counter()


def frame_counts(slices: pd.DataFrame) -> Counter[str]:
    frames = slices.loc[slices["category"] == "python_function", "name"].astype(str)
    frames = frames.str.replace(r"^\S*(ipython|ipykernel)\S*\(", "Cell [7](", regex=True)
    return Counter(_same(name) for name in frames if not RUNNERS.search(name))


def _same(name: str) -> str:
    """Without the address of an object and the number of a generated text."""
    return re.sub(r" at 0x[0-9a-f]+|(?<=eval_with_key>)\.\d+", "", name)


def plain_frames(cell: str) -> Counter[str]:
    code = prepared(cell)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as recording:
        region = torch._C._autograd._record_function_with_args_enter("the run")
        eval(code.statements, code.names)
        torch._C._autograd._record_function_with_args_exit(region)
    trace = _read(recording)
    slices = trace.slices
    (row,) = slices.index[slices["name"] == "the run"]
    begin = int(slices["ts"].loc[row])
    inside = (slices["ts"] > begin) & (slices["ts"] < begin + int(slices["dur"].loc[row]))
    return frame_counts(slices[inside])


@pytest.mark.parametrize("lines", [True, False], ids=["lines", "no lines"])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_frames_are_those_that_torch_records_alone(cell: str, lines: bool) -> None:
    plain_frames(cell)
    _, made = recorded(cell, names_for(cell), stack=True, lines=lines)
    found, expected = frame_counts(made.trace.slices), plain_frames(cell)
    assert found - expected == Counter()
    assert expected - found == Counter()

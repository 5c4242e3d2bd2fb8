"""Regions on the lines of a cell: the cell behaves as without them, and each is where it ran."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.analyses.modules import modules
from gpuprof_widgets.capture.lines import regions as lines_regions
from gpuprof_widgets.capture.lines import repeated
from gpuprof_widgets.capture.lines import rewrite as lines_rewrite
from gpuprof_widgets.capture.lines.recording import LinesRewrite
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.links import nearest_ancestor
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.owners import is_engine
from tests.cells import (
    cells_in,
    compiled,
    line_calls,
    line_rows,
    marked,
    plain,
    recorded,
    run,
    value,
)

pytestmark = pytest.mark.slow

CELLS = cells_in("tricky_cells.txt")
AWAITING = cells_in("awaiting_cells.txt")
PRELUDE = AWAITING.pop("prelude")


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_behaves_as_without_regions(cell: str) -> None:
    expected = plain(CELLS[cell])
    assert marked(CELLS[cell]) == expected
    outcome, record = recorded(CELLS[cell], python="off")
    assert outcome == expected
    assert record.metadata["notes"] == []


@pytest.mark.parametrize("cell", AWAITING)
def test_what_awaits_behaves_as_without_regions(cell: str) -> None:
    body = PRELUDE + AWAITING[cell]
    assert replace(marked(body), names={}) == replace(plain(body), names={})


@pytest.mark.parametrize("interactivity", ["all", "last_expr_or_assign", "last", "none"])
@pytest.mark.parametrize(
    "body", ["1\nx = 2\n'a'", "x = 3", "for i in range(2):\n    i\n", "print(1)"]
)
def test_what_a_cell_shows_of_its_expressions_is_the_same(body: str, interactivity: str) -> None:
    expected = plain(body, interactivity)
    assert marked(body, interactivity) == expected
    assert recorded(body, interactivity=interactivity, python="off")[0] == expected


def test_a_cell_that_compiles_only_without_regions_runs_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines_rewrite, "MOST_NESTED", 99)
    names: dict[str, Any] = {}
    code = compiled(CELLS["twenty blocks"], names, [LinesRewrite()])
    assert code.gave_up
    recorder = Recorder(Options(), label="the run", code=code)
    with recorder:
        run(code)
    assert names["x"] == "deep"
    (note,) = recorder.record().metadata["notes"]
    assert note.startswith("no cell lines")


COUNTED = """import torch
def f(n):
    for i in range(n):
        if i % 2:
            continue
        x = torch.ones(2)
    return x
for n in (1, 4):
    y = f(n) + 1
lambda: 0
y.sum()"""


def test_each_execution_of_a_line_is_one_region() -> None:
    _, record = recorded(COUNTED)
    # f runs twice, its loop 1 + 4 times; the body of the condition has no time of its own.
    expected = {2: 1, 3: 1, 4: 2, 5: 5, 7: 3, 8: 2, 9: 1, 10: 2, 11: 1, 12: 1}
    assert line_calls(record) == expected


SHARED = """import asyncio, torch
async def nap():
    torch.sin(x); await asyncio.sleep(0); torch.cos(x)
def one(): torch.exp(x); return 1
x = torch.ones(2); y = 1
for i in range(6):
    torch.sin(x); torch.cos(x); one()
for i in range(3): torch.tan(x); torch.tan(x)
pass; await nap(); await nap()
torch.abs(x); y; torch.neg(x)"""


def test_a_line_of_several_statements_is_begun_once() -> None:
    _, record = recorded(SHARED)
    begun = dict(zip(lines(record)["line"], lines(record)["calls"], strict=True))
    # Line 5: defined once, and its body once for each call.
    assert begun == {2: 1, 3: 1, 4: 2, 5: 1 + 6, 6: 1, 7: 1, 8: 6, 9: 1, 10: 1, 11: 1}
    assert ops_by_line(record) == {
        "aten::ones": {6: 1}, "aten::sin": {4: 2, 8: 6}, "aten::cos": {4: 2, 8: 6},
        "aten::exp": {5: 6}, "aten::tan": {9: 6}, "aten::abs": {11: 1}, "aten::neg": {11: 1},
    }  # fmt: skip


def ops_by_line(record: Record) -> dict[str, dict[int, int]]:
    """For each op that no other op calls: how often on which innermost line."""
    slices = record.trace.slices
    lines: dict[str, dict[int, int]] = {}
    for row in slices.index[slices["category"] == "cpu_op"]:
        above = int(slices["parent"][row])
        if above >= 0 and slices["category"][above] == "cell_line":
            line = int(value(record, "line", above))
            counted = lines.setdefault(str(slices["name"][row]), {})
            counted[line] = counted.get(line, 0) + 1
    return lines


def test_regions_are_named_after_the_lines_of_the_editor() -> None:
    body = "x = [\n    1,\n]\nif x:\n    y = 'long " + "g" * 100 + "'\n%env HOME"
    _, record = recorded(body)
    names = [str(record.trace.slices["name"][row]) for row in line_rows(record)]
    assert names[:2] == ["2: x = [", "5: if x:"]
    assert names[2].startswith("6: y = 'long ggg")
    assert len(names[2]) == 80
    assert names[3] == "7: %env HOME"
    lines = record.metadata["lines"]["cells"]
    assert [(cell["label"], cell["statements"]) for cell in lines] == [("Cell [7]", [2, 5, 6, 7])]
    assert lines[0]["source"] == f"%%gpuprofile\n{body}"


TASKS = """import asyncio, torch
async def sines(n):
    for i in range(n):
        torch.sin(x)
        await asyncio.sleep(0)
async def cosines(n):
    for i in range(n):
        torch.cos(x)
        await asyncio.sleep(0)
x = torch.ones(2)
await asyncio.gather(sines(3), cosines(3))"""


def test_tasks_that_take_turns_keep_their_own_ops() -> None:
    _, record = recorded(TASKS)
    ops = ops_by_line(record)
    assert ops["aten::sin"] == {5: 3}
    assert ops["aten::cos"] == {9: 3}
    assert lines_around(record, "aten::sin") == {(4, 5)}
    assert lines_around(record, "aten::cos") == {(8, 9)}


COMPREHENSIONS = """import asyncio, torch
async def nap(i=0):
    await asyncio.sleep(0)
    return i
async def naps(n):
    for i in range(n):
        yield await nap(i)
class Napping:
    async def __aenter__(self): await nap(); torch.exp(x)
    async def __aexit__(self, *raised): await nap()
async def background():
    while True:
        await asyncio.sleep(0)
        torch.cos(x)
x, task = torch.ones(2), asyncio.create_task(background())
a = [torch.sin(x) for i in range(3) if await nap(1)]
b = {i: [torch.sin(x) async for _ in naps(i)] for i in range(3)}
c = [torch.sin(x) async for _ in (await nap(i) for i in range(2))]
async for _ in naps(2): torch.sin(x)
async with Napping(): torch.sin(x)
[torch.sin(x + await nap(i)) for i in range(4)]"""


def test_what_awaits_in_any_way_is_in_its_line_only_while_it_runs() -> None:
    _, record = recorded(COMPREHENSIONS)
    ops = ops_by_line(record)
    assert ops["aten::sin"] == {17: 3, 18: 3, 19: 2, 20: 2, 21: 1, 22: 4}
    assert ops["aten::exp"] == {10: 1}
    assert lines_around(record, "aten::cos") == {(13, 15)}
    calls = line_calls(record)
    assert [calls[line] for line in range(17, 23)] == [1] * 6


def lines_around(record: Record, op: str) -> set[tuple[int, ...]]:
    """The lines around each op of that name, outermost first."""
    slices = record.trace.slices
    found = set()
    for row in slices.index[slices["name"] == op]:
        lines = []
        while row >= 0:
            if slices["category"][row] == "cell_line":
                lines.append(int(value(record, "line", row)))
            row = int(slices["parent"][row])
        found.add(tuple(reversed(lines)))
    return found


PRODUCER = """import torch
def batches(n):
    for i in range(n):
        x = torch.sin(one)
        yield x
one = torch.ones(2)
for batch in batches(3):
    torch.cos(batch)
rest = batches(2)
next(rest)
torch.tan(one)
rest.close()"""


def test_what_a_generators_consumer_does_is_not_the_generators() -> None:
    _, record = recorded(PRODUCER)
    assert lines_around(record, "aten::sin") == {(8, 4, 5), (11, 4, 5)}
    assert lines_around(record, "aten::cos") == {(8, 9)}
    assert lines_around(record, "aten::tan") == {(12,)}
    pieces = [bool(value(record, "resumed", row)) for row in line_rows(record)]
    assert any(pieces)


DELEGATING = """import torch
def inner():
    torch.sin(one)
    got = yield 1
    torch.cos(one)
def outer():
    yield from inner()
    torch.exp(one)
one = torch.ones(2)
for i in outer():
    torch.tan(one)"""


def test_delegating_to_a_generator_keeps_its_ops_below_the_line_that_delegates() -> None:
    _, record = recorded(DELEGATING)
    assert lines_around(record, "aten::sin") == {(11, 8, 4)}
    assert lines_around(record, "aten::cos") == {(11, 8, 6)}
    assert lines_around(record, "aten::exp") == {(11, 9)}
    assert lines_around(record, "aten::tan") == {(11, 12)}


THROWN = """import torch
def g():
    for i in range(2):
        try:
            yield i
        except ValueError:
            torch.sin(one)
            yield 'caught'
one = torch.ones(2)
i = g()
next(i)
i.throw(ValueError)
torch.tan(one)
del i"""


def test_a_generator_that_is_thrown_into_or_dropped_leaves_no_region_open() -> None:
    _, record = recorded(THROWN)
    assert lines_around(record, "aten::tan") == {(14,)}
    assert {lines[-1] for lines in lines_around(record, "aten::sin")} == {8}


def test_beyond_its_limit_a_line_runs_unrecorded_and_a_note_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines_regions, "LIMIT", 50)
    monkeypatch.setattr(repeated, "PYTHON_ALONE", -(10**9))
    outcome, record = recorded("n = 0\nfor i in range(60):\n    n += 1\n    if i < 50: n += 1\nn")
    assert outcome.result == "110"
    assert line_calls(record) == {2: 1, 3: 1, 4: 50, 5: 50, 6: 1}
    assert record.metadata["lines"]["cells"][0]["beyond_limit"] == [4, 5]
    (note,) = record.metadata["notes"]
    assert note == "Cell [7]: lines 4, 5 are recorded for their first 10,000 runs only"
    table = lines(record).set_index("line")
    assert table.index[~table["complete"]].tolist() == [3, 4, 5]  # the head has what they have not


def test_without_lines_the_cell_runs_as_it_is() -> None:
    _, record = recorded("x = 1\nx", lines=False)
    assert line_rows(record) == []
    assert "lines" not in record.metadata


DEFINITIONS = """import functools
def plain(): return 1
class C:
    def method(self): return 2
    @staticmethod
    def static(): return 3
    @classmethod
    def of_class(cls): return 4
    @property
    def value(self): return 5
def closure(x):
    def inner():
        def innermost(): return x
        return innermost
    return inner()
kept = closure(6)
anonymous = lambda: 7
def wraps(f):
    @functools.wraps(f)
    def wrapper(): return f()
    return wrapper
@wraps
def wrapped(): return 8
cached = functools.lru_cache(plain)
partial = functools.partial(closure, 1)
def generator(): yield 9
suspended = generator()
next(suspended)"""


def test_no_function_of_the_cell_keeps_its_regions() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    recorded(DEFINITIONS, names)  # the fixture looks at every function that is alive
    one = names["C"]()
    values = [names["plain"](), one.method(), one.static(), one.of_class(), one.value]
    values += [names["kept"](), names["anonymous"](), names["wrapped"](), *names["generator"]()]
    assert values == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    expected: dict[str, Any] = {"__name__": "__main__"}
    run(compiled(DEFINITIONS, expected))
    for name in ("plain", "kept", "anonymous", "wrapped", "generator"):
        assert names[name].__code__ == expected[name].__code__, name


def test_a_generator_left_suspended_marks_nothing_afterwards() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    body = "import torch\ndef g():\n    while True:\n        yield torch.ones(2)\ni = g()\nnext(i)"
    recorded(body, names)
    with torch.profiler.profile() as own:
        next(names["i"])
    names["i"].close()
    found = {event.name for event in own.events()}
    assert "aten::ones" in found
    assert not {name for name in found if name.startswith("gpuprof:")}


HOOKED = """
import time, torch
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.004)
        return grad * 2
def slow(*_):
    time.sleep(0.003)
layer = torch.nn.Linear(4, 4)
layer.weight.register_hook(outside)
layer.weight.register_post_accumulate_grad_hook(slow)
x = torch.rand(3, 4)
y = layer(x)
y.register_hook(slow)
z = Slow.apply(y)
z.grad_fn.register_prehook(outside)
w = z.exp()
w.grad_fn.register_hook(slow)
w.sum().backward()
"""


def test_hooks_and_backwards_in_python_are_part_of_the_backward_pass() -> None:
    """Sleeps cannot be shorter than they are; that they count once is told by the sum."""
    outside = compile("import time\ndef outside(*_): time.sleep(0.005)", "elsewhere", "exec")
    names: dict[str, Any] = {}
    exec(outside, names)
    _, record = recorded(HOOKED, {"outside": names["outside"]})
    table = lines(record).set_index("code")["backward_cpu_ns"] / 1e6
    assert table["y = layer(x)"] >= 5 + 3 + 3
    assert table["z = Slow.apply(y)"] >= 4 + 5
    assert table["w = z.exp()"] >= 3
    slices = record.trace.slices
    engine = is_engine(slices["name"])
    outermost = engine & (nearest_ancestor(slices["parent"].to_numpy(), engine) < 0)
    assert lines(record)["backward_cpu_ns"].sum() == slices["dur"][outermost].sum()


def test_modules_backward_has_the_hooks_around_its_ops() -> None:
    _, record = recorded(HOOKED, {"outside": lambda *_: None})
    table = modules(record).set_index("name")
    assert table.loc["layer", "backward_cpu_total_ns"] / 1e6 >= 3 + 3


def test_a_line_that_is_open_as_a_window_ends_ends_with_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Once a process, torch warned that such a region ends before it began."""
    body = """
def step(items):
    batch = next(items)
    model(batch).sum().backward()
    optimizer.step()
def run():
    items = iter(loader)
    list(map(lambda _: step(items), range(9)))
run()"""
    model = torch.nn.Linear(4, 4)
    names = {"model": model, "loader": torch.utils.data.DataLoader(torch.randn(9, 4))}
    names |= {"optimizer": torch.optim.SGD(model.parameters()), "__name__": "__main__"}
    _, record = recorded(body, names, steps=2, warmup=1, quiet=True)
    assert "Warning" not in capfd.readouterr().err
    slices = record.trace.slices
    (run,) = slices.index[slices["name"] == record.metadata["label"]]
    ends = slices["ts"] + slices["dur"]
    assert (slices["dur"] >= 0).all()
    assert (ends[line_rows(record)] <= ends[run]).all()
    assert [step["kind"] for step in record.metadata["steps"]["iterations"]].count("recorded") == 2

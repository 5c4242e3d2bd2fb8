"""`--steps` bounds the training loop: at any depth, in functions, in what no source shows."""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import gpuprof_widgets
from gpuprof_widgets.capture.code import FunctionsElsewhere
from gpuprof_widgets.capture.loop.bound import LoopBound, LoopUse
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from tests.cells import Outcome, recorded

pytestmark = pytest.mark.slow

BATCHES = 28
SETUP = """
import asyncio, itertools, torch
from tqdm import tqdm
"""
TRAIN = "loss = net(x).pow(2).mean(); loss.backward(); opt.step(); opt.zero_grad()"


class Numbers(TensorDataset):
    """A data set of single rows."""

    def __init__(self, count: int = BATCHES) -> None:
        super().__init__(torch.arange(4.0 * count).reshape(count, 4))


def names() -> dict[str, Any]:
    """A model, its optimizer, batches in a list and in a DataLoader, and what counts them."""
    net = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    found: dict[str, Any] = {"__name__": "__main__", "net": net, "opt": opt, "ran": []}
    found["data"] = [torch.ones(2, 4) for _ in range(BATCHES)]
    found["loader"] = DataLoader(Numbers(), batch_size=1)
    found["val_loader"] = DataLoader(Numbers(5), batch_size=1)

    def train_step(x: Any) -> None:
        loss = net(x[0] if isinstance(x, list) else x).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        found["ran"].append("step")

    found["train_step"] = train_step
    return found


def bounded(body: str, given: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Record]:
    """What the cell's last expression is worth, and what was recorded of its 2 + 4 steps."""
    given = names() if given is None else given
    outcome, record = recorded(
        SETUP + body, given, **({"steps": 4, "warmup": 2, "quiet": True} | options)
    )
    assert outcome.error == "", outcome
    return outcome, record


def steps(record: Record) -> list[int]:
    rows = record.metadata.get("steps", {}).get("iterations", ())
    return [row["step"] for row in rows if row["kind"] == "recorded"]


def batches(outcome: Outcome) -> int:
    return outcome.names["ran"].count("'step'")


INNER = {
    "for": "for x in data:\n        train_step(x)",
    "enumerate": "for i, x in enumerate(data):\n        train_step(x)",
    "zip": "for x, i in zip(data, itertools.count()):\n        train_step(x)",
    "tqdm": "for x in tqdm(data, disable=True):\n        train_step(x)",
    "loader": "for x, in loader:\n        train_step(x)",
    "while": "n = 0\n    while n < 28:\n        train_step(data[n]); n += 1",
    "while with next": (
        "it = iter(loader)\n    while True:\n        try:\n            (x,) = next(it)\n"
        "        except StopIteration:\n            break\n        train_step(x)"
    ),
    "accumulated": (
        "for i, x in enumerate(data):\n        net(x).mean().backward()\n"
        "        if i % 1 == 0:\n            opt.step(); ran.append('step')"
    ),
    "through time": (
        "for x in data:\n        h = x\n        for t in range(3):\n            h = net(h)\n"
        "        h.mean().backward(); opt.step(); ran.append('step')"
    ),
    "micro batches": (
        "for x in data:\n        for part in x.split(1):\n            net(part).mean().backward()\n"
        "        opt.step(); ran.append('step')"
    ),
    "several optimizers": (
        "for x in data:\n        net(x).mean().backward()\n"
        "        for one in [opt, opt]:\n            one.step()\n        ran.append('step')"
    ),
}


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", ["for epoch in range(10):", "epoch = 0\nwhile epoch < 10:"])
def test_batches_are_counted_and_their_epochs_end_with_them(inner: str, outer: str) -> None:
    body = (
        f"order = []\n{outer}\n    {INNER[inner]}\n    order.append('validated')\n"
        + ("    epoch += 1\n" if "while" in outer else "")
        + "else:\n    order.append('else')\norder.append('after')\norder"
    )
    outcome, record = bounded(body)
    assert outcome.result == "['validated', 'else', 'after']"
    assert batches(outcome) == 6
    assert steps(record) == [2, 3, 4, 5]


def test_steps_are_counted_across_epochs_that_are_shorter() -> None:
    body = "for epoch in range(10):\n    for x in data[:4]:\n        train_step(x)\nepoch, len(ran)"
    outcome, record = bounded(body)
    assert outcome.result == "(1, 6)"
    assert steps(record) == [2, 3, 4, 5]
    assert record.metadata["steps"]["ended"] == "bounded"
    marks = record.trace.slices["name"].astype(str).str.startswith("ProfilerStep#")
    assert record.trace.slices["name"][marks].tolist() == [f"ProfilerStep#{n}" for n in range(2, 6)]


BLOCKS = {
    "else": "for _ in ():\n    pass\nelse:",
    "except": "try:\n    1 / 0\nexcept ZeroDivisionError:",
    "finally": "try:\n    pass\nfinally:",
    "case": "match 1:\n  case 1:",
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_loop_in_any_block_of_a_statement_is_bounded(block: str) -> None:
    outcome, record = bounded(f"{BLOCKS[block]}\n    for x in data: train_step(x)")
    assert batches(outcome) == 6
    assert steps(record) == [2, 3, 4, 5]


def test_early_stopping_of_an_epoch_goes_on_with_the_next() -> None:
    body = (
        "for epoch in range(10):\n    for i, x in enumerate(data):\n        train_step(x)\n"
        "        if i == 1: break\nepoch"
    )
    outcome, record = bounded(body)
    assert (outcome.result, batches(outcome)) == ("3", 6)
    assert steps(record) == [2, 3, 4, 5]


PREPARATIONS = {
    "parameters": "for p in net.parameters():\n    p.requires_grad_(True); seen.append(1)",
    "tensors made": "for i in range(20):\n    seen.append(torch.full((1,), i))",
    "python alone": "for i in range(50):\n    seen.append(i)",
    "validated": "for x, in val_loader:\n    seen.append(net(x))",
}
EXPECTED = {"parameters": 2, "tensors made": 20, "python alone": 50}


@pytest.mark.parametrize("preparation", PREPARATIONS)
def test_what_prepares_is_neither_cut_nor_counted(preparation: str) -> None:
    body = (
        f"seen = []\n{PREPARATIONS[preparation]}\n"
        "for epoch in range(10):\n    for x in data:\n        train_step(x)\nlen(seen)"
    )
    outcome, record = bounded(body)
    assert outcome.result == str(EXPECTED.get(preparation, 5))
    assert (batches(outcome), steps(record)) == (6, [2, 3, 4, 5])


@pytest.mark.parametrize("warmup", [0, 2])
def test_a_loop_without_ops_is_left_as_it_is_where_nothing_else_tells(warmup: int) -> None:
    body = (
        "seen = []\nfor i in range(50):\n    seen.append(i)\n"
        "for i in range(50):\n    torch.full((1,), i)\nlen(seen), i"
    )
    outcome, record = bounded(body, warmup=warmup)
    assert outcome.result == f"(50, {warmup + 3})"
    assert steps(record) == list(range(warmup, warmup + 4))
    assert record.metadata["steps"]["place"] == "line 8"


def test_a_loop_over_a_models_parameters_is_none_of_steps() -> None:
    body = "for p in net.parameters():\n    p.data.add_(0)\nfor i in range(50):\n    x = net(x)\ni"
    outcome, record = bounded(body, names() | {"x": torch.ones(1, 4)}, warmup=0)
    assert (outcome.result, record.metadata["steps"]["place"]) == ("3", "line 7")


def test_a_cell_of_loops_without_ops_runs_whole_and_says_so() -> None:
    outcome, record = bounded("n = 0\nfor i in range(50):\n    for j in range(9): n += 1\nn")
    assert outcome.result == "450"
    (note,) = record.metadata["notes"]
    assert note == "no op was seen in the loop of line 6 or line 7: nothing was recorded"


def test_a_loop_over_layers_is_none_of_steps() -> None:
    body = (
        "layers = torch.nn.ModuleList([net] * 9)\nseen = 0\nfor x in data:\n"
        "    for layer in layers:\n        x = layer(x); seen += 1\nseen"
    )
    outcome, record = bounded(body)
    assert outcome.result == str(9 * 6)
    assert record.metadata["steps"]["place"] == "line 7"
    assert len(steps(record)) == 4


def test_of_two_training_loops_the_first_is_bounded_and_the_second_runs_as_written() -> None:
    body = (
        "for x in data:\n    train_step(x)\nfirst = len(ran)\n"
        "for x in data:\n    train_step(x)\nfirst, len(ran)"
    )
    outcome, record = bounded(body)
    assert outcome.result == f"(6, {6 + BATCHES})"
    assert steps(record) == [2, 3, 4, 5]
    (note,) = record.metadata["notes"]
    assert "line 5 was bounded and recorded" in note
    assert "line 8 ran unchanged" in note


MAIN = """
def epoch_of(items):
    for x in items:
        train_step(x)
    ran.append("validated")

def main():
    for epoch in range(10):
        epoch_of(data)
    return "done", epoch
"""


def test_a_loop_in_functions_of_the_cell_is_bounded() -> None:
    outcome, record = bounded(MAIN + "main()")
    assert outcome.result == "('done', 0)"
    assert (batches(outcome), steps(record)) == (6, [2, 3, 4, 5])
    assert outcome.names["ran"].count("validated") == 1
    assert record.metadata["notes"] == []


MODULE = '''
import itertools, torch

def step(net, opt, x):
    net(x).mean().backward()
    opt.step()

def one_epoch(net, opt, items, ran):
    for x in items:
        step(net, opt, x[0] if isinstance(x, list) else x)
        ran.append("step")

def fit(net, opt, items, ran, epochs=10):
    for epoch in range(epochs):
        one_epoch(net, opt, items, ran)
        ran.append("validated")
    return epoch

class Trainer:
    """As minGPT's: it starts its loader anew when that is at its end."""

    def __init__(self, net, opt, loader, ran):
        self.net, self.optimizer, self.loader, self.ran = net, opt, loader, ran

    def run(self, most=100):
        data_iter, number = iter(self.loader), 0
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(self.loader)
                batch = next(data_iter)
            self.net(batch[0]).mean().backward()
            self.optimizer.step()
            self.ran.append("step")
            number += 1
            if number >= most:
                break
        return number

def without_loader(net, opt, ran, most=60):
    x = torch.ones(2, 4)
    for number in range(most):
        step(net, opt, x)
        ran.append("step")
    return number

def evaluate(net, loader):
    seen = 0
    for x, in loader:
        net(x)
        seen += 1
    return seen

def fit_all(net, opt, train, val, ran):
    for epoch in range(3):
        fit(net, opt, itertools.islice(train, 3), ran, 1)
        evaluate(net, val)
'''
CALLS = {
    "fit over batches": ("module.fit(net, opt, data, ran)", "0"),
    "fit over a loader": ("fit(net, opt, loader, ran)", "0"),
    "starts its loader anew": ("Trainer(net, opt, loader, ran).run()", "6"),
    "an object": ("trainer.run()", "6"),
    "without a loader": ("without_loader(net, opt, ran)", "5"),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's."""
    (tmp_path / "users_training.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("users_training")
    del sys.modules["users_training"]


def with_functions(functions: dict[str, Any]) -> dict[str, Any]:
    found = {**names(), **functions}
    found["trainer"] = functions["Trainer"](*(found[n] for n in ("net", "opt", "loader", "ran")))
    return found


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_a_loop_in_functions_of_a_module_is_bounded(module: Any, call: str, lines: bool) -> None:
    given = with_functions(vars(module) | {"module": module, "__name__": "__main__"})
    before = {name: one.__code__ for name, one in vars(module).items() if hasattr(one, "__code__")}
    text, expected = CALLS[call]
    outcome, record = bounded(text, given, lines=lines)
    assert outcome.result == expected
    assert given["ran"].count("step") == 6
    assert steps(record) == [2, 3, 4, 5]
    after = {name: one.__code__ for name, one in vars(module).items() if hasattr(one, "__code__")}
    assert all(before[name] is after[name] for name in before)


def test_what_the_cell_imports_is_bounded(module: Any) -> None:
    body = "from users_training import fit\nfit(net, opt, data, ran)"
    outcome, record = bounded(body)
    assert (outcome.result, batches(outcome), steps(record)) == ("0", 6, [2, 3, 4, 5])


def test_lines_and_steps_of_one_function_go_together(module: Any) -> None:
    given = with_functions(vars(module) | {"__name__": "__main__"})
    gpuprof_widgets.lines(module.one_epoch)
    outcome, record = bounded("fit(net, opt, data, ran)", given)
    assert (outcome.result, steps(record)) == ("0", [2, 3, 4, 5])
    lines = record.trace.slices["name"][record.trace.slices["category"] == "cell_line"]
    assert lines.astype(str).str.contains("ran.append").sum() == 4


def hidden() -> dict[str, Any]:
    """The module's functions without any source: as those of a library."""
    found: dict[str, Any] = {"__name__": "library"}
    exec(compile(MODULE, "<library>", "exec"), found)
    return with_functions(found)


def test_a_loop_that_no_source_shows_ends_at_its_batches() -> None:
    given = hidden()
    outcome, record = bounded("fit(net, opt, loader, ran, epochs=1)", given)
    assert outcome.result == "0"
    assert given["ran"] == ["step"] * 6 + ["validated"]
    assert steps(record) == [2, 3, 4, 5]
    (note,) = record.metadata["notes"]
    assert note.startswith("the loop over the batches of Cell [7], line 5 was ended")
    assert "gpuprof_widgets.steps(loader)" in note


def test_further_epochs_that_no_source_shows_run_unrecorded() -> None:
    given = hidden()
    _, record = bounded("fit(net, opt, loader, ran, epochs=3)", given)
    assert given["ran"].count("step") == 6 + 2 * BATCHES
    assert steps(record) == [2, 3, 4, 5]
    assert (record.trace.slices["name"] == "aten::addmm").sum() == 4


def test_epochs_that_no_source_shows_are_counted_across() -> None:
    given = hidden()
    given["loader"] = DataLoader(Numbers(4), batch_size=1)
    _, record = bounded("fit(net, opt, loader, ran, epochs=10)", given)
    assert steps(record) == [2, 3, 4, 5]
    assert given["ran"][:7] == ["step"] * 4 + ["validated"] + ["step"] * 2


def test_a_trainer_that_starts_its_loader_anew_neither_fails_nor_spins_nor_is_recorded_whole() -> (
    None
):
    given = hidden()
    outcome, record = bounded("trainer.run()", given, quiet=False)
    assert outcome.stdout == (
        "gpuprof: bounding the loop over the batches of Cell [7], line 5: 2 iterations to warm "
        "up, 4 recorded, then it goes on unrecorded\n"
    )
    assert outcome.result == "100"
    assert given["ran"].count("step") == 100
    assert steps(record) == [2, 3, 4, 5]
    assert (record.trace.slices["name"] == "aten::addmm").sum() == 4
    (note,) = record.metadata["notes"]
    assert "could not be ended and ran on, unrecorded" in note


class LikeAnyOther(torch.optim.SGD):
    """An optimizer that is equal to all others and has no hash, as some data classes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.optim.Optimizer)


def test_without_a_loader_the_optimizers_steps_are_counted() -> None:
    given = hidden()
    given["opt"] = LikeAnyOther(given["net"].parameters(), lr=0.0)
    outcome, record = bounded("without_loader(net, opt, ran)", given)
    assert outcome.result == "59"
    assert steps(record) == [2, 3, 4, 5]
    assert (record.trace.slices["name"] == "aten::addmm").sum() == 4
    assert "could not be ended" in record.metadata["notes"][0]


@pytest.mark.parametrize("before", ["", "train_loader = loader; net.train(); "])
def test_an_evaluation_that_no_source_shows_ends_at_its_batches(before: str) -> None:
    outcome, record = bounded(f"{before}evaluate(net, loader)", hidden())
    assert outcome.result == "6"
    assert steps(record) == [2, 3, 4, 5]


def test_a_validation_before_the_training_is_not_counted() -> None:
    given = hidden()
    body = "evaluate(net, val_loader), fit(net, opt, loader, ran, epochs=1)"
    outcome, record = bounded(body, given)
    assert outcome.result == "(5, 0)"
    assert given["ran"].count("step") == 6
    assert steps(record) == [2, 3, 4, 5]


def test_a_loop_is_said_once_and_before_it_runs() -> None:
    given = names()
    given["seen"] = lambda: given["ran"].append(cast(Any, sys.stdout).getvalue())
    body = "for epoch in range(3):\n    for x in data:\n        seen(); train_step(x)"
    bounded(body, given, quiet=False)
    line = (
        "gpuprof: bounding the loop of line 6 (for x in data): 2 iterations to warm up, "
        "4 recorded, then it ends\n"
    )
    assert given["ran"] == [line, "step"] * 6


def test_a_loop_that_keeps_going_runs_to_its_end_and_is_recorded_in_part() -> None:
    body = "for e in range(3):\n    for x in data:\n        train_step(x)\nelse:\n    e = 'else'\ne"
    outcome, record = bounded(body, keep_going=True)
    assert outcome.result == "'else'"
    assert batches(outcome) == 3 * BATCHES
    assert steps(record) == [2, 3, 4, 5]
    assert record.metadata["steps"]["ended"] == "kept going"
    assert (record.trace.slices["name"] == "aten::addmm").sum() == 4


BARS = ["tqdm(range(10), file=out)", "enumerate(tqdm(range(10), file=out))"]


@pytest.mark.parametrize("bar", BARS)
def test_a_progress_bar_of_the_epochs_ends_full(bar: str) -> None:
    body = (
        "import io\nout = io.StringIO()\n"
        f"for epoch in {bar}:\n    for x in data:\n        train_step(x)\nout.getvalue()"
    )
    outcome, _ = bounded(body)
    assert "1/1" in outcome.result
    assert "100%" in outcome.result


def test_an_error_in_a_bounded_loop_of_a_function_is_as_without_us(module: Any) -> None:
    given = with_functions(vars(module) | {"__name__": "__main__", "failing": Failing(3)})
    outcome, record = recorded("fit(net, opt, failing, ran)", given, steps=4, warmup=2, quiet=True)
    assert outcome.error == "ValueError: no further item"
    assert [name for name, _, _ in outcome.raised_at] == [
        *("<module>", "fit", "one_epoch", "__iter__")
    ]
    assert steps(record) == [2, 3]
    assert record.metadata["error"] == "ValueError: no further item"


class Failing:
    """Items of which the last one fails."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Any:
        yield from [torch.ones(2, 4)] * self._count
        raise ValueError("no further item")


def test_watched_loops_are_pickled_as_plain_ones() -> None:
    use = pickle.loads(pickle.dumps(LoopUse(LoopBound(Options(steps=1)))))
    items = [1, 2]
    assert use.over(items) is items
    with use:
        assert use.next()
        assert not use.no_more()
    pickle.loads(pickle.dumps(LoopUse(LoopBound(Options(steps=1))).look))()


class Hostile:
    """A value that says nothing of itself without an error."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("not here")


def test_values_that_raise_when_they_are_looked_at_are_left_alone(module: Any) -> None:
    given = names() | {"opt_like": Hostile(), "hostile": Hostile(), "fit": module.fit}
    body = "for i in range(0):\n    hostile.step()\nfit(net, opt, data, ran), type(opt_like)"
    outcome, record = bounded(body, given)
    assert outcome.result.startswith("(0, ")
    assert (batches(outcome), steps(record)) == (6, [2, 3, 4, 5])


LEFT_ALONE = {
    "a method of a dictionary": (
        "stats = {}\nfor k in range(9):\n    stats.update({k: 1})\nlen(stats)",
        "def update(x):\n    train_step(x)\n",
        "9",
    ),
    "a step of an environment": (
        "for k in range(9):\n    env.step(0)\nenv.steps",
        "class Agent:\n    def step(self, x):\n        train_step(x)\n"
        "class Environment:\n    steps = 0\n    def step(self, action):\n        self.steps += 1\n"
        "env = Environment()\n",
        "9",
    ),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_has_the_name_of_something_that_trains_is_left_alone(case: str) -> None:
    loop, before, expected = LEFT_ALONE[case]
    given = names()
    exec(before, given)
    outcome, record = bounded(f"{before}{loop}\nfor x in data:\n    train_step(x)\n{loop}", given)
    assert outcome.result in (expected, str(2 * int(expected)))
    assert (batches(outcome), steps(record)) == (6, [2, 3, 4, 5])


NAMESAKES = {
    "a function": "def train(x=None):\n    if x is not None: step(x)",
    "a method of another class": (
        "class Trainer:\n    def train(self, x, y): step(x)\ntrain = lambda x: 0"
    ),
}
NAMED_ALIKE = """
def step(x):
    net(x).mean().backward()
{namesake}
nets = [net]
for epoch in range(10):
    nets[0].train()
    for x in data:
        step(x); ran.append("step")
epoch
"""


@pytest.mark.parametrize("namesake", NAMESAKES)
def test_a_call_is_none_of_a_namesake_that_cannot_be_meant(namesake: str) -> None:
    body = NAMED_ALIKE.format(namesake=NAMESAKES[namesake])
    outcome, record = bounded(body, quiet=False)
    assert outcome.result == "0"
    assert (batches(outcome), steps(record)) == (6, [2, 3, 4, 5])
    assert outcome.stdout.count("bounding") == 1


SCHEDULED = """
class Trainer:
    def step(self, x):
        train_step(x)
    def fit(self):
        for epoch in range(10):
            for x in data:
                self.step(x)
            {scheduler}.step()
        return epoch
class Scheduler:
    def step(self): pass
sched, opt_scheduler, opt_like = Scheduler(), Scheduler(), Scheduler()
Trainer().fit()
"""


@pytest.mark.parametrize("scheduler", ["sched", "opt_scheduler", "opt_like"])
def test_a_step_of_a_scheduler_makes_no_loop_one_of_steps(scheduler: str) -> None:
    outcome, record = bounded(SCHEDULED.format(scheduler=scheduler))
    assert record.metadata["steps"]["place"] == "line 11"
    assert len(steps(record)) == 4
    assert batches(outcome) == 6


def test_epochs_give_way_to_the_loop_inside_them_in_which_the_steps_are_made() -> None:
    body = (
        "class Odd:\n    def step(self): pass\nodd = [Odd()]\n"
        "for epoch in range(10):\n    for x in data:\n        train_step(x)\n    odd_opt = odd[0]\n"
        "    odd_opt.step()\nepoch"
    )
    outcome, record = bounded(body, quiet=False)
    assert record.metadata["steps"]["place"] == "line 9"
    assert batches(outcome) == 6
    assert steps(record) == [2, 3, 4, 5]
    assert outcome.stdout.count("bounding the loop of line 9") == outcome.stdout.count("bounding")


@pytest.mark.parametrize("loop", ["for x in data:", "for x, in val_loader:"])
def test_what_prepares_a_training_out_of_sight_is_left_alone(loop: str) -> None:
    given = hidden()
    body = (
        f"seen = []\n{loop}\n    seen.append(torch.relu(x))\n"
        "fit(net, opt, loader, ran, 1), len(seen)"
    )
    outcome, record = bounded(body, given)
    assert outcome.result == f"(0, {BATCHES if 'data' in loop else 5})"
    assert given["ran"].count("step") == 6
    assert steps(record) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "epoch",
    ["[train_step(x) for x, in loader]", "list(map(lambda x: train_step(x[0]), loader))"],
)
def test_epochs_around_a_comprehension_are_no_steps(epoch: str) -> None:
    outcome, record = bounded(f"for e in range(8):\n    {epoch}\ne")
    assert outcome.result == "7"
    assert steps(record) == [2, 3, 4, 5]
    assert (record.trace.slices["name"] == "aten::addmm").sum() == 4


SHARED = """
def run_epoch(items, train):
    for x in items:
        if train:
            train_step(x)
        else:
            seen.append(net(x))
seen = []
run_epoch(data[:{validated}], False)
for epoch in range(10):
    run_epoch(data, True)
epoch, len(seen)
"""


@pytest.mark.parametrize("validated", [3, 20])
def test_a_validation_by_the_function_that_trains_is_left_alone(validated: int) -> None:
    outcome, record = bounded(SHARED.format(validated=validated))
    assert outcome.result == f"(0, {validated})"
    assert (batches(outcome), steps(record)) == (6, [2, 3, 4, 5])


def test_two_loaders_of_one_data_set_are_told_apart() -> None:
    given = hidden()
    source, halves = Numbers(40), torch.arange(40).split(20)
    given["train"], given["val"] = (
        DataLoader(source, batch_size=1, sampler=SubsetRandomSampler(half.tolist()))
        for half in halves
    )
    _, record = bounded("fit_all(net, opt, train, val, ran)", given)
    backward = record.trace.slices["name"].astype(str).str.startswith("AddmmBackward0")
    assert backward.sum() == len(steps(record)) == 4


def test_a_batch_that_is_looked_at_first_leaves_the_loop_polite() -> None:
    given = hidden()
    body = "first = next(iter(loader))\nfit(net, opt, loader, ran, epochs=1)"
    outcome, record = bounded(body, given)
    assert outcome.error == ""
    assert given["ran"].count("step") <= 7
    assert len(steps(record)) == 4


def test_a_loop_that_runs_again_is_said_to_run_as_written() -> None:
    outcome, record = bounded(MAIN + "main(), main()")
    assert batches(outcome) == 6 + 10 * BATCHES
    (note,) = record.metadata["notes"]
    assert note == (
        "the loop of line 7 was bounded and recorded; its later runs were neither bounded nor "
        "recorded"
    )


def test_of_tasks_that_run_the_same_loop_one_is_counted() -> None:
    body = (
        "async def work(times):\n    n = 0\n    while n < times:\n        train_step(data[0])\n"
        "        n += 1\n        await asyncio.sleep(0)\n    return n\n"
        "await asyncio.gather(work(10), work(20))"
    )
    outcome, record = bounded(body)
    assert outcome.result == "[6, 20]"
    assert steps(record) == [2, 3, 4, 5]


def test_a_child_process_runs_its_loops_as_written() -> None:
    body = (
        "import multiprocessing\ndef work(queue=None):\n    n = 0\n    for x in data:\n"
        "        train_step(x); n += 1\n    if queue is not None: queue.put(n)\n    return n\n"
        "context = multiprocessing.get_context('fork')\nqueue = context.Queue()\n"
        "torch.set_num_threads(1)\n"
        "child = context.Process(target=work, args=(queue,))\nchild.start()\n"
        "found = queue.get(timeout=60)\nchild.join()\nfound, work()"
    )
    outcome, _ = bounded(body)
    assert outcome.result == f"({BATCHES}, 6)"


def test_a_compiled_step_of_the_optimizer_is_compiled_as_without_us() -> None:
    body = (
        "@torch.compile(backend='eager')\ndef update():\n    opt.step()\n"
        "for x in data:\n    net(x).mean().backward()\n    update()\n    ran.append('step')"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome, record = bounded(body)
    assert [str(one.message) for one in caught if "trace" in str(one.message)] == []
    assert (batches(outcome), steps(record)) == (6, [2, 3, 4, 5])


def test_looking_for_functions_grows_with_their_number_and_not_with_its_square() -> None:
    def looked_up(count: int) -> int:
        class Counted(dict[str, Any]):
            asked = 0

            def __getitem__(self, name: str) -> Any:
                Counted.asked += 1
                return super().__getitem__(name)

        namespace = Counted()
        source = "".join(f"def f{n}(x):\n    f{n + 1}(x)\n    x.backward()\n" for n in range(count))
        exec(compile(source, "users.py", "exec"), namespace)
        search = FunctionsElsewhere({"f0"}, namespace, {"users.py"})
        assert len(search.that_train()) == count
        assert len(search.that_train()) == count  # again, as behind a further import
        return Counted.asked

    assert looked_up(400) <= 2.2 * looked_up(200)


def test_in_another_thread_loops_run_as_written() -> None:
    body = (
        "import threading\ndef work():\n    for x in data:\n        train_step(x)\n"
        "one = threading.Thread(target=work); one.start(); one.join()\nlen(ran)"
    )
    outcome, _ = bounded(body)
    assert outcome.result == str(BATCHES)

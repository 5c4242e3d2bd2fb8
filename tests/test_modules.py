"""Spans of nn.Modules on real runs: which, where, by what name; and nothing changed by them."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.utils.checkpoint import checkpoint

from gpuprof_widgets.analyses.owners import region_around, region_behind
from gpuprof_widgets.capture.modules import families, family
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.owners import is_engine

HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


@pytest.fixture(autouse=True)
def no_hook_stays() -> Any:
    before = [dict(getattr(torch_modules, name)) for name in HOOKS]
    called = nn.Module._call_impl, nn.Module._call_impl.__code__
    yield
    assert [dict(getattr(torch_modules, name)) for name in HOOKS] == before
    assert (nn.Module._call_impl, nn.Module._call_impl.__code__) == called


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Recursive(nn.Module):
    def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        return self(x + 1, depth - 1) if depth else x


def record(
    run: Callable[[], object], namespace: Mapping[str, Any] | None = None, **options: Any
) -> Record:
    given = {"lines": False, "python": "off"} | options
    with Recorder(Options(**given), label="the run", namespace=namespace or {}) as recorder:
        run()
    return recorder.record()


def spans(made: Record, category: str = "module") -> pd.DataFrame:
    slices = made.trace.slices
    return slices[slices["category"] == category]


def names(made: Record, category: str = "module") -> list[str]:
    return spans(made, category).sort_values("ts", kind="stable")["name"].tolist()


def train(model: nn.Module, x: torch.Tensor | None = None) -> None:
    model(torch.rand(3, 4) if x is None else x).square().sum().backward()


FORWARD = ["model", "blocks.0", "blocks.0.up", "blocks.0.act", "blocks.0.down", "blocks.1",
           "blocks.1.up", "blocks.1.act", "blocks.1.down", "head"]  # fmt: skip


class TestForward:
    def test_every_instance_has_a_span_by_its_qualified_name(self) -> None:
        model = Net()
        assert names(record(lambda: train(model), {"model": model})) == FORWARD

    def test_a_span_tells_class_and_variable(self) -> None:
        model = Net()
        made = record(lambda: model(torch.rand(3, 4)), {"model": model})
        kinds = [made.trace.args["class"][row] for row in spans(made).index]
        assert kinds == ["Net", *["Block", "Linear", "ReLU", "Linear"] * 2, "Linear"]
        assert {made.trace.args["root"][row] for row in spans(made).index} == {"model"}

    def test_each_op_lies_in_the_module_that_ran_it(self) -> None:
        model = Net()
        made = record(lambda: model(torch.rand(3, 4)), {"model": model})
        slices = made.trace.slices
        module = region_behind(made.trace, "module")
        where = Counter(slices["name"].iloc[module[slices["name"] == "aten::linear"]])
        assert where == dict.fromkeys(
            [name for name in FORWARD if name[-2:] in ("up", "wn", "ad")], 1
        )

    def test_a_module_that_the_run_makes_and_drops_has_its_names_too(self) -> None:
        made = record(lambda: train(Net()))
        assert names(made) == ["Net", *FORWARD[1:]]

    def test_a_module_nobody_knows_has_the_name_of_its_class(self) -> None:
        class Loose(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return nn.Softmax(dim=-1)(x)

        assert names(record(lambda: Loose()(torch.rand(3)))) == ["Loose", "Softmax"]

    def test_two_models_are_told_apart_by_their_variables(self) -> None:
        first, second, loss = nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU()), nn.MSELoss()
        variables = {"first": first, "second": second, "loss": loss, "idle": Net()}
        x = torch.rand(3)
        made = record(lambda: loss(first(x), second(x)), variables)
        assert names(made) == ["first", "first.0", "second", "second.0", "loss"]

    def test_children_that_have_numbers_are_told_with_the_variable_of_their_sequence(self) -> None:
        act = nn.ReLU()
        net = nn.Sequential(nn.Linear(4, 4), act, nn.Sequential(nn.Linear(4, 4)), act)
        made = record(lambda: net(torch.rand(2, 4)), {"net": net})
        assert names(made) == ["net", "net.0", "net.1", "net.2", "net.2.0", "net.1"]
        (note,) = made.metadata["notes"]
        assert note == (
            "the module `net.1` is shared: it is `net.3` as well, and its spans say `net.1`"
        )

    def test_a_module_that_calls_itself_is_in_itself(self) -> None:
        model = Recursive()
        made = record(lambda: model(torch.zeros(1), 2), {"model": model})
        assert spans(made)["name"].tolist() == ["model"] * 3
        assert spans(made)["depth"].diff().dropna().tolist() == [1, 1]

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_an_exception_ends_the_spans_that_it_leaves(self, error: type[BaseException]) -> None:
        class Failing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.inner(x)
                raise error

        model, after = Failing(), nn.ReLU()

        def run() -> None:
            with pytest.raises(error):
                model(torch.zeros(4))
            after(torch.zeros(1))

        made = record(run, {"model": model, "after": after})
        assert names(made) == ["model", "inner", "after"]
        above = spans(made).loc[spans(made)["name"] == "after", "parent"].iloc[0]
        assert made.trace.slices["name"].loc[above] == "the run"
        assert names(record(lambda: after(torch.zeros(1)), {"after": after})) == ["after"]

    def test_modules_of_threads_that_the_run_starts_are_left_out(self) -> None:
        first, second = nn.ReLU(), nn.Sigmoid()

        def run() -> None:
            other = threading.Thread(target=lambda: second(torch.rand(3)))
            other.start()
            other.join()
            first(torch.rand(3))

        made = record(run, {"first": first, "second": second})
        assert names(made) == ["first"]


class TestOptions:
    def test_none_marks_nothing(self) -> None:
        model = Net()
        made = record(lambda: train(model), {"model": model}, modules="none")
        assert names(made) == []
        assert not made.trace.slices["name"].str.startswith("gpuprof:").any()

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [("block", ["block", "up", "act", "down"]), ("model,block", FORWARD)],
    )
    def test_a_part_of_another_variables_model_can_be_named(
        self, wanted: str, expected: list[str]
    ) -> None:
        model = Net()
        variables = {"model": model, "block": model.blocks[0]}
        made = record(lambda: train(model), variables, modules=wanted)
        assert names(made) == expected
        assert made.metadata["notes"] == []

    def test_a_module_that_no_variable_holds_is_named_by_its_class(self) -> None:
        made = record(lambda: (train(Net()), nn.Tanh()(torch.rand(1))), {}, modules="Net")
        assert names(made) == ["Net", *FORWARD[1:]]
        assert made.metadata["notes"] == []

    def test_a_wrong_name_is_told_with_those_that_would_do(self) -> None:
        variables = {"model": Net(), "nets": [nn.ReLU()], "x": 3}
        made = record(lambda: train(variables["model"]), variables, modules="modl")
        assert made.metadata["notes"] == [
            "no nn.Module was found in the variable modl (there are some in model, nets)"
        ]


class TestNames:
    def test_paths_are_those_of_named_modules(self) -> None:
        model = nn.Transformer(8, 2, 2, 2, 16)
        expected = {id(module): path for path, module in model.named_modules()}
        assert family(model).paths == expected
        assert [*family(model).paths.values()] == [path for path, _ in model.named_modules()]

    def test_modules_are_found_in_lists_dicts_and_attributes(self) -> None:
        class Trainer:
            def __init__(self, model: nn.Module) -> None:
                self.model = model

        nets = [nn.ReLU() for _ in range(4)]
        variables = {
            "models": [nets[0], 3], "by_name": {"gen": nets[1]}, "trainer": Trainer(nets[2]),
            "model": nets[3], "_3": nn.ReLU(), "Out": {3: nn.ReLU()}, "torch": torch, "cls": Net,
        }  # fmt: skip
        found = families(variables)
        assert set(found) == {"models[0]", "by_name['gen']", "trainer.model", "model"}

    @pytest.mark.parametrize("aliases", ["before", "after"])
    @pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compile", "parallel"])
    def test_what_is_wrapped_around_a_model_leaves_it_its_name(
        self, wrap: Callable[..., Any], aliases: str
    ) -> None:
        model = Net()
        alias = wrap(model)
        variables = {"model": model} if aliases == "after" else {"alias": alias, "model": model}
        found = families({**variables, "alias": alias, "again": wrap(alias)})
        assert found["model"].paths == family(model).paths
        assert not {id(one) for one in model.modules()} & {
            number for label, one in found.items() if label != "model" for number in one.paths
        }
        (only,) = families({"alias": alias}).values()
        assert set(only.paths) >= set(family(model).paths)

    def test_a_models_own_variable_comes_before_one_that_is_deeper(self) -> None:
        inner = Net()
        namespace = {"model": torch.compile(inner), "kept": [inner]}
        assert families(namespace)["model"].paths[id(inner.head)] == "head"

    def test_a_part_of_a_model_that_is_compiled_beside_it_keeps_its_path(self) -> None:
        model = Net()
        model.fast = torch.compile(model.head)
        model.late = model.head
        del model.head
        model.head = model.late
        del model.late
        assert [*model._modules] == ["blocks", "fast", "head"]
        assert family(model).paths[id(model.head)] == "head"

    def test_copies_have_their_own_names(self) -> None:
        model = Net()
        variables = {"fast": torch.compile(model), "ema": copy.deepcopy(model), "model": model}
        x = torch.rand(3, 4)
        made = record(lambda: (variables["ema"](x), model(x)), variables)
        assert names(made) == [
            *("ema" if name == "model" else f"ema.{name}" for name in FORWARD),
            *("model" if name == "model" else f"model.{name}" for name in FORWARD),
        ]

    def test_modules_that_hold_each_other_are_found_once(self) -> None:
        one, other = nn.Module(), nn.Module()
        one.inner, other.inner = other, one
        (found,) = families({"one": one, "other": other}).values()
        assert sorted(found.paths.values()) == ["", "inner"]


class TestUnchanged:
    """The user's run is the same with us as without."""

    def test_gradients_and_graph_are_the_same(self) -> None:
        torch.manual_seed(0)
        model, x = Net(), torch.rand(3, 4)
        train(model, x)
        expected = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
        model.zero_grad()
        graph: list[str] = []

        def run() -> None:
            loss = model(x).square().sum()
            node = loss.grad_fn
            while node is not None:
                graph.append(type(node).__name__)
                node = node.next_functions[0][0] if node.next_functions else None
            loss.backward()

        record(run, {"model": model})
        for parameter, grad in zip(model.parameters(), expected, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, grad)
        assert graph[:2] == ["SumBackward0", "PowBackward0"]
        assert "BackwardHookFunctionBackward" not in graph

    def test_changes_in_place_of_a_modules_output_and_input_are_allowed(self) -> None:
        """Full backward hooks, which others use for the same purpose, forbid them."""
        model = nn.Sequential(nn.Linear(4, 4))

        def run() -> None:
            y = model(torch.rand(2, 4))
            y += 1
            y[0].mul_(2)
            y.sum().backward()

        assert names(record(run, {"model": model}), "module_backward") == ["model", "model.0"]
        handle = model.register_full_backward_hook(lambda *_: None)
        with pytest.raises(RuntimeError, match="inplace"):
            run()
        handle.remove()

    def test_copies_and_pickles_made_meanwhile_hold_nothing_of_ours(self) -> None:
        model = Net()
        kept: list[Any] = []

        def run() -> None:
            model(torch.rand(3, 4))
            kept.extend([copy.deepcopy(model), pickle.dumps(model)])

        expected = pickle.dumps(model)
        record(run, {"model": model})
        copied, pickled = kept
        assert pickled == expected
        assert not copied._forward_hooks
        assert not copied._forward_pre_hooks
        assert not copied.head._forward_hooks

    def test_no_module_is_kept_alive(self) -> None:
        gone: list[str] = []

        class Mortal(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

            def __del__(self) -> None:
                gone.append("gone")

        def run() -> None:
            Mortal()(torch.zeros(1))
            assert gone == ["gone"]

        record(run)

    def test_the_users_own_hooks_run_in_their_order(self) -> None:
        model, order = nn.ReLU(), []
        model.register_forward_pre_hook(lambda *_: order.append("before"))
        model.register_forward_hook(lambda *_: order.append("after"))
        handle = torch_modules.register_module_forward_hook(lambda *_: order.append("everywhere"))
        try:
            record(lambda: model(torch.zeros(1)), {"model": model})
            assert len(torch_modules._global_forward_hooks) == 1
        finally:
            handle.remove()
        assert order == ["before", "everywhere", "after"]


def computing(op: str) -> Callable[..., None]:
    """A hook that runs an op by which it is known."""

    def hook(*_: Any) -> None:
        getattr(torch.ones(1), op)(0)

    return hook


def modules_of(made: Record, op: str) -> list[str]:
    """The innermost module around each call of an op, in order; "" for none."""
    slices = made.trace.slices
    around = region_around(made.trace, "module")[(slices["name"] == f"aten::{op}").to_numpy()]
    return [slices["name"].iloc[row] if row >= 0 else "" for row in around]


class TestUsersHooks:
    """What they do belongs to the module on which they hang."""

    @pytest.mark.parametrize("with_kwargs", [False, True])
    @pytest.mark.parametrize("always_call", [False, True])
    def test_a_modules_own_hooks_are_part_of_it(self, with_kwargs: bool, always_call: bool) -> None:
        model = Net()
        head = model.head
        head.register_forward_pre_hook(computing("cumsum"), with_kwargs=with_kwargs)
        head.register_forward_hook(
            computing("cumprod"), with_kwargs=with_kwargs, always_call=always_call
        )
        model.register_forward_hook(computing("cummax"), with_kwargs=with_kwargs)
        before = [dict(one._forward_hooks) for one in model.modules()]
        made = record(lambda: train(model), {"model": model})
        assert modules_of(made, "cumsum") == modules_of(made, "cumprod") == ["head"]
        assert set(modules_of(made, "cummax")) == {"model"}
        assert names(made) == FORWARD
        assert [dict(one._forward_hooks) for one in model.modules()] == before
        assert len(head._forward_hooks_always_called) == always_call

    @pytest.mark.parametrize("registered", ["before", "meanwhile"])
    def test_global_hooks_are_part_of_every_module(self, registered: str) -> None:
        model, handles = Net(), []

        def register() -> None:
            handles.append(torch_modules.register_module_forward_pre_hook(computing("cumsum")))
            handles.append(torch_modules.register_module_forward_hook(computing("cumprod")))

        def run() -> None:
            if registered == "meanwhile":
                register()
            train(model)
            while handles:
                handles.pop().remove()

        if registered == "before":
            register()
        made = record(run, {"model": model})
        assert modules_of(made, "cumsum") == FORWARD
        assert sorted(modules_of(made, "cumprod")) == sorted(FORWARD)

    def test_a_module_in_itself_has_the_hooks_of_each_call(self) -> None:
        model = Recursive()
        model.register_forward_hook(computing("cumsum"))
        made = record(lambda: model(torch.zeros(1), 2), {"model": model})
        slices = made.trace.slices
        around = region_around(made.trace, "module")[(slices["name"] == "aten::cumsum").to_numpy()]
        depth = slices["depth"].to_numpy()[around]
        assert (depth[1:] - depth[:-1]).tolist() == [-1, -1]
        assert depth[-1] == spans(made)["depth"].min()

    def test_a_hook_that_raises_ends_its_module(self) -> None:
        def refuse(*_: Any) -> None:
            raise ValueError("no")

        inner = nn.ReLU()
        inner.register_forward_hook(refuse)

        class Catching(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with pytest.raises(ValueError, match="no") as raised:
                    self.inner(x)
                assert raised.traceback[-1].name == "refuse"
                return x.cumsum(0)

        model = Catching()
        made = record(lambda: model(torch.zeros(1)), {"model": model})
        assert modules_of(made, "cumsum") == ["model"]
        assert len(inner._forward_hooks) == 1

    def test_what_a_hook_returns_is_the_result(self) -> None:
        model = nn.ReLU()
        model.register_forward_hook(lambda module, args, result: result + 1)
        results: list[torch.Tensor] = []
        record(lambda: results.append(model(torch.zeros(1))), {"model": model})
        assert results[0].tolist() == [1.0]


def engine(made: Record) -> pd.DataFrame:
    slices = made.trace.slices
    return slices[is_engine(slices["name"])]


class TestBackward:
    def test_backward_spans_run_the_other_way_round(self) -> None:
        model = Net()
        made = record(lambda: train(model), {"model": model})
        reverse = ["model", "head", "blocks.1", "blocks.1.down", "blocks.1.act", "blocks.1.up",
                   "blocks.0", "blocks.0.down", "blocks.0.act", "blocks.0.up"]  # fmt: skip
        found = spans(made, "module_backward").sort_values(["ts", "depth"])["name"].tolist()
        assert found == reverse

    def test_every_backward_op_lies_in_the_span_of_its_module(self) -> None:
        model = Net()
        made = record(lambda: (train(model), train(model)), {"model": model})
        assert_backward_ops_in_spans(made)
        assert len(spans(made, "module_backward")) == 2 * len(FORWARD)

    def test_accumulating_gradients_belongs_to_the_module(self) -> None:
        model = Net()
        made = record(lambda: train(model), {"model": model})
        slices, above = made.trace.slices, engine(made)["parent"]
        accumulating = engine(made)["name"].str.contains("AccumulateGrad")
        owners = Counter(slices["name"].loc[above[accumulating]])
        assert owners == {name: 2 for name in FORWARD if name[-2:] in ("up", "wn", "ad")}

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_a_checkpointed_module_runs_its_forward_within_its_backward(
        self, reentrant: bool
    ) -> None:
        class Saving(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return checkpoint(self.block, x, use_reentrant=reentrant)

        model = Saving()
        x = torch.rand(3, 4, requires_grad=True)
        made = record(lambda: train(model, x), {"model": model})
        again = spans(made)[spans(made)["name"] == "block"]
        assert len(again) == 2
        second = int(again.index[-1])
        assert inside(made, second, "module_backward") >= {"model"}
        assert_backward_ops_in_spans(made)

    def test_the_backward_of_a_backward_belongs_to_the_module_as_well(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        x = torch.rand(2, 4, requires_grad=True)

        def run() -> None:
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            slope.square().sum().backward()

        made = record(run, {"model": model})
        assert_backward_ops_in_spans(made)
        assert Counter(spans(made, "module_backward")["name"])["model.1"] >= 2


def inside(made: Record, row: int, category: str) -> set[str]:
    """The names of the slices of that category around one."""
    slices, found = made.trace.slices, set()
    while row >= 0:
        if slices["category"].loc[row] == category:
            found.add(slices["name"].loc[row])
        row = int(slices["parent"].loc[row])
    return found


def assert_backward_ops_in_spans(made: Record) -> None:
    """Every backward op whose forward op ran in a module lies in a backward span of its name."""
    slices = made.trace.slices
    module = region_behind(made.trace, "module")
    linked = slices.index[(slices["forward"] >= 0)]
    checked = 0
    for row in linked:
        behind = module[int(slices["forward"].loc[row])]
        if behind >= 0:
            assert slices["name"].loc[behind] in inside(made, int(row), "module_backward")
            checked += 1
    assert checked

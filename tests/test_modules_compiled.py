"""torch.compile, torch.export, scripting and transforms run with marked modules as without."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record

pytestmark = pytest.mark.slow

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


asks_for_hooks = pytest.mark.skipif(
    not hasattr(nn.modules.module, "_has_any_global_hook"), reason="torch 2.6 warns of none"
)


class Net(nn.Module):
    breaks = False

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.b(x).sum()


class Breaking(Net):
    breaks = True


def recorded(run: Callable[[], Any], modules: str) -> tuple[Any, Record]:
    options = Options(modules=modules, lines=False, python="off")
    with Recorder(options, label="the run") as recorder:
        result = run()
    return result, recorder.record()


def marked(record: Record) -> list[str]:
    slices = record.trace.slices
    return slices.loc[slices["category"] == "module", "name"].tolist()


def compiled_function(backend: Any) -> Callable[..., Any]:
    model = Net()
    return torch.compile(lambda x: model(x), backend=backend)


def compiled_module(backend: Any) -> Callable[..., Any]:
    return torch.compile(Net(), backend=backend)


def compiled_in_place(backend: Any) -> Callable[..., Any]:
    model = Net()
    model.compile(backend=backend)
    return model


def compiled_with_a_graph_break(backend: Any) -> Callable[..., Any]:
    return torch.compile(Breaking(), backend=backend)


def compiled_with_hooks(backend: Any) -> Callable[..., Any]:
    """Of which dynamo guards that there are no other ones."""
    model = Breaking()
    model.a.register_forward_hook(lambda module, args, result: result + 1)
    model.register_forward_pre_hook(lambda module, args: None)
    return torch.compile(model, backend=backend)


COMPILED = [
    compiled_function,
    compiled_module,
    compiled_in_place,
    compiled_with_a_graph_break,
    compiled_with_hooks,
]


def history(
    make: Callable[[Any], Callable[..., Any]], modules: str, *, before: bool
) -> tuple[list[int], set[str]]:
    """Frames compiled so far after each call, in recordings and outside; what was warned of."""
    counter: Any = CompileCounter()
    frames = []

    def call(function: Callable[..., Any], rows: int, inside: bool) -> None:
        x = torch.ones(rows, 3)
        recorded(lambda: function(x), modules) if inside else function(x)
        frames.append(counter.frame_count)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        function = make(counter)
        if before:
            call(function, 2, False)
        for rows, inside in [(2, True), (2, True), (2, False), (5, True), (5, False), (9, False)]:
            call(function, rows, inside)
    return frames, {str(one.message) for one in warned}


@pytest.mark.parametrize("make", COMPILED)
@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled in it"])
def test_nothing_is_compiled_again_and_nothing_warned(
    make: Callable[[Any], Callable[..., Any]], before: bool
) -> None:
    expected = history(make, "none", before=before)
    assert expected[0][-1] > 0
    torch._dynamo.reset()
    assert history(make, "auto", before=before) == expected


@asks_for_hooks
def test_the_users_own_global_hook_is_still_warned_of() -> None:
    compiled: Any = torch.compile(Net(), backend="eager")
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.warns(UserWarning, match="global hooks"):
            recorded(lambda: compiled(X), "auto")
    finally:
        handle.remove()


def test_a_model_compiled_in_the_run_has_nothing_of_ours_afterwards() -> None:
    model = Net()
    code = nn.Module._call_impl.__code__

    def run() -> None:
        model.compile(backend="eager")
        model(X)

    made = recorded(run, "auto")[1]
    assert marked(made) == ["Net"]
    assert nn.Module._call_impl.__code__ is code
    assert model._compiled_call_impl is not None
    inner = model._compiled_call_impl._torchdynamo_orig_callable
    assert inner.__func__ is nn.Module._call_impl


def test_a_note_says_that_a_graph_calls_no_modules() -> None:
    compiled: Any = torch.compile(Net(), backend="eager")
    _, made = recorded(lambda: compiled(X), "auto")
    (note,) = made.metadata["notes"]
    assert note.startswith("modules inside a torch.compile graph have no spans")


def test_modules_beside_a_compiled_one_are_marked() -> None:
    compiled: Any = torch.compile(nn.ReLU(), backend="eager")
    eager = Net()
    _, made = recorded(lambda: (compiled(X), eager(X)), "auto")
    assert marked(made)[-3:] == ["Net", "Net.a", "Net.b"] or marked(made)[-3:] == ["Net", "a", "b"]


def test_a_first_compilation_in_the_run_is_seen() -> None:
    """Where nothing has imported dynamo yet: in a process of its own."""
    code = """
import sys, warnings, torch
from torch import nn
from gpuprof_widgets.options import Options
from gpuprof_widgets.capture.recorder import Recorder
assert "torch._dynamo" not in sys.modules
original, graphs = torch.compile, []
def backend(graph, inputs):
    graphs.append(graph)
    return graph
model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(2, 3)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Guards may run slower")  # torch's own, on Python 3.13.0
    with Recorder(Options(lines=False, python="off"), label="the run"):
        compiled = torch.compile(model, backend=backend)
        compiled(x)
    compiled(x)
assert len(graphs) == 1, graphs
assert torch.compile is original
assert not nn.modules.module._global_forward_hooks
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def exported(strict: bool) -> Callable[[nn.Module], Any]:
    return lambda model: str(torch.export.export(model, (X,), strict=strict).graph)


def scripted(model: nn.Module) -> Any:
    script = torch.jit.script(model)
    return str(script.graph), script(X).item()


UNCHANGED: dict[str, Callable[[nn.Module], Any]] = {
    "export": exported(strict=False),
    "strict export": exported(strict=True),
    "script": scripted,
    "traced": lambda model: torch.jit.trace(model, (X,))(X).item(),
    "symbolic trace": lambda model: str(torch.fx.symbolic_trace(model).graph),
    "make_fx": lambda model: str(make_fx(lambda x: model(x))(X).graph),
    "vmap": lambda model: vmap(lambda x: model(x))(X).tolist(),
    "functional_call": lambda model: functional_call(
        model, dict(model.named_parameters()), (X,)
    ).item(),
    "no_grad": lambda model: torch.no_grad()(model)(X).requires_grad,
    "DataParallel": lambda model: nn.DataParallel(model)(X).item(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", UNCHANGED)
def test_the_result_is_the_same_with_marked_modules(name: str) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.relu(self.a(x))).sum()

    model = Plain()
    expected, _ = recorded(lambda: UNCHANGED[name](model), "none")
    found, _ = recorded(lambda: UNCHANGED[name](model), "auto")
    assert found == expected


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_has_its_variables_name(in_place: bool) -> None:
    model: Any = Net()
    if in_place:
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    options = Options(lines=False, python="off")
    with Recorder(options, label="the run", namespace={"model": model}) as recorder:
        model(X)
    made = recorder.record()
    assert marked(made) == ["model"]
    assert not [note for note in made.metadata["notes"] if "scripted" in note]


def test_what_a_scripted_module_holds_is_told_to_have_no_spans() -> None:
    script = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    options = Options(lines=False, python="off")
    with Recorder(options, label="the run", namespace={"model": script}) as recorder:
        script(X)
    made = recorder.record()
    assert marked(made) == ["model"]
    (note,) = made.metadata["notes"]
    assert "scripted" in note

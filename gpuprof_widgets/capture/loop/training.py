"""What the source says before it runs: which loops train, and what runs every N iterations.

A loop trains if its body, without the bodies of loops inside it, makes an optimizer's step or a
backward pass, directly or in a function that it calls by name. That tells batches from epochs, and
from the time steps of a recurrent network. `Program` has the loops, each with its `Level`.

`Guards` serves the option ``--expect``: it notes which functions the source runs only under a
condition like ``step % 100 == 0``.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from gpuprof_widgets.capture.cell import CellTree, Rewrite, applied_rewrite
from gpuprof_widgets.capture.code import COMPREHENSIONS, FUNCTIONS, Embedded
from gpuprof_widgets.capture.lines.sources import Definition, place, place_of
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.options import Options

Loop = ast.For | ast.AsyncFor | ast.While

LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
_BACKWARD = frozenset({"backward", "manual_backward"})
_OPTIMIZER = re.compile(
    r"(?!.*sched)(.*_)?(opt|optim|optimi[sz]er|adamw?|sgd|scaler|engine)(_.*|s|\d*)"
)
"""Names of optimizers, and of what steps for them (AMP's scaler, DeepSpeed's engine)."""
_TRAINING = re.compile(r"(?!train_test_split)(fit|train)(_\w+)?")
"""Names of functions that train, where their code is not available."""
_LONGEST_TEXT = 40


class Level(IntEnum):
    """How likely the steps of a loop are the ones meant; greater levels take precedence."""

    RUNS = 0
    LOADS = 1
    """Goes through a DataLoader."""
    GRADIENTS = 2
    """Runs a backward pass."""
    TRAINS = 3
    """Makes a step of an optimizer."""


@dataclass(eq=False)
class LoopSite:
    """One loop of the source, with its file if that is not the cell, and its text."""

    node: Loop
    file: str
    function: str
    """The function in which it stands; empty at the top level."""
    text: str
    inner: list[LoopSite] = field(default_factory=list)
    """The loops in its body."""
    level: Level = Level.RUNS
    leads: bool = False
    """Its body, or a function called there, has a training loop."""
    excluded: bool = False
    """Its iterations turned out to run no op, or to go through a model's parts."""

    @property
    def place(self) -> str:
        """``line 5``, or ``line 12 of train.py``."""
        return f"line {self.node.lineno}" + (f" of {self.file}" if self.file else "")

    @property
    def is_innermost(self) -> bool:
        """Whether its body has no loop that could be meant."""
        return all(site.excluded and site.is_innermost for site in self.inner)


@dataclass
class Program:
    """A cell's or script's statements, and the functions elsewhere that they reach by name.

    ``names`` are the global variables, as far as they are known.
    """

    names: Mapping[str, Any]
    sites: dict[ast.AST, LoopSite] = field(default_factory=dict)
    best: Level = Level.RUNS
    """The highest level of any loop."""
    trains_out_of_sight: bool = False
    """Whether a comprehension trains, or a function without source."""
    _statements: list[ast.stmt] = field(default_factory=list)
    _functions: dict[str, list[Definition]] = field(default_factory=lambda: defaultdict(list))
    _methods: set[ast.AST] = field(default_factory=set)
    _imported: set[str] = field(default_factory=set)
    _levels: dict[ast.AST, Level] = field(default_factory=dict)

    def add(
        self, statements: Sequence[ast.stmt], *, file: str = "", tree: ast.Module | None = None
    ) -> None:
        """Add statements with their loops, such as the functions of another ``file``."""
        self._statements += statements
        for node in _walk(statements if tree is None else tree.body):
            if isinstance(node, ast.ClassDef):
                self._methods.update(node.body)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self._imported |= {name.asname or name.name.split(".")[0] for name in node.names}
        for node in _walk(statements):
            if isinstance(node, FUNCTIONS):
                self._functions[node.name].append(node)
        self._add_sites(statements, file, function="", around=None)

    def _add_sites(
        self, nodes: Iterable[ast.AST], file: str, function: str, around: LoopSite | None
    ) -> None:
        """Add the loops, but for those of generators, which make items for another loop."""
        for node in nodes:
            if isinstance(node, LOOPS) and not _goes_through_optimizers(node):
                site = self.sites[node] = LoopSite(node, file, function, _text(node))
                if around is not None:
                    around.inner.append(site)
                self._add_sites(node.body, file, function, site)
                self._add_sites(node.orelse, file, function, around)
            elif isinstance(node, FUNCTIONS):
                if not any(map(_yields, node.body)):
                    self._add_sites(node.body, file, node.name, None)
            elif isinstance(node, ast.ClassDef):
                self._add_sites(node.body, file, function, None)
            else:
                self._add_sites(ast.iter_child_nodes(node), file, function, around)

    def settle(self) -> None:
        """Set the level of every loop, now that all statements are added."""
        self._levels.clear()
        for site in self.sites.values():
            loop, known = site.node, site.level
            nodes: list[ast.AST] = [*loop.body]
            if isinstance(loop, ast.While):
                nodes.append(loop.test)
            elif any(is_loader(self._value(node)) for node in ast.walk(loop.iter)):
                known = Level.LOADS  # else an earlier run may have shown it
            site.level = self._level(nodes) or known
        self.trains_out_of_sight = any(map(self._trains_unseen, self._statements))
        functions = {function for of_name in self._functions.values() for function in of_name}
        leading: set[Definition] = set()  # that have a training loop, or call one that has
        while new := {one for one in functions - leading if self._leads([one], leading)}:
            leading |= new
        for site in self.sites.values():
            site.leads = self._leads(site.node.body, leading)
        self.compare()

    def compare(self) -> None:
        """Find the highest level, now that a level or an exclusion has changed."""
        levels = (site.level for site in self.sites.values() if not site.excluded)
        self.best = max(levels, default=Level.RUNS)

    def exclude(self, site: LoopSite) -> None:
        """Note that the steps of a loop cannot be the ones meant."""
        site.excluded = True
        self.compare()

    def _leads(self, nodes: Iterable[ast.AST], leading: set[Definition]) -> bool:
        """Whether this code, or a function called there, has a training loop."""
        for node in _walk(nodes):
            site = self.sites.get(node)
            if site is not None and site.level >= Level.GRADIENTS:
                return True
            if isinstance(node, ast.Call) and not leading.isdisjoint(self._called(node)):
                return True
        return False

    def _trains_unseen(self, statement: ast.stmt) -> bool:
        """Whether a comprehension in it trains, or it calls a function named like training."""
        for node in ast.walk(statement):
            if isinstance(node, (*COMPREHENSIONS, ast.Lambda)):
                parts = (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
                if self._level(parts) >= Level.GRADIENTS:
                    return True
        return any(map(self._is_training_by_name, _calls_outside_loops(statement)))

    def _is_training_by_name(self, call: ast.Call) -> bool:
        """Whether it is ``fit(net)`` or ``trainer.train()`` without source, not ``net.train()``."""
        name = last_name(call.func)
        if _TRAINING.fullmatch(name) is None or name in self._functions:
            return False
        if name != "train" or not isinstance(call.func, ast.Attribute):
            return True
        owner = call.func.value
        if (value := self._value(owner)) is not None:
            return not hasattr(type(value), "forward")
        return bool(call.args) or "train" in last_name(owner).lower()

    def _level(self, nodes: Iterable[ast.AST]) -> Level:
        calls = (call for node in nodes for call in _calls_outside_loops(node))
        return max(map(self._call_level, calls), default=Level.RUNS)

    def _call_level(self, call: ast.Call) -> Level:
        if isinstance(call.func, ast.Attribute):
            if call.func.attr in _BACKWARD:
                return Level.GRADIENTS
            if call.func.attr == "step" and self._is_optimizer(call.func.value):
                return Level.TRAINS
        if self._is_training_by_name(call):
            return Level.GRADIENTS
        return max(map(self._function_level, self._called(call)), default=Level.RUNS)

    def _function_level(self, function: Definition) -> Level:
        if function not in self._levels:
            self._levels[function] = Level.RUNS  # for now: it may call itself
            self._levels[function] = self._level(function.body)
        return self._levels[function]

    def _called(self, call: ast.Call) -> list[Definition]:
        """Return the functions that may be called there: those of that name, or the one known.

        What has an owner, such as `model.train()`, is a method, unless the owner was imported.
        """
        named = self._functions.get(last_name(call.func), ())
        functions = [function for function in named if _fits(call, function)]
        if not isinstance(call.func, ast.Attribute):
            return [one for one in functions if one not in self._methods]
        owner = call.func.value
        value, name = self._value(owner), getattr(owner, "id", "")
        if value is None or name == "self":
            is_imported = name in self._imported
            return [one for one in functions if is_imported or one in self._methods]
        method = inspect.getattr_static(value, call.func.attr, None)
        code = getattr(getattr(method, "__func__", method), "__code__", None)
        return [one for one in functions if code is not None and place(code) == place_of(one)]

    def _is_optimizer(self, node: ast.expr) -> bool:
        value = self._value(node)
        if _is_of_kind(value, "Optimizer", "torch.optim"):
            return True
        if value is not None and not type(value).__name__.endswith(
            ("Optimizer", "Scaler", "Engine")
        ):
            return False
        return _OPTIMIZER.fullmatch(last_name(node).lower()) is not None

    def _value(self, node: ast.AST) -> Any:
        """Return the global variable that an expression is; None where it is not known."""
        return self.names.get(node.id) if isinstance(node, ast.Name) else None


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    return (part for node in nodes for part in ast.walk(node))


def _yields(node: ast.AST) -> bool:
    """Whether this code of a function makes it a generator."""
    if isinstance(node, _SCOPES):
        return False
    is_yield = isinstance(node, (ast.Yield, ast.YieldFrom))
    return is_yield or any(map(_yields, ast.iter_child_nodes(node)))


def _goes_through_optimizers(loop: Loop) -> bool:
    """Whether it is ``for optimizer in optimizers: optimizer.step()``, part of one step."""
    if isinstance(loop, ast.While):
        return False
    targets = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)}
    return any(
        isinstance(part, ast.Attribute)
        and part.attr in {"step", *_BACKWARD}
        and isinstance(part.value, ast.Name)
        and part.value.id in targets
        for part in _walk(loop.body)
    )


def _fits(call: ast.Call, function: Definition) -> bool:
    """Whether the call has enough arguments for the function, and not too many."""
    unpacks = any(isinstance(argument, ast.Starred) for argument in call.args)
    if unpacks or any(keyword.arg is None for keyword in call.keywords):
        return True
    taken = function.args
    most = len(taken.posonlyargs) + len(taken.args)
    has_room = taken.vararg is not None or len(call.args) <= most
    with_owner = len(call.args) + len(call.keywords) + 1
    return has_room and with_owner >= most - len(taken.defaults)


def _calls_outside_loops(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls, without the insides of functions and bodies of loops and comprehensions."""
    if isinstance(node, _SCOPES):
        return
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call):
        yield node
    elif isinstance(node, COMPREHENSIONS):
        children = [node.generators[0].iter]
    elif isinstance(node, LOOPS) and not _goes_through_optimizers(node):
        children = [node.test if isinstance(node, ast.While) else node.iter]
    for child in children:
        yield from _calls_outside_loops(child)


def last_name(node: ast.AST) -> str:
    """Return ``step`` for ``self.optimizers[0].step``; "" where there is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, (ast.Subscript, ast.Await, ast.Starred)):
        return last_name(node.value)
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.id if isinstance(node, ast.Name) else ""


def is_loader(value: Any) -> bool:
    """Whether it is a DataLoader."""
    return _is_of_kind(value, "DataLoader", "torch.utils.data")


def _is_of_kind(value: Any, name: str, package: str) -> bool:
    """Whether its class is that one or a subclass, without running code of the value."""
    kinds = type(value).__mro__
    return any(kind.__name__ == name and kind.__module__.startswith(package) for kind in kinds)


def _text(loop: Loop) -> str:
    """Return the head of the loop on one line: ``for batch in loader``."""
    head = copy.copy(loop)
    head.body, head.orelse = [ast.Pass()], []
    text = ast.unparse(head).partition(":\n")[0]
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def guards(options: Options) -> Rewrite | None:
    """Return the reader of a cell's guards, where regions are expected."""
    return None if options.expect is None else Guards()


def expected(context: Context) -> Part | None:
    """Return the part with the guards, where a cell's guards were read."""
    return applied_rewrite(context.code, Guards)


class Guards(Part):
    """A rewrite that changes nothing, and a part: it notes what runs under which ``% N``."""

    loses = "how often the expected regions should run is not known"

    def __init__(self) -> None:
        self._periods: dict[str, dict[str, int]] = {}

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Note what runs every how many iterations; the innermost guard counts."""
        for node in _walk(tree.statements):
            if isinstance(node, ast.If) and (every := _period(node.test)) is not None:
                called = filter(None, map(_called_name, _walk(node.body)))
                guard = {"every": every, "line": node.lineno}
                self._periods |= dict.fromkeys(called, guard)

    def metadata(self) -> dict[str, Any]:
        return {"guards": self._periods}


def _period(test: ast.expr) -> int | None:
    """Return N for a test that is true every N iterations, such as ``x % N == c`` or ``not x % N``.

    ``c`` may be anything: it is reached once in N.
    """
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return _modulus(left) or _modulus(right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _modulus(operand)
        case ast.BoolOp(op=ast.And(), values=values):
            periods = [period for value in values if (period := _period(value)) is not None]
            return max(periods, default=None)
    return None


def _modulus(node: ast.expr) -> int | None:
    match node:
        case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=int(every))) if every > 1:
            return every
    return None


def _called_name(node: ast.AST) -> str:
    """Return the function or method that this calls, or the region that it opens; "" otherwise."""
    match node:
        case ast.Call(args=[ast.Constant(str(region))]) if last_name(node) == "record_function":
            return region
        case ast.Call(func=ast.Name() | ast.Attribute()):
            return last_name(node)
    return ""

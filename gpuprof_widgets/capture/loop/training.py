"""What the source says before it runs: which loops train, and what runs every N iterations.

A loop trains if its body, without the bodies of loops inside it, makes an optimizer's step or a
backward pass, directly or in a function that it calls by name. That tells batches from epochs, and
from the time steps of a recurrent network. `Program` has the loops, each with its `Level`.

`Guards` and the part `ExpectedRegions` serve the option ``--expect``: they note which functions the
source runs only under a condition like ``step % 100 == 0``.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import CodeType, ModuleType
from typing import Any

from gpuprof_widgets.capture.cell import CellTree, Rewrite, applied_rewrite
from gpuprof_widgets.capture.code import COMPREHENSIONS, FUNCTIONS, Embedded
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.options import Options

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef

LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
_BACKWARD = frozenset({"backward", "manual_backward"})
_OPTIMIZER = re.compile(
    r"(?!.*sched)(.*_)?(opt|optim|optimi[sz]er|adamw?|sgd|scaler|engine)(_.*|s|\d*)"
)
"""Names of optimizers, and of what steps for them (AMP's scaler, DeepSpeed's engine)."""
_TRAINING = re.compile(r"(?!train_test_split)(fit|train)(_\w+)?")
"""Names of functions that train, where their code is not available."""
_UNSEEN = (*COMPREHENSIONS, ast.Lambda)
"""Expressions that may run their code repeatedly, and cannot be ended like a loop."""
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
    """One loop of the source: its line, its file if that is not the cell, its text."""

    node: Loop
    line: int
    file: str
    text: str
    level: Level
    inner: list[ast.AST]
    """The loops in its body."""
    function: str
    """The function in which it stands; empty at the top level."""
    leads: bool = False
    """Its body, or a function called there, has a training loop."""
    excluded: bool = False
    """Its iterations turned out to run no op, or to go through a model's parts."""

    @property
    def place(self) -> str:
        """``line 5``, or ``line 12 of train.py``."""
        return f"line {self.line} of {self.file}" if self.file else f"line {self.line}"


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
    _functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    _methods: set[ast.AST] = field(default_factory=set)
    _imported: set[str] = field(default_factory=set)
    _levels: dict[ast.AST, Level] = field(default_factory=dict)

    def add(
        self, statements: Iterable[ast.stmt], *, file: str = "", tree: ast.Module | None = None
    ) -> None:
        """Add statements with their loops, such as the functions of another ``file``."""
        statements = list(statements)
        self._statements += statements
        for statement in statements if tree is None else tree.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.ClassDef):
                    self._methods.update(node.body)
                elif isinstance(node, (ast.Import, ast.ImportFrom)):
                    self._imported |= {one.asname or one.name.split(".")[0] for one in node.names}
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, FUNCTIONS) and node not in self._functions[node.name]:
                    self._functions[node.name].append(node)
        for site in _sites(statements, file, function=""):
            self.sites.setdefault(site.node, site)

    def has(self, functions: Iterable[Function]) -> bool:
        """Whether these functions were added."""
        return all(function in self._functions[function.name] for function in functions)

    def settle(self) -> None:
        """Set the level of every loop, now that all statements are added."""
        self._levels.clear()
        for site in self.sites.values():
            level = self._body_level(site.node)
            # An earlier run may have shown that it goes through a DataLoader.
            site.level = level or (Level.LOADS if self._loads(site.node) else site.level)
        self.trains_out_of_sight = any(map(self._trains_unseen, self._statements))
        leading = self._functions_that_lead()
        for site in self.sites.values():
            site.leads = any(self._leads(part, leading) for part in site.node.body)
        self._compare()

    def _leads(self, node: ast.AST, leading: set[Function]) -> bool:
        """Whether this code, or a function called there, has a training loop."""
        for part in ast.walk(node):
            site = self.sites.get(part)
            if site is not None and site.level >= Level.GRADIENTS:
                return True
            if isinstance(part, ast.Call) and not leading.isdisjoint(self._called(part)):
                return True
        return False

    def _functions_that_lead(self) -> set[Function]:
        """Return the functions that have a training loop, or call one that has."""
        functions = [one for of_name in self._functions.values() for one in of_name]
        leading = {function for function in functions if self._leads(function, set())}
        callers: dict[Function, set[Function]] = defaultdict(set)
        for function in functions:
            for call in ast.walk(function):
                for called in self._called(call) if isinstance(call, ast.Call) else ():
                    callers[called].add(function)
        waiting = list(leading)
        while waiting:
            new = callers[waiting.pop()] - leading
            leading |= new
            waiting += new
        return leading

    def is_innermost(self, site: LoopSite) -> bool:
        """Whether its body has no loop that could be meant."""
        inner = filter(None, map(self.sites.get, site.inner))
        return all(loop.excluded for loop in inner)

    def loads(self, site: LoopSite) -> None:
        """Note that a loop goes through a DataLoader, as its run shows."""
        site.level = max(site.level, Level.LOADS)
        self._compare()

    def exclude(self, site: LoopSite) -> None:
        """Note that the steps of a loop cannot be the ones meant."""
        site.excluded = True
        self._compare()

    def _compare(self) -> None:
        levels = (site.level for site in self.sites.values() if not site.excluded)
        self.best = max(levels, default=Level.RUNS)

    def _trains_unseen(self, statement: ast.stmt) -> bool:
        """Whether a comprehension in it trains, or it calls a function named like training."""
        for node in ast.walk(statement):
            if isinstance(node, _UNSEEN):
                parts = (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
                if self._level(parts) >= Level.GRADIENTS:
                    return True
        calls = (node for node in _nodes_outside_loops(statement) if isinstance(node, ast.Call))
        return any(self._is_training_by_name(call) for call in calls)

    def _is_training_by_name(self, call: ast.Call) -> bool:
        """Whether it is ``fit(net)`` or ``trainer.train()`` without source, not ``net.train()``."""
        name = last_name(call.func)
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        value = self.names.get(receiver.id) if isinstance(receiver, ast.Name) else None
        is_model = hasattr(type(value), "forward")
        if value is None and receiver is not None:
            is_model = not call.args and "train" not in last_name(receiver).lower()
        by_name = _TRAINING.fullmatch(name) is not None and name not in self._functions
        return by_name and not (name == "train" and is_model)

    def _body_level(self, loop: Loop) -> Level:
        nodes = [*loop.body, *([loop.test] if isinstance(loop, ast.While) else [])]
        return self._level(nodes)

    def _level(self, nodes: Iterable[ast.AST]) -> Level:
        parts = (part for node in nodes for part in _nodes_outside_loops(node))
        calls = (part for part in parts if isinstance(part, ast.Call))
        return max((self._call_level(call) for call in calls), default=Level.RUNS)

    def _call_level(self, call: ast.Call) -> Level:
        name = last_name(call.func)
        if isinstance(call.func, ast.Attribute):
            if name in _BACKWARD:
                return Level.GRADIENTS
            if name == "step" and self._is_optimizer(call.func.value):
                return Level.TRAINS
        if self._is_training_by_name(call):
            return Level.GRADIENTS
        return max(map(self._function_level, self._called(call)), default=Level.RUNS)

    def _called(self, call: ast.Call) -> list[Function]:
        """Return the functions that may be called there: those of that name, or the one known.

        What has an owner, such as `model.train()`, is a method, unless the owner was imported.
        """
        functions = self._functions.get(last_name(call.func), [])
        functions = [one for one in functions if _fits(call, one)]
        if not isinstance(call.func, ast.Attribute):
            return [one for one in functions if one not in self._methods]
        receiver = call.func.value
        name = receiver.id if isinstance(receiver, ast.Name) else ""
        value = self.names.get(name)
        if value is None or name == "self":
            is_imported = name in self._imported
            return [one for one in functions if is_imported or one in self._methods]
        places = [vars(value)] if type(value) is ModuleType else map(vars, type(value).__mro__)
        method = next((place[call.func.attr] for place in places if call.func.attr in place), None)
        code = getattr(getattr(method, "__func__", method), "__code__", None)
        return [
            function for function in functions if code is not None and _is_code_of(code, function)
        ]

    def _function_level(self, function: Function) -> Level:
        if function not in self._levels:
            self._levels[function] = Level.RUNS  # for now: it may call itself
            self._levels[function] = self._level(function.body)
        return self._levels[function]

    def _is_optimizer(self, node: ast.expr) -> bool:
        value = self.names.get(node.id) if isinstance(node, ast.Name) else None
        if _is_of_kind(value, "Optimizer", "torch.optim"):
            return True
        kind = type(value).__name__
        if value is not None and not kind.endswith(("Optimizer", "Scaler", "Engine")):
            return False
        return _OPTIMIZER.fullmatch(last_name(node).lower()) is not None

    def _loads(self, loop: Loop) -> bool:
        if isinstance(loop, ast.While):
            return False
        names = (part for part in ast.walk(loop.iter) if isinstance(part, ast.Name))
        return any(is_loader(self.names.get(name.id)) for name in names)


def _sites(nodes: Iterable[ast.AST], file: str, *, function: str) -> Iterator[LoopSite]:
    for node in nodes:
        if isinstance(node, LOOPS) and not _goes_through_optimizers(node):
            inside = (part for statement in node.body for part in _nodes_in_scope(statement))
            inner: list[ast.AST] = [part for part in inside if isinstance(part, LOOPS)]
            yield LoopSite(node, node.lineno, file, _text(node), Level.RUNS, inner, function)
        if not _is_generator(node):
            name = node.name if isinstance(node, FUNCTIONS) else function
            yield from _sites(ast.iter_child_nodes(node), file, function=name)


def _is_generator(node: ast.AST) -> bool:
    """Whether it is a generator, whose loops make items for another loop."""
    yields = (ast.Yield, ast.YieldFrom)
    return isinstance(node, FUNCTIONS) and any(
        isinstance(part, yields) for statement in node.body for part in _nodes_in_scope(statement)
    )


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
        for statement in loop.body
        for part in ast.walk(statement)
    )


def _fits(call: ast.Call, function: Function) -> bool:
    """Whether the function takes as many arguments as the call has, perhaps with an owner."""
    unpacks = any(isinstance(one, ast.Starred) for one in call.args)
    if unpacks or any(keyword.arg is None for keyword in call.keywords):
        return True
    taken = function.args
    most = len(taken.posonlyargs) + len(taken.args)
    least = most - len(taken.defaults)
    is_open = taken.vararg is not None or len(call.args) <= most
    return is_open and len(call.args) + len(call.keywords) + 1 >= least


def _is_code_of(code: CodeType, function: Function) -> bool:
    lines = [function.lineno, *(decorator.lineno for decorator in function.decorator_list)]
    return code.co_name == function.name and code.co_firstlineno == min(lines)


def _nodes_outside_loops(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and what is in it, without the insides of functions and bodies of loops.

    Comprehensions are loops as well.
    """
    yield node
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, COMPREHENSIONS):
        yield from _nodes_outside_loops(node.generators[0].iter)
        return
    if isinstance(node, LOOPS) and not _goes_through_optimizers(node):
        yield from _nodes_outside_loops(node.test if isinstance(node, ast.While) else node.iter)
        return
    for child in ast.iter_child_nodes(node):
        yield from _nodes_outside_loops(child)


def _nodes_in_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and what is in it, without the insides of functions."""
    yield node
    if not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _nodes_in_scope(child)


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
    if isinstance(loop, ast.While):
        text = f"while {ast.unparse(loop.test)}"
    else:
        word = "async for" if isinstance(loop, ast.AsyncFor) else "for"
        target = ast.unparse(loop.target).removeprefix("(").removesuffix(")")
        text = f"{word} {target} in {ast.unparse(loop.iter)}"
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def guards(options: Options) -> Rewrite | None:
    """Return the reader of a cell's guards, where regions are expected."""
    return None if options.expect is None else Guards()


class Guards:
    """A rewrite that changes nothing: it only notes what runs under which ``% N``."""

    def __init__(self) -> None:
        self.periods: dict[str, dict[str, int]] = {}

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Note what runs every how many iterations; the innermost guard counts."""
        for statement in tree.statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.If) and (every := _period(node.test)) is not None:
                    place = {"every": every, "line": node.lineno}
                    self.periods |= dict.fromkeys(_names_called(node.body), place)


def expected(context: Context) -> ExpectedRegions | None:
    """Return the part with the guards, where a cell's guards were read."""
    guards = applied_rewrite(context.code, Guards)
    return None if guards is None else ExpectedRegions(guards)


class ExpectedRegions(Part):
    """Puts the guards of the expected names into the metadata."""

    loses = "how often the expected regions should run is not known"

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def metadata(self) -> dict[str, Any]:
        return {"guards": self._guards.periods}


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


def _names_called(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the functions and methods that these statements call, and the regions they open."""
    for statement in body:
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Name(id="record_function"), args=[ast.Constant(str(name))]):
                    yield name
                case ast.Call(
                    func=ast.Attribute(attr="record_function"), args=[ast.Constant(str(name))]
                ):
                    yield name
                case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                    yield name

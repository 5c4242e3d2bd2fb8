"""Which loops of a program train, as its source says before any of them runs.

A loop trains where its body, and not that of a loop inside it, makes a step of an optimizer or a
backward pass, itself or in a function that it calls by name. So epochs are told from batches, and
batches from the time steps of a recurrent network.
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

from gpuprof_widgets.capture.cell import CellTree, Rewrite
from gpuprof_widgets.capture.code import Embedded
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef

LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
_BACKWARD = frozenset({"backward", "manual_backward"})
_OPTIMIZER = re.compile(
    r"(?!.*sched)(.*_)?(opt|optim|optimi[sz]er|adamw?|sgd|scaler|engine)(_.*|s|\d*)"
)
"""Names of optimizers, and of what stands before them (AMP's scaler, DeepSpeed's engine)."""
_TRAINING = re.compile(r"(?!train_test_split)(fit|train)(_\w+)?")
"""Names of functions that train, where their code is out of sight."""
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNSEEN = (*_COMPREHENSIONS, ast.Lambda)
"""What may run its code again and again, and is no loop that could be ended."""
_LONGEST = 40


class Level(IntEnum):
    """How much speaks for a loop as the one whose steps are meant; a greater one goes first."""

    RUNS = 0
    LOADS = 1
    """Goes through a DataLoader."""
    GRADIENTS = 2
    """Runs a backward pass."""
    TRAINS = 3
    """Makes a step of an optimizer."""


@dataclass(eq=False)
class LoopSite:
    """One loop of the source: its line, the file of a function that is not the cell's, its text."""

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
    """A loop that trains stands in its body, or in a function called there."""
    excluded: bool = False
    """It was seen to be none: its iterations ran no op, or go through a model's parts."""

    @property
    def place(self) -> str:
        """``line 5``, or ``line 12 of train.py``."""
        return f"line {self.line} of {self.file}" if self.file else f"line {self.line}"


@dataclass
class Program:
    """A cell's or script's statements, and the functions elsewhere that they reach by name.

    ``names`` are the global names, as far as they are known.
    """

    names: Mapping[str, Any]
    sites: dict[ast.AST, LoopSite] = field(default_factory=dict)
    best: Level = Level.RUNS
    """The most that speaks for any of the loops."""
    trains_out_of_sight: bool = False
    """Whether something trains outside of them: a comprehension, or a function without source."""
    _statements: list[ast.stmt] = field(default_factory=list)
    _functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    _levels: dict[ast.AST, Level] = field(default_factory=dict)

    def add(self, statements: Iterable[ast.stmt], *, file: str = "") -> None:
        """Take in statements with their loops, such as the functions of another ``file``."""
        statements = list(statements)
        self._statements += statements
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, FUNCTIONS) and node not in self._functions[node.name]:
                    self._functions[node.name].append(node)
        for site in _sites(statements, file, function=""):
            self.sites.setdefault(site.node, site)

    def has(self, functions: Iterable[Function]) -> bool:
        """Whether these were taken in."""
        return all(function in self._functions[function.name] for function in functions)

    def settle(self) -> None:
        """Say of every loop how much speaks for it, now that all of them are there."""
        self._levels.clear()
        for site in self.sites.values():
            level = self._body_level(site.node)
            # A run may have shown before that it goes through a DataLoader.
            site.level = level or (Level.LOADS if self._loads(site.node) else site.level)
        self.trains_out_of_sight = any(map(self._trains_unseen, self._statements))
        leading = self._functions_that_lead()
        for site in self.sites.values():
            site.leads = any(self._leads(part, leading) for part in site.node.body)
        self._compare()

    def _leads(self, node: ast.AST, leading: set[str]) -> bool:
        """Whether a loop trains in this code, or in a function called there."""
        for each in ast.walk(node):
            site = self.sites.get(each)
            if site is not None and site.level >= Level.GRADIENTS:
                return True
            if isinstance(each, ast.Call) and last_name(each.func) in leading:
                return True
        return False

    def _functions_that_lead(self) -> set[str]:
        """The names of functions in which a loop trains, or in one that they call in turn."""
        found: set[str] = set()
        callers: dict[str, set[str]] = defaultdict(set)
        for name, functions in self._functions.items():
            for function in functions:
                if self._leads(function, set()):
                    found.add(name)
                for call in ast.walk(function):
                    if isinstance(call, ast.Call):
                        callers[last_name(call.func)].add(name)
        waiting = list(found)
        while waiting:
            new = callers[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    def is_innermost(self, site: LoopSite) -> bool:
        """Whether no loop stands in its body, but for such as turned out to be none."""
        inner = filter(None, map(self.sites.get, site.inner))
        return all(one.excluded for one in inner)

    def loads(self, site: LoopSite) -> None:
        """Say of a loop that it goes through a DataLoader, as its run shows."""
        site.level = max(site.level, Level.LOADS)
        self._compare()

    def exclude(self, site: LoopSite) -> None:
        """Say of a loop that it is none whose steps could be meant."""
        site.excluded = True
        self._compare()

    def _compare(self) -> None:
        levels = (site.level for site in self.sites.values() if not site.excluded)
        self.best = max(levels, default=Level.RUNS)

    def _trains_unseen(self, statement: ast.stmt) -> bool:
        """Whether a comprehension in it trains, or it calls what does by its name alone."""
        for node in ast.walk(statement):
            if isinstance(node, _UNSEEN):
                parts = (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
                if self._level(parts) >= Level.GRADIENTS:
                    return True
        own = (each for each in _own(statement) if isinstance(each, ast.Call))
        return any(self._is_called_training(call) for call in own)

    def _is_called_training(self, call: ast.Call) -> bool:
        """``fit(net)`` and ``trainer.train()`` without their source, but not ``net.train()``."""
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
        calls = (each for node in nodes for each in _own(node) if isinstance(each, ast.Call))
        return max((self._call_level(call) for call in calls), default=Level.RUNS)

    def _call_level(self, call: ast.Call) -> Level:
        name = last_name(call.func)
        if isinstance(call.func, ast.Attribute):
            if name in _BACKWARD:
                return Level.GRADIENTS
            if name == "step" and self._is_optimizer(call.func.value):
                return Level.TRAINS
        if self._is_called_training(call):
            return Level.GRADIENTS
        return max(map(self._function_level, self._called(call)), default=Level.RUNS)

    def _called(self, call: ast.Call) -> list[Function]:
        """The functions that may be called there: all of that name, less what is known better."""
        functions = self._functions.get(last_name(call.func), [])
        if not functions or not isinstance(call.func, ast.Attribute):
            return functions
        receiver = call.func.value
        value = self.names.get(receiver.id) if isinstance(receiver, ast.Name) else None
        if value is None or (isinstance(receiver, ast.Name) and receiver.id == "self"):
            return functions
        places = [vars(value)] if type(value) is ModuleType else map(vars, type(value).__mro__)
        found = next((place[call.func.attr] for place in places if call.func.attr in place), None)
        code = getattr(getattr(found, "__func__", found), "__code__", None)
        return [one for one in functions if code is not None and _is_code_of(code, one)]

    def _function_level(self, function: Function) -> Level:
        if function not in self._levels:
            self._levels[function] = Level.RUNS  # while it is looked at: it may call itself
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
        names = (each for each in ast.walk(loop.iter) if isinstance(each, ast.Name))
        return any(is_loader(self.names.get(name.id)) for name in names)


def _sites(nodes: Iterable[ast.AST], file: str, *, function: str) -> Iterator[LoopSite]:
    for node in nodes:
        if isinstance(node, LOOPS) and not _goes_through_optimizers(node):
            inside = (each for part in node.body for each in _all_own(part))
            inner: list[ast.AST] = [each for each in inside if isinstance(each, LOOPS)]
            yield LoopSite(node, node.lineno, file, _text(node), Level.RUNS, inner, function)
        if not _is_generator(node):
            name = node.name if isinstance(node, FUNCTIONS) else function
            yield from _sites(ast.iter_child_nodes(node), file, function=name)


def _is_generator(node: ast.AST) -> bool:
    """A function whose loops make items for another one."""
    yields = (ast.Yield, ast.YieldFrom)
    return isinstance(node, FUNCTIONS) and any(
        isinstance(each, yields) for part in node.body for each in _all_own(part)
    )


def _goes_through_optimizers(loop: Loop) -> bool:
    """``for optimizer in optimizers: optimizer.step()`` is part of a step of the loop around it."""
    if isinstance(loop, ast.While):
        return False
    targets = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    return any(
        isinstance(each, ast.Attribute)
        and each.attr in {"step", *_BACKWARD}
        and isinstance(each.value, ast.Name)
        and each.value.id in targets
        for part in loop.body
        for each in ast.walk(part)
    )


def _is_code_of(code: CodeType, function: Function) -> bool:
    lines = [function.lineno, *(decorator.lineno for decorator in function.decorator_list)]
    return code.co_name == function.name and code.co_firstlineno == min(lines)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is in it, but for the insides of functions and the bodies of loops.

    Comprehensions are loops as well.
    """
    yield node
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, _COMPREHENSIONS):
        yield from _own(node.generators[0].iter)
        return
    if isinstance(node, LOOPS) and not _goes_through_optimizers(node):
        yield from _own(node.test if isinstance(node, ast.While) else node.iter)
        return
    for child in ast.iter_child_nodes(node):
        yield from _own(child)


def _all_own(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is in it, but for the insides of functions."""
    yield node
    if not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _all_own(child)


def last_name(node: ast.AST) -> str:
    """``step`` of ``self.optimizers[0].step``; empty where there is none."""
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
    """Whether its class is that one or one of its; nothing of the value itself runs."""
    kinds = type(value).__mro__
    return any(kind.__name__ == name and kind.__module__.startswith(package) for kind in kinds)


def _text(loop: Loop) -> str:
    """How the loop begins, on one line: ``for batch in loader``."""
    if isinstance(loop, ast.While):
        text = f"while {ast.unparse(loop.test)}"
    else:
        word = "async for" if isinstance(loop, ast.AsyncFor) else "for"
        target = ast.unparse(loop.target).removeprefix("(").removesuffix(")")
        text = f"{word} {target} in {ast.unparse(loop.iter)}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def guards(options: Options) -> Rewrite | None:
    """The reader of a cell's guards, where regions are expected."""
    return None if options.expect is None else Guards()


class Guards:
    """Changes nothing in the tree: it only looks what runs under which ``% N`` in it."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, int]] = {}

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Note what runs every how many iterations; the innermost guard that says so counts."""
        for statement in tree.statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.If) and (every := _period(node.test)) is not None:
                    place = {"every": every, "line": node.lineno}
                    self.found |= dict.fromkeys(_names_called(node.body), place)


def expected(context: Context) -> ExpectedRegions | None:
    """The part that tells the guards that were found."""
    applied = context.code.rewrites if context.code is not None else ()
    return next((ExpectedRegions(one) for one in applied if isinstance(one, Guards)), None)


class ExpectedRegions:
    """Puts the guards of the expected names into the metadata."""

    loses = "no word on how often what is expected runs"

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def start(self) -> None:
        """Nothing is put in."""

    def stop(self) -> None:
        """Nothing to take out."""

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        return {"guards": self._guards.found}


def _period(test: ast.expr) -> int | None:
    """N, where the test is true every N iterations: ``x % N == c``, ``not x % N``, and with `and`.

    ``c`` may be anything: there is one such moment in N.
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
    """The functions and methods that these statements call, and the regions that they open."""
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

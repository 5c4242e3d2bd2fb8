"""Put every statement of a syntax tree into a region of its line, and change nothing else."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from gpuprof_widgets.capture.code import COMPREHENSIONS, FUNCTIONS, Embedded
from gpuprof_widgets.capture.lines.regions import LineMarks
from gpuprof_widgets.capture.lines.suspended import Suspensions

_SCOPES = (*FUNCTIONS, ast.ClassDef)
_WITHOUT_TIME = (ast.Global, ast.Nonlocal, ast.Pass, ast.Break, ast.Continue)
_BLOCKS = ("body", "orelse", "finalbody")

MOST_NESTED = 19
"""How deep blocks may go, ours included: CPython compiles 20."""


@dataclass(frozen=True)
class _Around:
    """Where a block stands: how deep, on which open line, and whether in a class."""

    depth: int = 0
    line: int = 0
    of_class: bool = False

    def inside(self, node: ast.stmt) -> _Around:
        """Return the surroundings inside the region of a statement."""
        return _Around(self.depth + 1, node.lineno)


class MarkedLines:
    """Rewrites blocks of statements, in place, for one set of marks.

    ``untouched``: functions and classes that stay as they are, because a compiler reads them.
    """

    def __init__(
        self, marks: LineMarks, embedded: Embedded, untouched: Collection[ast.AST] = ()
    ) -> None:
        self._marks = marks
        self._embedded = embedded
        self._untouched = untouched
        self._suspensions = Suspensions(marks)
        self._last_line = 0  # of the last region in the block that was rewritten last

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrite the statements of a cell or of a function's body."""
        suspending = self._suspending()
        return self._block([suspending.visit(node) for node in statements], _Around())

    def last(self, node: ast.expr) -> tuple[ast.expr, Callable[[], Any]]:
        """Rewrite a cell's last expression; also return what to enter around its evaluation.

        Call it after `block` with the statements before.
        """
        suspends, goes_on = _suspends(node), node.lineno == self._last_line
        if suspends == "no":
            return node, self._marks.mark(node.lineno, resumed=goes_on).next
        node = self._suspending().visit(node)
        if suspends == "unseen":
            return node, nullcontext
        region = self._suspensions.last(node.lineno, goes_on=goes_on)
        begun = self._embedded.call(region.begin_here, at=node)
        return ast.copy_location(ast.BoolOp(ast.Or(), [begun, node]), node), lambda: region

    def _suspending(self) -> _Suspending:
        return _Suspending(self._suspensions, self._embedded, self._untouched)

    def _block(self, statements: list[ast.stmt], around: _Around) -> list[ast.stmt]:
        """Rewrite the statements; of several on a line (``a(); b()``) later ones continue it."""
        start = _docstring_and_future(statements)
        rewritten, line = statements[:start], 0
        for node in statements[start:]:
            rewritten.append(self._statement(node, around, goes_on=node.lineno == line))
            line = node.lineno if rewritten[-1] is not node else line
        self._last_line = line
        return rewritten

    def _statement(self, node: ast.stmt, around: _Around, *, goes_on: bool) -> ast.stmt:
        suspends = _suspends(node)
        fits = around.depth + 1 + _height(node) <= MOST_NESTED
        marked = fits and suspends != "unseen" and not _is_left_alone(node, around)
        if node not in self._untouched:
            self._inner_blocks(node, around.inside(node) if marked else around)
        return self._marked(node, suspends == "seen", goes_on) if marked else node

    def _marked(self, node: ast.stmt, suspends: bool, goes_on: bool) -> ast.stmt:
        if suspends:
            entrance = self._suspensions.next(node.lineno, goes_on=goes_on)
        else:
            entrance = self._marks.mark(node.lineno, resumed=goes_on).next
        item = ast.withitem(self._embedded.call(entrance, at=node), None)
        return ast.copy_location(ast.With([item], [node]), node)

    def _inner_blocks(self, node: ast.AST, around: _Around) -> None:
        if isinstance(node, _SCOPES):
            inner = _Around(of_class=isinstance(node, ast.ClassDef))
        else:
            inner = replace(around, depth=around.depth + _blocks_of(node))
        for name in _BLOCKS:
            statements = getattr(node, name, None)
            if isinstance(statements, list) and statements:
                setattr(node, name, self._block(statements, inner))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            part.body = self._block(part.body, inner)


def _docstring_and_future(statements: list[ast.stmt]) -> int:
    """Return how many statements at the start are a docstring or imports from __future__."""
    number = 0
    for node in statements:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not future and not (text and number == 0):
            break
        number += 1
    return number


def _is_left_alone(node: ast.stmt, around: _Around) -> bool:
    """Whether a statement takes no time, must not be moved, or is on a line that is open."""
    if around.of_class and isinstance(node, FUNCTIONS):
        return not node.decorator_list
    if around.of_class and isinstance(node, ast.AnnAssign):
        return True
    return isinstance(node, _WITHOUT_TIME) or node.lineno == around.line


def _blocks_of(node: ast.AST) -> int:
    """Return how many blocks at most the compiler opens around the inner statements."""
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return len(node.items)
    if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
        return 1
    return 3 if isinstance(node, (ast.Try, ast.TryStar)) else 0


def _height(node: ast.AST) -> int:
    """Return how deep the blocks inside a statement go, without those of inner functions."""
    if isinstance(node, (*_SCOPES, ast.expr)):
        return 0
    inner = max((_height(child) for child in ast.iter_child_nodes(node)), default=0)
    return inner + _blocks_of(node)


def _suspends(node: ast.AST) -> str:
    """Return whether the frame is suspended in the node: "no", "seen" or "unseen" by us.

    Unseen are the awaits that `async for`, `async with` and comprehensions do themselves.
    """
    suspends = "no"
    for inner in _in_frame(node):
        if isinstance(inner, (ast.AsyncFor, ast.AsyncWith)) or _awaits_itself(inner):
            return "unseen"
        if isinstance(inner, (ast.Await, ast.Yield, ast.YieldFrom)):
            suspends = "seen"
    return suspends


def _awaits_itself(node: ast.AST) -> bool:
    if not isinstance(node, COMPREHENSIONS) or isinstance(node, ast.GeneratorExp):
        return False
    outside = set(ast.walk(node.generators[0].iter))
    return any(
        (isinstance(inner, ast.Await) and inner not in outside)
        or (isinstance(inner, ast.comprehension) and inner.is_async)
        for inner in ast.walk(node)
    )


def _in_frame(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and what is evaluated in its frame, not the insides of functions in it."""
    yield node
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, COMPREHENSIONS):
        yield from _in_frame(node.generators[0].iter)
        return
    skipped = _BLOCKS if isinstance(node, _SCOPES) else ()
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in skipped:
                yield from _in_frame(child)


class _Suspending(ast.NodeTransformer):
    """Makes code tell the open regions of its frame when it is suspended and when it goes on."""

    def __init__(
        self, suspensions: Suspensions, embedded: Embedded, untouched: Collection[ast.AST]
    ) -> None:
        self._suspensions = suspensions
        self._embedded = embedded
        self._untouched = untouched

    def visit(self, node: ast.AST) -> Any:
        if node in self._untouched or isinstance(node, ast.Lambda):
            return node
        if isinstance(node, COMPREHENSIONS):
            node.generators[0].iter = self.visit(node.generators[0].iter)
            return node
        return super().visit(node)

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        self.generic_visit(node)
        value = node.value or ast.copy_location(ast.Constant(None), node)
        node.value = self._embedded.call(self._suspensions.suspended, value, at=node)
        return self._embedded.call(self._suspensions.resumed, node, at=node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self.generic_visit(node)
        node.value = self._embedded.call(self._suspensions.delegated, node.value, at=node.value)
        return node

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        node.value = self._embedded.call(self._suspensions.awaited, node.value, at=node.value)
        return node

"""Put every statement of a syntax tree into a region of its line, and change nothing else."""

from __future__ import annotations

import ast
import copy
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuprof_widgets.capture.code import COMPREHENSIONS, FUNCTIONS, Embedded
from gpuprof_widgets.capture.lines.regions import LineMarks
from gpuprof_widgets.capture.lines.repeated import Calls, Loop
from gpuprof_widgets.capture.lines.sources import Definition
from gpuprof_widgets.capture.lines.suspended import LastExpression, Suspensions

_SCOPES = (*FUNCTIONS, ast.ClassDef)
_ALIASES: tuple[type, ...] = tuple(filter(None, [getattr(ast, "TypeAlias", None)]))  # 3.12
_WITHOUT_TIME = (ast.Global, ast.Nonlocal, ast.Pass, ast.Break, ast.Continue)
_BLOCKS = ("body", "orelse", "finalbody")
_SUSPENDING = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)

# Not the built-in function itself, whose call cProfile would count as the user's.
_iter = functools.partial(iter)

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
    """Rewrites blocks of statements, in place, for one set of marks."""

    def __init__(self, marks: LineMarks, embedded: Embedded) -> None:
        self._marks = marks
        self._embedded = embedded
        self._suspensions = Suspensions(marks)
        self._suspending = _Suspending(self._suspensions, embedded)
        self._last_line = 0  # of the last region in the block that was rewritten last

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrite the statements of a cell or of a function's body."""
        return self._block([self._suspending.visit(node) for node in statements], _Around())

    def function(self, node: Definition) -> Calls | None:
        """Rewrite the body of a function; return its calls, where they are counted."""
        node.body = [self._suspending.visit(part) for part in node.body]
        return self._function(node)

    def last(self, node: ast.expr) -> tuple[ast.expr, Callable[[], Any]]:
        """Rewrite a cell's last expression; also return what to enter around its evaluation.

        Call it after `block` with the statements before.
        """
        goes_on = node.lineno == self._last_line
        if not _suspends(node):
            return node, self._marks.mark(node.lineno, resumed=goes_on).next
        node = self._suspending.visit(node)
        region = self._suspensions.next(node.lineno, goes_on=goes_on, kind=LastExpression)()
        begun = self._embedded.call(region.begin_here, at=node)
        return ast.copy_location(ast.BoolOp(ast.Or(), [begun, node]), node), lambda: region

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
        marked = fits and not _is_left_alone(node, around)
        if marked and not suspends and isinstance(node, ast.For) and _may_be_doubled(node):
            inner = self._loop(node, around.inside(node))
        else:
            self._inner_blocks(node, around.inside(node) if marked else around)
            inner = node
        if not marked:
            return node
        if suspends:
            entrance = self._suspensions.next(node.lineno, goes_on=goes_on)
        else:
            entrance = self._marks.mark(node.lineno, resumed=goes_on).next
        item = ast.withitem(self._embedded.call(entrance, at=node), None)
        return ast.copy_location(ast.With([item], [inner]), node)

    def _loop(self, node: ast.For, around: _Around) -> ast.stmt:
        """Rewrite a `for` statement: the rounds with regions, then those without.

        ``with loop.execution(iter(items)):`` around ``for x in loop.marked(): ... else:`` around
        ``with loop.rest():`` and ``for x in loop.plain(): ...``. A `break` leaves either.
        """
        if around.depth + 2 + _height(node) > MOST_NESTED:
            self._inner_blocks(node, around)
            return node
        plain, seen = copy.deepcopy(node), len(self._marks.repeated)
        self._inner_blocks(node, replace(around, depth=around.depth + 1))
        lines = _lines_of(plain.body).intersection(self._marks.lines())
        if not lines:
            return node
        inner = [one for one in self._marks.repeated[seen:] if isinstance(one, Loop)]
        blocks = (*_BLOCKS, "cases")
        is_single = len(plain.body) == 1 and not any(hasattr(plain.body[0], b) for b in blocks)
        loop = Loop(self._marks, lines, inner, plain.body[0].lineno if is_single else 0)
        self._marks.repeated.append(loop)

        # Where Python says that what is no iterable is none.
        place = node.iter if sys.version_info >= (3, 13) else node

        def call(method: Callable[..., Any], *arguments: ast.expr) -> ast.expr:
            return self._embedded.call(method, *arguments, at=place)

        def block(item: ast.expr, inner: ast.stmt) -> ast.stmt:
            return ast.copy_location(ast.With([ast.withitem(item)], [inner]), node)

        execution = call(loop.execution, call(_iter, node.iter))
        node.iter, plain.iter = call(loop.marked), call(loop.plain)
        node.orelse = [block(call(loop.rest), plain)]
        return block(execution, node)

    def _function(self, node: Definition) -> Calls | None:
        """Rewrite the body of a function; return its calls, where they are counted."""
        seen, lines = len(self._marks.repeated), _lines_of(node.body)
        first = node.body[_docstring_and_future(node.body) :]
        node.body = self._block(node.body, _Around())
        lines = lines.intersection(self._marks.lines())
        if isinstance(node, ast.AsyncFunctionDef) or not first or first[0].lineno not in lines:
            return None
        mark = self._marks.mark(first[0].lineno)
        if mark.after is not None:  # of another function on this line
            return None
        inner = [one for one in self._marks.repeated[seen:] if isinstance(one, Loop)]
        calls = Calls(self._marks, lines, inner)
        self._marks.repeated.append(calls)
        calls.count_at(mark)
        return calls

    def _inner_blocks(self, node: ast.stmt, around: _Around) -> None:
        if isinstance(node, Definition):
            if (calls := self._function(node)) is not None:
                node.decorator_list.append(self._embedded.expression(calls.define, at=node))
            return
        inner = replace(around, depth=around.depth + _blocks_of(node))
        if isinstance(node, ast.ClassDef):
            inner = _Around(of_class=True)
        for block in inner_blocks(node):
            block[:] = self._block(block, inner)


def inner_blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements in a statement, also those of functions and classes."""
    yield from filter(None, (getattr(node, name, None) for name in _BLOCKS))
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


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


def _may_be_doubled(node: ast.For) -> bool:
    """Whether the statement may have two bodies, and have them inside of other statements.

    Not with functions in it, which would be two each, nor with what may stand only once in a scope.
    An ``else`` would have to know whether the items or a `break` ended the loop.
    """
    once = (*_SCOPES, ast.Lambda, *COMPREHENSIONS, ast.Global, ast.Nonlocal, *_ALIASES)
    inner = (part for statement in node.body for part in ast.walk(statement))
    return not node.orelse and not any(isinstance(part, once) for part in inner)


def _lines_of(statements: Sequence[ast.stmt]) -> frozenset[int]:
    """Return the lines on which these statements and those in them begin."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    return frozenset(node.lineno for node in nodes if isinstance(node, ast.stmt))


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


def _suspends(node: ast.AST) -> bool:
    """Whether the frame may be suspended in the node."""
    return any(
        isinstance(inner, _SUSPENDING) or (isinstance(inner, ast.comprehension) and inner.is_async)
        for inner in _in_frame(node)
    )


def _in_frame(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and what is evaluated in its frame, not the insides of functions in it.

    Comprehensions count as inside, though they had frames of their own until Python 3.12.
    """
    yield node
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.GeneratorExp):
        yield from _in_frame(node.generators[0].iter)
        return
    skipped = _BLOCKS if isinstance(node, _SCOPES) else ()
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in skipped:
                yield from _in_frame(child)


class _Suspending(ast.NodeTransformer):
    """Makes code tell the open regions of its frame when it is suspended and when it goes on."""

    def __init__(self, suspensions: Suspensions, embedded: Embedded) -> None:
        self._suspensions = suspensions
        self._embedded = embedded

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Lambda):
            return node
        if isinstance(node, ast.GeneratorExp):
            node.generators[0].iter = self.visit(node.generators[0].iter)
            return node
        return super().visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        return self.visit_AsyncFor(node) if node.is_async else self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor | ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.iter = self._embedded.call(self._suspensions.iterated, node.iter, at=node.iter)
        return node

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        self.generic_visit(node)
        for item in node.items:
            manager = item.context_expr
            item.context_expr = self._embedded.call(self._suspensions.entered, manager, at=manager)
        return node

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

"""`--steps`: bound the outermost loop of a cell by rewriting its syntax tree.

    for batch in loader: ...        for batch in OVER(loader): ...
    while running: ...              with USE: while NEXT() and (running or NO_MORE()): ...
    async for item in stream: ...   with USE: async for item in OVER(stream): ...

A `try` around it would end on its own line, which IPython would then show as that of an error.
Of several outermost loops the first that runs is bounded; the others run as they are.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gpuprof_widgets.capture.active import Active
from gpuprof_widgets.capture.cell import CellCode, CellTree, Rewrite
from gpuprof_widgets.capture.embedded import Embedded
from gpuprof_widgets.capture.loop.schedule import Schedule
from gpuprof_widgets.capture.loop.steps import Counting, Steps, is_progress_bar
from gpuprof_widgets.capture.options import Options

_BLOCKS = (ast.With, ast.AsyncWith, ast.If, ast.Try, ast.TryStar, ast.Match)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)

_WRAPPERS = ("enumerate", "zip")  # which end with their first argument

_NO_LOOP = "--steps found no loop at the top level of the cell: it ran once and is recorded whole"


def loop_bound(options: Options) -> Rewrite | None:
    """The rewrite that bounds a loop, where the options ask for it."""
    return None if options.steps is None else LoopBound(Schedule.of(options))


def loop_bound_of(code: CellCode | None) -> LoopBound | None:
    """The one that was applied to a cell."""
    applied = code.rewrites if code is not None else ()
    return next((one for one in applied if isinstance(one, LoopBound)), None)


class LoopBound:
    """The rewrite of one cell, and what its loops do when they run.

    They serve one recorder: without it, or beside a loop that it counts already, they run as the
    user wrote them.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._lines: list[int] = []
        self._inner: dict[int, int] = {}  # the line of a loop: that of the first one in its body
        self._ran: int | None = None  # the line of the loop that was bounded
        # Weakly: this is a constant of the cell's code, which the recorder holds, and the garbage
        # collector does not look into code: what leads from there back to the recorder stays.
        self._recorder: Callable[[], Any] = lambda: None

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Put the counting into every outermost loop of the tree."""
        tree.statements[:] = self._bounded(tree.statements, embedded)

    def serves(self, recorder: Any) -> bool:
        """Whether there is a loop to wait for; it is this recorder's from now on."""
        self._recorder = weakref.ref(recorder)
        return bool(self._lines)

    def notes(self) -> list[str]:
        """Which loop it was, where that is not plain to see."""
        if not self._lines:
            return [_NO_LOOP]
        if self._ran is None:
            lines = " or ".join(map(str, self._lines))
            return [f"the loop of line {lines} did not run: nothing was recorded"]
        return [*self._others(self._ran), *self._inside(self._ran)]

    def _others(self, ran: int) -> list[str]:
        if len(self._lines) == 1:
            return []
        others = ", ".join(str(line) for line in self._lines if line != ran)
        return [
            f"the loop of line {ran} was bounded and recorded; the other loops of the cell "
            f"(line {others}) ran as they are: to choose another, write "
            "`for item in gpuprof_widgets.steps(items)` there"
        ]

    def _inside(self, ran: int) -> list[str]:
        """Epochs around batches: it may be the inner loop that the user meant."""
        inner = self._inner.get(ran)
        if inner is None:
            return []
        return [
            f"the loop of line {ran} was bounded; to bound the one of line {inner} write "
            "`for ... in gpuprof_widgets.steps(...)`"
        ]

    def _bounded(self, body: list[ast.stmt], embedded: Embedded) -> list[ast.stmt]:
        return [self._statement(statement, embedded) for statement in body]

    def _statement(self, node: ast.stmt, embedded: Embedded) -> ast.stmt:
        if isinstance(node, _LOOPS):
            self._lines.append(node.lineno)
            inner = _first_loop(node.body)
            if inner is not None:
                self._inner[node.lineno] = inner.lineno
            use = LoopUse(self, node.lineno)
            if isinstance(node, ast.While):
                return _closed(_counted_while(node, use, embedded), use, embedded)
            counted = _counted_for(node, use, embedded)
            # An asynchronous generator that is dropped closes at some later await.
            asynchronous = isinstance(node, ast.AsyncFor)
            return _closed(counted, use, embedded) if asynchronous else counted
        if isinstance(node, _BLOCKS):
            for block in _blocks(node):
                block[:] = self._bounded(block, embedded)
        return node

    def is_open_to(self, source: Any = None) -> bool:
        """Whether a loop that starts now is the one; an explicit one speaks for itself."""
        recorder = Active.recorder
        if recorder is None or recorder is not self._recorder() or recorder.is_taken:
            return False
        inner = source.iterable if is_progress_bar(source) else source
        return not isinstance(inner, Steps)

    def close(self) -> None:
        """The bounded loop has ended, if one of ours was it."""
        recorder = self._recorder()
        if recorder is not None and self._ran is not None:
            recorder.close_loop()

    def steps(self, source: Any, line: int) -> Steps[Any]:
        """The bounded items of the loop on that line."""
        self._ran = line
        return Steps(source, self._schedule, place=f"line {line}", explicit=False)


class LoopUse:
    """What the rewritten code of one loop calls."""

    def __init__(self, bound: LoopBound, line: int) -> None:
        self._bound = bound
        self._line = line
        self._counting: Counting | None = None
        self._entered = False

    def over(self, source: Any) -> Any:
        """What a `for` runs over."""
        if not self._bound.is_open_to(source):
            return source
        self._entered = True
        return self._bound.steps(source, self._line)

    def next(self) -> bool:
        """Before a `while` looks at its test: whether it may."""
        if not self._entered:
            self._entered = True
            if self._bound.is_open_to():
                self._counting = self._bound.steps((), self._line).counting().__enter__()
        return self._counting is None or self._counting.next_step()

    def no_more(self) -> bool:
        """The test of a `while` has failed."""
        if self._counting is not None:
            self._counting.exhausted()
        return False

    def __enter__(self) -> None:
        """Before a loop of which nobody else tells how it ends."""
        self._entered = False

    def __exit__(self, *error: object) -> None:
        """After it, however it ended. What was counted leads to the recorder: see `LoopBound`."""
        self._counting = None
        if self._entered:
            self._bound.close()


def _counted_for(
    node: ast.For | ast.AsyncFor, use: LoopUse, embedded: Embedded
) -> ast.For | ast.AsyncFor:
    """Inside of `enumerate(items)` and the like, so that a progress bar in there is full."""
    match node.iter:
        case ast.Call(func=ast.Name(id=name), args=[items, *_]) as call if (
            name in _WRAPPERS and not call.keywords and not isinstance(items, ast.Starred)
        ):
            call.args[0] = embedded.call(use.over, items, at=items)
        case items:
            node.iter = embedded.call(use.over, items, at=items)
    return node


def _counted_while(node: ast.While, use: LoopUse, embedded: Embedded) -> ast.While:
    test = node.test
    no_more = embedded.call(use.no_more, at=test)
    either = ast.copy_location(ast.BoolOp(ast.Or(), [test, no_more]), test)
    both = ast.BoolOp(ast.And(), [embedded.call(use.next, at=test), either])
    node.test = ast.copy_location(both, test)
    return node


def _closed(node: ast.stmt, use: LoopUse, embedded: Embedded) -> ast.stmt:
    """The loop in a `with` that ends the recording with it, however it is left."""
    around = ast.withitem(embedded.expression(use, at=node))
    return ast.copy_location(ast.With([around], [node]), node)


def _first_loop(body: list[ast.stmt]) -> ast.For | ast.AsyncFor | ast.While | None:
    """The first loop of these statements, those of functions and classes in them left out."""
    for node in body:
        if isinstance(node, _LOOPS):
            return node
        if isinstance(node, _BLOCKS):
            for block in _blocks(node):
                inner = _first_loop(block)
                if inner is not None:
                    return inner
    return None


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The bodies of a statement that runs them at most once."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if block:
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body

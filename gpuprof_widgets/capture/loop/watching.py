"""Loops rewritten so that they can be ended: what they call before each item.

    for batch in loader: ...        for batch in OVER(loader): ...
    while running: ...              with USE: while NEXT() and (running or NO_MORE()): ...
    async for item in stream: ...   with USE: async for item in OVER(stream): ...

Not a `try`: it would end on a line of its own, which IPython would show as that of an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from types import GeneratorType
from typing import Any, Protocol

from gpuprof_widgets.capture.code import Embedded
from gpuprof_widgets.capture.loop.steps import (
    Steps,
    fill_bar,
    inside_bar,
    is_progress_bar,
    watched,
    watched_async,
)
from gpuprof_widgets.capture.loop.training import LOOPS, LoopSite, Program, is_loader

_IMPORTS = (ast.Import, ast.ImportFrom)
_WRAPPERS = ("enumerate", "zip")  # which end with their first argument


class Watcher(Protocol):
    """Decides which loop is counted, and when it ends."""

    def watches(self, site: LoopSite) -> bool:
        """Whether a loop that starts now may be the one to count, or stands around it."""

    def entered(self, run: LoopRun) -> None:
        """Note that a watched loop has begun."""

    def next(self, run: LoopRun) -> bool:
        """Whether a watched loop goes on to its next iteration."""

    def paused(self, run: LoopRun, *, exhausted: bool) -> None:
        """Note that a loop has no further item, or was left; an inner loop may begin anew."""

    def left(self, run: LoopRun) -> None:
        """Note that a loop has ended."""

    def look(self) -> None:
        """Look for loops in modules that were just imported."""


def with_watched_loops(
    body: list[ast.stmt],
    program: Program,
    watcher: Watcher,
    embedded: Embedded,
    *,
    looks: bool = False,
) -> list[ast.stmt]:
    """Return the statements with the program's loops watched; ``looks`` for more after imports."""
    rewritten: list[ast.stmt] = []
    for number, node in enumerate(body):
        for block in _blocks(node):
            inside = looks and _runs_once(node)
            block[:] = with_watched_loops(block, program, watcher, embedded, looks=inside)
        site = program.sites.get(node)
        rewritten.append(node if site is None else _watched(LoopUse(watcher, site), site, embedded))
        following = body[number + 1] if number + 1 < len(body) else None
        last_import = isinstance(node, _IMPORTS) and not isinstance(following, _IMPORTS)
        if looks and last_import and getattr(node, "module", "") != "__future__":
            call = embedded.call(Look(watcher), at=node)
            rewritten.append(ast.copy_location(ast.Expr(call), node))
    return rewritten


class Look:
    """What the code calls after its imports; pickled to another process it does nothing."""

    def __init__(self, watcher: Watcher | None = None) -> None:
        self._watcher = watcher

    def __reduce__(self) -> Any:
        return Look, ()

    def __call__(self) -> None:
        if self._watcher is not None:
            with suppress(Exception):  # then the loop is known by what it fetches (see `fetches`)
                self._watcher.look()


class LoopUse:
    """What the rewritten code of one loop calls; pickled to another process it does nothing."""

    def __init__(self, watcher: Watcher | None = None, site: LoopSite | None = None) -> None:
        self._watcher = watcher
        self._site = site

    def __reduce__(self) -> Any:
        return LoopUse, ()

    def _run(self, source: Any = ()) -> LoopRun | None:
        watcher, site = self._watcher, self._site
        if watcher is None or site is None or not watcher.watches(site):
            return None
        return LoopRun(watcher, site, source)

    def over(self, source: Any) -> Any:
        """Return what a `for` runs over."""
        inner = source.iterable if is_progress_bar(source) else source
        run = None if isinstance(inner, Steps) else self._run(inner)
        if run is None:
            return source
        if not is_progress_bar(source):
            return watched(source, run)
        run.bar = source
        return inside_bar(source, watched(source.iterable, run))

    def over_async(self, source: Any) -> Any:
        """Return what an `async for` runs over."""
        run = None if isinstance(source, Steps) else self._run(source)
        if run is None:
            return source
        # A generator that is dropped closes at some later await; the `with` around it does not.
        _runs.set((*_runs.get()[:-1], (self, run)))
        return watched_async(source, run)

    def next(self) -> bool:
        """Return, before a `while` evaluates its test, whether it may go on."""
        run = self._running()
        return run is None or run.next_step()

    def no_more(self) -> bool:
        """Note that the test of a `while` has failed; return False."""
        run = self._running()
        if run is not None:
            run.exhausted()
        return False

    def __enter__(self) -> None:
        """Begin a `while` or an `async for`."""
        is_while = self._site is not None and isinstance(self._site.node, ast.While)
        run = self._run() if is_while else None
        _runs.set((*_runs.get(), (self, run)))
        if run is not None:
            run.__enter__()

    def __exit__(self, *error: Any) -> None:
        """End it, however it was left."""
        run = self._running()
        _runs.set(_runs.get()[:-1])
        if run is not None:
            run.__exit__(*error)

    def _running(self) -> LoopRun | None:
        """Return the innermost run of this loop in the current thread or task."""
        return next((run for use, run in reversed(_runs.get()) if use is self), None)


_runs: ContextVar[tuple[tuple[LoopUse, LoopRun | None], ...]] = ContextVar("runs", default=())
"""The loops in a `with` that run now, the innermost last, in this thread or task."""


class LoopRun:
    """One run through a watched loop, from its first item to its end."""

    def __init__(self, watcher: Watcher, site: LoopSite, source: Any) -> None:
        self.site = site
        self.ended = False
        self.trains_not = False
        """It made no step and no backward pass, whatever its code looks like."""
        self.bar: Any = None
        self._watcher = watcher
        self.items = 0
        self._exhausted = self._closed = False
        self.loads = is_loader(source)
        self.over_model = _is_part_of_model(source)

    def __enter__(self) -> None:
        self._watcher.entered(self)

    def next_step(self) -> bool:
        """Ask the watcher; return whether the loop goes on."""
        goes_on = self._watcher.next(self)
        self.items += goes_on
        return goes_on

    def exhausted(self) -> None:
        """Note that the loop has no further item."""
        self._exhausted = True
        self._watcher.paused(self, exhausted=True)

    def end(self) -> None:
        """End the loop before its next item: it or an inner loop was bounded."""
        self.ended = True
        if self.bar is not None:
            fill_bar(self.bar, self.items)

    def __exit__(self, *error: Any) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._exhausted:
            self._watcher.paused(self, exhausted=False)
        self._watcher.left(self)


def _is_part_of_model(source: Any) -> bool:
    """Whether a loop over it goes through the layers or the parameters of a model."""
    if isinstance(source, GeneratorType):
        return source.__qualname__ in _OVER_MODEL
    return any(kind.__module__.startswith("torch.nn.modules") for kind in type(source).__mro__)


_KINDS = ("parameters", "children", "modules", "buffers")
_OVER_MODEL = frozenset(f"Module.{start}{kind}" for kind in _KINDS for start in ("", "named_"))


def _watched(use: LoopUse, site: LoopSite, embedded: Embedded) -> ast.stmt:
    node = site.node
    if isinstance(node, ast.While):
        return _closed(_watched_while(node, use, embedded), use, embedded)
    _watch_items(node, use, embedded)
    return _closed(node, use, embedded) if isinstance(node, ast.AsyncFor) else node


def _watch_items(node: ast.For | ast.AsyncFor, use: LoopUse, embedded: Embedded) -> None:
    """Watch the items, inside of `enumerate(items)` and the like, where a progress bar may be."""
    if isinstance(node, ast.AsyncFor):
        node.iter = embedded.call(use.over_async, node.iter, at=node.iter)
        return
    match node.iter:
        case ast.Call(func=ast.Name(id=name), args=[items, *_]) as call if (
            name in _WRAPPERS and not call.keywords and not isinstance(items, ast.Starred)
        ):
            call.args[0] = embedded.call(use.over, items, at=items)
        case items:
            node.iter = embedded.call(use.over, items, at=items)


def _watched_while(node: ast.While, use: LoopUse, embedded: Embedded) -> ast.While:
    test = node.test
    no_more = embedded.call(use.no_more, at=test)
    either = ast.copy_location(ast.BoolOp(ast.Or(), [test, no_more]), test)
    both = ast.BoolOp(ast.And(), [embedded.call(use.next, at=test), either])
    node.test = ast.copy_location(both, test)
    return node


def _closed(node: ast.stmt, use: LoopUse, embedded: Embedded) -> ast.stmt:
    """Return the loop in a `with` that ends the recording, however the loop is left."""
    around = ast.withitem(embedded.expression(use, at=node))
    return ast.copy_location(ast.With([around], [node]), node)


def _blocks(node: ast.stmt) -> Iterable[list[ast.stmt]]:
    """Yield the bodies of a statement, also those of functions and classes."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if block:
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _runs_once(node: ast.stmt) -> bool:
    """Whether the statement runs its bodies at once, and only once."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return not isinstance(node, (*scopes, *LOOPS))

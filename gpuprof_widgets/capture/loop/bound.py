"""`--steps`: bound the training loop, by rewriting the loops of the source.

    for batch in loader: ...        for batch in OVER(loader): ...
    while running: ...              with USE: while NEXT() and (running or NO_MORE()): ...
    async for item in stream: ...   with USE: async for item in OVER(stream): ...

The loops of the cell are watched, and those in functions that train. `LoopBound` counts one of them
(see `training`); after its last step, it and the loops around it end as if they had no more items.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import zip_longest
from types import GeneratorType
from typing import Any

from gpuprof_widgets.capture.cell import CellTree, Rewrite
from gpuprof_widgets.capture.code import FUNCTIONS, Embedded
from gpuprof_widgets.capture.lines.rewrite import inner_blocks
from gpuprof_widgets.capture.lines.sources import SourceFile
from gpuprof_widgets.capture.loop.iterations import Schedule, StepLoop
from gpuprof_widgets.capture.loop.steps import Steps, is_progress_bar, watched, watched_async
from gpuprof_widgets.capture.loop.training import (
    LOOPS,
    Level,
    LoopSite,
    Program,
    is_loader,
    last_name,
)
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.options import Options

_EXPLICIT = (
    "the code bounds a loop itself, with gpuprof_widgets.steps or a callback: that loop was "
    "recorded, and --steps bounded no loop"
)
_BY_HAND = "`for item in gpuprof_widgets.steps(items)`"
_OVER_MODEL = frozenset(
    f"Module.{start}{kind}"
    for kind in ("parameters", "children", "modules", "buffers")
    for start in ("", "named_")
)
"""Generators that go through the parts of a model."""


def loop_bound(options: Options) -> Rewrite | None:
    """Return the rewrite that bounds a loop, where the options ask for it."""
    return None if options.steps is None else LoopBound(options)


class LoopBound:
    """The rewrite of one cell, and what its loops do when they run.

    The loops serve one recorder, in its thread. Without a recorder, or where it counts another loop
    already, they run as the user wrote them.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._schedule = Schedule.of(options)
        self.program = Program({})
        self.names: set[str] = set()
        """The names in the code, some of which may be functions elsewhere."""
        self.search: Callable[[], None] = lambda: None
        """Looks for functions elsewhere; set by `BoundedLoop`."""
        self.stream = "stderr"
        """Where the chosen loop is announced: not on a script's stdout, nor in red under a cell."""
        # Weakly, because this object is a constant of the cell's code, which the recorder holds:
        # the garbage collector does not look into code and would never free such a cycle.
        self._recorder: Callable[[], Any] = lambda: None
        self._thread = 0
        self.running: list[LoopRun] = []
        """The runs of watched loops, the outermost first."""
        self._loop: StepLoop | None = None  # the counted one, as its recording sees it
        self._site: LoopSite | None = None
        self._run: LoopRun | None = None  # the run that is counted
        self._steps_made = 0  # by optimizers, since the loop is counted
        self._is_announced = False
        self._over = False
        self._too_short: list[str] = []
        self._later: dict[LoopSite, None] = {}

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Watch every loop of the tree, except in functions that are named nowhere."""
        statements = tree.all_statements
        nodes = [node for statement in statements for node in ast.walk(statement)]
        self.names = {
            last_name(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))
        }
        self.program.add(statements)
        for site in list(self.program.sites.values()):
            if site.function and site.function not in self.names:
                del self.program.sites[site.node]
        self.program.settle()
        tree.statements[:] = self._with_watched_loops(tree.statements, embedded, looks=True)

    def watch(self, files: Sequence[SourceFile], embedded: Embedded) -> Iterator[SourceFile]:
        """Watch the loops of functions elsewhere; yield the files where any trains or leads there.

        All files are added before any is rewritten: functions of one call those of another.
        """
        for file in files:
            self.program.add(file.outermost, file=file.label, tree=file.tree)
        self.program.settle()
        for file in files:
            nodes = [part for node in file.outermost for part in ast.walk(node)]
            for node in file.outermost:
                node.body = self._with_watched_loops(node.body, embedded)
            sites = filter(None, map(self.program.sites.get, nodes))
            if any(site.level >= Level.GRADIENTS or site.leads for site in sites):
                yield file

    def _with_watched_loops(
        self, body: list[ast.stmt], embedded: Embedded, *, looks: bool = False
    ) -> list[ast.stmt]:
        """Return the statements with their loops watched; ``looks`` for more after imports."""
        rewritten: list[ast.stmt] = []
        for node, following in zip_longest(body, body[1:]):
            # What may run later, or again, is rewritten by then: a search would come too late.
            runs_once = not isinstance(node, (*FUNCTIONS, ast.ClassDef, *LOOPS))
            for block in inner_blocks(node):
                block[:] = self._with_watched_loops(block, embedded, looks=looks and runs_once)
            site = self.program.sites.get(node)
            rewritten.append(
                node if site is None else _watched(node, LoopUse(self, site), embedded)
            )
            if looks and isinstance(node, _IMPORTS) and not isinstance(following, _IMPORTS):
                call = embedded.call(LoopUse(self).look, at=node)
                rewritten.append(ast.copy_location(ast.Expr(call), node))
        return rewritten

    def serves(self, recorder: Any) -> bool:
        """Serve this recorder from now on; return whether there is a loop to wait for."""
        self._recorder = weakref.ref(recorder)
        self._thread = threading.get_ident()
        self.program.settle()
        return any(map(self._is_candidate, self.program.sites.values()))

    def _is_candidate(self, site: LoopSite) -> bool:
        return site.level >= Level.LOADS or (not site.function and site.is_innermost)

    @property
    def expects_training(self) -> bool:
        """Whether the code trains, in a loop of its own or out of sight."""
        return self.program.best >= Level.GRADIENTS or self.program.trains_out_of_sight

    @property
    def is_here(self) -> bool:
        """Whether the recorder is at work, in this process and thread."""
        recorder = self._recorder()
        here = threading.get_ident() == self._thread and os.getpid() == Active.process
        return here and recorder is not None and recorder is Active.recorder

    @property
    def is_open(self) -> bool:
        """Whether the recorder waits for a loop, in this thread."""
        return self.is_here and not self._recorder().is_taken

    @property
    def waits_in_training(self) -> bool:
        """Whether a loop runs that trains and may be taken at its next iteration."""
        return any(
            run.site.level >= Level.GRADIENTS and not run.site.excluded and not run.trains_not
            for run in self.running
        )

    def watches(self, site: LoopSite) -> bool:
        """Whether a loop that starts now may be the one to count, or one around it."""
        if site.excluded or not self.is_here:
            return False
        if self._over:
            self._later[site] = None
            return False
        if self.program.best >= Level.GRADIENTS:
            return site.leads or site.level >= Level.GRADIENTS
        return not site.function or site.level == Level.LOADS

    def next(self, run: LoopRun) -> bool:
        """Whether a watched loop goes on to its next iteration."""
        if run.ended:
            return False
        if self._over or not self.is_here:
            return True
        if self._site is None and self._should_take(run):
            self._site, self._run = run.site, run
            self._steps_made, self._is_announced = 0, False
            self._loop = self.take(run.site.place, before=run.items)
        if self._loop is None or run.site is not self._site:
            return True
        if self._run not in self.running:
            self._run = run
        if self._run is not run:  # of several runs of the loop at a time, the first is counted
            return True
        # A loop around one that may train is told of in its second round: it has not given way.
        if not self._is_announced and (run.items or not run.site.leads):
            self._is_announced = True
            self.announce(f"the loop of {run.site.place} ({run.site.text})")
        if self._loop.next_step() or self._released_idle_loop(run):
            return True
        self._over, self._loop = True, None  # which would keep its recorder alive
        for enclosing in self.running[: self.running.index(run) + 1]:
            enclosing.ended = True
        return False

    def _should_take(self, run: LoopRun) -> bool:
        """Whether this is the loop to count."""
        if run.site.excluded or run.trains_not or not self.is_open:
            return False
        if run.over_model:
            self.program.exclude(run.site)
            return False
        level, best = run.site.level, self.program.best
        if max(level, best) >= Level.GRADIENTS:
            return level == best
        if self.program.trains_out_of_sight:
            return False
        return level == Level.LOADS or (best == Level.RUNS and self._is_candidate(run.site))

    def take(self, place: str, *, before: int) -> StepLoop:
        """Return a loop that is recorded from now on, ``before`` iterations of which have run."""
        recorder = self._recorder()
        loop = StepLoop(recorder, self._schedule, place=place, explicit=False, before=before)
        recorder.take(loop)
        return loop

    def made_step(self) -> None:
        """Note an optimizer's step, in the innermost loop that runs."""
        self._steps_made += 1
        innermost = self.running[-1] if self.running else None
        if innermost is None or self._site is None or innermost.site is self._site:
            return
        if self._run in self.running and innermost.site.level >= Level.GRADIENTS:
            # The counted loop is around the one that trains: epochs, for example.
            self.program.exclude(self._site)
            self._release()

    def left(self, run: LoopRun) -> None:
        """Note, once, that a loop has ended; with the outermost one so has the counting.

        Before that it may begin anew.
        """
        if run not in self.running:
            return
        self.running.remove(run)
        loop = self._loop
        if loop is None or self._over or not self.is_here:
            return
        if run is self._run and not run.ended:
            loop.pause(exhausted=run.has_no_more)
        if self.running or loop.waits_for_cycle:
            return
        self._loop = None
        loop.close()
        if loop.goes_on or loop.has_all:
            self._over = True
        elif not loop.recorded:
            self._too_short = loop.notes()
            self._release()
        elif not self._released_idle_loop(run):
            self._over = True

    def _released_idle_loop(self, run: LoopRun) -> bool:
        """Release a counted loop that did not train, or ran no op; return whether it was one."""
        recorder, site = self._recorder(), self._site
        if site is None or recorder is None or self._steps_made:
            return False
        trains = site.level >= Level.GRADIENTS
        if recorder.has_work(training=trains):
            return False
        if trains:
            run.trains_not = True  # in this run, which may be a validation
        else:
            self.program.exclude(site)
        self._release()
        if self._is_announced:
            reason = "did not train" if trains else "ran no op"
            self._say(f"the loop of {site.place} {reason}: it is left as it is, and not recorded")
        return True

    def _release(self) -> None:
        recorder = self._recorder()
        if recorder is not None:
            recorder.release()
        self._loop = self._site = self._run = None

    def announce(self, loop: str, *, ends: bool = True) -> None:
        """Say which loop is bounded."""
        self._say(f"bounding {loop}: {self._schedule.in_words(ends=ends)}")

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            print(f"gpuprof: {text}", file=getattr(sys, self.stream), flush=True)

    @property
    def has_bounded(self) -> bool:
        """Whether a loop was bounded, by this rewrite or by the code itself."""
        recorder = self._recorder()
        return self._site is not None or (recorder is not None and recorder.has_explicit_loop)

    def notes(self) -> list[str]:
        """Return which loop was counted, where that is not obvious, or why none was."""
        recorder = self._recorder()
        if recorder is not None and recorder.has_explicit_loop:
            return [_EXPLICIT]
        if (ran := self._site) is not None:
            later = [site for site in self._later if site.level == ran.level]
            others = [site.place for site in later if site is not ran and self._is_candidate(site)]
            bounded = f"the loop of {ran.place} was bounded and recorded; "
            if others:
                places = ", ".join(dict.fromkeys(others))
                return [
                    f"{bounded}the loop of {places} ran unchanged: to choose another loop, "
                    f"write {_BY_HAND} there"
                ]
            later_runs = "its later runs were neither bounded nor recorded"
            return [f"{bounded}{later_runs}"] if ran in self._later else []
        if self._too_short:
            return self._too_short
        sites = self.program.sites.values()
        idle = [site.place for site in sites if site.excluded]
        if idle:
            return [f"no op was seen in the loop of {' or '.join(idle)}: nothing was recorded"]
        candidates = [site.place for site in sites if self._is_candidate(site)]
        if candidates:
            places = " or ".join(dict.fromkeys(candidates))
            return [f"the loop of {places} was not seen to run: nothing was recorded"]
        return [
            "--steps found no training loop: the code ran once and is recorded whole; to bound "
            f"a loop write {_BY_HAND}"
        ]


class LoopUse:
    """What the rewritten code of one loop calls; pickled to another process it does nothing."""

    def __init__(self, bound: LoopBound | None = None, site: LoopSite | None = None) -> None:
        self._bound = bound
        self._site = site

    def __reduce__(self) -> Any:
        return LoopUse, ()

    def look(self) -> None:
        """Look for loops in modules that were just imported."""
        if self._bound is not None and self._bound.is_open:
            with suppress(Exception):  # then the loop is known by what it fetches (`UnseenLoop`)
                self._bound.search()

    def over(self, source: Any) -> Any:
        """Return what a `for` runs over."""
        run = self._run(source.iterable if is_progress_bar(source) else source)
        return source if run is None else watched(source, run)

    def over_async(self, source: Any) -> Any:
        """Return what an `async for` runs over."""
        run = self._run(source)
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
        run = self._run(()) if is_while else None
        _runs.set((*_runs.get(), (self, run)))
        if run is not None:
            run.__enter__()

    def __exit__(self, *error: Any) -> None:
        """End it, however it was left."""
        run = self._running()
        _runs.set(_runs.get()[:-1])
        if run is not None:
            run.__exit__(*error)

    def _run(self, source: Any) -> LoopRun | None:
        bound, site = self._bound, self._site
        if bound is None or site is None or isinstance(source, Steps) or not bound.watches(site):
            return None
        return LoopRun(bound, site, source)

    def _running(self) -> LoopRun | None:
        """Return the innermost run of this loop in the current thread or task."""
        return next((run for use, run in reversed(_runs.get()) if use is self), None)


_runs: ContextVar[tuple[tuple[LoopUse, LoopRun | None], ...]] = ContextVar("runs", default=())
"""The loops in a `with` that run now, the innermost last, in this thread or task."""


class LoopRun:
    """One run through a watched loop, from its first item to its end."""

    def __init__(self, bound: LoopBound, site: LoopSite, source: Any) -> None:
        self.site = site
        self.items = 0
        self.ended = False
        """The loop ends before its next item: it or an inner loop was bounded."""
        self.trains_not = False
        """It made no step and no backward pass, whatever its code looks like."""
        self._loads = is_loader(source)
        kinds = type(source).__mro__
        self.over_model = any(kind.__module__.startswith("torch.nn.modules") for kind in kinds)
        if isinstance(source, GeneratorType):  # such as `model.parameters()`
            self.over_model = source.__qualname__ in _OVER_MODEL
        self.has_no_more = False
        """It asked for an item, or its condition, when there was none left."""
        self._bound = bound

    def __enter__(self) -> None:
        self._bound.running.append(self)
        if self._loads and self.site.level < Level.LOADS:
            self.site.level = Level.LOADS
            self._bound.program.compare()

    def next_step(self) -> bool:
        """Return whether the loop goes on."""
        goes_on = self._bound.next(self)
        self.items += goes_on
        return goes_on

    def exhausted(self) -> None:
        """Note that the loop has no further item."""
        self.has_no_more = True

    def __exit__(self, *error: Any) -> None:
        self._bound.left(self)


_IMPORTS = (ast.Import, ast.ImportFrom)


def _watched(node: ast.stmt, use: LoopUse, embedded: Embedded) -> ast.stmt:
    """Return a loop that calls these; see the examples at the top.

    Not with a `try`: it would end on a line of its own, which IPython would show as an error's.
    """
    match node:
        case ast.While(test=test):
            no_more = embedded.call(use.no_more, at=test)
            either = ast.copy_location(ast.BoolOp(ast.Or(), [test, no_more]), test)
            both = ast.BoolOp(ast.And(), [embedded.call(use.next, at=test), either])
            node.test = ast.copy_location(both, test)
        case ast.AsyncFor(iter=items):
            node.iter = embedded.call(use.over_async, items, at=items)
        case ast.For(iter=items):
            match items:  # inside of these, which end with it, the first may be a progress bar
                case ast.Call(func=ast.Name(id="enumerate" | "zip"), args=[first, *_], keywords=[]):
                    if not isinstance(first, ast.Starred):
                        items.args[0] = embedded.call(use.over, first, at=first)
                        return node
            node.iter = embedded.call(use.over, items, at=items)
            return node
    around = ast.withitem(embedded.expression(use, at=node))
    return ast.copy_location(ast.With([around], [node]), node)

"""`--steps`: bound the training loop, by rewriting the loops of the source.

The loops of the cell are watched, and those in functions that train (see `watching`). What happens
in their rounds tells which one is counted: the innermost loop that makes one backward pass with an
optimizer's step in a round. After its last step, it and the loops around it end as if they had no
more items.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from time import perf_counter_ns
from typing import Any

from gpuprof_widgets.capture.cell import CellTree, Rewrite
from gpuprof_widgets.capture.code import BACKWARD, Embedded
from gpuprof_widgets.capture.lines.sources import SourceFile
from gpuprof_widgets.capture.loop.iterations import Earlier, Schedule
from gpuprof_widgets.capture.loop.steps import Counting
from gpuprof_widgets.capture.loop.watching import Level, LoopRun, LoopSite, WatchedLoops, is_loader
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.options import Options

_EXPLICIT = (
    "the code bounds a loop itself, with gpuprof_widgets.steps or a callback: that loop was "
    "recorded, and --steps bounded no loop"
)
_BY_HAND = "`for item in gpuprof_widgets.steps(items)`"
_MOST_ACCUMULATED = 64
"""Backward passes of a loop after which no optimizer's step is waited for."""
_MOST_NAMED = 3
"""Loops that a note names."""


_running: ContextVar[tuple[LoopRun, ...]] = ContextVar("running", default=())
"""The watched loops that run now, the innermost last, in this thread or task."""


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
        self.namespace: Mapping[str, Any] = {}
        """The global variables."""
        self.names: set[str] = set()
        """The names in the code, some of which may be functions elsewhere."""
        self.search: Callable[[], None] = lambda: None
        """Looks for functions elsewhere; set by `BoundedLoop`."""
        self.names_elsewhere: set[str] = set()
        """Those in functions elsewhere that it reaches and that train."""
        self.stream = "stderr"
        """Where the chosen loop is announced: not on a script's stdout, nor in red under a cell."""
        # Weakly, because this object is a constant of the cell's code, which the recorder holds:
        # the garbage collector does not look into code and would never free such a cycle.
        self._recorder: Callable[[], Any] = lambda: None
        self._thread = 0
        self._sites: list[LoopSite] = []
        self._trainers: list[str] = []  # the variables whose `fit` or `train` the code calls
        self._names_step = False  # of anything, which may be an optimizer
        self._backwards = 0
        self._counting: Counting | None = None
        self._site: LoopSite | None = None
        self._run: LoopRun | None = None  # the run that is counted
        self._outermost: LoopRun | None = None  # the run around it
        self._around: set[LoopSite] = set()  # the loops around it
        self._over = False
        self._too_short: list[str] = []
        self._later: dict[LoopSite, None] = {}

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Watch every loop of the tree."""
        for node in (node for statement in tree.all_statements for node in ast.walk(statement)):
            if isinstance(node, (ast.Name, ast.Attribute)):
                self.names.add(_last_name(node))
                self._names_step |= isinstance(node, ast.Attribute) and node.attr == "step"
            elif isinstance(node, ast.Call) and _last_name(node.func) in ("fit", "train"):
                owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                self._trainers.append(_last_name(owner))
        loops = WatchedLoops(self, embedded, looks=True)
        tree.statements[:] = loops.block(tree.statements)
        self._sites += loops.sites

    def watch(self, file: SourceFile, embedded: Embedded) -> bool:
        """Watch the loops of functions elsewhere; return whether there are any."""
        loops = WatchedLoops(self, embedded, file=file.label)
        loops.block(list(file.outermost))
        self._sites += loops.sites
        return bool(loops.sites)

    def serves(self, recorder: Any) -> bool:
        """Serve this recorder from now on; return whether there is a loop to wait for."""
        self._recorder = weakref.ref(recorder)
        self._thread = threading.get_ident()
        return any(map(self._is_candidate, self._sites))

    def _is_candidate(self, site: LoopSite) -> bool:
        """Whether it may be the loop to count, as far as the source tells."""
        if self.expects_training:
            return not site.function or bool(site.file) or site.function in self.names
        return not site.function and all(loop.excluded for loop in site.inner)

    @property
    def expects_training(self) -> bool:
        """Whether the code names a backward pass, or calls a trainer whose code is not known."""
        return (
            not BACKWARD.isdisjoint(self.names)
            or not BACKWARD.isdisjoint(self.names_elsewhere)
            or any(not _is_model(self.namespace.get(name)) for name in self._trainers)
        )

    @property
    def is_open(self) -> bool:
        """Whether the recorder waits for a loop, in this thread."""
        recorder = self._recorder()
        return self.is_here and recorder is not None and not recorder.is_taken

    @property
    def is_here(self) -> bool:
        """Whether the recorder is at work, in this process and thread."""
        recorder = self._recorder()
        here = threading.get_ident() == self._thread and os.getpid() == Active.process
        return here and recorder is not None and recorder is Active.recorder

    @property
    def waits_in_training(self) -> bool:
        """Whether a loop runs that will be taken at its next round."""
        return self.is_open and any(
            (run.stepped or run.site.level == Level.TRAINS) and not run.site.is_around
            for run in self._here
        )

    def watches(self, site: LoopSite) -> bool:
        """Whether a loop that starts now may be the one to count, or one around it."""
        if site.excluded or not self.is_here:
            return False
        counted = self._site
        if self._over and counted is not None and counted.level < Level.GRADIENTS:
            if self._is_candidate(site):
                self._later[site] = None
            return False
        if self._over:
            return not self._later
        is_known = counted is not None and counted.level >= Level.GRADIENTS
        return not is_known or site is counted or site in self._around

    def look(self) -> None:
        """Look for loops in modules that were just imported."""
        if self.is_open:
            self.search()

    def entered(self, run: LoopRun) -> None:
        """Note that a watched loop has begun."""
        _running.set((*_running.get(), run))

    @property
    def _here(self) -> list[LoopRun]:
        """The loops that run now in this task, the innermost last."""
        return [run for run in _running.get() if run.watcher is self]

    def next(self, run: LoopRun) -> bool:
        """Whether a watched loop goes on to its next iteration."""
        if run.ended:
            return False
        if not self.is_here:
            return True
        if self._over:
            if self._trained(run):
                self._later[run.site] = None
            return True
        if self._site is None and self._should_take(run):
            self._take(run)
        if run.stepped and run.site is self._site:
            run.site.level = Level.TRAINS
        run.stepped.clear()
        if self._counting is None or not self._is_counted(run):
            if len(run.began) < self._schedule.unrecorded:
                run.began.append(perf_counter_ns())
            return True
        if self._counting.next_step() or self._released_idle_loop():
            return True
        self._over = True
        running = self._here
        for enclosing in running[: running.index(run) + 1]:
            enclosing.end()
        return False

    def _is_counted(self, run: LoopRun) -> bool:
        """Whether this run is counted: of several runs of the counted loop at a time, the first."""
        if run.site is not self._site:
            return False
        if self._run is None or self._run.closed:
            self._run = run
        return self._run is run

    def begins_backward(self) -> None:
        """Note a backward pass, in the loops that run."""
        if self.is_here and (running := self._here):
            self._backwards += 1
            for run in running:
                run.backward = run.items
            running[-1].innermost_backward = running[-1].items

    def made_step(self) -> None:
        """Note an optimizer's step, in the innermost loop with a backward pass in its round."""
        running, counted = self._here, self._site
        is_known = counted is not None and counted.level == Level.TRAINS and not self._over
        if not running or not self.is_here or is_known:
            return
        run = ([run for run in running if run.backward == run.items] or running)[-1]
        # The same call of `step` with another backward pass: a loop in between makes the steps.
        call = _call_path()
        run.site.is_around |= run.stepped.get(call, self._backwards) != self._backwards
        run.stepped[call] = self._backwards
        if (
            counted is not None
            and not self._over
            and (run.site is not counted or counted.is_around)
        ):
            counted.is_around = True
            self._release()

    def _trained(self, run: LoopRun) -> bool:
        """Whether the round that ends was one step of a training."""
        if run.site.is_around or run.stepped:
            return not run.site.is_around
        if run.innermost_backward != run.items:
            return False
        # Gradients are accumulated, unless no code makes a step, or only compiled code.
        is_named = self._names_step or "step" in self.names_elsewhere
        return not is_named or run.items >= _MOST_ACCUMULATED

    def _should_take(self, run: LoopRun) -> bool:
        """Whether this is the loop to count."""
        site = run.site
        if not self.is_open or site.excluded or site.is_around:
            return False
        if site.level == Level.TRAINS or self._trained(run):
            site.level = max(site.level, Level.GRADIENTS)
            return True
        if self.expects_training:
            return False
        if run.loads:
            site.level = Level.LOADS
            return True
        if run.over_model:
            site.excluded = True
            return False
        return self._is_candidate(site) and not self._will_load()

    def _will_load(self) -> bool:
        """Whether a loop at the top level goes through a variable that is a DataLoader."""
        loops = (site for site in self._sites if not site.function and not site.excluded)
        return any(is_loader(self.namespace.get(name)) for loop in loops for name in loop.iterates)

    def _take(self, run: LoopRun) -> None:
        self._site, self._run = run.site, run
        running = self._here
        self._outermost, self._around = running[0], {other.site for other in running}
        self.announce(f"the loop of {run.site.place} ({run.site.text})")
        self._counting = Counting(
            self._schedule,
            run.site.place,
            explicit=False,
            before=Earlier(run.items, run.began, run.costs),
        ).__enter__()

    def announce(self, loop: str, *, ends: bool = True) -> None:
        """Say which loop is bounded."""
        self._say(f"bounding {loop}: {self._schedule.in_words(ends=ends)}")

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            print(f"gpuprof: {text}", file=getattr(sys, self.stream), flush=True)

    def paused(self, run: LoopRun, *, exhausted: bool) -> None:
        """Note that a loop has no further item, or was left; an inner loop may begin anew."""
        loop = self._counting.loop if self._counting is not None else None
        if run is self._run and loop is not None and not run.ended and self.is_here:
            loop.pause(exhausted=exhausted)

    def left(self, run: LoopRun) -> None:
        """Note that a loop has ended; with the outermost one so has the counting."""
        _running.set(tuple(other for other in _running.get() if other is not run))
        if not self.is_here or self._over:
            return
        if run.stepped and not run.site.is_around:  # in a single round, which it left
            run.site.level = Level.TRAINS
        counting = self._counting
        if counting is None or run is not self._outermost:
            return
        loop = counting.loop
        if loop is not None and loop.waits_for_cycle:
            return
        counting.__exit__(None, None, None)
        if loop is None or loop.goes_on or loop.has_all:
            self._over = True
        elif not loop.recorded:
            self._too_short = loop.notes()
            self._release()
        elif not self._released_idle_loop():
            self._over = True

    def _released_idle_loop(self) -> bool:
        """Release a counted loop that ran no op; return whether it was one."""
        recorder, site = self._recorder(), self._site
        if site is None or recorder is None or site.level >= Level.GRADIENTS or recorder.has_work():
            return False
        site.excluded = True
        self._release()
        self._say(f"the loop of {site.place} ran no op: it is left as it is, and not recorded")
        return True

    def _release(self) -> None:
        recorder = self._recorder()
        if recorder is not None:
            recorder.release()
        self._counting = self._site = self._run = self._outermost = None

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
        if self._site is not None:
            return self._others(self._site)
        if self._too_short:
            return self._too_short
        idle = [site for site in self._sites if site.excluded]
        if idle:
            return [f"no op was seen in the loop of {_places(idle)}: nothing was recorded"]
        candidates = [site for site in self._sites if self._is_candidate(site)]
        if candidates:
            seen = "train" if self.expects_training else "run"
            return [
                f"the loop of {_places(candidates)} was not seen to {seen}: nothing was recorded; "
                f"to choose a loop write {_BY_HAND}"
            ]
        return [
            "--steps found no training loop: the code ran once and is recorded whole; to bound "
            f"a loop write {_BY_HAND}"
        ]

    def _others(self, counted: LoopSite) -> list[str]:
        """Return a note on later loops that could have been counted as well."""
        others = [site for site in self._later if site is not counted]
        if others:
            return [
                f"the loop of {counted.place} was bounded and recorded; the loop of "
                f"{_places(others)} ran unchanged: to choose another loop, write {_BY_HAND} there"
            ]
        if not self._later:
            return []
        return [
            f"the loop of {counted.place} was bounded and recorded; its later runs were neither "
            "bounded nor recorded"
        ]


def _places(sites: list[LoopSite]) -> str:
    places = list(dict.fromkeys(site.place for site in sites))
    shown = " or ".join(places[:_MOST_NAMED])
    return shown if len(places) <= _MOST_NAMED else f"{shown} or {len(places) - _MOST_NAMED} others"


def _last_name(node: ast.AST | None) -> str:
    """Return ``step`` for ``self.optimizers[0].step``; "" where there is no name."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(value=value) | ast.Call(func=value):
            return _last_name(value)
    return ""


def _is_model(value: Any) -> bool:
    """Whether its `train` only sets a mode."""
    return hasattr(type(value), "forward")


def _call_path() -> tuple[tuple[int, int], ...]:
    """Return the code and the instruction of each frame on the stack, ours aside."""
    path, frame = [], sys._getframe(2)
    while (caller := frame.f_back) is not None:
        path.append((id(caller.f_code), caller.f_lasti))
        frame = caller
    return tuple(path)

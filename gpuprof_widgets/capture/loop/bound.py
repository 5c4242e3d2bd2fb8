"""`--steps`: bound the training loop, by rewriting the loops of the source.

The loops of the cell are watched, and those in functions that train (see `watching`). One of them
is counted (see `training`); after its last step, it and the loops around it end as if they had no
more items.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from gpuprof_widgets.capture.cell import CellTree, Rewrite
from gpuprof_widgets.capture.code import Embedded
from gpuprof_widgets.capture.lines.sources import SourceFile
from gpuprof_widgets.capture.loop.iterations import Schedule
from gpuprof_widgets.capture.loop.steps import Counting
from gpuprof_widgets.capture.loop.training import Level, LoopSite, Program, last_name
from gpuprof_widgets.capture.loop.watching import LoopRun, with_watched_loops
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.options import Options

_EXPLICIT = (
    "the code bounds a loop itself, with gpuprof_widgets.steps or a callback: that loop was "
    "recorded, and --steps bounded no loop"
)
_BY_HAND = "`for item in gpuprof_widgets.steps(items)`"


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
        self._running: list[LoopRun] = []
        self._counting: Counting | None = None
        self._site: LoopSite | None = None
        self._run: LoopRun | None = None  # the run that is counted
        self._outermost: LoopRun | None = None
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
        tree.statements[:] = with_watched_loops(
            tree.statements, self.program, self, embedded, looks=True
        )

    def watch(self, file: SourceFile, embedded: Embedded) -> bool:
        """Watch the loops of functions elsewhere; return whether any trains or leads there."""
        nodes = file.outermost
        if not self.program.has(nodes):
            self.program.add(nodes, file=file.label, tree=file.tree)
            self.program.settle()
        inside = {part for node in nodes for part in ast.walk(node)}
        sites = [site for site in self.program.sites.values() if site.node in inside]
        for node in nodes:
            node.body = with_watched_loops(node.body, self.program, self, embedded)
        return any(site.level >= Level.GRADIENTS or site.leads for site in sites)

    def serves(self, recorder: Any) -> bool:
        """Serve this recorder from now on; return whether there is a loop to wait for."""
        self._recorder = weakref.ref(recorder)
        self._thread = threading.get_ident()
        self.program.settle()
        return any(map(self._is_candidate, self.program.sites.values()))

    def _is_candidate(self, site: LoopSite) -> bool:
        return site.level >= Level.LOADS or (not site.function and self.program.is_innermost(site))

    @property
    def expects_training(self) -> bool:
        """Whether the code trains, in a loop of its own or out of sight."""
        return self.program.best >= Level.GRADIENTS or self.program.trains_out_of_sight

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
        """Whether a loop runs that trains and may be taken at its next iteration."""
        return self.is_open and any(
            run.site.level >= Level.GRADIENTS and not run.site.excluded and not run.trains_not
            for run in self._running
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

    def look(self) -> None:
        """Look for loops in modules that were just imported."""
        if self.is_open:
            self.search()

    def entered(self, run: LoopRun) -> None:
        """Note that a watched loop has begun."""
        self._running.append(run)
        if run.loads and run.site.level < Level.LOADS:
            self.program.loads(run.site)

    def next(self, run: LoopRun) -> bool:
        """Whether a watched loop goes on to its next iteration."""
        if run.ended:
            return False
        if self._over or not self.is_here:
            return True
        if self._site is None and self._should_take(run):
            self._take(run)
        if self._counting is None or not self._is_counted(run):
            return True
        # A loop around one that may train is told of in its second round: it has not given way.
        if not self._is_announced and (run.items or not run.site.leads):
            self._is_announced = True
            self.announce(f"the loop of {run.site.place} ({run.site.text})")
        if self._counting.next_step():
            return True
        if self._released_idle_loop(run):
            return True
        self._over = True
        for enclosing in self._running[: self._running.index(run) + 1]:
            enclosing.end()
        return False

    def _is_counted(self, run: LoopRun) -> bool:
        """Whether this run is counted: of several runs of the counted loop at a time, the first."""
        if run.site is not self._site:
            return False
        if self._run not in self._running:
            self._run = run
        return self._run is run

    def made_step(self) -> None:
        """Note an optimizer's step, in the innermost loop that runs."""
        if not self.is_here:
            return
        self._steps_made += 1
        innermost = self._running[-1] if self._running else None
        if innermost is None or self._site is None or innermost.site is self._site:
            return
        if self._run in self._running and innermost.site.level >= Level.GRADIENTS:
            # The counted loop is around the one that trains: epochs, for example.
            self.program.exclude(self._site)
            self._release()

    def _should_take(self, run: LoopRun) -> bool:
        """Whether this is the loop to count."""
        if run.site.excluded or run.trains_not or self._over or not self.is_open:
            return False
        if run.over_model:
            self.program.exclude(run.site)
            return False
        level, best = run.site.level, self.program.best
        if max(level, best) >= Level.GRADIENTS:
            return level == best
        if self.program.trains_out_of_sight:
            return False
        if level == Level.LOADS:
            return True
        return best == Level.RUNS and self._is_candidate(run.site)

    def _take(self, run: LoopRun) -> None:
        self._site, self._run = run.site, run
        self._outermost = next(iter(self._running), run)
        self._steps_made, self._is_announced = 0, False
        self._counting = Counting(
            self._schedule, run.site.place, explicit=False, before=run.items
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
        self._running = [other for other in self._running if other is not run]
        counting = self._counting
        if counting is None or run is not self._outermost or not self.is_here:
            return
        self._outermost = next(iter(self._running), None)
        loop = counting.loop
        if self._outermost is not None or (loop is not None and loop.waits_for_cycle):
            return
        counting.__exit__(None, None, None)
        if loop is None or loop.goes_on or loop.has_all:
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
        sites = self.program.sites.values()
        idle = [site.place for site in sites if site.excluded]
        if idle:
            return [f"no op was seen in the loop of {' or '.join(idle)}: nothing was recorded"]
        candidates = [site for site in sites if self._is_candidate(site)]
        if candidates:
            places = " or ".join(dict.fromkeys(site.place for site in candidates))
            return [f"the loop of {places} was not seen to run: nothing was recorded"]
        return [
            "--steps found no training loop: the code ran once and is recorded whole; to bound "
            f"a loop write {_BY_HAND}"
        ]

    def _others(self, ran: LoopSite) -> list[str]:
        """Return a note on later loops that could have been counted as well."""
        alike = [site for site in self._later if site.level == ran.level and site is not ran]
        others = [site for site in alike if self._is_candidate(site)]
        if not others and ran in self._later:
            return [
                f"the loop of {ran.place} was bounded and recorded; its later runs were neither "
                "bounded nor recorded"
            ]
        if not others:
            return []
        places = ", ".join(dict.fromkeys(site.place for site in others))
        return [
            f"the loop of {ran.place} was bounded and recorded; the loop of {places} ran "
            f"unchanged: to choose another loop, write {_BY_HAND} there"
        ]

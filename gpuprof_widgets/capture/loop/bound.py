"""`--steps`: bound the loop that trains, by rewriting the syntax tree around the loops.

The loops of the cell are watched, and those in functions that train (see `watching`); one of them
is counted (see `training`). When its steps are over, it and the loops around it end as if their
items had.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from gpuprof_widgets.capture.cell import CellCode, CellTree, Rewrite
from gpuprof_widgets.capture.code import Embedded
from gpuprof_widgets.capture.lines.compiled import compiled_definitions, names_in
from gpuprof_widgets.capture.lines.sources import SourceFile
from gpuprof_widgets.capture.loop.iterations import Schedule
from gpuprof_widgets.capture.loop.steps import Counting
from gpuprof_widgets.capture.loop.training import Level, LoopSite, Program
from gpuprof_widgets.capture.loop.watching import LoopRun, with_watched_loops
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.options import Options

_EXPLICIT = (
    "the code bounds a loop itself, with gpuprof_widgets.steps or a callback: that one was "
    "recorded, and --steps bounded none"
)
_BY_HAND = "`for item in gpuprof_widgets.steps(items)`"


def loop_bound(options: Options) -> Rewrite | None:
    """The rewrite that bounds a loop, where the options ask for it."""
    return None if options.steps is None else LoopBound(options)


def loop_bound_of(code: CellCode | None) -> LoopBound | None:
    """The one that was applied to a cell."""
    applied = code.rewrites if code is not None else ()
    return next((one for one in applied if isinstance(one, LoopBound)), None)


class LoopBound:
    """The rewrite of one cell, and what its loops do when they run.

    They serve one recorder, in its thread: without it, or beside a loop that it counts already,
    they run as the user wrote them.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._schedule = Schedule.of(options)
        self.program = Program({})
        self.statements: list[ast.stmt] = []
        self.names: set[str] = set()
        """What the code speaks of: functions elsewhere may be among it."""
        self.search: Callable[[], None] = lambda: None
        """Looks for such functions."""
        self.stream = "stderr"
        """Where it says which loop it is: a script's stdout is its own, a cell's has no red."""
        # Weakly: this is a constant of the cell's code, which the recorder holds, and the garbage
        # collector does not look into code: what leads from there back to the recorder stays.
        self._recorder: Callable[[], Any] = lambda: None
        self._thread = 0
        self._running: list[LoopRun] = []
        self._counting: Counting | None = None
        self._site: LoopSite | None = None
        self._run: LoopRun | None = None  # the one that is counted
        self._outermost: LoopRun | None = None
        self._steps_made = 0  # by optimizers, since it is counted
        self._over = False
        self._too_short: list[str] = []
        self._later: dict[LoopSite, None] = {}

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        """Put the watching into every loop of the tree, but for what a compiler reads."""
        every = [*tree.statements, *([ast.Expr(tree.last)] if tree.last else [])]
        self.statements = every
        self.names = {name for one in every for name in names_in(one)}
        self.program.add(every)
        compiled = {inner for node in compiled_definitions(every) for inner in ast.walk(node)}
        for site in list(self.program.sites.values()):
            never_called = site.function and site.function not in self.names
            if site.node in compiled or never_called:
                del self.program.sites[site.node]
        self.program.settle()
        tree.statements[:] = with_watched_loops(
            tree.statements, self.program, self, embedded, looks=True
        )

    def watch(self, file: SourceFile, embedded: Embedded) -> bool:
        """Watch the loops of functions elsewhere, in their syntax; whether any of them matters."""
        nodes = file.outermost
        if not self.program.has(nodes):
            self.program.add(nodes, file=file.label)
            self.program.settle()
        inside = {each for node in nodes for each in ast.walk(node)}
        mine = [site for site in self.program.sites.values() if site.node in inside]
        for node in nodes:
            node.body = with_watched_loops(node.body, self.program, self, embedded)
        return any(site.level >= Level.GRADIENTS or site.leads for site in mine)

    def serves(self, recorder: Any) -> bool:
        """Whether there is a loop to wait for; it is this recorder's from now on."""
        self._recorder = weakref.ref(recorder)
        self._thread = threading.get_ident()
        self.program.settle()
        return any(map(self._may_be_it, self.program.sites.values()))

    def _may_be_it(self, site: LoopSite) -> bool:
        return site.level >= Level.LOADS or (not site.function and self.program.is_innermost(site))

    @property
    def expects_training(self) -> bool:
        """Whether the code trains, be it where no loop of its own is seen to."""
        return self.program.best >= Level.GRADIENTS or self.program.trains_out_of_sight

    @property
    def is_open(self) -> bool:
        """Whether the recorder waits for a loop, in this thread."""
        recorder = self._recorder()
        return self.is_here and recorder is not None and not recorder.is_taken

    @property
    def is_here(self) -> bool:
        """Whether the recorder is at work, and this its process and thread."""
        recorder = self._recorder()
        here = threading.get_ident() == self._thread and os.getpid() == Active.process
        return here and recorder is not None and recorder is Active.recorder

    @property
    def waits_in_training(self) -> bool:
        """Whether a loop runs that trains, and may be taken at its next iteration."""
        return self.is_open and any(
            run.site.level >= Level.GRADIENTS and not run.site.excluded and not run.trains_not
            for run in self._running
        )

    def watches(self, site: LoopSite) -> bool:
        """Whether a loop that starts now may be the one, or stands around it."""
        if site.excluded or not self.is_here:
            return False
        if self._over:
            self._later[site] = None
            return False
        if self.program.best >= Level.GRADIENTS:
            return site.leads or site.level >= Level.GRADIENTS
        return not site.function or site.level == Level.LOADS

    def look(self) -> None:
        """Look for loops in what was imported."""
        if self.is_open:
            self.search()

    def entered(self, run: LoopRun) -> None:
        self._running.append(run)
        if run.loads and run.site.level < Level.LOADS:
            self.program.loads(run.site)

    def next(self, run: LoopRun) -> bool:
        """Whether a watched loop goes on to its next iteration."""
        if run.ended:
            return False
        if self._over or not self.is_here:
            return True
        if self._site is None and self._is_it(run):
            self._take(run)
        if self._counting is None or not self._is_counted(run) or self._counting.next_step():
            return True
        if self._turned_out_to_be_none(run):
            return True
        self._over = True
        for each in self._running[: self._running.index(run) + 1]:
            each.end()
        return False

    def _is_counted(self, run: LoopRun) -> bool:
        """Whether it is a run of the loop that is counted; of several at a time the first one."""
        if run.site is not self._site:
            return False
        if self._run not in self._running:
            self._run = run
        return self._run is run

    def made_step(self) -> None:
        """An optimizer has made a step: in the innermost loop that runs."""
        if not self.is_here:
            return
        self._steps_made += 1
        innermost = self._running[-1] if self._running else None
        if innermost is None or self._site is None or innermost.site is self._site:
            return
        if self._run in self._running and innermost.site.level >= Level.GRADIENTS:
            # What looked as if it trained is around what does: epochs, say.
            self.program.exclude(self._site)
            self._release()

    def _is_it(self, run: LoopRun) -> bool:
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
        return best == Level.RUNS and self._may_be_it(run.site)

    def _take(self, run: LoopRun) -> None:
        self._site, self._run = run.site, run
        self._outermost = next(iter(self._running), run)
        self._steps_made = 0
        self.announce(f"the loop of {run.site.place} ({run.site.text})")
        self._counting = Counting(
            self._schedule, run.site.place, explicit=False, before=run.items
        ).__enter__()

    def announce(self, what: str, *, ends: bool = True) -> None:
        """Say which loop it is going to be."""
        self._say(f"bounding {what}: {self._schedule.in_words(ends=ends)}")

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            print(f"gpuprof: {text}", file=getattr(sys, self.stream), flush=True)

    def paused(self, run: LoopRun, *, exhausted: bool) -> None:
        """A loop has no further item, or was left; inside of another one it may begin anew."""
        loop = self._counting.loop if self._counting is not None else None
        if run is self._run and loop is not None and not run.ended and self.is_here:
            loop.pause(exhausted=exhausted)

    def left(self, run: LoopRun) -> None:
        """A loop has ended, however: with the outermost one so has what was counted in it."""
        self._running = [each for each in self._running if each is not run]
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
        elif not self._turned_out_to_be_none(run):
            self._over = True

    def _turned_out_to_be_none(self, run: LoopRun) -> bool:
        """Let go of a loop of which only its run shows that it does not train, or runs no op."""
        recorder, site = self._recorder(), self._site
        if site is None or recorder is None or self._steps_made:
            return False
        trains = site.level >= Level.GRADIENTS
        if recorder.has_work(training=trains):
            return False
        if trains:
            run.trains_not = True  # this time: it may be a validation
        else:
            self.program.exclude(site)
        self._release()
        what = "did not train" if trains else "ran no op"
        self._say(f"the loop of {site.place} {what}: it is left as it is, and not recorded")
        return True

    def _release(self) -> None:
        recorder = self._recorder()
        if recorder is not None:
            recorder.release()
        self._counting = self._site = self._run = self._outermost = None

    def notes(self) -> list[str]:
        """Which loop it was, where that is not plain to see."""
        recorder = self._recorder()
        if recorder is not None and recorder.has_explicit_loop:
            return [_EXPLICIT]
        if self._site is not None:
            return self._others(self._site)
        if self._too_short:
            return self._too_short
        none = [one.place for one in self.program.sites.values() if one.excluded]
        if none:
            return [f"no op was seen in the loop of {' or '.join(none)}: nothing was recorded"]
        sites = [one for one in self.program.sites.values() if self._may_be_it(one)]
        if sites:
            places = " or ".join(dict.fromkeys(one.place for one in sites))
            return [f"the loop of {places} was not seen to run: nothing was recorded"]
        return [
            "--steps found no loop that trains: the code ran once and is recorded whole; to bound "
            f"a loop write {_BY_HAND}"
        ]

    def _others(self, ran: LoopSite) -> list[str]:
        """Loops that had as much for them."""
        alike = [one for one in self._later if one.level == ran.level and one is not ran]
        others = [one for one in alike if self._may_be_it(one)]
        if not others and ran in self._later:
            return [
                f"the loop of {ran.place} was bounded and recorded; when it ran again it did so as "
                "it is written, unrecorded"
            ]
        if not others:
            return []
        places = ", ".join(dict.fromkeys(one.place for one in others))
        return [
            f"the loop of {ran.place} was bounded and recorded; that of {places} ran as it is "
            f"written: to choose another, write {_BY_HAND} there"
        ]

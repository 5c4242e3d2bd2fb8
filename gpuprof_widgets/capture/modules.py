"""Spans of every nn.Module instance, forward and backward, by qualified name.

The forward pass is marked while it runs, around each call (see `module_calls`). The backward pass
is not: full backward hooks put a function around a module's inputs and outputs, which forbids
in-place changes of them, adds nodes to the graph and shifts its sequence numbers. Its spans follow
afterwards from the links between backward and forward ops (see `trace.backward_spans`), which
changes nothing and is exact to the op.

`ModuleSpans` is the part of the recording, and `ModuleMarks` marks the calls.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from gpuprof_widgets.capture.module_calls import (
    REGION,
    Entrance,
    Entrances,
    ModuleCalls,
    TorchRegion,
)
from gpuprof_widgets.capture.module_names import (
    Family,
    ModuleName,
    families,
    family,
    is_compiled,
    modules_held,
    modules_in,
    variable,
    variables_with_modules,
)
from gpuprof_widgets.capture.nvtx import emits_nvtx
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.trace.backward_spans import backward_spans
from gpuprof_widgets.trace.edit import Region, kept_slices, with_regions, with_slices
from gpuprof_widgets.trace.model import Trace

EVERY = ("auto", "all")
"""Values of the option ``modules`` that mark all modules."""
MOST_NAMED = 5
"""Variables that a note names."""
MARKER = "gpuprof:module:"
_LEFT_OUT = "gpuprof:no module"

_COMPILED = (
    "modules inside a torch.compile graph have no spans, because the graph does not call them; "
    "their ops are linked to lines and forward ops"
)
_SCRIPTED = "modules inside a scripted module have no spans: they call no hooks"
_REPLICAS = "replicas that DataParallel makes have no spans: they live for one call only"


def module_spans(context: Context) -> ModuleSpans | None:
    """Return the part, unless the options want no modules."""
    return None if context.options.modules == "none" else ModuleSpans(context)


class ModuleSpans(Part):
    """Marks the modules that run, and names their spans."""

    loses = "no modules"

    def __init__(self, context: Context) -> None:
        wanted = context.options.modules
        self._wanted = None if wanted in EVERY else [name.strip() for name in wanted.split(",")]
        self._namespace = context.namespace
        self._marks = ModuleMarks(named=emits_nvtx(context.options))
        self._notes: list[str] = []
        self._ran: dict[str, int] = {}

    def start(self) -> None:
        self._marks.prepare(module for _, module in modules_held(self._namespace))
        self._marks.start()

    def end_regions(self) -> None:
        self._marks.end_regions()

    def give_way(self) -> None:
        self.end_regions()
        self.stop()

    def stop(self) -> None:
        self._marks.stop()

    def refine(self, trace: Trace) -> Trace:
        """Return the trace with the spans of both passes of the wanted modules."""
        self._marks.note_names(set(trace.slices["name"].cat.categories))
        by_root = families(self._searched_variables())
        names = self._names(by_root)
        several = len({name.root for name in names.values() if name.path}) > 1
        self._note(by_root, names, several=several)
        markers = [instance.marker for instance in self._marks.ran]
        unwanted = [marker for marker in markers if marker not in names]
        trace = _without(trace, [_LEFT_OUT, *unwanted])
        for name in names.values():
            self._ran[name.root] = self._ran.get(name.root, 0) + 1
        kinds = {instance.marker: instance.kind for instance in self._marks.ran}
        regions = {
            marker: Region(
                name.under(several=several), "module", {"class": kinds[marker], "root": name.root}
            )
            for marker, name in names.items()
        }
        trace = with_regions(trace, regions)
        return with_slices(trace, backward_spans(trace))

    def notes(self) -> list[str]:
        return self._notes

    def metadata(self) -> dict[str, Any]:
        return {"modules": {"roots": self._ran, "compiled": self._marks.compiled}}

    def _searched_variables(self) -> Mapping[str, Any]:
        """Return the variables asked for, so that a part of a model gets its variable's name."""
        if self._wanted is None:
            return self._namespace
        return {name: self._namespace[name] for name in self._wanted if name in self._namespace}

    def _names(self, by_root: dict[str, Family]) -> dict[str, ModuleName]:
        """Return the names of the wanted modules that ran, by marker."""
        by_id = {
            number: ModuleName(root, path)
            for root, family in reversed(by_root.items())
            for number, path in family.paths.items()
        }
        names = {
            instance.marker: by_id.get(id(instance.module()), instance.called_as)
            for instance in self._marks.ran
        }
        return {marker: name for marker, name in names.items() if self._is_wanted(name)}

    def _is_wanted(self, name: ModuleName) -> bool:
        return self._wanted is None or variable(name.root) in self._wanted

    def _note(
        self, by_root: dict[str, Family], names: dict[str, ModuleName], *, several: bool
    ) -> None:
        instances = self._marks.ran
        ran = {id(instance.module()) for instance in instances if instance.marker in names}
        opaque = {n: kind for family in by_root.values() for n, kind in family.opaque.items()}
        self._notes += self._missing_variables({variable(name.root) for name in names.values()})
        if self._marks.compiled or "compiled" in opaque.values():
            self._notes.append(_COMPILED)
        if any(kind == "scripted" and number in ran for number, kind in opaque.items()):
            self._notes.append(_SCRIPTED)
        if self._marks.replicas:
            self._notes.append(_REPLICAS)
        self._notes += _shared(by_root, ran, several=several)
        if self._marks.failure:
            self._notes.append(f"some modules have no spans: {self._marks.failure}")

    def _missing_variables(self, ran: set[str]) -> list[str]:
        """Return a sentence for each wanted name that is neither a variable's nor a class's."""
        variables = variables_with_modules(self._namespace) if self._wanted else []
        hint = f" (there are some in {', '.join(variables[:MOST_NAMED])})" if variables else ""
        return [
            f"no nn.Module was found in the variable {name}{hint}"
            for name in self._wanted or ()
            if name not in variables and name not in ran
        ]


def _shared(by_root: dict[str, Family], ran: set[int], *, several: bool) -> list[str]:
    """Return a sentence on modules with two paths, of which their spans have the first."""
    pairs = [
        [ModuleName(root, path).under(several=several) for path in (family.paths[number], second)]
        for root, family in by_root.items()
        for number, second in family.also.items()
        if number in ran
    ]
    if not pairs:
        return []
    first, second = pairs[0]
    more = f" (so are {len(pairs) - 1} more)" if len(pairs) > 1 else ""
    return [
        f"the module `{first}` is shared: it is `{second}` as well, and its spans say "
        f"`{first}`{more}"
    ]


def _without(trace: Trace, markers: list[str]) -> Trace:
    marked = trace.slices["name"].isin(markers).to_numpy()
    return kept_slices(trace, ~marked) if marked.any() else trace


@dataclass
class Instance:
    """A module: its marker, its name under the outermost module called, and whether it ran."""

    marker: str
    module: weakref.ref[nn.Module]
    kind: str
    called_as: ModuleName
    has_run: bool


class ModuleMarks:
    """Marks every module that runs between `start` and `stop`; keeps none alive.

    Marks are numbered; those for another reader (Nsight Systems) are ``named``.
    """

    def __init__(self, *, named: bool = False) -> None:
        self._named = named
        self.instances: list[Instance] = []
        self.replicas = False
        self.failure = ""
        self._known = Entrances(self._entrance)
        self._calls = ModuleCalls(self._known)
        self._outermost: dict[int, tuple[str, Family]] = {}

    @property
    def compiled(self) -> bool:
        """Whether torch.compile was at work: modules inside a graph have no marks."""
        return self._calls.compiled

    @property
    def ran(self) -> list[Instance]:
        """The modules that ran; a prepared module counts if `note_names` has seen its marker."""
        return [instance for instance in self.instances if instance.has_run]

    def note_names(self, names: Collection[str]) -> None:
        """Take note of the names in a trace, by which prepared modules are known to have run."""
        for instance in self.instances:
            instance.has_run |= instance.marker in names

    def prepare(self, roots: Iterable[nn.Module]) -> None:
        """Make the entrances of these modules and of all modules in them, before the cell runs.

        In the cell it would take longer. Modules whose marks are for another reader are left out:
        it must not get names of modules that never run.
        """
        if self._named:
            return
        for root in roots:
            paths = family(root).paths
            for module in modules_in(root):
                if id(module) not in self._known and not _is_replica(module):
                    called_as = ModuleName(type(root).__name__, paths.get(id(module), ""))
                    if not is_compiled(module):
                        self._add(module, called_as, has_run=False)

    def start(self) -> None:
        """Mark from now on."""
        self._calls.add()

    def end_regions(self) -> None:
        """End the regions of the modules that run on this thread."""
        for frame in self._running():
            frame.f_locals.get(REGION, []).clear()

    def stop(self) -> None:
        """Mark no longer; may be called twice."""
        self._calls.remove()

    def _entrance(self, module: nn.Module) -> Entrance:
        """Return the entrance of a module that runs for the first time."""
        try:
            if self._is_left_out(module):
                return functools.partial(TorchRegion, _LEFT_OUT)
            return self._add(module, self._called_as(module), has_run=True)
        except Exception as error:  # an error here would reach the user
            self.failure = f"{type(error).__name__}: {error}"
            return functools.partial(TorchRegion, _LEFT_OUT)

    def _is_left_out(self, module: nn.Module) -> bool:
        """Whether it is a replica of DataParallel, or the wrapper of torch.compile."""
        self.replicas |= _is_replica(module)
        self._calls.compiled |= is_compiled(module)
        return _is_replica(module) or is_compiled(module)

    def _add(self, module: nn.Module, called_as: ModuleName, *, has_run: bool) -> Entrance:
        number, kind = id(module), type(module).__name__
        marker = called_as.under(several=True) if self._named else f"{MARKER}{len(self.instances)}"
        # Forget the id with the module, before another object can have it.
        gone = weakref.ref(module, functools.partial(_forget, self._known, number))
        self.instances.append(Instance(marker, gone, kind, called_as, has_run))
        entrance = functools.partial(TorchRegion, marker)
        self._known[number] = entrance
        return entrance

    def _called_as(self, module: nn.Module) -> ModuleName:
        """Return the name of a running module under the outermost module that runs."""
        number, kind = id(module), type(module).__name__
        outermost = self._outermost_running()
        if outermost is module:
            self._outermost[number] = kind, family(module)
        root, under = self._outermost.get(id(outermost), ("", None))
        path = None if under is None else under.paths.get(number)
        return ModuleName(kind, "") if path is None else ModuleName(root, path)

    def _outermost_running(self) -> nn.Module | None:
        """Return the outermost module that runs on this thread."""
        modules = (frame.f_locals["self"] for frame in self._running())
        called = [module for module in modules if not self._is_left_out(module)]
        return called[-1] if called else None

    def _running(self) -> Iterator[FrameType]:
        """Yield the frames of the modules that run on this thread, innermost first."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._calls.code:
                yield frame
            frame = frame.f_back


def _is_replica(module: nn.Module) -> bool:
    """Whether DataParallel made this module, for one call."""
    return bool(module.__dict__.get("_is_replica", False))


def _forget(known: dict[int, Entrance], number: int, _: Any) -> None:
    known.pop(number, None)

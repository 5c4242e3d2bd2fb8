"""Spans of every nn.Module instance, forward and backward, by qualified name.

The forward pass is marked while it runs, around each call (see `module_calls`). The backward pass
is not: full backward hooks put a function around a module's inputs and outputs, which forbids
in-place changes of them, adds nodes to the graph and shifts its sequence numbers. Its spans follow
afterwards from the links between backward and forward ops (see `trace.backward_spans`), which
changes nothing and is exact to the op.

`ModuleSpans` is the part of the recording, and `ModuleMarks` marks the calls. Modules are named by
the variable that holds their root, and their path from there: `families` finds the roots among the
user's variables, without running any code of theirs.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import jit, nn

from gpuprof_widgets.capture.memory import inside
from gpuprof_widgets.capture.module_calls import (
    REGION,
    Entrance,
    Entrances,
    ModuleCalls,
    TorchRegion,
)
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.capture.torch_profiler import emits_nvtx
from gpuprof_widgets.trace.backward_spans import backward_spans
from gpuprof_widgets.trace.edit import Region, kept_slices, with_regions, with_slices
from gpuprof_widgets.trace.model import Trace

EVERY = ("auto", "all")
"""Values of the option ``modules`` that mark all modules."""
MOST_NAMED = 5
"""Variables that a note names."""
MARKER = "gpuprof:module:"
_WRAPPER_PACKAGES = ("torch.nn.parallel.", "torch.distributed.")
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
        self._ran = Counter[str]()

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
        namespace = self._namespace
        if self._wanted is not None:  # so that a part of a model gets its variable's name
            namespace = {name: namespace[name] for name in namespace if name in self._wanted}
        by_root = families(namespace)
        names = self._names(by_root)
        several = len({name.root for name in names.values() if name.path}) > 1
        self._note(by_root, names, several=several)
        markers = [instance.marker for instance in self._marks.ran]
        unwanted = [marker for marker in markers if marker not in names]
        keep = ~trace.slices["name"].isin([_LEFT_OUT, *unwanted]).to_numpy()
        trace = trace if keep.all() else kept_slices(trace, keep)
        self._ran.update(name.root for name in names.values())
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
        return {"modules": {"roots": dict(self._ran), "compiled": self._marks.compiled}}

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
        return {
            marker: name
            for marker, name in names.items()
            if self._wanted is None or variable(name.root) in self._wanted
        }

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
        held = modules_held(self._namespace) if self._wanted else ()
        variables = list(dict.fromkeys(variable(label) for label, _ in held))
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


@dataclass
class Instance:
    """A module: its marker, its name under the outermost module called, and whether it ran."""

    marker: str
    module: weakref.ref[nn.Module]
    kind: str
    called_as: ModuleName
    has_run: bool


class ModuleMarks(ModuleCalls):
    """Marks every module that runs between `start` and `stop`; keeps none alive.

    Marks are numbered; those for another reader (Nsight Systems) are ``named``.
    """

    def __init__(self, *, named: bool = False) -> None:
        super().__init__(Entrances(self._entrance))
        self._named = named
        self.instances: list[Instance] = []
        self.replicas = False
        self.failure = ""
        self._outermost: dict[int, tuple[str, Family]] = {}

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
            for path, module in visits(root):
                is_known = id(module) in self._known
                if not (is_known or _is_replica(module) or is_compiled(module)):
                    self._add(module, ModuleName(type(root).__name__, path), has_run=False)

    def end_regions(self) -> None:
        """End the regions of the modules that run on this thread."""
        for frame in self._running():
            frame.f_locals.get(REGION, []).clear()

    def _entrance(self, module: nn.Module) -> Entrance:
        """Return the entrance of a module that runs for the first time."""
        try:
            if not self._is_left_out(module):
                return self._add(module, self._called_as(module), has_run=True)
        except Exception as error:  # an error here would reach the user
            self.failure = f"{type(error).__name__}: {error}"
        return functools.partial(TorchRegion, _LEFT_OUT)

    def _is_left_out(self, module: nn.Module) -> bool:
        """Whether it is a replica of DataParallel, or the wrapper of torch.compile."""
        self.replicas |= _is_replica(module)
        self.compiled |= is_compiled(module)
        return _is_replica(module) or is_compiled(module)

    def _add(self, module: nn.Module, called_as: ModuleName, *, has_run: bool) -> Entrance:
        number, kind = id(module), type(module).__name__
        marker = called_as.under(several=True) if self._named else f"{MARKER}{len(self.instances)}"
        # Forget the id with the module, before another object can have it.
        known = self._known
        gone = weakref.ref(module, lambda _: known.pop(number, None))
        self.instances.append(Instance(marker, gone, kind, called_as, has_run))
        entrance = functools.partial(TorchRegion, marker)
        self._known[number] = entrance
        return entrance

    def _called_as(self, module: nn.Module) -> ModuleName:
        """Return the name of a running module under the outermost module that runs."""
        number, kind = id(module), type(module).__name__
        running = (frame.f_locals["self"] for frame in self._running())
        called = [other for other in running if not self._is_left_out(other)]
        outermost = called[-1] if called else None
        if outermost is module:
            self._outermost[number] = kind, family(module)
        root, under = self._outermost.get(id(outermost), ("", None))
        path = None if under is None else under.paths.get(number)
        return ModuleName(kind, "") if path is None else ModuleName(root, path)

    def _running(self) -> Iterator[FrameType]:
        """Yield the frames of the modules that run on this thread, innermost first."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self.code:
                yield frame
            frame = frame.f_back


def _is_replica(module: nn.Module) -> bool:
    """Whether DataParallel made this module, for one call."""
    return bool(module.__dict__.get("_is_replica", False))


@dataclass(frozen=True)
class ModuleName:
    """The variable of the root module, and the path from there as in `named_modules()`."""

    root: str
    path: str

    def under(self, *, several: bool) -> str:
        """Return the path (for the root its variable), behind the variable where that is needed."""
        if not self.path:
            return self.root
        # A bare "0" of an `nn.Sequential` names nothing.
        return f"{self.root}.{self.path}" if several or self.path[0].isdigit() else self.path


@dataclass(frozen=True)
class Family:
    """The modules under one root by their ``id``: their paths, and the second path of some."""

    paths: dict[int, str]
    also: dict[int, str]
    opaque: dict[int, str]
    """"compiled" or "scripted" for modules whose calls of other modules cannot be seen."""


def family(root: nn.Module) -> Family:
    """Return all modules under this one, in the order and with the paths of `named_modules()`.

    A module that comes twice keeps its first path; a compiled module and its original have the same
    path.
    """
    modules = Family({}, {}, {})
    for path, module in visits(root):
        number = id(module)
        if number in modules.paths:
            modules.also.setdefault(number, path)
            continue
        modules.paths[number] = path
        if isinstance(module, jit.ScriptModule):
            modules.opaque[number] = "scripted"
        elif getattr(module, "_compiled_call_impl", None) is not None:
            modules.opaque[number] = "compiled"
    return modules


def visits(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module under this one with each of its paths, none in a scripted one.

    Does not call `named_modules()`, which a class may override.
    """
    waiting, seen = [("", root)], set[int]()
    while waiting:
        path, module = waiting.pop()
        yield path, module
        if id(module) in seen or isinstance(module, jit.ScriptModule):
            continue
        seen.add(id(module))
        prefix = f"{path}." if path else ""
        children = [
            (prefix + name, child) for name, child in module._modules.items() if child is not None
        ]
        if is_compiled(module):
            # Last of all: if the original also has a place of its own, that is its path.
            waiting[:0] = [(path, child) for _, child in children]
        else:
            waiting += reversed(children)


def is_compiled(module: nn.Module) -> bool:
    """Whether the module is the wrapper that `torch.compile` makes; it has the model's name."""
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


def _wrapped(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the models inside wrappers of `torch.compile`, DataParallel or torch.distributed.

    The inner module is still the model, and users know it by its name.
    """
    while is_compiled(module) or type(module).__module__.startswith(_WRAPPER_PACKAGES):
        children = [child for child in module._modules.values() if child is not None]
        if len(children) != 1:
            return
        module = children[0]
        yield module


def families(namespace: Mapping[str, Any]) -> dict[str, Family]:
    """Return the families of the root modules among the user's variables, by variable.

    Roots are modules that belong to no other one's family. Keys are ``model``, ``models[0]``,
    ``nets['gen']``, ``trainer.model``. A wrapper leaves its modules to the module that it wraps,
    where that has a variable of its own.
    """
    candidates: dict[int, tuple[str, Family]] = {}
    wrapped: dict[int, set[int]] = {}
    for label, module in modules_held(namespace):
        if id(module) not in candidates:
            candidates[id(module)] = (label, family(module))
            wrapped[id(module)] = {id(inner) for inner in _wrapped(module)}
    left = dict[int, Family]()
    for root, (label, members) in candidates.items():
        near = [inner for inner in wrapped[root] if _is_as_near(inner, label, candidates)]
        others = {number for inner in near for number in candidates[inner][1].paths}
        parts = (members.paths, members.also, members.opaque)
        kept = ({n: text for n, text in part.items() if n not in others} for part in parts)
        left[root] = Family(*kept)
    held = {number for root, members in left.items() for number in members.paths if number != root}
    return {
        label: left[root]
        for root, (label, _) in candidates.items()
        if root not in held or _comes_first(root, candidates)
    }


def _is_as_near(
    inner: int, wrapper_label: str, candidates: Mapping[int, tuple[str, Family]]
) -> bool:
    """Whether a wrapped module is as close to a variable as its wrapper: ``x``, not ``x[0]``."""
    label = candidates[inner][0] if inner in candidates else ""
    return bool(label) and (label == variable(label) or wrapper_label != variable(wrapper_label))


def variable(label: str) -> str:
    """Return the variable in ``trainer.model`` or ``models[0]``."""
    return re.split(r"[.\[]", label, maxsplit=1)[0]


def _comes_first(root: int, candidates: dict[int, tuple[str, Family]]) -> bool:
    """Whether this is the first variable among modules that hold each other."""
    _, members = candidates[root]
    holders = [number for number, (_, other) in candidates.items() if root in other.paths]
    return holders[0] == root and all(number in members.paths for number in holders)


def modules_held(namespace: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the variables that are modules, then the modules in lists, dicts and attributes."""
    variables = [
        (name, value)
        for name, value in list(namespace.items())
        if not name.startswith("_") and name not in ("In", "Out")  # IPython's, for the same values
    ]
    held = (inner for one in variables if not _is_module(one) for inner in inside(*one))
    yield from filter(_is_module, [*variables, *held])


def _is_module(pair: tuple[str, Any]) -> bool:
    """Whether it is a module by its type; `isinstance` would ask a lazy proxy, which may raise."""
    return issubclass(type(pair[1]), nn.Module)

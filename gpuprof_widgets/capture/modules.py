"""Spans of every nn.Module instance, forward and backward, by qualified name.

The forward is marked by hooks while it runs. The backward is not: full backward hooks put a
function around a module's inputs and outputs, which forbids in-place changes of them, adds nodes to
the graph and shifts its sequence numbers. It follows afterwards from the links between backward and
forward ops (see `trace.backward_spans`), which changes nothing and is exact to the op.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import jit, nn

from gpuprof_widgets.capture.lines.regions import UNRECORDED
from gpuprof_widgets.capture.module_calls import Entrance, ModuleCalls, unseen
from gpuprof_widgets.capture.nvtx import emits_nvtx
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.backward_spans import backward_spans
from gpuprof_widgets.trace.edit import Region, kept_slices, with_regions, with_slices
from gpuprof_widgets.trace.model import Trace

EVERY = ("auto", "all")
MOST_NAMED = 5  # variables in a note

_COMPILED = (
    "modules inside a graph of torch.compile have no spans: it calls none of them; "
    "their ops are linked to lines and forward ops"
)
_REPLICAS = "replicas that DataParallel makes have no spans: they live for one call only"


def module_spans(context: Context) -> ModuleSpans | None:
    """The part, unless the options want no modules."""
    return None if context.options.modules == "none" else ModuleSpans(context)


class ModuleSpans:
    """The part of a recording that knows modules."""

    loses = "no modules"

    def __init__(self, context: Context) -> None:
        wanted = context.options.modules
        self._wanted = None if wanted in EVERY else [name.strip() for name in wanted.split(",")]
        self._namespace = context.namespace
        self._marks = ModuleMarks(named=emits_nvtx(context.options))
        self._notes: list[str] = []
        self._ran: dict[str, int] = {}

    def start(self) -> None:
        self._marks.start()

    def stop(self) -> None:
        self._marks.stop()

    def refine(self, trace: Trace) -> Trace:
        """The trace with the spans of both passes; those of other modules than wanted are gone."""
        found = families(self._looked_at())
        names = self._names(found)
        several = len({name.root for name in names.values() if name.path}) > 1
        self._note(found, names, several=several)
        trace = _without(trace, [i.marker for i in self._marks.instances if i.marker not in names])
        for name in names.values():
            self._ran[name.root] = self._ran.get(name.root, 0) + 1
        kinds = {instance.marker: instance.kind for instance in self._marks.instances}
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

    def _looked_at(self) -> Mapping[str, Any]:
        """The variables that were asked for: a part of a model has its own name then."""
        if self._wanted is None:
            return self._namespace
        return {name: self._namespace[name] for name in self._wanted if name in self._namespace}

    def _names(self, found: dict[str, Family]) -> dict[str, ModuleName]:
        """The names of the wanted modules that ran, by their markers."""
        by_id = {
            number: ModuleName(root, path)
            for root, one in reversed(found.items())
            for number, path in one.paths.items()
        }
        names = {
            instance.marker: by_id.get(id(instance.module()), instance.called_as)
            for instance in self._marks.instances
        }
        return {marker: name for marker, name in names.items() if self._is_wanted(name)}

    def _is_wanted(self, name: ModuleName) -> bool:
        return self._wanted is None or variable(name.root) in self._wanted

    def _note(
        self, found: dict[str, Family], names: dict[str, ModuleName], *, several: bool
    ) -> None:
        ran = {id(one.module()) for one in self._marks.instances if one.marker in names}
        self._notes += self._not_found({variable(name.root) for name in names.values()})
        opaque = {kind for one in found.values() for kind in one.opaque.values()}
        if self._marks.compiled or "compiled" in opaque:
            self._notes.append(_COMPILED)
        scripted = {
            n for one in found.values() for n, kind in one.opaque.items() if kind == "scripted"
        }
        if scripted & ran:
            self._notes.append("modules inside a scripted module have no spans: they call no hooks")
        if self._marks.replicas:
            self._notes.append(_REPLICAS)
        self._notes += _shared(found, ran, several=several)
        if self._marks.failure:
            self._notes.append(f"some modules have no spans: {self._marks.failure}")

    def _not_found(self, ran: set[str]) -> list[str]:
        """A sentence per name that was asked for and is neither a variable's nor a class's."""
        there = variables_with_modules(self._namespace) if self._wanted else []
        hint = f" (there are some in {', '.join(there[:MOST_NAMED])})" if there else ""
        return [
            f"no nn.Module was found in the variable {name}{hint}"
            for name in self._wanted or ()
            if name not in there and name not in ran
        ]


def _shared(found: dict[str, Family], ran: set[int], *, several: bool) -> list[str]:
    """A sentence on modules with two paths of which the spans bear one."""
    pairs = [
        [ModuleName(root, path).under(several=several) for path in (one.paths[number], second)]
        for root, one in found.items()
        for number, second in one.also.items()
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


_OF_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.")
MOST_ITEMS = 1_000  # of a list or dict that are looked at


@dataclass(frozen=True)
class ModuleName:
    """``path`` as `named_modules()` gives it, empty for the root; ``root``: the variable's name."""

    root: str
    path: str

    def under(self, *, several: bool) -> str:
        """The path, or the variable's name for the root; both where one would not be plain."""
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
    """Compiled or scripted modules, whose calls of others are not seen: which of both they are."""

    def without(self, others: Collection[int]) -> Family:
        """The family without some of its modules."""
        parts = (self.paths, self.also, self.opaque)
        return Family(*({n: text for n, text in part.items() if n not in others} for part in parts))


def family(root: nn.Module) -> Family:
    """All modules under this one, in the order and with the paths of `named_modules()`.

    Not by calling that: a class may have its own. A module that comes twice keeps its first path;
    a compiled one and what it is compiled from have the same.
    """
    found = Family({}, {}, {})
    waiting: list[tuple[str, nn.Module]] = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in found.paths:
            found.also.setdefault(id(module), path)
            continue
        found.paths[id(module)] = path
        if isinstance(module, jit.ScriptModule):
            found.opaque[id(module)] = "scripted"
            continue
        if getattr(module, "_compiled_call_impl", None) is not None:
            found.opaque[id(module)] = "compiled"
        prefix = f"{path}." if path else ""
        inside = [(prefix + name, one) for name, one in module._modules.items() if one is not None]
        if is_compiled(module):
            # Last of all: where it hangs elsewhere as well, that is its path.
            waiting[:0] = [(path, one) for _, one in inside]
        else:
            waiting += reversed(inside)
    return found


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` made it around a module; it has that one's name."""
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


def _wrapped(module: nn.Module) -> nn.Module | None:
    """What `torch.compile`, DataParallel or one of torch.distributed's has put a module around.

    That one is the model still, and users go on to call it by its own name.
    """
    wraps = is_compiled(module) or type(module).__module__.startswith(_OF_WRAPPERS)
    inside = [one for one in module._modules.values() if one is not None]
    return inside[0] if wraps and len(inside) == 1 else None


def _all_wrapped(module: nn.Module) -> Iterator[nn.Module]:
    inner = _wrapped(module)
    while inner is not None:
        yield inner
        inner = _wrapped(inner)


def families(namespace: Mapping[str, Any]) -> dict[str, Family]:
    """The families of the modules among the user's variables that are in no other one's.

    Keys are the variables: ``model``, ``models[0]``, ``nets['gen']``, ``trainer.model``. What is
    wrapped around a module that has a variable of its own leaves its modules to that.
    """
    found: dict[int, tuple[str, Family]] = {}
    wrapped: dict[int, set[int]] = {}
    for label, module in _candidates(namespace):
        if id(module) not in found:
            found[id(module)] = (label, family(module))
            wrapped[id(module)] = {id(one) for one in _all_wrapped(module)}
    for root, (label, _) in found.items():
        wrapped[root] = {inner for inner in wrapped[root] if _is_as_near(inner, label, found)}
    left = {
        root: one.without({number for inner in wrapped[root] for number in found[inner][1].paths})
        for root, (_, one) in found.items()
    }
    held = {number for root, one in left.items() for number in one.paths if number != root}
    return {
        label: left[root]
        for root, (label, _) in found.items()
        if root not in held or _comes_first(root, found)
    }


def _is_as_near(number: int, label: str, found: Mapping[int, tuple[str, Family]]) -> bool:
    """Whether it has a variable and is that itself, or the other one is not its variable either."""
    own = found[number][0] if number in found else ""
    return bool(own) and (own == variable(own) or label != variable(label))


def variables_with_modules(namespace: Mapping[str, Any]) -> list[str]:
    """The variables that are modules or hold some, where `families` looks for them."""
    return list(dict.fromkeys(variable(label) for label, _ in _candidates(namespace)))


def variable(label: str) -> str:
    """The variable of ``trainer.model`` or ``models[0]``."""
    return re.split(r"[.\[]", label, maxsplit=1)[0]


def _comes_first(root: int, found: dict[int, tuple[str, Family]]) -> bool:
    """Of modules that hold each other the first variable counts."""
    _, own = found[root]
    holders = [number for number, (_, one) in found.items() if root in one.paths]
    return holders[0] == root and all(number in own.paths for number in holders)


def _candidates(namespace: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """The variables' own modules first, then those in their lists, dicts and attributes."""
    variables = [(name, value) for name, value in list(namespace.items()) if _is_users(name)]
    yield from ((name, value) for name, value in variables if _is_module(value))
    for name, value in variables:
        if not _is_module(value):
            yield from (pair for pair in _inside(name, value) if _is_module(pair[1]))


def _is_module(value: Any) -> bool:
    """By its type alone: a proxy that stands for nothing yet raises where it is asked itself."""
    return issubclass(type(value), nn.Module)


def _is_users(name: str) -> bool:
    """Not IPython's `_`, `_3`, `_i`, `In`, `Out`, which hold what other variables hold."""
    return not name.startswith("_") and name not in ("In", "Out")


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """One level deep, without running any code of the user's."""
    kind = type(value)
    if kind in (list, tuple):
        yield from ((f"{name}[{n}]", one) for n, one in enumerate(value[:MOST_ITEMS]))
    elif kind is dict:
        yield from ((f"{name}[{key!r}]", one) for key, one in [*value.items()][:MOST_ITEMS])
    elif not issubclass(kind, (type, ModuleType)):
        attributes = [*_attributes(value).items()][:MOST_ITEMS]
        yield from ((f"{name}.{key}", one) for key, one in attributes)


def _attributes(value: Any) -> dict[str, Any]:
    """The object's own attributes, past any `__getattr__` of its class."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except Exception:  # none with `__slots__`; a property of that name may raise anything
        return {}
    return found if type(found) is dict else {}


MARKER = "gpuprof:module:"

_Mark = torch._C._profiler._RecordFunctionFast


@dataclass(frozen=True)
class Instance:
    """A module that ran: its marker, and its name under the module that was called first."""

    marker: str
    module: weakref.ref[nn.Module]
    kind: str
    called_as: ModuleName


class ModuleMarks:
    """Marks every module that runs between `start` and `stop`; never keeps one alive.

    Marks are numbered, unless they are ``named`` for a reader of their own.
    """

    def __init__(self, *, named: bool = False) -> None:
        self._named = named
        self.instances: list[Instance] = []
        self.replicas = False
        self.failure = ""
        self._known: dict[int, Entrance] = {}
        self._calls = ModuleCalls(self._known, self._meet)
        self._outermost: dict[int, tuple[str, Family]] = {}

    @property
    def compiled(self) -> bool:
        """Whether torch.compile was at work: what runs inside a graph has no marks."""
        return self._calls.compiled

    def start(self) -> None:
        """Mark from now on."""
        self._calls.add()

    def stop(self) -> None:
        """Mark no longer; may be called twice."""
        self._calls.remove()

    def _meet(self, module: nn.Module) -> Entrance:
        """The entrance of a module that runs for the first time."""
        return unseen(self._entrance, module)

    def _entrance(self, module: nn.Module) -> Entrance:
        try:
            if self._is_left_out(module):
                return _unmarked
            entrance = functools.partial(_Mark, self._met(module).marker)
            self._known[id(module)] = entrance
            return entrance
        except Exception as error:  # it would reach the user
            self.failure = f"{type(error).__name__}: {error}"
            return _unmarked

    def _is_left_out(self, module: nn.Module) -> bool:
        """What DataParallel makes for one call, and what torch.compile puts around a module."""
        is_replica = module.__dict__.get("_is_replica", False)
        self.replicas |= is_replica
        self._calls.compiled |= is_compiled(module)
        return is_replica or is_compiled(module)

    def _met(self, module: nn.Module) -> Instance:
        number, kind = id(module), type(module).__name__
        outermost = self._first_running()
        if outermost is module:
            self._outermost[number] = kind, family(module)
        root, under = self._outermost.get(id(outermost), ("", None))
        path = None if under is None else under.paths.get(number)
        called_as = ModuleName(kind, "") if path is None else ModuleName(root, path)
        marker = called_as.under(several=True) if self._named else f"{MARKER}{len(self.instances)}"
        # Before another object can have its id.
        gone = functools.partial(_forget, self._known, number)
        instance = Instance(marker, weakref.ref(module, gone), kind, called_as)
        self.instances.append(instance)
        return instance

    def _first_running(self) -> nn.Module | None:
        """The module whose call the others that run on this thread are in."""
        found: nn.Module | None = None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._calls.code:
                module = frame.f_locals["self"]
                found = module if not self._is_left_out(module) else found
            frame = frame.f_back
        return found


def _unmarked() -> Any:
    return UNRECORDED


def _forget(known: dict[int, Entrance], number: int, _: Any) -> None:
    known.pop(number, None)

"""Spans of every nn.Module instance, forward and backward, by qualified name.

The forward is marked by hooks while it runs. The backward is not: full backward hooks put a
function around a module's inputs and outputs, which forbids in-place changes of them, adds nodes to
the graph and shifts its sequence numbers. It follows afterwards from the links between backward and
forward ops (see `trace.backward_spans`), which changes nothing and is exact to the op.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuprof_widgets.capture.modules.marks import ModuleMarks
from gpuprof_widgets.capture.modules.names import (
    Family,
    ModuleName,
    families,
    variable,
    variables_with_modules,
)
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

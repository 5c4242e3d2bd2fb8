"""What the recorded memory was for: parameters, gradients, optimizer state, inputs, activations.

`MemoryOwners` notes the addresses of storages before and after the run, and at every optimizer step
in between, when the gradients are there. It keeps nothing alive and computes nothing: it takes only
a tensor's address and name. `MemoryPlaces` then finds the allocation behind an address.
`with_torch_categories` adds torch's own analysis, where shapes, stacks and memory were recorded.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from operator import itemgetter
from time import time_ns
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpuprof_widgets.capture.environment import allocator_totals, uses_cuda
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.trace.events import typed
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import (
    GRADIENTS,
    HELD_AS,
    HELD_BY,
    INPUTS,
    MEMORY_EVENT,
    OPTIMIZER_STATE,
    PARAMETERS,
    TORCH_CATEGORY,
)

RANK = {PARAMETERS: 0, GRADIENTS: 1, OPTIMIZER_STATE: 2, INPUTS: 3}
"""Where one storage is several of these, the lowest rank counts."""

ALLOCATOR_COUNTS = {"retries": "num_alloc_retries", "out_of_memory": "num_ooms"}
"""Keys of the metadata, and the counts of CUDA's caching allocator that they hold."""

MOST_ITEMS = 1_000
"""Items of a list, dict or object in the namespace that are searched for tensors and modules."""

WORDS = {
    "INPUT": "inputs",
    "TEMPORARY": "temporaries",
    "ACTIVATION": "activations",
    "GRADIENT": "gradients",
    "AUTOGRAD_DETAIL": "autograd detail",
    "PARAMETER": "parameters",
    "OPTIMIZER_STATE": "optimizer state",
}
"""Our words for the members of torch's ``Category``."""

MOST_EVENTS = 100_000
"""Torch's analysis is in Python and takes some 60 µs per event: few would wait for more of them."""

_CPU = 0  # torch's DeviceType


def memory_owners(context: Context) -> MemoryOwners | None:
    """Return the part, where memory is recorded."""
    return MemoryOwners(context.namespace) if context.options.memory else None


class MemoryOwners(Part):
    """Sees parameters, gradients, optimizer state and inputs of the namespace and of optimizers."""

    loses = "no owners of the memory"

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._hooks: list[Any] = []
        self._names: dict[int, str] = {}  # of parameters, by id
        self._sightings: list[Sighting] = []
        self._state_sizes: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._failure = ""
        self._counts = Counter[str]()
        self._counts_at_start: dict[str, int] = {}

    def start(self) -> None:
        """Note the tensors of the namespace, and hook into every optimizer step."""
        self._note_namespace(before=True)
        self._counts_at_start = _allocator_counts()
        self._hooks = [
            register_optimizer_step_pre_hook(
                self._at_step(lambda optimizer: self._note(gradients_of(optimizer), time_ns()))
            ),
            register_optimizer_step_post_hook(self._at_step(self._note_state)),
        ]

    def stop(self) -> None:
        """Take the hooks out, and note the tensors of the namespace again."""
        if not self._hooks:
            return
        while self._hooks:
            self._hooks.pop().remove()
        self._note_namespace(before=False)
        self._counts.update(_allocator_counts())
        self._counts.subtract(self._counts_at_start)

    def refine(self, trace: Trace) -> Trace:
        """Return the trace whose allocations name the tensor that they held and its category."""
        places = MemoryPlaces(trace)
        held: dict[int, tuple[str, str]] = {}
        for seen in self._most_important_last():
            row = places.alive(seen.device, seen.address, seen.moment)
            if row is not None:
                held[row] = (seen.category, self._name(seen))
        trace = with_args(trace, HELD_AS, {row: category for row, (category, _) in held.items()})
        return with_args(trace, HELD_BY, {row: name for row, (_, name) in held.items() if name})

    def notes(self) -> list[str]:
        """Return that an optimizer could not be read: its step must not fail because of us."""
        text = f"the owners of gradients and optimizer state are not known: {self._failure}"
        return [text] if self._failure else []

    def metadata(self) -> dict[str, Any]:
        """Return ``memory``: storages from before the record, and failed attempts to allocate."""
        before = {
            (seen.device, seen.address): {
                "device": seen.device,
                "address": seen.address,
                "bytes": seen.bytes,
                "category": seen.category,
                "tensor": self._name(seen),
            }
            for seen in self._most_important_last()
            if seen.moment is None
        }
        return {"memory": {"before": list(before.values()), **self._counts}}

    def _most_important_last(self) -> list[Sighting]:
        return sorted(self._sightings, key=lambda seen: RANK[seen.category], reverse=True)

    def _name(self, seen: Sighting) -> str:
        if not seen.parameter:
            return seen.suffix
        name = self._names.get(seen.parameter)
        return f"{name}{seen.suffix}" if name else ""

    def _at_step(self, look: Callable[[Optimizer], None]) -> Callable[..., None]:
        """Return a hook for optimizer steps that fails silently: the step must not."""

        def hook(optimizer: Optimizer, *_: Any) -> None:
            if torch.compiler.is_compiling() or self._failure:  # a graph has no tensors to note
                return
            try:
                look(optimizer)
            except Exception as error:
                self._failure = f"{type(error).__name__}: {error}"

        return hook

    def _note_state(self, optimizer: Optimizer) -> None:
        """Note the state, which exists from the first step on and then stays where it is."""
        if self._state_sizes.get(optimizer) != len(optimizer.state):
            self._state_sizes[optimizer] = len(optimizer.state)
            moment = time_ns()
            self._note(as_parameters(optimizer), moment)
            self._note(state_of(optimizer), moment)

    def _note_namespace(self, *, before: bool) -> None:
        moment = None if before and not self._sightings else time_ns()
        for name, value in reachable(self._namespace):
            if isinstance(value, torch.nn.Module):
                for key, parameter in value.named_parameters():
                    self._names.setdefault(id(parameter), f"{name}.{key}")
            elif isinstance(value, Optimizer):
                self._note(state_of(value), moment)
            elif before and type(value) is torch.Tensor:
                self._note([(value, INPUTS, 0, name)], moment)
            if isinstance(value, (torch.nn.Module, Optimizer)):
                self._note(as_parameters(value), moment)
                self._note(gradients_of(value), moment)

    def _note(self, tensors: Iterable[OwnedTensor], moment: int | None) -> None:
        """Note where storages are; some tensors have none (sparse, fake, meta, functional)."""
        for tensor, category, parameter, suffix in tensors:
            with suppress(RuntimeError, NotImplementedError, AttributeError):
                address = tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()
                size = tensor.untyped_storage().nbytes() if moment is None else 1
                device = _device_name(tensor.device)
                if address > 0 and size:
                    seen = Sighting(moment, device, address, size, category, parameter, suffix)
                    self._sightings.append(seen)


def _allocator_counts() -> dict[str, int]:
    """Return what CUDA's caching allocator counted so far; nothing without CUDA."""
    if not uses_cuda():
        return {}
    return dict(zip(ALLOCATOR_COUNTS, allocator_totals(*ALLOCATOR_COUNTS.values()), strict=True))


OwnedTensor = tuple[Any, str, int, str]
"""A tensor, its category, the id of its parameter (0: it has none), and its name.

Behind the name of a parameter goes only the rest: "", ".grad" or ".momentum_buffer".
"""


class Sighting(NamedTuple):
    """A tensor's storage, alive at a moment (ns since 1970; None: before the record)."""

    moment: int | None
    device: str
    address: int
    bytes: int
    category: str
    parameter: int
    suffix: str


def _device_name(device: torch.device) -> str:
    return "CPU" if device.type == "cpu" else f"GPU {device.index}"


def reachable(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the variables, and what the lists, dicts and objects among them hold directly."""
    for name, value in list(namespace.items()):
        if not name.startswith("_"):
            yield name, value
            if not isinstance(value, (torch.nn.Module, torch.Tensor, Optimizer)):
                yield from inside(name, value)


def inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds one level deep, without running any of the user's code."""
    kind = type(value)
    if issubclass(kind, (list, tuple)):
        items = (list if issubclass(kind, list) else tuple).__iter__(value)
        yield from ((f"{name}[{n}]", item) for n, item in enumerate(islice(items, MOST_ITEMS)))
    elif issubclass(kind, dict):
        yield from ((f"{name}[{key!r}]", item) for key, item in _first(dict.items(value)))
    elif not issubclass(kind, (type, ModuleType)):
        try:  # bypassing any `__getattr__` of the class
            attributes = object.__getattribute__(value, "__dict__")
        except Exception:  # none with `__slots__`; a property of that name may raise anything
            return
        if type(attributes) is dict:
            yield from ((f"{name}.{key}", item) for key, item in _first(attributes.items()))


def _first(items: Iterable[Any]) -> list[Any]:
    return list(islice(items, MOST_ITEMS))


def as_parameters(owner: torch.nn.Module | Optimizer) -> Iterator[OwnedTensor]:
    """Yield the parameters of a module or an optimizer."""
    if isinstance(owner, torch.nn.Module):
        parameters: Iterable[Any] = owner.parameters()
    else:
        parameters = chain.from_iterable(group["params"] for group in owner.param_groups)
    for parameter in parameters:
        yield parameter, PARAMETERS, id(parameter), ""


def gradients_of(owner: torch.nn.Module | Optimizer) -> Iterator[OwnedTensor]:
    """Yield the gradients that these parameters have."""
    for parameter, _, number, _ in as_parameters(owner):
        if parameter.grad is not None:
            yield parameter.grad, GRADIENTS, number, ".grad"


def state_of(optimizer: Optimizer) -> Iterator[OwnedTensor]:
    """Yield the tensors that an optimizer keeps for its parameters."""
    for parameter, state in list(optimizer.state.items()):
        if isinstance(state, dict):
            for key, value in list(state.items()):
                if isinstance(value, torch.Tensor):
                    yield value, OPTIMIZER_STATE, id(parameter), f".{key}"


class MemoryPlaces:
    """The allocations and releases of a trace by device and address, in order of time."""

    def __init__(self, trace: Trace) -> None:
        self._epoch = trace.epoch_ns
        # Time, row and size.
        self._events: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
        rows = np.flatnonzero((trace.slices["name"] == MEMORY_EVENT).to_numpy(dtype=bool))
        ts = trace.slices["ts"].to_numpy()
        rows = rows[np.argsort(ts[rows], kind="stable")]
        keys = ("Addr", "Bytes", "Device Type", "Device Id")
        if any(key not in trace.args for key in keys):
            return
        columns = [trace.args[key].reindex(rows).tolist() for key in keys]
        for time, row, *values in zip(ts[rows].tolist(), rows.tolist(), *columns, strict=True):
            address, size, kind, number = values
            device = "CPU" if kind == _CPU else f"GPU {number}"
            self._events[device, address].append((time, row, size))

    def alive(self, device: str, address: int, moment: int | None) -> int | None:
        """Return the row that allocated what lives there at a moment (ns since 1970), or None.

        For storages from before the record (``None``) that is the row of their release.
        """
        events = self._events.get((device, address))
        if not events:
            return None
        if moment is None:
            _, row, size = events[0]
            return row if size < 0 else None
        last = bisect_right(events, moment - self._epoch, key=itemgetter(0)) - 1
        return events[last][1] if last >= 0 and events[last][2] > 0 else None

    def allocated(self, device: str, address: int, moment: int) -> int | None:
        """Return the row of the allocation at an address nearest to a moment (ns since 1970)."""
        events = self._events.get((device, address), [])
        at = moment - self._epoch
        grown = [(abs(time - at), row) for time, row, size in events if size > 0]
        return min(grown)[1] if grown else None


def with_args(trace: Trace, key: str, values: Mapping[int, str]) -> Trace:
    """Return the trace whose slices of these rows have these texts under a key of args."""
    if not values:
        return trace
    rows = sorted(values)
    column = typed([values[row] for row in rows], np.array(rows, dtype=np.int64))
    return replace(trace, args=dict(sorted({**trace.args, key: column}.items())))


def with_torch_categories(trace: Trace, profile: Any) -> Trace:
    """Return the trace whose allocations have torch's category, where torch knows one.

    ``profile`` is a stopped torch.profiler that recorded shapes, stacks and memory.
    """
    if len(trace) > MOST_EVENTS:
        raise ValueError(f"it takes too long for more than {MOST_EVENTS:,} events")
    memory_profile = profile._memory_profile()
    places = MemoryPlaces(trace)
    words: dict[int, str] = {}
    for moment, action, (key, _), _ in memory_profile.timeline:
        if action.name != "CREATE" or not hasattr(key, "storage"):
            continue
        category = _category(memory_profile._categories, key)
        row = places.allocated(_device_name(key.device), key.storage.ptr, moment)
        if category is not None and row is not None:
            words[row] = category
    return with_args(trace, TORCH_CATEGORY, words)


def _category(categories: Any, key: Any) -> str | None:
    """Return the first category among a tensor's versions (each in-place change makes one)."""
    element = categories._values[key.id]
    versions = sorted(version for other, version in element.by_version if other == key)
    candidates = (categories.get(key, version) for version in (0, *versions))
    return next((WORDS[category.name] for category in candidates if category is not None), None)

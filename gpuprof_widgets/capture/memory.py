"""What the recorded memory was for: parameters, gradients and optimizer state, seen where they are.

Addresses of storages are noted before and after the run, and at every optimizer step in between,
when the gradients are there. Nothing is kept alive and nothing is computed: a tensor's address and
name are all that is taken from it.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
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

from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.events import typed
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import HELD_AS, HELD_BY, MEMORY_EVENT, TORCH_CATEGORY

COUNTS = {"retries": "num_alloc_retries", "out_of_memory": "num_ooms"}
"""What CUDA's allocator counts, by our names."""


def memory_owners(context: Context) -> MemoryOwners | None:
    """The part, where memory is recorded."""
    return MemoryOwners(context.namespace) if context.options.memory else None


class MemoryOwners:
    """Sees parameters, gradients, optimizer state and inputs of the namespace and of optimizers."""

    loses = "no owners of the memory"

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._hooks: list[Any] = []
        self._names: dict[int, str] = {}
        self._seen: list[Sighting] = []
        self._known: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._failure = ""
        self._counts: dict[str, int] = {}
        self._started: dict[str, int] = {}

    def start(self) -> None:
        """Note what is there, and have every optimizer step tell its tensors."""
        self._note_namespace(before=True)
        self._started = _allocator_counts()
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def stop(self) -> None:
        """Take the hooks out and note what is there now."""
        if not self._hooks:
            return
        while self._hooks:
            self._hooks.pop().remove()
        self._note_namespace(before=False)
        for name, count in _allocator_counts().items():
            grown = count - self._started.get(name, 0)
            self._counts[name] = self._counts.get(name, 0) + grown

    def refine(self, trace: Trace) -> Trace:
        places = MemoryPlaces(trace)
        held: dict[int, tuple[str, str]] = {}
        for one in sorted(self._seen, key=lambda seen: RANK[seen.category], reverse=True):
            row = places.alive(one.device, one.address, one.moment)
            if row is not None:
                held[row] = (one.category, self._name(one))
        trace = with_args(trace, HELD_AS, {row: category for row, (category, _) in held.items()})
        return with_args(trace, HELD_BY, {row: name for row, (_, name) in held.items() if name})

    def notes(self) -> list[str]:
        """That some optimizer would not tell, which its step must not notice."""
        text = f"whose gradients and optimizer state are, is not known: {self._failure}"
        return [text] if self._failure else []

    def metadata(self) -> dict[str, Any]:
        """``memory``: the storages from before the record, and the allocator's failed attempts."""
        before = {
            (one.device, one.address): {
                "device": one.device,
                "address": one.address,
                "bytes": one.bytes,
                "category": one.category,
                "tensor": self._name(one),
            }
            for one in sorted(self._seen, key=lambda seen: RANK[seen.category], reverse=True)
            if one.moment is None
        }
        return {"memory": {"before": list(before.values()), **self._counts}}

    def _name(self, one: Sighting) -> str:
        if not one.parameter:
            return one.suffix
        name = self._names.get(one.parameter)
        return f"{name}{one.suffix}" if name else ""

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Before a step its gradients are there; not in a compiled graph, which has no tensors."""
        if torch.compiler.is_compiling() or self._failure:
            return
        try:
            self._note(gradients_of(parameters_of(optimizer)), time_ns())
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """After the first step its state is there; it stays where it is in the next ones."""
        if torch.compiler.is_compiling() or self._failure:
            return
        try:
            if self._known.get(optimizer) != len(optimizer.state):
                self._note_state(optimizer, time_ns())
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def _note_state(self, optimizer: Optimizer, moment: int) -> None:
        self._known[optimizer] = len(optimizer.state)
        self._note(as_parameters(parameters_of(optimizer)), moment)
        self._note(state_of(optimizer), moment)

    def _note_namespace(self, *, before: bool) -> None:
        moment = None if before and not self._seen else time_ns()
        for name, value in reachable(self._namespace):
            if isinstance(value, torch.nn.Module):
                for key, parameter in value.named_parameters():
                    self._names.setdefault(id(parameter), f"{name}.{key}")
            elif isinstance(value, Optimizer):
                self._note(state_of(value), moment)
            elif before and type(value) is torch.Tensor:
                self._note([Tensor(value, INPUTS, 0, name)], moment)
            if isinstance(value, (torch.nn.Module, Optimizer)):
                self._note(as_parameters(parameters_of(value)), moment)
                self._note(gradients_of(parameters_of(value)), moment)

    def _note(self, tensors: Iterable[Tensor], moment: int | None) -> None:
        found = (sighting(one, moment) for one in tensors)
        self._seen += [one for one in found if one is not None]


def _allocator_counts() -> dict[str, int]:
    """What CUDA's caching allocator counted so far, over all devices; nothing without CUDA."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return {}
    stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
    return {name: sum(int(one.get(key, 0)) for one in stats) for name, key in COUNTS.items()}


CPU = 0  # torch's DeviceType


class MemoryPlaces:
    """The allocations and releases of a trace by device and address, in order of time."""

    def __init__(self, trace: Trace) -> None:
        self._epoch = trace.epoch_ns
        self._times: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._events: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        rows = np.flatnonzero((trace.slices["name"] == MEMORY_EVENT).to_numpy(dtype=bool))
        ts = trace.slices["ts"].to_numpy()
        rows = rows[np.argsort(ts[rows], kind="stable")]
        keys = ("Addr", "Bytes", "Device Type", "Device Id")
        if any(key not in trace.args for key in keys):
            return
        columns = [trace.args[key].reindex(rows).tolist() for key in keys]
        for row, time, *values in zip(rows.tolist(), ts[rows].tolist(), *columns, strict=True):
            address, size, kind, number = values
            device = "CPU" if kind == CPU else f"GPU {number}"
            self._times[device, address].append(time)
            self._events[device, address].append((row, size))

    def alive(self, device: str, address: int, moment: int | None) -> int | None:
        """Row that allocated what lives there at a moment (ns since 1970); else None.

        Of what was there before the record (``None``) the row of its release.
        """
        events = self._events.get((device, address))
        if not events:
            return None
        if moment is None:
            return events[0][0] if events[0][1] < 0 else None
        last = bisect_right(self._times[device, address], moment - self._epoch) - 1
        return events[last][0] if last >= 0 and events[last][1] > 0 else None

    def allocated(self, device: str, address: int, moment: int) -> int | None:
        """Row of the allocation at an address that is nearest to a moment (ns since 1970)."""
        events = self._events.get((device, address), [])
        times = self._times.get((device, address), [])
        grown = [
            (abs(time - (moment - self._epoch)), row)
            for time, (row, size) in zip(times, events, strict=True)
            if size > 0
        ]
        return min(grown)[1] if grown else None


def with_args(trace: Trace, key: str, values: Mapping[int, str]) -> Trace:
    """The trace whose slices of these rows carry these texts under a key of args."""
    if not values:
        return trace
    rows = sorted(values)
    column = typed([values[row] for row in rows], np.array(rows, dtype=np.int64))
    return replace(trace, args=dict(sorted({**trace.args, key: column}.items())))


PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"
INPUTS = "inputs"
RANK = {PARAMETERS: 0, GRADIENTS: 1, OPTIMIZER_STATE: 2, INPUTS: 3}
"""Where one storage is several things, the lowest counts."""

MOST_ITEMS = 1_000
"""Items of a list or dict in the namespace that are looked at."""


class Tensor(NamedTuple):
    """A tensor, what it is, and what it is called."""

    tensor: Any
    category: str
    parameter: int  # id of the parameter that it is, or whose gradient or state; 0 for none
    suffix: str  # of the parameter's name: "", ".grad", ".momentum_buffer"; else the whole name


class Sighting(NamedTuple):
    """A tensor's storage, alive at a moment (ns since 1970; None: before the record)."""

    moment: int | None
    device: str
    address: int
    bytes: int
    category: str
    parameter: int
    suffix: str


def sighting(one: Tensor, moment: int | None) -> Sighting | None:
    """Where a tensor's storage is; None where it has none (sparse, fake, meta, functional)."""
    tensor, category, parameter, suffix = one
    try:
        address = tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()
        size = tensor.untyped_storage().nbytes() if moment is None else 1
        device = tensor.device
    except (RuntimeError, NotImplementedError, AttributeError):
        return None
    if address <= 0 or not size:
        return None
    place = "CPU" if device.type == "cpu" else f"GPU {device.index}"
    return Sighting(moment, place, address, size, category, parameter, suffix)


def reachable(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of the names, and what lists, dicts and objects of the user's hold directly."""
    for name, value in list(namespace.items()):
        if name.startswith("_") or isinstance(value, (ModuleType, type)):
            continue
        yield name, value
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", each) for i, each in enumerate(value[:MOST_ITEMS]))
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", value[key]) for key in list(value)[:MOST_ITEMS])
        elif not isinstance(value, (torch.nn.Module, torch.Tensor, Optimizer)):
            fields = getattr(value, "__dict__", None)
            if isinstance(fields, dict):
                yield from ((f"{name}.{key}", each) for key, each in list(fields.items()))


def parameters_of(owner: torch.nn.Module | Optimizer) -> Iterator[Any]:
    """The parameters of a module or an optimizer."""
    if isinstance(owner, torch.nn.Module):
        yield from owner.parameters()
    else:
        for group in owner.param_groups:
            yield from group["params"]


def as_parameters(parameters: Iterable[Any]) -> Iterator[Tensor]:
    """Parameters as what they are."""
    for parameter in parameters:
        yield Tensor(parameter, PARAMETERS, id(parameter), "")


def gradients_of(parameters: Iterable[Any]) -> Iterator[Tensor]:
    """The gradients that parameters have."""
    for parameter in parameters:
        if parameter.grad is not None:
            yield Tensor(parameter.grad, GRADIENTS, id(parameter), ".grad")


def state_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """The tensors that an optimizer keeps for its parameters."""
    for parameter, state in list(optimizer.state.items()):
        if isinstance(state, dict):
            for key, value in list(state.items()):
                if isinstance(value, torch.Tensor):
                    yield Tensor(value, OPTIMIZER_STATE, id(parameter), f".{key}")


WORDS = {
    "INPUT": "inputs",
    "TEMPORARY": "temporaries",
    "ACTIVATION": "activations",
    "GRADIENT": "gradients",
    "AUTOGRAD_DETAIL": "autograd detail",
    "PARAMETER": "parameters",
    "OPTIMIZER_STATE": "optimizer state",
}
"""Our words for torch's ``Category`` by its members' names."""

MOST_EVENTS = 100_000
"""Torch follows the data in Python, in some 60 µs per event: beyond this few would wait for it."""


def with_torch_categories(trace: Trace, profile: Any) -> Trace:
    """The trace with torch's categories; where it has no word for an allocation, without.

    ``profile`` is a stopped torch.profiler that recorded shapes, stacks and memory.
    """
    if len(trace) > MOST_EVENTS:
        raise ValueError(f"it takes too long for more than {MOST_EVENTS:,} events")
    found = profile._memory_profile()
    places = MemoryPlaces(trace)
    words: dict[int, str] = {}
    for moment, action, (key, _), _ in found.timeline:
        if action.name != "CREATE" or not hasattr(key, "storage"):
            continue
        category = _category(found._categories, key)
        device = "CPU" if key.device.type == "cpu" else f"GPU {key.device.index}"
        row = places.allocated(device, key.storage.ptr, moment)
        if category is not None and row is not None:
            words[row] = category
    return with_args(trace, TORCH_CATEGORY, words)


def _category(categories: Any, key: Any) -> str | None:
    """Of a tensor's versions (each change in place makes one) the first that has a category."""
    element = categories._values[key.id]
    versions = sorted(version for other, version in element.by_version if other == key)
    candidates = (categories.get(key, version) for version in (0, *versions))
    return next((WORDS[category.name] for category in candidates if category is not None), None)

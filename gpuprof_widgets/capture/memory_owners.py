"""What the recorded memory was for: parameters, gradients and optimizer state, seen where they are.

Addresses of storages are noted before and after the run, and at every optimizer step in between,
when the gradients are there. Nothing is kept alive and nothing is computed: a tensor's address and
name are all that is taken from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import time_ns
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpuprof_widgets.capture.memory_places import MemoryPlaces, with_args
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import HELD_AS, HELD_BY

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"
INPUTS = "inputs"
MOST_ITEMS = 1_000
"""Items of a list or dict in the namespace that are looked at."""

COUNTS = {"retries": "num_alloc_retries", "out_of_memory": "num_ooms"}
"""What CUDA's allocator counts, by our names."""


def memory_owners(context: Context) -> MemoryOwners | None:
    """The part, where memory is recorded."""
    return MemoryOwners(context.namespace) if context.options.memory else None


class Sighting(NamedTuple):
    """A tensor's storage, seen alive at a moment (ns since 1970; None: before the record)."""

    moment: int | None
    device: str
    address: int
    category: str
    parameter: int  # id of the parameter whose gradient or state it is, 0 for none
    suffix: str  # of its name: "", ".grad", ".momentum_buffer"; of an input the name itself
    bytes: int


class MemoryOwners:
    """Sees parameters, gradients, optimizer state and inputs of the namespace and of optimizers."""

    loses = "no owners of the memory"

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._hooks: list[Any] = []
        self._names: dict[int, str] = {}
        self._seen: list[Sighting] = []
        self._counts: dict[str, int] = {}
        self._started: dict[str, int] = {}

    def start(self) -> None:
        """Note what is there, and have every optimizer step tell its tensors."""
        self._note_namespace(before=True)
        self._started = _allocator_counts()
        self._hooks = [
            register_optimizer_step_pre_hook(self._on_step),
            register_optimizer_step_post_hook(self._on_step),
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
        return []

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

    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Before a step its gradients are there, after it its state; never in a compiled graph."""
        if torch.compiler.is_compiling():
            return
        self._note(_of_optimizer(optimizer), time_ns())

    def _note_namespace(self, *, before: bool) -> None:
        moment = None if before and not self._seen else time_ns()
        for name, value in _reachable(self._namespace):
            if isinstance(value, torch.nn.Module):
                for key, parameter in value.named_parameters():
                    self._names.setdefault(id(parameter), f"{name}.{key}")
                self._note(_of_parameters(value.parameters()), moment)
            elif isinstance(value, Optimizer):
                self._note(_of_optimizer(value), moment)
            elif before and type(value) is torch.Tensor:
                self._note([(value, INPUTS, 0, name)], moment)

    def _note(self, tensors: Iterable[tuple[Any, str, int, str]], moment: int | None) -> None:
        for tensor, category, parameter, suffix in tensors:
            place = _place(tensor)
            if place is not None:
                self._seen.append(
                    Sighting(moment, *place[:2], category, parameter, suffix, place[2])
                )


RANK = {PARAMETERS: 0, GRADIENTS: 1, OPTIMIZER_STATE: 2, INPUTS: 3}
"""Where one storage is several things, the lowest counts."""


def _reachable(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
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


def _of_parameters(parameters: Iterable[Any]) -> Iterator[tuple[Any, str, int, str]]:
    for parameter in parameters:
        yield parameter, PARAMETERS, id(parameter), ""
        if parameter.grad is not None:
            yield parameter.grad, GRADIENTS, id(parameter), ".grad"


def _of_optimizer(optimizer: Optimizer) -> Iterator[tuple[Any, str, int, str]]:
    for group in optimizer.param_groups:
        yield from _of_parameters(group["params"])
    for parameter, state in list(optimizer.state.items()):
        if isinstance(state, dict):
            for key, value in list(state.items()):
                if isinstance(value, torch.Tensor):
                    yield value, OPTIMIZER_STATE, id(parameter), f".{key}"


def _place(tensor: Any) -> tuple[str, int, int] | None:
    """Device, address and bytes of a tensor's storage; None where it has none."""
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # sparse, fake, meta and functional tensors
    if not address or not size:
        return None
    kind = tensor.device.type
    return ("CPU" if kind == "cpu" else f"GPU {tensor.device.index}"), address, size


def _allocator_counts() -> dict[str, int]:
    """What CUDA's caching allocator counted so far, over all devices; nothing without CUDA."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return {}
    stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
    return {name: sum(int(one.get(key, 0)) for one in stats) for name, key in COUNTS.items()}

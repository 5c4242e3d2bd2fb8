"""What the recorded memory was for: parameters, gradients and optimizer state, seen where they are.

Addresses of storages are noted before and after the run, and at every optimizer step in between,
when the gradients are there. Nothing is kept alive and nothing is computed: a tensor's address and
name are all that is taken from it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from time import time_ns
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpuprof_widgets.capture.memory.places import MemoryPlaces, with_args
from gpuprof_widgets.capture.memory.sightings import (
    INPUTS,
    RANK,
    Sighting,
    Tensor,
    as_parameters,
    gradients_of,
    parameters_of,
    reachable,
    sighting,
    state_of,
)
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import HELD_AS, HELD_BY

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

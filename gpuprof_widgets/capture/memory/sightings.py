"""Tensors that matter to the owners of memory: where their storage is, and what they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer

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

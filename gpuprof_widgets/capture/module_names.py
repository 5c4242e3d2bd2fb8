"""The names of modules: by the variable that holds their root, and their path from there.

`families` finds the roots among the user's variables, without running any code of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import jit, nn

MOST_ITEMS = 1_000
"""Items of a list, dict or object that are searched for modules."""

_WRAPPER_PACKAGES = ("torch.nn.parallel.", "torch.distributed.")


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

    def without(self, others: Collection[int]) -> Family:
        """Return the family without some of its modules."""
        parts = (self.paths, self.also, self.opaque)
        return Family(*({n: text for n, text in part.items() if n not in others} for part in parts))


def family(root: nn.Module) -> Family:
    """Return all modules under this one, in the order and with the paths of `named_modules()`.

    Does not call that method, which a class may override. A module that comes twice keeps its first
    path; a compiled module and its original have the same path.
    """
    modules = Family({}, {}, {})
    waiting: list[tuple[str, nn.Module]] = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in modules.paths:
            modules.also.setdefault(id(module), path)
            continue
        modules.paths[id(module)] = path
        if isinstance(module, jit.ScriptModule):
            modules.opaque[id(module)] = "scripted"
            continue
        if getattr(module, "_compiled_call_impl", None) is not None:
            modules.opaque[id(module)] = "compiled"
        prefix = f"{path}." if path else ""
        children = [
            (prefix + name, child) for name, child in module._modules.items() if child is not None
        ]
        if is_compiled(module):
            # Last of all: if the original also has a place of its own, that is its path.
            waiting[:0] = [(path, child) for _, child in children]
        else:
            waiting += reversed(children)
    return modules


def is_compiled(module: nn.Module) -> bool:
    """Whether the module is the wrapper that `torch.compile` makes; it has the model's name."""
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


def _wrapped(module: nn.Module) -> nn.Module | None:
    """Return the model inside a wrapper of `torch.compile`, DataParallel or torch.distributed.

    The inner module is still the model, and users know it by its name.
    """
    wraps = is_compiled(module) or type(module).__module__.startswith(_WRAPPER_PACKAGES)
    children = [child for child in module._modules.values() if child is not None]
    return children[0] if wraps and len(children) == 1 else None


def _all_wrapped(module: nn.Module) -> Iterator[nn.Module]:
    inner = _wrapped(module)
    while inner is not None:
        yield inner
        inner = _wrapped(inner)


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
            wrapped[id(module)] = {id(inner) for inner in _all_wrapped(module)}
    for root, (label, _) in candidates.items():
        wrapped[root] = {inner for inner in wrapped[root] if _is_as_near(inner, label, candidates)}
    left = {
        root: members.without({n for inner in wrapped[root] for n in candidates[inner][1].paths})
        for root, (_, members) in candidates.items()
    }
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


def variables_with_modules(namespace: Mapping[str, Any]) -> list[str]:
    """Return the variables that are modules or directly hold some."""
    return list(dict.fromkeys(variable(label) for label, _ in modules_held(namespace)))


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
    variables = [(name, value) for name, value in list(namespace.items()) if _is_users(name)]
    yield from ((name, value) for name, value in variables if _is_module(value))
    for name, value in variables:
        if not _is_module(value):
            yield from (pair for pair in _inside(name, value) if _is_module(pair[1]))


def _is_module(value: Any) -> bool:
    """Whether it is a module by its type; `isinstance` would ask a lazy proxy, which may raise."""
    return issubclass(type(value), nn.Module)


def _is_users(name: str) -> bool:
    """Whether it is none of IPython's names (`_`, `_3`, `_i`, `In`, `Out`) for the same values."""
    return not name.startswith("_") and name not in ("In", "Out")


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds one level deep, without running any of the user's code."""
    kind = type(value)
    if kind in (list, tuple):
        yield from ((f"{name}[{n}]", item) for n, item in enumerate(value[:MOST_ITEMS]))
    elif kind is dict:
        yield from ((f"{name}[{key!r}]", item) for key, item in [*value.items()][:MOST_ITEMS])
    elif not issubclass(kind, (type, ModuleType)):
        attributes = [*_attributes(value).items()][:MOST_ITEMS]
        yield from ((f"{name}.{key}", item) for key, item in attributes)


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes, bypassing any `__getattr__` of its class."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # none with `__slots__`; a property of that name may raise anything
        return {}
    return attributes if type(attributes) is dict else {}


def modules_in(root: nn.Module) -> Iterator[nn.Module]:
    """Yield the module and those in it, but none in a scripted one; calls none of their methods."""
    waiting, seen = [root], set[int]()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module
        if not isinstance(module, jit.ScriptModule):
            waiting += [child for child in module._modules.values() if child is not None]

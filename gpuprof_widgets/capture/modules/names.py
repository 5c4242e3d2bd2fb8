"""The names of modules: where in the user's variables an instance hangs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import jit, nn

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

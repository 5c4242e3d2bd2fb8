"""Marks around the calls of each module while they run, on the thread where they run."""

from __future__ import annotations

import functools
import sys
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

from gpuprof_widgets.capture.lines.regions import UNRECORDED
from gpuprof_widgets.capture.modules.calls import Entrance, ModuleCalls, unseen
from gpuprof_widgets.capture.modules.names import Family, ModuleName, family, is_compiled

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

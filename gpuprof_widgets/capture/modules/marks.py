"""Marks around the forward of each module while it runs, on the thread where it runs."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpuprof_widgets.capture.modules.hooks import ModuleHooks
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


class _Thread(threading.local):
    """The modules that run on this thread by their ids, the innermost last, with open marks."""

    def __init__(self) -> None:
        self.running: list[tuple[int, Any]] = []


class ModuleMarks:
    """Marks every module that runs between `start` and `stop`; never keeps one alive.

    Marks are numbered, unless they are ``named`` for a reader of their own.
    """

    def __init__(self, *, named: bool = False) -> None:
        self._named = named
        self.instances: list[Instance] = []
        self.replicas = False
        self.failure = ""
        self._hooks = ModuleHooks(self._before, self._after)
        self._thread = _Thread()
        self._seen: dict[int, Instance] = {}
        self._outermost: dict[int, tuple[str, Family]] = {}

    @property
    def compiled(self) -> bool:
        """Whether torch.compile was at work: what runs inside a graph has no marks."""
        return self._hooks.compiled

    def start(self) -> None:
        """Mark from now on."""
        self._hooks.add()

    def stop(self) -> None:
        """Mark no longer; may be called twice."""
        self._hooks.remove()
        running = self._thread.running
        while running:  # left by a KeyboardInterrupt, after which torch calls no hooks
            running.pop()[1].__exit__(None, None, None)

    def _before(self, module: nn.Module, args: Any) -> None:
        try:
            if torch.compiler.is_compiling():
                return
            instance = self._seen.get(id(module))
            if instance is None or instance.module() is not module:
                if self._is_left_out(module):
                    return
                instance = self._met(module)
            mark = _Mark(instance.marker)
            mark.__enter__()
            self._thread.running.append((id(module), mark))
        except Exception as error:  # of a hook it would reach the user
            self.failure = f"{type(error).__name__}: {error}"

    def _after(self, module: nn.Module, args: Any, result: Any) -> None:
        running, number = self._thread.running, id(module)
        if all(one != number for one, _ in reversed(running)):
            return  # it began while there were no hooks
        while running:
            ended, mark = running.pop()
            mark.__exit__(None, None, None)
            if ended == number:
                return

    def _is_left_out(self, module: nn.Module) -> bool:
        """What DataParallel makes for one call, and what torch.compile puts around a module."""
        is_replica = getattr(module, "_is_replica", False)
        self.replicas |= is_replica
        return is_replica or is_compiled(module)

    def _met(self, module: nn.Module) -> Instance:
        """A module that runs for the first time."""
        number, kind = id(module), type(module).__name__
        running = self._thread.running
        if not running:
            self._outermost[number] = kind, family(module)
        root, under = self._outermost.get(running[0][0] if running else number, ("", None))
        path = None if under is None else under.paths.get(number)
        called_as = ModuleName(kind, "") if path is None else ModuleName(root, path)
        marker = called_as.under(several=True) if self._named else f"{MARKER}{len(self.instances)}"
        instance = Instance(marker, weakref.ref(module), kind, called_as)
        self.instances.append(instance)
        self._seen[number] = instance
        return instance

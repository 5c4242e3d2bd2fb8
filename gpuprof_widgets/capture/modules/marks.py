"""Marks around the forward of each module while it runs, on the thread where it runs."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

from gpuprof_widgets.capture.modules.hooks import ModuleHooks
from gpuprof_widgets.capture.modules.names import Family, ModuleName, family, is_compiled

MARKER = "gpuprof:module:"

_Mark = torch._C._profiler._RecordFunctionFast
_GLOBAL = torch_modules._global_forward_hooks


@dataclass(frozen=True)
class Instance:
    """A module that ran: its marker, and its name under the module that was called first."""

    marker: str
    module: weakref.ref[nn.Module]
    kind: str
    called_as: ModuleName


_Running = tuple[int, Any, RemovableHandle | None]
"""A module that runs: its id, its open mark, and the hook that ends it if not the usual one."""


class _Thread(threading.local):
    """The modules that run on this thread, the innermost last."""

    def __init__(self) -> None:
        self.running: list[_Running] = []


class ModuleMarks:
    """Marks every module that runs between `start` and `stop`; never keeps one alive.

    Marks are numbered, unless they are ``named`` for a reader of their own.
    """

    def __init__(self, *, named: bool = False) -> None:
        self._named = named
        self.instances: list[Instance] = []
        self.replicas = False
        self.failure = ""
        self._hooks = ModuleHooks(self._before, self._after, self._last)
        self._thread = _Thread()
        self._handles: set[RemovableHandle] = set()  # of all threads, to be taken out at the end
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
        self._end(None)  # what a KeyboardInterrupt has left, after which torch calls no hooks
        while self._handles:
            self._handles.pop().remove()  # and what another thread has

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
            last = None
            if module._forward_hooks or len(_GLOBAL) > 1:
                last = self._hooks.last_of(module, mark)
            if last is not None:
                self._handles.add(last)
            mark.__enter__()
            self._thread.running.append((id(module), mark, last))
        except Exception as error:  # of a hook it would reach the user
            self.failure = f"{type(error).__name__}: {error}"

    def _after(self, module: nn.Module, args: Any, result: Any) -> None:
        here = self._latest(module)
        if here is None:
            return
        number, mark, last = here
        if last is None or last.id not in module._forward_hooks:  # the user may take all hooks out
            self._end(here)
            return
        # torch has its list of hooks by now, so ours goes: a copy that one of them makes has none.
        self._drop(last)
        in_case = self._hooks.if_one_raises(mark)
        self._handles.add(in_case)
        running = self._thread.running
        running[running.index(here)] = number, mark, in_case

    def _last(self, mark: Any, module: nn.Module, args: Any, result: Any) -> None:
        """The same after the user's hooks: of a module that is in itself each call has its own."""
        here = self._latest(module)
        if here is not None and here[1] is mark:
            self._end(here)

    def _latest(self, module: nn.Module) -> _Running | None:
        """Its innermost call; None where that began while there were no hooks."""
        number = id(module)
        for running in reversed(self._thread.running):
            if running[0] == number:
                return running
        return None

    def _end(self, here: _Running | None) -> None:
        """End that call, and what an interrupt has left in it; without one all calls."""
        running = self._thread.running
        while running:
            ended = running.pop()
            _, mark, last = ended
            mark.__exit__(None, None, None)
            if last is not None:
                self._drop(last)
            if ended is here:
                return

    def _drop(self, handle: RemovableHandle) -> None:
        handle.remove()
        self._handles.discard(handle)

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

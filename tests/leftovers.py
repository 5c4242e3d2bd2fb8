"""What a recording must leave as it found it: one row per kind, compared around every test."""

from __future__ import annotations

import builtins
import cProfile
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.nn.modules import module
from torch.optim import optimizer
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import collate, fetch, worker

import gpuprof_widgets
from gpuprof_widgets.capture.part import Active

PACKAGE_FOLDER = f"{Path(gpuprof_widgets.__file__).parent}{os.sep}"
IPYTHONS_NAMES = {"__IPYTHON__", "display", "get_ipython", "_"}


def python_hooks() -> Any:
    tools = [sys.monitoring.get_tool(n) for n in range(6)] if sys.version_info >= (3, 12) else []
    return sys.getprofile(), sys.gettrace(), threading.getprofile(), *tools


def builtin_names() -> list[str]:
    """Those of the language: an older matplotlib brings its own pybind11 when it first draws."""
    names = set(vars(builtins)) - IPYTHONS_NAMES
    return sorted(name for name in names if not name.startswith("__pybind11_internals"))


def torch_profiler() -> Any:
    entrances = autograd_profiler._prepare_profiler, autograd_profiler._enable_profiler
    running = autograd_profiler._is_profiler_enabled, torch._C._autograd._profiler_enabled()
    return running, entrances


def attributes_of(*owners: Any) -> Callable[[], Any]:
    """The attributes of these owners that are functions of ours, put in the place of their own."""

    def state() -> Any:
        return [
            f"{owner.__name__}.{name}"
            for owner in owners
            for name, value in vars(owner).items()
            if _is_ours(value) or _file_of(value).startswith(PACKAGE_FOLDER)
        ]

    return state


def _file_of(value: object) -> str:
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    return str(getattr(code, "co_filename", ""))


def global_hooks() -> Any:
    owners = (module, optimizer)
    return {
        name: list(hooks)
        for owner in owners
        for name, hooks in vars(owner).items()
        if name.startswith("_global_") and hasattr(hooks, "__len__")
    }


def files() -> Any:
    return sorted(path.name for path in Path(tempfile.gettempdir()).glob("gpuprof*"))


def threads_of_ours() -> Any:
    frames = sys._current_frames()
    main = threading.main_thread().ident
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.ident != main and _runs_package(frames.get(thread.ident or 0))
    ]


def _runs_package(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
            return True
        frame = frame.f_back
    return False


def instrumented_functions() -> Any:
    """Functions alive whose code has an object of ours as a constant.

    Not the one that the interpreter makes for a cell's own code, which a traceback keeps alive, and
    not what only waits for the garbage collector, which comes later on newer Pythons.
    """
    found = _instrumented(gc.get_objects())
    if found:
        gc.collect()
        found = _instrumented(gc.get_objects())
    return found


def instrumented_libraries() -> list[str]:
    """The same of the functions that `freeze` has put apart."""
    return _instrumented(_frozen)


def freeze() -> None:
    """Spare the garbage collector what is there for good: half a million objects.

    Collecting and looking at them took most of the time of a test that records; their functions
    are looked at once per file of tests (`instrumented_libraries`).
    """
    gc.collect()
    _frozen.extend(one for one in gc.get_objects() if type(one) is FunctionType)
    gc.freeze()


def _instrumented(objects: list[Any]) -> list[str]:
    return [
        one.__qualname__
        for one in objects
        if type(one) is FunctionType
        and id(one.__code__) not in _plain
        and not _is_plain(one.__code__)
    ]


TIMERS = Path("/proc/self/timers")  # of Linux


def handlers_of_ours() -> list[int]:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return [number for number, one in handlers.items() if _file_of(one).startswith(PACKAGE_FOLDER)]


_frozen: list[Any] = []
_plain: dict[int, CodeType] = {}
"""Codes without anything of ours, which they stay: libraries have a hundred thousand functions."""


def _is_plain(code: CodeType) -> bool:
    if code.co_name != "<module>" and any(_is_ours(constant) for constant in code.co_consts):
        return False
    _plain[id(code)] = code  # kept, so that no other code gets its number
    return True


def _is_ours(constant: object) -> bool:
    owner = getattr(constant, "__self__", constant)
    return type(owner).__module__.startswith("gpuprof_widgets")


LEFTOVERS: dict[str, Callable[[], Any]] = {
    "Python's profile hooks": python_hooks,
    "torch's profiler": torch_profiler,
    "cProfile's methods": attributes_of(cProfile.Profile),
    "the data loader's functions": attributes_of(
        DataLoader, dataloader, dataloader._BaseDataLoaderIter, worker, fetch, collate
    ),
    "the modules' methods": attributes_of(torch.nn.Module),
    "the autograd functions": attributes_of(torch.autograd, torch.Tensor),
    "global hooks of modules and optimizers": global_hooks,
    "names of builtins": builtin_names,
    "handlers of signals": handlers_of_ours,
    "timers": lambda: TIMERS.read_text() if TIMERS.exists() else "",
    "our recorder": lambda: Active.recorder,
    "threads that run our code": threads_of_ours,
    "child processes": multiprocessing.active_children,
    "temporary files": files,
    "the working directory": os.getcwd,
    "garbage collection": gc.isenabled,
    "callbacks of garbage collection": lambda: [str(one) for one in gc.callbacks if _is_ours(one)],
    "the hook of dropped errors": lambda: _is_ours(sys.unraisablehook),
    "environment": lambda: {name for name in os.environ if "GPUPROF" in name.upper()},
}
"""What is looked at before and after every test; a new kind is one row."""

AFTER_RECORDING: dict[str, Callable[[], Any]] = {
    "functions whose code has something of ours": instrumented_functions,
}
"""What is looked at where a test has recorded, because looking takes long; must be empty."""

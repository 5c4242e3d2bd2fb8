"""Something around every call of an nn.Module, and nothing of it in any module, or left behind.

`nn.Module._call_impl` has other code meanwhile, which enters what is to be around and runs torch's
own code inside of it. torch's global hooks would do as well, but with them torch takes another way:
it calls more functions, which a profile would show as the user's, and dynamo, which guards on there
being none, would compile again. The function itself stays the same, so that whatever has hold of
it (a module compiled in place has) is served too, and has nothing of ours afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, ClassVar

import torch
from torch import nn

Entrance = Callable[[], Any]
"""Makes what is entered around one call of a module."""
Around = Callable[[Callable[..., Any]], Callable[..., Any]]

_CALL: Any = nn.Module._call_impl
_PLAIN: CodeType = _CALL.__code__


def _marked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The code for ``_call_impl``; the texts are places for objects, as it has torch's globals."""
    __tracebackhide__ = True
    known: Any = "gpuprof:known"
    meet: Any = "gpuprof:meet"
    original: Any = "gpuprof:original"
    with (known(id(self)) or meet(self))():
        return original(self, *args, **kwargs)


def _line_of_call() -> int:
    """How far below its `def` that calls torch's own code."""
    code = _marked_call.__code__
    return max(line for _, _, line in code.co_lines() if line is not None) - code.co_firstlineno


FILE, LINE, NAME = _PLAIN.co_filename, _PLAIN.co_firstlineno - _line_of_call(), _PLAIN.co_name
"""Where the marked code says that it stands: tracebacks and warnings show the line on which torch's
begins, once more. The profiles of Python tell the two apart by the line on which each begins."""


class ModuleCalls:
    """What is around calls of modules, out of sight of torch.compile and torch.export.

    ``known``: the entrances of modules by their ``id``. ``meet`` tells that of any other one, and
    must call what is not `unseen` by dynamo alone. While torch compiles or exports there is nothing
    around any call. ``compiled`` says whether a graph was made: what is in one calls no modules.
    """

    _first: ClassVar[ModuleCalls | None] = None

    def __init__(self, known: dict[int, Entrance], meet: Callable[[nn.Module], Entrance]) -> None:
        self.compiled = False
        self._meet = meet
        original = FunctionType(_PLAIN, _CALL.__globals__, _CALL.__name__)
        # A code has to be hashable, and so what it holds.
        self.code = _filled(known.get, meet, original)
        self._there = False
        self._absences = 0
        self._patched: list[tuple[Any, str, Any]] = []
        self._callbacks: list[tuple[Callable[[Any], None], Callable[[Any], None]]] = []

    def add(self) -> None:
        """Begin, unless another one is there: of two at once the first marks."""
        if ModuleCalls._first not in (None, self):
            return
        ModuleCalls._first = self
        self._there = True
        self._follow_export()
        if _loaded("torch._dynamo") is None:
            self._patch(torch, "compile", self._loading_dynamo)
        else:
            self._follow_dynamo()
        self._put()

    def remove(self) -> None:
        """Take everything out again; may be called twice."""
        if ModuleCalls._first is not self:
            return
        ModuleCalls._first = None
        self._there, self._absences = False, 0
        self._take()
        while self._patched:
            owner, name, original = self._patched.pop()
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        while self._callbacks:
            start, end = self._callbacks.pop()
            handler = _loaded("torch._dynamo").callback_handler
            if start in handler.start_callbacks:
                handler.remove_start_callback(start)
            if end in handler.end_callbacks:
                handler.remove_end_callback(end)

    def _put(self) -> None:
        if _CALL.__code__ is _PLAIN:
            _CALL.__code__ = self.code

    def _take(self) -> None:
        if _CALL.__code__ is self.code:
            _CALL.__code__ = _PLAIN

    def _leave(self) -> None:
        self._absences += 1
        self._take()

    def _return(self) -> None:
        self._absences -= 1
        if self._there and self._absences <= 0:
            self._put()

    def _patch(self, owner: Any, name: str, around: Around) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            self._patched.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, functools.wraps(original)(around(original)))

    def _without_marks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def exported(*args: Any, **kwargs: Any) -> Any:
            self._leave()
            try:
                return original(*args, **kwargs)
            finally:
                self._return()

        return exported

    def _loading_dynamo(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.compile where nothing was compiled yet: it imports what has to be followed."""

        def following(*args: Any, **kwargs: Any) -> Any:
            if self._there and not self._callbacks:
                import torch._dynamo  # noqa: F401

                self._follow_dynamo()
            return original(*args, **kwargs)

        return following

    def _follow_dynamo(self) -> None:
        # Beside a graph our frames run under dynamo, which would compile them as well.
        skip = _loaded("torch._dynamo.decorators").skip
        skip(FunctionType(self.code, {}))
        skip(getattr(self._meet, "__func__", self._meet))
        skip(unseen)

        def start(*_: Any) -> None:  # torch 2.6 says nothing to them, later ones what they compile
            self.compiled = True
            self._leave()

        def end(*_: Any) -> None:
            self._return()

        handler = _loaded("torch._dynamo").callback_handler
        self._callbacks.append((start, end))

        def register() -> None:
            handler.register_start_callback(start)
            handler.register_end_callback(end)

        def clearing(original: Callable[[], Any]) -> Callable[[], Any]:
            def clear() -> None:  # by torch._dynamo.reset(), after which it may compile again
                original()
                register()

            return clear

        register()
        self._patch(handler, "clear", clearing)

    def _follow_export(self) -> None:
        """`torch.export.export` imports what does the work when it is first called."""
        if (trace := _loaded("torch.export._trace")) is not None:
            self._patch(trace, "_export", self._without_marks)
        elif (export := _loaded("torch.export")) is not None:
            self._patch(export, "export", self._without_marks)


def unseen(function: Callable[[nn.Module], Entrance], module: nn.Module) -> Entrance:
    """What the function says of the module, out of sight of dynamo.

    Not by `torch._dynamo.disable`, whose calls a profile could not tell from the user's.
    """
    # In C alone: a function of ours that is called here dynamo would look at.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    set_eval_frame = getattr(dynamo, "set_eval_frame", None)
    if set_eval_frame is None:
        return function(module)
    before = set_eval_frame(None)
    try:
        return function(module)
    finally:
        set_eval_frame(before)


def _filled(known: Any, meet: Any, original: Any) -> CodeType:
    objects = {"gpuprof:known": known, "gpuprof:meet": meet, "gpuprof:original": original}
    code = _marked_call.__code__
    constants = [objects.get(one, one) if isinstance(one, str) else one for one in code.co_consts]
    return code.replace(
        co_consts=tuple(constants),
        co_filename=FILE,
        co_firstlineno=LINE,
        co_name=NAME,
        co_qualname=_PLAIN.co_qualname,
    )


def _loaded(name: str) -> Any:
    """That module if it was imported: to import it would take a second."""
    return sys.modules.get(name)

"""Open one of torch's regions around every call of an nn.Module, without changing any module.

While it does, `nn.Module._call_impl` has other code: torch's own, read from its source, between the
beginning and the end of a region. So a profile, a stack or a traceback shows no further frame or
call. torch's global hooks are no alternative: with them torch calls more functions, which a profile
would show as the user's, and dynamo, which guards on the absence of hooks, would compile again. The
function object stays the same, so that whoever holds it (a module compiled in place does) gets the
marks too, and the plain code afterwards.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import torch
from torch import nn

from gpuprof_widgets.capture.code import codes_in
from gpuprof_widgets.capture.garbage_collections import hide_from_dynamo
from gpuprof_widgets.exceptions import RecordingError

TorchRegion: Any = torch._C._profiler._RecordFunctionFast
Entrance = Callable[[], Any]
"""Makes the `TorchRegion` around one call of a module."""
Around = Callable[[Callable[..., Any]], Callable[..., Any]]

_CALL: Any = nn.Module._call_impl
_PLAIN: CodeType = _CALL.__code__

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)

REGION = "gpuprof_region"
"""The local variable of the marked code: a list of the region, which ends when it is let go."""
_KNOWN = "gpuprof:known"
# Not the built-in functions themselves, whose calls cProfile would count as the user's.
_PARTIALS = {
    "gpuprof:id": functools.partial(id),
    "gpuprof:begin": functools.partial(TorchRegion.__enter__),
    # The region's own `__exit__` raises where a profiler started after it was entered.
    "gpuprof:end": functools.partial(list.clear),
}
_AROUND = f"""
{REGION} = [{_KNOWN!r}["gpuprof:id"(self)]()]
try:
    "gpuprof:begin"({REGION}[0])
finally:
    "gpuprof:end"({REGION})
"""
"""What stands around torch's code; strings are placeholders, because its globals are torch's.

The beginning is inside, for a Ctrl-C that comes during it is raised right after it.
"""


class Entrances(dict[int, Entrance]):
    """The entrances of modules by their `id`; ``make`` makes that of any other, unseen by dynamo.

    Subscribed by the marked code alone, where the module is ``self``.
    """

    def __init__(self, make: Callable[[nn.Module], Entrance]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> Entrance:
        return unseen(self._make, sys._getframe(1).f_locals["self"])

    # A code has to be hashable, and so do its constants.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


class ModuleCalls:
    """Opens regions around calls of modules; torch.compile and torch.export do not see it.

    ``known`` has the entrances. While torch compiles or exports, calls are plain. ``compiled`` says
    whether a graph was made: code in a graph calls no modules.
    """

    _first: ClassVar[ModuleCalls | None] = None

    def __init__(self, known: Entrances) -> None:
        self.compiled = False
        self._known = known
        self.code = _PLAIN
        self._active = False
        self._suspensions = 0  # compilations and exports at work
        self._patched: list[tuple[Any, str, Any]] = []
        self._callbacks: list[tuple[Callable[[Any], None], Callable[[Any], None]]] = []

    def start(self) -> None:
        """Start to mark calls, unless another `ModuleCalls` already does: only one marks at a time.

        Raises a `RecordingError` where torch's source is not there.
        """
        if ModuleCalls._first not in (None, self):
            return
        self.code = _marked(self._known)
        ModuleCalls._first = self
        self._active = True
        # The working module of torch.export is imported at the first export.
        if (trace := sys.modules.get("torch.export._trace")) is not None:
            self._patch(trace, "_export", self._without_marks)
        elif (export := sys.modules.get("torch.export")) is not None:
            self._patch(export, "export", self._without_marks)
        if sys.modules.get("torch._dynamo") is None:
            self._patch(torch, "compile", self._loading_dynamo)
        else:
            self._follow_dynamo()
        self._mark()

    def stop(self) -> None:
        """Take everything out again; may be called twice."""
        if ModuleCalls._first is not self:
            return
        ModuleCalls._first = None
        self._active, self._suspensions = False, 0
        self._unmark()
        self.code = _PLAIN  # the garbage collector would not see that the other one holds us
        while self._patched:
            owner, name, original = self._patched.pop()
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        while self._callbacks:
            start, end = self._callbacks.pop()
            handler = sys.modules["torch._dynamo"].callback_handler
            if start in handler.start_callbacks:
                handler.remove_start_callback(start)
            if end in handler.end_callbacks:
                handler.remove_end_callback(end)

    def _mark(self) -> None:
        if _CALL.__code__ is _PLAIN:
            _CALL.__code__ = self.code

    def _unmark(self) -> None:
        if _CALL.__code__ is self.code:
            _CALL.__code__ = _PLAIN

    def _suspend(self) -> None:
        self._suspensions += 1
        self._unmark()

    def _resume(self) -> None:
        self._suspensions -= 1
        if self._active and self._suspensions <= 0:
            self._mark()

    def _patch(self, owner: Any, name: str, around: Around) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            self._patched.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, functools.wraps(original)(around(original)))

    def _without_marks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def exported(*args: Any, **kwargs: Any) -> Any:
            self._suspend()
            try:
                return original(*args, **kwargs)
            finally:
                self._resume()

        return exported

    def _loading_dynamo(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap torch.compile before its first use: it imports the dynamo that we have to follow."""

        def following(*args: Any, **kwargs: Any) -> Any:
            if self._active and not self._callbacks:
                import torch._dynamo  # noqa: F401

                self._follow_dynamo()
            return original(*args, **kwargs)

        return following

    def _follow_dynamo(self) -> None:
        # Between graphs our frames run under dynamo, which would compile them as well.
        skip = sys.modules["torch._dynamo.decorators"].skip
        skip(FunctionType(self.code, {}))
        skip(Entrances.__missing__)
        skip(unseen)
        hide_from_dynamo()

        def start(*_: Any) -> None:  # torch 2.6 passes nothing, later versions what they compile
            self.compiled = True
            self._suspend()

        def end(*_: Any) -> None:
            self._resume()

        handler = sys.modules["torch._dynamo"].callback_handler
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


def unseen(function: Callable[[nn.Module], Entrance], module: nn.Module) -> Entrance:
    """Call the function with the module, unseen by dynamo.

    Not through `torch._dynamo.disable`, whose calls a profile could not tell from the user's.
    """
    # Only C functions are called before set_eval_frame: dynamo would look into ours.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    set_eval_frame = getattr(dynamo, "set_eval_frame", None)
    if set_eval_frame is None:
        return function(module)
    before = set_eval_frame(None)
    try:
        return function(module)
    finally:
        set_eval_frame(before)


def _marked(known: Entrances) -> CodeType:
    """Return torch's code with a region around it."""
    objects = {_KNOWN: known, **_PARTIALS}
    code = _marked_by_placeholders()
    return code.replace(
        co_consts=tuple(
            objects.get(constant, constant) if isinstance(constant, str) else constant
            for constant in code.co_consts
        )
    )


@functools.cache
def _marked_by_placeholders() -> CodeType:
    try:
        text = inspect.getsource(_CALL)
    except OSError as error:
        raise RecordingError("torch's source is not there") from error
    # The compiler makes other code of a call in an imported module.
    values = _CALL.__globals__.items()
    imports = ", ".join(name for name, value in values if isinstance(value, ModuleType))
    tree = ast.parse(f"import {imports}\nclass Module:\n{text}")
    ast.increment_lineno(tree, _PLAIN.co_firstlineno - 3)
    function: Any = tree.body[1].body[0]  # type: ignore[attr-defined]
    if _compiled(tree) != _PLAIN:
        raise RecordingError("torch's source has changed on the disk: restart the process")
    around = ast.parse(_AROUND)
    for node in ast.walk(around):
        ast.copy_location(node, function)  # tracebacks and warnings have torch's own lines
    enclosing: Any = around.body[-1]
    enclosing.body += function.body
    function.body = around.body
    return _compiled(tree)


def _compiled(tree: ast.Module) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of code that calls a string
        code = compile(
            tree, _PLAIN.co_filename, "exec", _PLAIN.co_flags & _FUTURE, dont_inherit=True
        )
    (of_class,) = codes_in(code)
    (of_function,) = codes_in(of_class)
    return of_function

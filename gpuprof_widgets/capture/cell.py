"""Run a cell's code as IPython would: once, in the user's namespace, under its line numbers.

Not through `shell.run_cell`, which swallows the error, nor through AST transformers, which would
stay behind. The shell is an argument: this module never imports IPython.

`compile_cell` and `compile_line` make a `CellCode`, which runs. A `Rewrite` changes the syntax tree
before that, to mark lines or to bound a loop, and is dropped where the result does not compile.
"""

from __future__ import annotations

import ast
import inspect
import sys
import warnings
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal, TypeVar

from gpuprof_widgets.capture.code import Embedded, code_pairs

Codes = tuple[CodeType, CodeType | None]
"""The code of the statements, and that of the last expression."""

Applied = TypeVar("Applied")


@dataclass(frozen=True)
class Place:
    """Where the magic was called: the cell's number and the line of the call in it."""

    number: int
    line: int


@dataclass
class CellTree:
    """A cell's syntax in two parts; the value of ``last`` is the cell's result.

    ``source`` is the cell as the editor shows it, if its lines are those of the syntax.
    ``around_last`` is entered around the evaluation of ``last``, an expression, which cannot
    contain a `with`.
    """

    label: str
    source: str
    statements: list[ast.stmt]
    last: ast.expr | None
    around_last: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def all_statements(self) -> list[ast.stmt]:
        """The statements, with the last expression as one of them."""
        return [*self.statements, *([ast.Expr(self.last)] if self.last else [])]


Rewrite = Callable[[CellTree, Embedded], None]
"""Changes a cell's tree in place before it is compiled, without new names or functions.

Every new node takes the location of the user's node that it serves.
"""


@dataclass(frozen=True)
class CellCode:
    """Compiled code: the statements, and the last expression, whose value is the result.

    ``plain`` is the same code without any rewrite. ``rewrites`` are those that were applied;
    ``gave_up`` says whether one of them could not be.
    """

    statements: CodeType
    last: CodeType | None
    around_last: Callable[[], AbstractContextManager[Any]]
    global_names: dict[str, Any]
    names: dict[str, Any]
    plain: Codes
    rewrites: tuple[Rewrite, ...]
    gave_up: bool = False

    def run(self) -> Any:
        """Execute in the user's namespace and return the last expression's value."""
        __tracebackhide__ = True
        eval(self.statements, self.global_names, self.names)
        if self.last is None:
            return None
        with self.around_last():
            return eval(self.last, self.global_names, self.names)

    async def run_awaiting(self) -> Any:
        """Do the same for code with a top-level await, on the caller's event loop and thread."""
        __tracebackhide__ = True
        await self._awaited(self.statements)
        if self.last is None:
            return None
        with self.around_last():
            return await self._awaited(self.last)

    async def _awaited(self, code: CodeType) -> Any:
        __tracebackhide__ = True
        value = eval(code, self.global_names, self.names)
        return await value if code.co_flags & inspect.CO_COROUTINE else value


def applied_rewrite(code: CellCode | None, kind: type[Applied]) -> Applied | None:
    """Return the rewrite of that class, if it was applied to the cell."""
    rewrites = code.rewrites if code is not None else ()
    return next((rewrite for rewrite in rewrites if isinstance(rewrite, kind)), None)


def called_from(shell: Any) -> Place:
    """Return the cell and line that called the magic, whatever IPython does to its counter."""
    numbers = cell_numbers(shell)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        number = numbers.get(frame.f_code.co_filename)
        if number is not None:
            return Place(number, frame.f_lineno)
        frame = frame.f_back
    return Place(shell.execution_count, 1)


def cell_numbers(shell: Any) -> dict[str, int]:
    """Return the cells that ran by the files of their code, as tracebacks find `In[n]`."""
    return getattr(shell.compile, "_filename_map", {})


def hide_callers(shell: Any, error: BaseException, *, over_cell: bool) -> None:
    """Keep IPython's frames between the cell and the magic out of the traceback.

    The frame of a cell that is nothing but the call of the magic, ``over_cell``, is left out too.
    """
    cells = cell_numbers(shell)
    frame = sys._getframe(1)
    above: list[FrameType] = []
    while frame.f_code.co_filename not in cells:
        above.append(frame)
        if frame.f_back is None:
            return
        frame = frame.f_back
    for hidden in above:
        hidden.f_locals["__tracebackhide__"] = True
    is_call = over_cell and frame.f_code.co_name == "<module>" and frame.f_lineno == 1
    if is_call and not isinstance(error, (SystemExit, BdbQuit)):
        _show_below_call(shell, error)


_handlers: list[Callable[[], None]] = []
"""What puts the shell's own handler of errors back, while ours is in its place."""


def _show_below_call(shell: Any, error: BaseException) -> None:
    """Have this error, if it ends the cell, shown without the frames around the user's code.

    Only IPython, which adds some of them, can still do that: its handler does, until the cell ends.
    """
    for earlier in list(_handlers):  # the cell caught its error
        earlier()
    before = shell.custom_exceptions, shell.CustomTB

    def put_back() -> None:
        if put_back not in _handlers:
            return
        _handlers.remove(put_back)
        shell.events.unregister("post_execute", put_back)
        if shell.CustomTB is ours:
            shell.custom_exceptions, shell.CustomTB = before

    def show(_: Any, *raised: Any, tb_offset: int | None = None) -> None:
        from gpuprof_widgets.capture.frame_filter import is_ours, remove_profiler_frames

        put_back()
        kind, shown, traceback = raised
        if shown is error:
            entry = traceback
            while entry is not None and not is_ours(entry):
                entry = entry.tb_next
            traceback.tb_next = entry or traceback.tb_next
            remove_profiler_frames(error)
            raised = kind, error, error.__traceback__
        if isinstance(shown, before[0]):
            shell.CustomTB(*raised, tb_offset=tb_offset)
        else:
            shell.showtraceback(raised, running_compiled_code=True)

    shell.set_custom_exc((type(error), *before[0]), show)
    ours = shell.CustomTB
    _handlers.append(put_back)
    shell.events.register("post_execute", put_back)


def compile_cell(
    shell: Any,
    body: str,
    *,
    first_line: str,
    number: int,
    awaits: bool,
    rewrites: Sequence[Rewrite] = (),
) -> CellCode:
    """Compile the body of a cell magic; ``first_line`` is the `%%` line, which stays line 1."""
    # IPython strips leading blank lines, which would shift every number after them.
    blank = len(body) - len(body.lstrip("\n")) if body.strip() else 0
    source = f"# {first_line}\n" + "\n" * blank + shell.transform_cell(body)
    raw = f"{first_line}\n{body.removesuffix(chr(10))}"
    return _compiled(shell, source, raw=raw, number=number, awaits=awaits, rewrites=rewrites)


def compile_line(shell: Any, statement: str, *, place: Place) -> CellCode:
    """Compile the statement of a line magic, on the line of the cell where it stands."""
    source = "\n" * (place.line - 1) + shell.transform_cell(statement)
    return _compiled(shell, source, raw=source, number=place.number, awaits=False, rewrites=())


def _compiled(
    shell: Any, source: str, *, raw: str, number: int, awaits: bool, rewrites: Sequence[Rewrite]
) -> CellCode:
    name = shell.compile.cache(source, number, raw_code=raw)
    nodes = list(shell.transform_ast(shell.compile.ast_parse(source, filename=name)).body)
    interactivity = shell.ast_node_interactivity
    if interactivity == "last_expr_or_assign":
        nodes += _assigned_name(nodes)
    last = nodes.pop().value if nodes and isinstance(nodes[-1], ast.Expr) else None
    same_lines = len(raw.splitlines()) == len(source.splitlines())
    parts = CellTree(f"Cell [{number}]", raw if same_lines else source, nodes, last)

    def compiled() -> Codes:
        is_shown = interactivity == "all"  # whatever a statement is worth
        statements = (
            ast.Interactive(parts.statements) if is_shown else ast.Module(parts.statements, [])
        )
        code = shell.compile(statements, name, "single" if is_shown else "exec")
        last = shell.compile(ast.Expression(parts.last), name, "eval") if parts.last else None
        return code, last

    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with shell.compile.extra_flags(flags) if awaits else nullcontext():
        return rewritten_code(parts, compiled, rewrites, (shell.user_global_ns, shell.user_ns))


def rewritten_code(
    parts: CellTree,
    compiled: Callable[[], Codes],
    rewrites: Sequence[Rewrite],
    names: tuple[dict[str, Any], dict[str, Any]],
) -> CellCode:
    """Return the code of a tree with the rewrites, up to the first that does not compile.

    ``compiled`` compiles ``parts`` as they are when it is called; ``names`` are the globals and the
    locals in which the code will run.
    """
    plain = compiled()
    code, around_last, applied, embedded = plain, parts.around_last, [], Embedded()
    for rewrite in rewrites:
        try:
            rewrite(parts, embedded)
            with warnings.catch_warnings():  # they were shown when the plain code was compiled
                warnings.simplefilter("ignore")
                statements, last = compiled()
            changed = embedded.filled(statements), last and embedded.filled(last)
            for rewritten, original in zip(changed, plain, strict=True):
                if rewritten is not None and original is not None:
                    list(code_pairs(rewritten, original))  # could it stand in for the plain code?
        except Exception:  # what compiles without the rewrite must still run
            break
        code, around_last = changed, parts.around_last
        applied.append(rewrite)
    return CellCode(
        *code,
        around_last,
        *names,
        plain=plain,
        rewrites=tuple(applied),
        gave_up=len(applied) < len(rewrites),
    )


def _assigned_name(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the name that the last statement assigns, as an expression whose value is shown."""
    target: ast.expr | None = None
    last = nodes[-1] if nodes else None
    if isinstance(last, ast.Assign) and len(last.targets) == 1:
        target = last.targets[0]
    elif isinstance(last, (ast.AugAssign, ast.AnnAssign)):
        target = last.target
    if isinstance(target, ast.Name):
        shown = ast.Expr(ast.copy_location(ast.Name(target.id, ast.Load()), target))
        yield ast.fix_missing_locations(ast.copy_location(shown, target))


def kind_of(shell: Any, body: str) -> Literal["plain", "awaiting", "invalid"]:
    """Return whether the code awaits at top level, or does not compile at all."""
    flags = shell.compile.flags | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(shell.transform_cell(body), "<cell>", "exec", flags, True)
    except SyntaxError:
        return "invalid"
    return "awaiting" if code.co_flags & inspect.CO_COROUTINE else "plain"

"""`gpuprof run script.py`: record a script that runs as under `python script.py`.

`Script` makes the program from a file or a module and becomes ``__main__``. `_execute` records it,
shows its errors as the interpreter would, writes its files, and ends as the script ended.
"""

from __future__ import annotations

import ast
import atexit
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from gpuprof_widgets.capture.cell import CellCode, CellTree, Codes, Rewrite, rewritten_code
from gpuprof_widgets.capture.frame_filter import remove_profiler_frames
from gpuprof_widgets.commands.files import check_outputs
from gpuprof_widgets.exceptions import OptionError, in_words, printable_lines
from gpuprof_widgets.option_parsing import RecordingCommand, options_given
from gpuprof_widgets.options import Options

if TYPE_CHECKING:
    from gpuprof_widgets.capture.distributed import ProcessRank
    from gpuprof_widgets.capture.recorder import Recorder


@click.command(
    "run",
    cls=RecordingCommand,
    without={"compare", "explore"},
    epilog="\b\nExamples:\n  gpuprof run train.py --epochs 1\n"
    "  gpuprof run --steps 8 --shapes -o run.gpuprof train.py\n"
    "  gpuprof run -o report.html -m package.train",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as for python -m")
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="save the profile (.gpuprof), its report (.html) or another format of convert; in the "
    "name, %r is the rank, %h the host and %p the process",
)
@click.argument("script", type=click.Path())
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def run(
    is_module: bool, target: str | None, script: str, words: tuple[str, ...], **given: Any
) -> None:
    """Record SCRIPT as python would run it, and say why it is slow.

    SCRIPT runs with its own arguments; its output and exit code are the same as without gpuprof. At
    the end, findings and ops are printed on stderr. The recording options are those of
    %%gpuprofile. --steps bounds the training loop, even if it is in main() or in another module.
    """
    from gpuprof_widgets.exports import WRITERS, writer_named
    from gpuprof_widgets.profiling import check

    page: str | None = None  # or another format than that of saved profiles
    if target is not None and writer_named(target) not in (None, WRITERS["gpuprof"]):
        page = target
    elif target is not None:
        if "save" in given:
            raise click.UsageError("-o and --save both name the file of the profile")
        given["save"] = target
    options = options_given(given)
    check(options)
    if page is not None:
        check(options.changed(save=page))
    _execute(script, words, options, is_module=is_module, page=page)


def _execute(
    name: str, words: tuple[str, ...], options: Options, *, is_module: bool, page: str | None
) -> None:
    """Run the script, report what was recorded, and end as the script ended.

    ``page``: a file of the report, or of another export.
    """
    from gpuprof_widgets.capture.distributed import process_rank
    from gpuprof_widgets.capture.recorder import Recorder
    from gpuprof_widgets.capture.torch_profiler import warm_up
    from gpuprof_widgets.capture.window import rewrites_for
    from gpuprof_widgets.profiling import keeper
    from gpuprof_widgets.warm_up import require_torch_profiler

    script = script_in_module(name) if is_module else script_in_file(name)
    outputs = [page, options.save, *_files_of_rank(page, options.save, process_rank())]
    check_outputs([str(file) for file in outputs if file is not None], [script.file])
    require_torch_profiler()
    warm_up()
    stderr, process = sys.stderr, os.getpid()
    folder = Path().absolute()  # the script may change to another one
    placed = options
    if options.save is not None:
        placed = options.changed(save=folder / Path(options.save).expanduser())
    sys.argv[:] = [script.file if is_module else name, *words]
    sys.modules["__main__"] = script.module
    recorder: Recorder | None = None
    ended: BaseException | None = None
    try:
        code = script.compiled(rewrites_for(options))
        recorder = Recorder(
            placed,
            label=options.name or script.label,
            cell_source=script.text(),
            namespace=script.module.__dict__,
            code=code,
            keep=keeper(placed),
        )
        recorder.__enter__()
        code.run()
    except BaseException as error:
        ended = error
    if os.getpid() != process:
        _end_child(ended)
    if recorder is not None:
        failed = None if isinstance(ended, SystemExit) else ended  # exit() is not a failure
        recorder.__exit__(type(failed) if failed else None, failed, None)
    _show_error(ended)
    if recorder is not None:
        _report(recorder, options, placed, page, folder, stderr)
    if isinstance(ended, SystemExit):
        raise SystemExit(ended.code)
    if isinstance(ended, KeyboardInterrupt):
        raise click.Abort
    raise SystemExit(0 if ended is None else 1)


def _files_of_rank(
    page: str | None, save: str | os.PathLike[str] | None, rank: ProcessRank | None
) -> tuple[str | None, str | None]:
    """Return the files that this rank writes: its page and its profile."""
    from gpuprof_widgets.capture.distributed import rank_file
    from gpuprof_widgets.exports import writer_for

    return (
        None if page is None else str(rank_file(page, rank, writer_for(page).endings)),
        None if save is None else str(rank_file(save, rank)),
    )


def _show_error(error: BaseException | None) -> None:
    """Print the traceback as the interpreter does, through the script's own hook if it has one."""
    if error is None or isinstance(error, SystemExit):
        return
    remove_profiler_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)


def _end_child(error: BaseException | None) -> NoReturn:
    """End a process that the script has forked, and that gets here as well.

    The profiler's threads do not exist in it, but the interpreter would wait for them at its end.
    """
    _show_error(error)
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _report(
    recorder: Recorder,
    options: Options,
    placed: Options,
    page: str | None,
    folder: Path,
    stderr: IO[str],
) -> None:
    """Save, and print findings and ops; a failure here is one line, as the script has ended.

    ``placed`` are the options with the absolute path of the profile's file.
    """
    from gpuprof_widgets.capture.distributed import rank_in
    from gpuprof_widgets.profiles import Unrecorded
    from gpuprof_widgets.profiling import finish, is_recorded, of_cycle

    profile = Unrecorded()
    problems = finish(recorder, placed, profile)
    if is_recorded(profile):
        try:
            from gpuprof_widgets.exports import WRITERS, writer_named
            from gpuprof_widgets.trace.files import write_whole
            from gpuprof_widgets.views.report import static_text

            save = of_cycle(options, profile.metadata).save
            page, save = _files_of_rank(page, save, rank_in(profile.metadata))
            lines = []
            if page is not None and writer_named(page) is WRITERS["page"]:
                html = profile.report(sort=options.sort, top=options.top).encode()
                write_whole(folder / Path(page).expanduser(), lambda file: file.write(html))
                lines.append(f"\nreport: {page}")
            elif page is not None:
                profile.export(folder / Path(page).expanduser())
                lines.append(f"\nwritten: {page}")
            if save is not None:
                lines.append(f"\nsaved: {save} (gpuprof view {save})")
            if not options.quiet:
                text = static_text(profile, sort=options.sort, top=options.top)
                print(printable_lines(text), *lines, sep="\n", file=stderr)
        except Exception as error:
            problems.append(f"the profile could not be shown: {in_words(error)}")
    for problem in problems:
        print(f"gpuprof: {problem}", file=stderr)


@dataclass(frozen=True)
class Script:
    """A program to run: ``label``, ``source``, ``file``, and the ``module`` that it runs in."""

    label: str
    source: bytes | str
    file: str
    module: ModuleType

    def text(self) -> str:
        """Return the source as an editor shows it."""
        if isinstance(self.source, str):
            return self.source
        return importlib.util.decode_source(self.source)

    def compiled(self, rewrites: Sequence[Rewrite]) -> CellCode:
        """Return its code with these rewrites; a `SyntaxError` is the script's own."""
        tree = compile(self.source, self.file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        parts = CellTree(self.label, self.text(), tree.body, None)  # type: ignore[attr-defined]

        def compiled() -> Codes:
            body = ast.Module(parts.statements, [])
            return compile(body, self.file, "exec", dont_inherit=True), None

        names = self.module.__dict__
        return rewritten_code(parts, compiled, rewrites, (names, names))


def script_in_file(path: str) -> Script:
    """Return the script of a file; its folder becomes the first of ``sys.path``."""
    file = Path(path)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise OptionError(
            f"{path}: cannot be run ({error.strerror}); name a Python file, or a module with -m"
        ) from error
    _first_on_path(str(file.resolve().parent))
    absolute = os.path.abspath(path)  # noqa: PTH100  # as Python does, which keeps links
    loader = SourceFileLoader("__main__", absolute)
    names = {"__file__": absolute, "__cached__": None, "__loader__": loader, "__spec__": None}
    return Script(file.name, source, absolute, _main(names | {"__package__": None}))


def script_in_module(name: str) -> Script:
    """Return a module, or the ``__main__`` of a package; the current folder comes first."""
    _first_on_path(str(Path.cwd()))
    spec = _spec_to_run(name)
    source = spec.loader.get_source(spec.name) if isinstance(spec.loader, InspectLoader) else None
    if source is None or spec.origin is None:
        raise OptionError(f"{name} has no Python source to run")
    names = {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return Script(name, source, spec.origin, _main(names))


def _spec_to_run(name: str) -> ModuleSpec:
    """Return the module that `python -m` would run."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the package is there; a module that it imports is not
        spec = None
    if spec is None:
        raise OptionError(f"there is no module {name} to run; is it installed, or in this folder?")
    if spec.submodule_search_locations is None:
        return spec
    if name.endswith(".__main__"):
        raise OptionError(f"{name} is a package, which cannot be run")
    return _spec_to_run(f"{name}.__main__")


def _first_on_path(folder: str) -> None:
    """Replace the folder of ``gpuprof`` in ``sys.path`` by the program's."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _main(names: dict[str, Any]) -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__.update(names)
    if "__annotations__" in vars(sys.modules["__main__"]):  # as this Python makes it
        module.__annotations__ = {}
    return module

"""`%%gpuprofile` over a cell, `%gpuprofile` on a line, and `%config GpuProfile`.

`GpuprofMagics` has the magics, and `CellTransformer` rewrites the cells that a magic cannot run as
they are. `Defaults` are the options of a session or a config file. `load` and `unload` put
everything into a shell and take it out again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    no_var_expand,
    output_can_be_silenced,
)
from IPython.display import display
from traitlets import Bool, Enum, Int, TraitError, TraitType, Unicode, validate
from traitlets.config import Configurable

from gpuprof_widgets import option_parsing, runtime_carrier
from gpuprof_widgets.capture.interrupts import Raised
from gpuprof_widgets.exceptions import OptionError, in_words, missing_package, printable
from gpuprof_widgets.options import OPTIONS, Option, Options
from gpuprof_widgets.profiling import check, is_recorded, keep, keeper, read
from gpuprof_widgets.warm_up import IdleImports, require_torch_profiler, warm_up

if TYPE_CHECKING:
    from gpuprof_widgets.comparisons import Comparison
    from gpuprof_widgets.profiles import Profile

NAME = "gpuprofile"
INSTALL = "%pip install"
"""What installs a package into the environment of the kernel."""

_LASTING = {name: option for name, option in OPTIONS.items() if option.lasting}
_TRAITS: dict[type, Callable[..., TraitType[Any, Any]]] = {bool: Bool, int: Int, str: Unicode}


class Defaults(Configurable):
    """The options of a cell, unless the line of its `%%gpuprofile` sets them."""

    embed = Enum(
        ("auto", "always"),
        "auto",
        help="which outputs hold the views' JavaScript library (0.5 MB): auto: one per notebook, "
        "and another when that one is gone; always: every output",
    ).tag(config=True)

    def embeds_always(self) -> bool:
        """Return whether every output, of `.show()` too, holds the library of the views."""
        return bool(self.embed == "always")

    def options(self, **changed: Any) -> Options:
        """Return the options with these defaults."""
        return Options(**{name: getattr(self, name) for name in _LASTING} | changed)

    @validate(*_LASTING)
    def _checked(self, proposal: Any) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        try:
            check(self.options(**{name: value}))
        except OptionError as error:
            raise TraitError(f"GpuProfile.{name}: {error}") from None
        return value


def _trait(option: Option) -> TraitType[Any, Any]:
    """Return the trait of an option, with its type, its default and its help."""
    text = f"{option.flag} on the line: {option.help}"
    trait = _TRAITS[option.kind](option.default, allow_none=option.default is None, help=text)
    return trait.tag(config=True)


# The class is called what users type: `%config GpuProfile.top = 30`, `c.GpuProfile.top = 30`.
GpuProfile = type(
    "GpuProfile",
    (Defaults,),
    {"__doc__": Defaults.__doc__, **{name: _trait(option) for name, option in _LASTING.items()}},
)


@magics_class
class GpuprofMagics(Magics):
    """The magics of one shell, with the ``defaults`` that `%config GpuProfile` sets."""

    def __init__(self, shell: InteractiveShell) -> None:
        defaults: Defaults = GpuProfile(parent=shell)
        super().__init__(shell)
        self._shell = shell
        self.defaults = defaults

    @no_var_expand
    @output_can_be_silenced
    @line_cell_magic
    def gpuprofile(self, line: str, cell: str | None = None) -> Any:
        __tracebackhide__ = True
        from gpuprof_widgets.capture import cell as cells

        options, statement = self._options(line, over_cell=cell is not None)
        try:
            place = cells.called_from(self._shell)
            if cell is None:
                code = self._compiled_line(statement, place)
            else:
                code = self._compiled(line, cell, place.number, options, awaits=False)
            source = statement if cell is None else cell
            recorded = _Recorded(self, self._recorder(options, place.number, source, code), options)
            try:
                with recorded:
                    return code.run()
            finally:
                recorded.end()
        except BaseException as error:
            cells.hide_callers(self._shell, error, over_cell=cell is not None)
            raise

    async def gpuprofile_awaiting(self, line: str, cell: str) -> Any:
        """Profile a cell with a top-level await; `CellTransformer` makes the cell call this."""
        __tracebackhide__ = True
        from gpuprof_widgets.capture import cell as cells

        options, _ = self._options(line, over_cell=True)
        number = cells.called_from(self._shell).number
        code = self._compiled(line, cell, number, options, awaits=True)
        recorded = _Recorded(self, self._recorder(options, number, cell, code), options)
        try:
            with recorded:
                value = await code.run_awaiting()
        except BaseException as error:
            cells.hide_callers(self._shell, error, over_cell=True)
            raise
        finally:
            recorded.end()
        silenced = self._shell.displayhook.semicolon_at_end_of_expression(cell)  # type: ignore[no-untyped-call]
        return None if silenced else value

    def _options(self, line: str, *, over_cell: bool) -> tuple[Options, str]:
        """Return the options and the statement after them, or raise a `UsageError`."""
        try:
            defaults = self.defaults.options()
            options, statement = option_parsing.parse(line, defaults, loop=over_cell)
            check(options)
        except OptionError as error:
            raise UsageError(f"%{'%' * over_cell}{NAME}: {error}") from None
        except ModuleNotFoundError as error:
            if missing_package(error) is None:
                raise
            raise UsageError(in_words(error, install=INSTALL)) from error
        if over_cell and statement:
            raise UsageError(f"%%{NAME} takes only options on its line, not {statement!r}")
        if not over_cell and not statement:
            raise UsageError(f"%{NAME} needs a statement to profile; over a cell it is %%{NAME}")
        return options, statement

    def _compiled_line(self, statement: str, place: Any) -> Any:
        """Return the code of a line, or raise a `UsageError`.

        Not the SyntaxError itself, for which IPython would show every frame, its own and ours.
        """
        from gpuprof_widgets.capture.cell import compile_line, kind_of

        if kind_of(self._shell, statement) == "awaiting":
            raise UsageError(f"%{NAME} cannot await; over a cell %%{NAME} can")
        try:
            return compile_line(self._shell, statement, place=place)
        except SyntaxError as error:
            raise UsageError(f"%{NAME}: SyntaxError: {error.msg}: {statement}") from None

    def _compiled(
        self, line: str, cell: str, number: int, options: Options, *, awaits: bool
    ) -> Any:
        from gpuprof_widgets.capture.cell import compile_cell
        from gpuprof_widgets.capture.window import rewrites_for

        return compile_cell(
            self._shell,
            cell,
            first_line=f"%%{NAME} {line}".rstrip(),
            number=number,
            awaits=awaits,
            rewrites=rewrites_for(options),
        )

    def _recorder(self, options: Options, number: int, source: str, code: Any) -> Any:
        from gpuprof_widgets.capture.cell import cell_numbers
        from gpuprof_widgets.capture.recorder import Recorder

        warm_up()
        return Recorder(
            options,
            label=options.name or f"Cell [{number}]",
            cell_source=source,
            execution_count=number,
            namespace=self._shell.user_ns,
            code=code,
            keep=keeper(options),
            cell_labels={
                file: f"Cell [{cell}]" for file, cell in cell_numbers(self._shell).items()
            },
        )

    def report(self, recorder: Any, options: Options) -> None:
        """Save, show and assign the profile; a failure is one line, the cell's result stands."""
        from gpuprof_widgets.profiles import Unrecorded

        profile = Unrecorded()
        problems: list[str] = []
        stage = "read"
        try:
            problems = read(recorder, options, profile)
            if is_recorded(profile):
                stage = "saved"
                problems += keep(profile, options)
                stage = "shown"
                problems += self._show(profile, options)
        except Exception as error:
            reason = in_words(error, install=INSTALL)
            problems.append(f"the profile could not be {stage}: {reason}")
        except KeyboardInterrupt:
            problems.append(f"interrupted before the profile was {stage}; the cell had ended")
            if stage != "read":
                problems[-1] += ", and `gpuprof_widgets.last` is its profile"
        if options.output is not None:
            self._shell.user_ns[options.output] = profile
            if not is_recorded(profile) and problems:
                problems[0] += f"; {options.output} has no content"
        if options.quiet and (is_recorded(profile) or options.output is None):
            problems = problems if options.save is not None else []  # a file was asked for
        for problem in problems:
            print(f"gpuprofile: {problem}", file=sys.stderr)

    def _show(self, profile: Profile, options: Options) -> list[str]:
        """Show the profile, what changed in it, or the explorer of it, which is a variable as well.

        Returns one line where it cannot be compared; then it is shown by itself.
        """
        if options.explore is not None:
            explorer = profile.explore(sort=options.sort, top=options.top)
            self._shell.user_ns[options.explore] = explorer
            if not options.quiet:
                display(explorer)  # type: ignore[no-untyped-call]
        elif not options.quiet:
            from gpuprof_widgets.run_history import history

            comparison: Comparison | None = None
            problems = []
            if options.compare:
                try:
                    comparison = history.compare()
                except OptionError as error:
                    problems = [f"--compare: {error}"]
            if comparison is None:
                profile.show(sort=options.sort, top=options.top)
            else:
                comparison.show()
            return problems
        return []


class _Recorded:
    """Records the run of a cell, then reports.

    A Ctrl-C after the cell has ended costs the profile at most: the cell's result stands.
    """

    def __init__(self, magics: GpuprofMagics, recorder: Any, options: Options) -> None:
        self._magics = magics
        self._recorder = recorder
        self._options = options
        self._reported = False

    def __enter__(self) -> None:
        self._recorder.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with Raised():
            self._reported = True
            with suppress(KeyboardInterrupt):  # what was recorded until then is whole
                self._recorder.__exit__(kind, error, traceback)
            with self._recorder.waiting():
                self._magics.report(self._recorder, self._options)
                self._recorder.forget()

    def end(self) -> None:
        """Report now, if a Ctrl-C came between the end of the cell and `__exit__`."""
        if not self._reported:
            self.__exit__(*sys.exc_info())


GpuprofMagics.gpuprofile.__doc__ = option_parsing.help_text()


class CellTransformer:
    """Rewrites the two kinds of `%%gpuprofile` cells that a magic cannot run as a plain cell.

    A cell with a top-level await becomes `await <the magic's coroutine>`, which IPython runs on its
    own loop. A cell that does not compile becomes its body, so that IPython reports that error
    alone. IPython calls this several times per cell, and an exception here would break every cell
    of the notebook: so it has no side effect, and returns what it does not understand unchanged.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    def __call__(self, lines: list[str]) -> list[str]:
        try:
            return self._rewritten(lines)
        except Exception:  # whatever it is, the user's cell has to run
            return lines

    def _rewritten(self, lines: list[str]) -> list[str]:
        first = lines[0].split(maxsplit=1) if lines else []
        if not first or first[0] != f"%%{NAME}":
            return lines
        from gpuprof_widgets.capture.cell import kind_of

        body = "".join(lines[1:])
        kind = kind_of(self._shell, body)
        if kind == "invalid":
            return [f"# {lines[0]}", *lines[1:]]
        if kind == "plain":
            return lines
        line = first[1].rstrip("\n") if len(first) > 1 else ""
        magics = f"get_ipython().magics_manager.registry[{GpuprofMagics.__name__!r}]"
        return [f"await {magics}.gpuprofile_awaiting({line!r}, {body!r})\n"]


class _Installed:
    """Everything that the extension puts into one shell, and takes out again."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.magics = GpuprofMagics(shell)
        self.transformer = CellTransformer(shell)
        kept = _carriers.get(shell)  # of an extension that the same cell has unloaded
        follows = kept is not None and kept.has_followed_to(_request(shell))
        self.carrier = kept if kept and follows else runtime_carrier.RuntimeCarrier()
        _carriers[shell] = self.carrier
        self.carrier.namespace = shell.user_ns
        self.carrier.embeds_always = self.magics.defaults.embeds_always
        self.idle = IdleImports()

    def put_into(self, shell: InteractiveShell) -> None:
        shell.register_magics(self.magics)
        shell.configurables.append(self.magics.defaults)  # type: ignore[arg-type]
        shell.input_transformers_cleanup.append(self.transformer)
        shell.events.register("pre_run_cell", self.before_cell)
        shell.events.register("pre_run_cell", self.idle.before_cell)
        shell.events.register("post_run_cell", self.idle.after_cell)
        for key in (f"%{NAME}", f"%%{NAME}"):
            shell.set_hook("complete_command", _completions, str_key=key)  # type: ignore[no-untyped-call]
        runtime_carrier.followed = self.carrier

    def take_out_of(self, shell: InteractiveShell) -> None:
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(NAME, None)
        shell.magics_manager.registry.pop(GpuprofMagics.__name__, None)
        for configurable in (self.magics, self.magics.defaults):
            shell.configurables.remove(configurable)  # type: ignore[arg-type]
        if self.transformer in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.remove(self.transformer)
        shell.events.unregister("pre_run_cell", self.before_cell)
        shell.events.unregister("pre_run_cell", self.idle.before_cell)
        shell.events.unregister("post_run_cell", self.idle.after_cell)
        self.idle.cancel()
        for key in (f"%{NAME}", f"%%{NAME}"):
            shell.strdispatchers["complete_command"].strs.pop(key, None)
        runtime_carrier.followed = None

    def before_cell(self, info: Any) -> None:
        """Tell the runtime carrier which cell runs now."""
        self.carrier.request(_request(self.magics.shell))


def _completions(shell: InteractiveShell, event: Any) -> list[str]:
    return option_parsing.complete(event.text_until_cursor)


def _request(shell: Any) -> Any:
    """Return the request message of the running cell; a shell without a kernel has none."""
    parent: Callable[[], Any] | None = getattr(shell, "get_parent", None)
    return (parent() if parent else None) or {}


_carriers: WeakKeyDictionary[InteractiveShell, runtime_carrier.RuntimeCarrier] = WeakKeyDictionary()
_installed: WeakKeyDictionary[InteractiveShell, _Installed] = WeakKeyDictionary()


def load(shell: InteractiveShell) -> None:
    """Put the magics into the shell, which imports torch alone (see `warm_up`)."""
    if shell in _installed:
        return
    try:
        require_torch_profiler()
    except ImportError as error:  # of torch, or of something that it needs
        package = missing_package(error)
        advice = (
            "It is installed, but broken: see what `import torch` says in a new kernel"
            if package is None
            else f"Type `{INSTALL} {package}`, restart the kernel and load the extension again"
        )
        raise UsageError(
            f"gpuprof_widgets profiles PyTorch, which cannot be imported here ({error}). {advice}"
        ) from error
    try:
        _installed[shell] = _Installed(shell)
    except TraitError as error:
        why = printable(str(error))
        raise UsageError(f"the configuration of this kernel is wrong: {why}") from None
    _installed[shell].put_into(shell)


def unload(shell: InteractiveShell) -> None:
    """Take everything out of the shell again."""
    installed = _installed.pop(shell, None)
    if installed is not None:
        installed.take_out_of(shell)

"""What `%load_ext gpuprof_widgets` puts into a shell, and `%unload_ext` takes out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from gpuprof_widgets import option_parsing, runtime_carrier
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.magics.cell_transformer import CellTransformer
from gpuprof_widgets.magics.gpuprofile import NAME, GpuprofMagics
from gpuprof_widgets.options import Options


class _Installed:
    """Everything that the extension has put into one shell, to be taken out again."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.magics = GpuprofMagics(shell)
        self.transformer = CellTransformer(shell)
        kept = _carriers.get(shell)  # of an extension that this cell has unloaded
        follows = kept is not None and kept.has_followed_to(_request(shell))
        self.carrier = kept if kept and follows else runtime_carrier.RuntimeCarrier()
        _carriers[shell] = self.carrier

    def put_into(self, shell: InteractiveShell) -> None:
        shell.register_magics(self.magics)
        shell.configurables.append(self.magics.defaults)  # type: ignore[arg-type]
        shell.input_transformers_cleanup.append(self.transformer)
        shell.events.register("pre_run_cell", self.before_cell)
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
        for key in (f"%{NAME}", f"%%{NAME}"):
            shell.strdispatchers["complete_command"].strs.pop(key, None)
        runtime_carrier.followed = None

    def before_cell(self, info: Any) -> None:
        """Tell the carrier which cell runs now."""
        self.carrier.request(_request(self.magics.shell))


def _request(shell: Any) -> Any:
    """The message that asked for the cell that runs; a shell without a kernel has none."""
    parent: Callable[[], Any] | None = getattr(shell, "get_parent", None)
    return (parent() if parent else None) or {}


_carriers: WeakKeyDictionary[InteractiveShell, runtime_carrier.RuntimeCarrier] = WeakKeyDictionary()
_installed: WeakKeyDictionary[InteractiveShell, _Installed] = WeakKeyDictionary()


def load(shell: InteractiveShell) -> None:
    """Put the magics into the shell, with the slow imports done now rather than in a cell."""
    if shell in _installed:
        return
    try:
        _warm_up()
    except ImportError as error:
        raise UsageError(
            f"gpuprof_widgets profiles PyTorch, which cannot be imported here ({error}). "
            "Type `%pip install torch`, restart the kernel and load the extension again"
        ) from error
    try:
        _installed[shell] = _Installed(shell)
    except OptionError as error:
        raise UsageError(f"the configuration of this kernel is wrong: {error}") from None
    _installed[shell].put_into(shell)


def unload(shell: InteractiveShell) -> None:
    """Take everything out of the shell again."""
    installed = _installed.pop(shell, None)
    if installed is not None:
        installed.take_out_of(shell)


def _warm_up() -> None:
    """Import, start and draw everything once: what is slow the first time is slow here."""
    import gpuprof_widgets.profiles  # noqa: F401
    from gpuprof_widgets.capture import overhead, recorder, torch_profiler  # noqa: F401
    from gpuprof_widgets.views.report import outputs

    torch_profiler.require_torch_profiler()
    record = torch_profiler.warm_up()
    overhead.overhead(dict.fromkeys(overhead.KINDS, 1), Options())
    try:
        outputs(record, sort=Options().sort, top=Options().top, embed_runtime=True)
    except Exception:
        return  # a cell that cannot be shown will say so


def _completions(shell: InteractiveShell, event: Any) -> list[str]:
    return option_parsing.complete(event.text_until_cursor)

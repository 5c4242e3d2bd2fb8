"""Why is this PyTorch cell slow? `%%gpuprofile` answers under the cell."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuprof_widgets.exceptions import GpuprofError, OptionError, RecordingError, TraceError

if TYPE_CHECKING:
    from gpuprof_widgets.capture.environment import measured_peaks
    from gpuprof_widgets.capture.lines import lines
    from gpuprof_widgets.explorer import Chart
    from gpuprof_widgets.many_ranks.profiles import ranks
    from gpuprof_widgets.profiles import Profile, compare, explore, load
    from gpuprof_widgets.profiling import profile, profile_ranks, steps
    from gpuprof_widgets.run_history import history
    from gpuprof_widgets.trace.model import Trace

__version__ = "0.1.0"

__all__ = [
    "Chart",
    "GpuprofError",
    "OptionError",
    "Profile",
    "RecordingError",
    "Trace",
    "TraceError",
    "__version__",
    "compare",
    "explore",
    "history",
    "last",
    "lines",
    "load",
    "load_ipython_extension",
    "measured_peaks",
    "profile",
    "profile_ranks",
    "ranks",
    "steps",
    "unload_ipython_extension",
]

last: Profile | None = None
"""The profile that was recorded last."""

# Loaded when first asked for: `import gpuprof_widgets` itself costs no more than its errors.
_HOMES = {
    "Chart": "gpuprof_widgets.explorer",
    "Profile": "gpuprof_widgets.profiles",
    "Trace": "gpuprof_widgets.trace.model",
    "compare": "gpuprof_widgets.profiles",
    "explore": "gpuprof_widgets.profiles",
    "history": "gpuprof_widgets.run_history",
    "lines": "gpuprof_widgets.capture.lines",
    "load": "gpuprof_widgets.profiles",
    "measured_peaks": "gpuprof_widgets.capture.environment",
    "profile": "gpuprof_widgets.profiling",
    "profile_ranks": "gpuprof_widgets.profiling",
    "ranks": "gpuprof_widgets.many_ranks.profiles",
    "steps": "gpuprof_widgets.profiling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext gpuprof_widgets``: add the magics `%%gpuprofile` and `%gpuprofile`."""
    from gpuprof_widgets import magic

    magic.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext gpuprof_widgets``: remove the magics and restore the shell."""
    from gpuprof_widgets import magic

    magic.unload(shell)

"""What `gpuprof_widgets` offers, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpuprof_widgets

pytestmark = pytest.mark.slow


def test_the_public_names() -> None:
    assert gpuprof_widgets.__all__ == [
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
    assert dir(gpuprof_widgets) == sorted(gpuprof_widgets.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'gpuprof_widgets' has no attribute 'prof'"):
        _ = gpuprof_widgets.prof  # type: ignore[attr-defined]


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


LOADED = (
    "; print([m for m in ('torch', 'bokeh', 'IPython', 'pandas', 'numpy') if m in sys.modules])"
)


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert run("import sys, gpuprof_widgets" + LOADED) == "[]"


def test_the_callbacks_for_trainers_are_loaded_where_they_are_imported_only() -> None:
    loaded = "print([name for name in sys.modules if 'integrations' in name])"
    assert run(f"import sys; from gpuprof_widgets import profile, steps; {loaded}") == "[]"


def test_opening_a_file_loads_neither_torch_nor_bokeh_nor_ipython() -> None:
    found = run("import sys; from gpuprof_widgets import load, Profile" + LOADED)
    assert found == "['pandas', 'numpy']"


def test_the_function_profile_is_not_hidden_by_a_module() -> None:
    code = "import gpuprof_widgets.profiles; from gpuprof_widgets import Profile, load, profile"
    assert (
        run(f"{code}; print(callable(profile), profile is gpuprof_widgets.profile)") == "True True"
    )

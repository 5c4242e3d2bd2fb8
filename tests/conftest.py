"""Fixtures that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.traces import SHARED

# torch reads it at the first profile of a process, and tests use torch's profiler directly as well.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

settings.register_profile("unhurried", deadline=None)  # no test depends on speed
settings.load_profile("unhurried")

KINETO = (
    sorted(path for path in SHARED.glob("*/*.json.gz") if path.parent.name != "tf-timeline")
    if SHARED.is_dir()
    else []
)
_loaded: dict[Path, Record] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``shared_trace`` run once for every real trace; without any they skip."""
    if "shared_trace" in metafunc.fixturenames:
        missing = pytest.param(None, marks=pytest.mark.skip(reason=f"no traces in {SHARED}"))
        paths = KINETO or [missing]
        ids = [f"{path.parent.name}/{path.name}" for path in KINETO] or ["none"]
        metafunc.parametrize("shared_trace", paths, ids=ids, scope="session")


@pytest.fixture(scope="session")
def shared_record(shared_trace: Path) -> Record:
    """The record of a real trace, read once per run."""
    if shared_trace not in _loaded:
        _loaded.clear()  # tests are ordered by this parameter: one at a time is enough
        _loaded[shared_trace] = load(shared_trace)
    return _loaded[shared_trace]

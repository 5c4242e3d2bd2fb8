"""Holistic Trace Analysis as an oracle, with its rounding to whole microseconds off."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


def hta(path: Path) -> Any:
    """Its analyses of one trace; times are float us.

    By itself it leaves out the last ProfilerStep; here it keeps it.
    """
    return hta_of_ranks({0: path})


def hta_of_ranks(files: Mapping[int, Path]) -> Any:
    """Its analyses of several ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        module = pytest.importorskip("hta.trace_analysis")
        logging.getLogger("hta").setLevel(logging.ERROR)
        return module.TraceAnalysis(
            trace_files={rank: str(path) for rank, path in files.items()},
            trace_dir="",
            include_last_profiler_step=True,
        )

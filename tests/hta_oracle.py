"""Holistic Trace Analysis as an oracle, with its rounding to whole microseconds off."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest


def hta(path: Path) -> Any:
    """Its analyses of one trace; times are float us.

    By itself it leaves out the last ProfilerStep; here it keeps it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        module = pytest.importorskip("hta.trace_analysis")
        logging.getLogger("hta").setLevel(logging.ERROR)
        return module.TraceAnalysis(
            trace_files={0: str(path)}, trace_dir="", include_last_profiler_step=True
        )

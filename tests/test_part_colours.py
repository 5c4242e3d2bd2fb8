"""The colours of what a time was spent on: one for each name, in every report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpuprof_widgets.views
from gpuprof_widgets.analyses import breakdown as breakdown_segments
from gpuprof_widgets.analyses import gpu_work as gpu_kinds
from gpuprof_widgets.analyses import path_graph

IDLE_CAUSES = ("dataloader", "device", "end", "host", "start", "synchronise", "unknown")
SOURCE = Path(gpuprof_widgets.views.__file__).parent / "extension" / "stacked_bars.ts"
BARS = {
    "breakdown": breakdown_segments.CLASSES,
    "breakdown of the CPU": breakdown_segments.HOST_CLASSES,
    "streams": gpu_kinds.KINDS,
    "critical path": path_graph.KINDS,
    "idle": IDLE_CAUSES,
}


def colours() -> dict[str, str]:
    """The table of the page, each colour as it is written there."""
    table = SOURCE.read_text().split("PART_COLOURS")[1].split("\n}")[0]
    return dict(re.findall(r'"([^"]+)": ((?:\w+\([^)]*\))|\w+)', table))


@pytest.mark.parametrize("bar", BARS)
def test_every_part_has_a_colour_of_its_own(bar: str) -> None:
    found = [colours()[part] for part in BARS[bar]]
    assert len(set(found)) == len(found), found

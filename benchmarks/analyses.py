"""What reading a trace, explaining it and exporting it cost, in seconds of CPU time.

CPU time, that of all threads of the process, is what other programs on the machine hardly change.
The trace is read anew for each part, so that no part profits from results of another one. Below
them stands a small cell: what its user waits for between its end and its outputs.

    python benchmarks/analyses.py TRACE.json.gz
    python benchmarks/analyses.py TRACE.json.gz --each    # and a line per analysis
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import process_time

import torch

import gpuprof_widgets
from gpuprof_widgets.analyses import plain_analyses
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.views.page import report_page
from gpuprof_widgets.views.picture import picture_png
from gpuprof_widgets.views.report import page_script, static_bundle

OPS = 20
CELLS = 9
SORT, TOP = "device_self", 15
"""As a cell without options shows its profile."""


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of the work."""
    began = process_time()
    work()
    return process_time() - began


def of_analyses(profile: Profile) -> dict[str, float]:
    """CPU seconds of each analysis, in the order of `ANALYSES`.

    The first that needs a result which others need too pays for it.
    """
    return {one.name: cpu_seconds(partial(one.function, profile)) for one in plain_analyses()}


def of_trace(file: Path) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds of each part (of loading the median), and of each analysis."""
    loads = []

    def loaded() -> Profile:
        began = process_time()
        profile = gpuprof_widgets.load(file)
        loads.append(process_time() - began)
        gc.collect()  # not in the part that comes next
        return profile

    findings = cpu_seconds(loaded().findings)
    each = of_analyses(loaded())
    profile = loaded()
    with tempfile.TemporaryDirectory() as folder:
        export = cpu_seconds(lambda: profile.export(Path(folder) / "x.html"))
    parts = {
        "load": statistics.median(loads),
        "findings": findings,
        f"{len(each)} analyses": sum(each.values()),
        "HTML export": export,
    }
    return parts, each


def recorded() -> tuple[Profile, float]:
    """The profile of a small cell, and the CPU seconds from the cell's end until it is there."""
    x = torch.ones(64, 64)
    gc.collect()
    with gpuprof_widgets.profile(quiet=True) as run:
        for _ in range(OPS):
            x = x.relu()
        ended = process_time()
    return run, process_time() - ended


def of_small_cell() -> dict[str, float]:
    """CPU seconds of what follows a small cell, where an earlier one has brought BokehJS."""
    run, stopped = recorded()

    return {
        "stop and read": stopped,
        "findings": cpu_seconds(run.findings),
        "picture": cpu_seconds(lambda: picture_png(run)),
        "static part": cpu_seconds(lambda: static_bundle(run, sort=SORT, top=TOP)),
        "live script": cpu_seconds(
            lambda: page_script(report_page(run, sort=SORT), embed_runtime=False)
        ),
    }


def warm_up() -> None:
    """Import what is imported where it is used, and do once what is slow once."""
    of_small_cell()
    run, _ = recorded()
    with tempfile.TemporaryDirectory() as folder:
        of_trace(run.export(Path(folder) / "cell.json.gz"))


def lines(seconds: Mapping[str, float]) -> str:
    """A line per name."""
    return "\n".join(f"  {name:<22}{value:>9.3f} s" for name, value in seconds.items())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="a trace")
    parser.add_argument("--each", action="store_true", help="a line per analysis, costliest first")
    arguments = parser.parse_args()
    warm_up()
    parts, each = of_trace(arguments.file)
    cells = [of_small_cell() for _ in range(CELLS)]
    cell = {part: statistics.median(one[part] for one in cells) for part in cells[0]}
    print(f"CPU time, {platform.machine()} with {os.cpu_count()} CPU cores, ", end="")
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print(f"\n{arguments.file.name}\n{lines(parts)}")
    if arguments.each:
        costliest = sorted(each.items(), key=lambda item: item[1], reverse=True)
        print(f"\neach analysis, after those before it in ANALYSES\n{lines(dict(costliest))}")
    cell["all"] = statistics.median(sum(one.values()) for one in cells)
    print(f"\na cell of {OPS} ops, from its end to its outputs, medians of {CELLS}\n{lines(cell)}")


if __name__ == "__main__":
    main()

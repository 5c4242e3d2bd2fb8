"""The switches in a notebook of JupyterLab, in a kernel under a stand-in for nsys."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from playwright.sync_api import Page, expect

import gpuprof_widgets
from gpuprof_widgets.cli import main
from gpuprof_widgets.commands.kernelspec import NAME
from tests.browser.conftest import Lab
from tests.browser.report_page import Report
from tests.nsys import stand_in

NOTEBOOK = "switches.ipynb"
CELLS = [
    "%load_ext gpuprof_widgets",
    "import torch\n%config GpuProfile.record = 'ops,shapes'",
    "%%gpuprofile --nvtx --save switches.zip\nfor _ in range(3):\n    torch.ones(4, 5).sum()",
]


def test_switches_work_in_a_kernel_that_gpuprof_installed(
    any_page: Page, lab: Lab, tmp_path: Path
) -> None:
    nsys = stand_in(tmp_path / "bin")
    install_into(lab, nsys)
    page = any_page
    lab.run(page, NOTEBOOK, CELLS, NAME)
    assert "--capture-range=cudaProfilerApi" in json.loads((nsys.parent / "nsys.log").read_text())

    Report.wait(page)
    profile = gpuprof_widgets.load(lab.root / "switches.zip")
    assert profile.metadata["options"]["record"] == "ops,shapes"
    assert [[4, 5]] in [list(shapes)[:1] for shapes in profile.trace.args["Input Dims"]]
    assert set(profile.trace.slices["category"]) <= {"cpu_op", "user_annotation"}  # no lines
    if not torch.cuda.is_available():
        expect(page.locator("body")).to_contain_text("no NVTX ranges: torch sees no CUDA device")
    lab.end_kernels()


def install_into(lab: Lab, nsys: Path) -> None:
    """Install the kernel where this JupyterLab looks for kernels."""
    prefix = lab.home / "environment"
    assert main(["kernelspec", "--nsys", str(nsys), "--prefix", str(prefix)]) == 0
    kernels = lab.home / "data" / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (prefix / "share" / "jupyter" / "kernels" / NAME).rename(kernels / NAME)

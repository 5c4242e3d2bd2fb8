"""What users install: the built extension and no sources of it; what packagers get: both."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NEEDED = (
    "gpuprof_widgets/py.typed",
    "gpuprof_widgets/bokeh.ext.json",
    "gpuprof_widgets/trace/databases/cuda_calls.csv",
    "gpuprof_widgets/dist/gpuprof_widgets.min.js",
    "gpuprof_widgets/views/loader.js",
    "gpuprof_widgets/views/page.html",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_wheel_holds_the_built_extension_without_its_sources(built: Path) -> None:
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    assert names >= set(NEEDED)
    assert not [name for name in names if name.startswith("gpuprof_widgets/views/extension")]
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"gpuprof_widgets"}


def test_wheel_carries_the_licence(built: Path) -> None:
    wheel = zipfile.ZipFile(next(built.glob("*.whl")))
    licence = next(name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
    assert b"gpuprof_widgets contributors" in wheel.read(licence)


def test_sdist_holds_sources_and_build_of_the_extension(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert names >= {*NEEDED, "gpuprof_widgets/views/extension/index.ts", "tests/traces.py"}
    assert not [name for name in names if "node_modules" in name]

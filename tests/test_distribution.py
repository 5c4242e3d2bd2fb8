"""What users install: the built extensions and no sources of them; what packagers get: both."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gpuprof_widgets import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DATA = f"gpuprof_widgets-{__version__}.data"
LABEXTENSION = f"{DATA}/data/share/jupyter/labextensions/gpuprof_widgets"
NEEDED = (
    "gpuprof_widgets/py.typed",
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
    assert not [name for name in names if name.endswith((".ts", ".tsx"))]
    assert not [name for name in names if name.startswith("gpuprof_widgets/views/extension")]
    roots = {name.split("/")[0] for name in names if "dist-info" not in name}
    assert roots == {"gpuprof_widgets", DATA}


def test_wheel_holds_the_extension_of_jupyterlab_once(built: Path) -> None:
    wheel = zipfile.ZipFile(next(built.glob("*.whl")))
    names = set(wheel.namelist())
    committed = ROOT / "gpuprof_widgets" / "labextension"
    files = (path.relative_to(committed) for path in committed.rglob("*") if path.is_file())
    assert {name for name in names if name.startswith(f"{DATA}/")} == {
        f"{LABEXTENSION}/{file.as_posix()}" for file in files
    }
    assert not [name for name in names if name.startswith("gpuprof_widgets/labextension")]
    package = json.loads(wheel.read(f"{LABEXTENSION}/package.json"))
    assert package["version"] == __version__
    assert f"{LABEXTENSION}/{package['jupyterlab']['_build']['load']}" in names
    installer = json.loads(wheel.read(f"{LABEXTENSION}/install.json"))
    assert installer["packageName"] == package["name"] == "gpuprof_widgets"


def test_wheel_carries_the_licence(built: Path) -> None:
    wheel = zipfile.ZipFile(next(built.glob("*.whl")))
    licence = next(name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
    assert b"gpuprof_widgets contributors" in wheel.read(licence)


def test_sdist_holds_sources_and_build_of_the_extension(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    sources = ("index.ts", "labextension/renderer.ts", "labextension/build.sh")
    assert names >= {*NEEDED, "gpuprof_widgets/labextension/package.json", "tests/traces.py"}
    assert names >= {f"gpuprof_widgets/views/extension/{name}" for name in sources}
    assert not [name for name in names if "node_modules" in name]

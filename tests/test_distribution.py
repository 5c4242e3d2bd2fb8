"""What users install: the built extensions and no sources of them; what packagers get: both."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from gpuprof_widgets import __version__, load
from gpuprof_widgets.trace.scanned_events import is_compiled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DATA = f"gpuprof_widgets-{__version__}.data"
LABEXTENSION = f"{DATA}/data/share/jupyter/labextensions/gpuprof_widgets"
LINK = re.compile(r"\]\(([^)]+)\)")
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
    wheel = zipfile.ZipFile(next(built.glob("*.whl")))
    licence = next(name for name in names if name.endswith("licenses/LICENSE"))
    assert b"gpuprof_widgets contributors" in wheel.read(licence)


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


def build_wheel(folder: Path, compiler: str) -> Path:
    """Build a wheel from a copy of the sources by this compiler, and return its path."""
    sources = folder / "sources"
    kept_out = shutil.ignore_patterns("node_modules", "__pycache__", "*.so", "extension")
    shutil.copytree(ROOT / "gpuprof_widgets", sources / "gpuprof_widgets", ignore=kept_out)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "--directory", "out"]
    environment = {**os.environ, "CC": compiler}
    subprocess.run(command, cwd=sources, check=True, capture_output=True, env=environment)
    (wheel,) = (sources / "out").iterdir()
    return wheel


def scanners(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if "_event_scanner" in name]


def test_wheel_without_a_compiler_is_pure_and_reads_traces(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, "there-is-no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert scanners(wheel) == []
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    code = (
        "import sys, gpuprof_widgets\n"
        "from gpuprof_widgets.trace.scanned_events import is_compiled\n"
        "print(gpuprof_widgets.__file__, is_compiled())\n"
        "print(len(gpuprof_widgets.load(sys.argv[1]).trace.slices))"
    )
    trace = ROOT / "tests" / "data" / "gpu" / "torch_profiler_two_steps.json.gz"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        f"{installed}/gpuprof_widgets/__init__.py False",
        str(len(load(trace).trace.slices)),
    ]


@pytest.mark.skipif(not is_compiled(), reason="there was no C compiler")
def test_wheel_carries_the_scanner_for_any_python_of_its_platform(built: Path) -> None:
    wheel = next(built.glob("*.whl"))
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("any.whl")
    assert scanners(wheel) == ["gpuprof_widgets/trace/_event_scanner.so"]
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        sources = archive.getnames()
    assert [name for name in sources if name.endswith((".so", "event_scanner.c"))] == [
        f"gpuprof_widgets-{__version__}/gpuprof_widgets/trace/event_scanner.c"
    ]


def test_the_links_of_the_readme_work_away_from_its_files(built: Path) -> None:
    wheel = zipfile.ZipFile(next(built.glob("*.whl")))
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    about = message_from_bytes(wheel.read(metadata))
    assert about["Description-Content-Type"] == "text/markdown"
    shown, written = str(about.get_payload()), (ROOT / "README.md").read_text(encoding="utf-8")
    addresses = LINK.findall(shown)
    assert len(addresses) == len(LINK.findall(written)) > 20
    repository = "https://github.com/gpuprof/gpuprof_widgets"
    kind = {True: f"{repository}/raw/main/", False: f"{repository}/blob/main/"}
    own = [address for address in addresses if address.startswith(repository)]
    paths = [address.removeprefix(kind["/images/" in address]) for address in own]
    assert all((ROOT / path.partition("#")[0]).is_file() for path in paths)
    assert [address for address in addresses if not address.startswith(("https://", "#"))] == []


def test_sdist_holds_sources_and_build_of_the_extension(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert names >= {"CITATION.cff", "SECURITY.md", "constraints-lowest.txt", "tests/kernels.py"}
    sources = ("index.ts", "labextension/renderer.ts", "labextension/build.sh")
    assert names >= {*NEEDED, "gpuprof_widgets/labextension/package.json", "tests/traces.py"}
    assert names >= {f"gpuprof_widgets/views/extension/{name}" for name in sources}
    assert not [name for name in names if "node_modules" in name]


def test_sdist_holds_the_notebooks_without_their_outputs(built: Path) -> None:
    committed = {path.name: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        packed = {
            Path(name).name: json.loads(archive.extractfile(name).read())  # type: ignore[union-attr]
            for name in archive.getnames()
            if name.endswith(".ipynb")
        }
    assert packed.keys() == committed.keys()
    for name, notebook in packed.items():
        original = json.loads(committed[name].read_text())
        for bare, cell in zip(notebook["cells"], original["cells"], strict=True):
            assert not bare.get("outputs")
            assert bare.get("execution_count") is None
            assert (bare["source"], bare["id"]) == (cell["source"], cell["id"])

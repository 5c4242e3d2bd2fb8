"""Install the package as a user does, and profile a cell with it: `make package-check`.

Builds the wheel and the sdist, and from the sdist the wheel again: it has to be the same one. Then
an empty environment gets the wheel with what it depends on, in the versions of constraints.txt, and
a notebook in another folder is run by a kernel of that environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "package"
LARGEST_SDIST = 8_000_000
"""Bytes: 6.6 MB are the sources, their tests and the traces of these."""

NOTEBOOK = """
import os, sys
import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

sources = (
    "%load_ext gpuprof_widgets",
    "%%gpuprofile\\nimport torch\\nx = torch.ones(64, 64)\\nfor _ in range(5): x = x @ x\\nx.shape",
    "import gpuprof_widgets, sys; print(gpuprof_widgets.__file__, sys.prefix)",
)
notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, "executed.ipynb")
"""


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "elsewhere").mkdir(parents=True)
    build(ROOT, FOLDER / "dist", "wheel", "sdist")
    (wheel,) = (FOLDER / "dist").glob("*.whl")
    (sdist,) = (FOLDER / "dist").glob("*.tar.gz")
    check_sdist(sdist, wheel)
    python = install(wheel)
    check_use(python)
    print(f"{wheel.name} and {sdist.name} are what they should be, and %%gpuprofile reports there")


def build(sources: Path, folder: Path, *targets: str) -> None:
    """Build with the backend that is installed: no environment is made, nothing is downloaded."""
    options = [word for target in targets for word in ("--target", target)]
    command = [sys.executable, "-m", "hatchling", "build", *options, "--directory", str(folder)]
    run(command, sources)


def check_sdist(sdist: Path, wheel: Path) -> None:
    """It is small, its notebooks have no outputs, and it builds the wheel of the checkout."""
    size = sdist.stat().st_size
    expect(size < LARGEST_SDIST, f"{sdist.name} has {size:,} bytes: what came in?")
    with tarfile.open(sdist) as archive:
        archive.extractall(FOLDER / "sources", filter="data")
    (sources,) = (FOLDER / "sources").iterdir()
    notebooks = sorted(sources.glob("notebooks/*.ipynb"))
    expect(bool(notebooks), "the sdist has no notebooks")
    for notebook in notebooks:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        expect(not any(cell.get("outputs") for cell in cells), f"{notebook.name} has outputs")
    build(sources, FOLDER / "again", "wheel")
    (again,) = (FOLDER / "again").iterdir()
    same = again.name == wheel.name and again.read_bytes() == wheel.read_bytes()
    expect(same, f"the sdist builds another {again.name} than the checkout")


def install(wheel: Path) -> Path:
    """Install the wheel into an empty environment, and return its Python."""
    venv.create(FOLDER / "environment", with_pip=True)
    python = FOLDER / "environment" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], FOLDER)
    run([str(python), "-m", "pip", "--quiet", "check"], FOLDER)
    return python


def check_use(python: Path) -> None:
    """The command answers, JupyterLab sees the extension, and a profiled cell has its report."""
    folder = FOLDER / "elsewhere"
    run([str(python.with_name("gpuprof")), "--version"], folder)
    jupyter = [str(python), "-m", "jupyter", "labextension", "list"]
    listed = run(jupyter, folder)
    line = next((line for line in listed.splitlines() if "gpuprof_widgets v" in line), "")
    expect("enabled" in line and "OK" in line, f"JupyterLab lists no such extension:\n{listed}")

    run([str(python), "-c", NOTEBOOK], folder)
    _, profiled, imported = json.loads((folder / "executed.ipynb").read_text())["cells"]
    reports = [o["data"] for o in profiled["outputs"] if o["output_type"] == "display_data"]
    shown = "".join("".join(data.get("text/plain", "")) for data in reports)
    kinds = {kind for data in reports for kind in data}
    expect("aten::mm" in shown, f"no report came that names aten::mm:\n{shown}")
    expect({"text/html", "image/png"} <= kinds, f"the report has only {sorted(kinds)}")
    results = [o for o in profiled["outputs"] if o["output_type"] == "execute_result"]
    expect(len(results) == 1, "the cell's own result is missing")
    printed = "".join(imported["outputs"][0]["text"]).split()
    site_packages = str(FOLDER / "environment" / "lib")
    expect(printed[0].startswith(site_packages), f"{printed[0]} was imported")


def run(command: list[str], folder: Path) -> str:
    """Run it as from a shell of that folder, with nothing of this checkout on the path."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "IPYTHONDIR": str(FOLDER / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    expect(done.returncode == 0, f"{' '.join(command[:6])} failed:\n{output}")
    return output


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(f"package-check: {otherwise}")


if __name__ == "__main__":
    main()

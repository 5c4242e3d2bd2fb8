"""Run the first notebook without a browser, and say what it found: `make demo`."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "01_first_profile.ipynb"
BUILD = ROOT / "build"


def main() -> None:
    print(f"Running {NOTEBOOK.relative_to(ROOT)} ...", flush=True)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    here = {"metadata": {"path": NOTEBOOK.parent}}
    NotebookClient(notebook, timeout=600, resources=here).execute()
    executed, page = BUILD / NOTEBOOK.name, BUILD / NOTEBOOK.with_suffix(".html").name
    BUILD.mkdir(exist_ok=True)
    nbformat.write(notebook, executed)
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    for report in reports(notebook):
        print(f"\n{report}")
    print(f"\nExecuted notebook: {executed}\nAs a web page:     {page}")


def reports(notebook: NotebookNode) -> list[str]:
    """The text of every profile in the notebook: findings, then the op table."""
    cells = [cell for cell in notebook.cells if cell.source.startswith("%%gpuprofile")]
    return [
        output.data["text/plain"]
        for cell in cells
        for output in cell.outputs
        if output.output_type == "display_data" and "text/html" in output.data
    ]


if __name__ == "__main__":
    main()

"""Run the notebooks in place, as they are committed: `make notebooks`.

Without execution times and versions, which would differ in every commit, and without widgets, which
end with the kernel: in the place of each would stand that it was not found.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def main() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        execute(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    here = {"metadata": {"path": NOTEBOOKS}}
    NotebookClient(notebook, timeout=600, resources=here, record_timing=False).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    remove_widgets(notebook)
    nbformat.write(notebook, path)


def remove_widgets(notebook: NotebookNode) -> None:
    # nbclient can leave out the state itself, but then fails on an Output.
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                output
                for output in cell.outputs
                if output.get("data") != {} and WIDGET_VIEW not in output.get("data", {})
            ]


if __name__ == "__main__":
    main()

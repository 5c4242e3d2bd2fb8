"""Run the notebooks in place, as they are committed: `make notebooks`.

Without execution times and versions, which would differ in every commit.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def main() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        here = {"metadata": {"path": NOTEBOOKS}}
        NotebookClient(
            notebook, timeout=600, resources=here, store_widget_state=False, record_timing=False
        ).execute()
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

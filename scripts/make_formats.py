"""Write the tables of docs/formats.md anew from `READERS` and `WRITERS`.

    python scripts/make_formats.py

A test compares them, so that the page cannot go stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuprof_widgets.exports import WRITERS
from gpuprof_widgets.trace.readers import READERS

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"


def readers() -> str:
    """Return the table of what can be read."""
    rows = ((reader.name, reader.written_by) for reader in READERS.values())
    return _table(("what", "written by"), rows)


def writers() -> str:
    """Return the table of what can be written."""
    rows = (
        (_code(writer.endings), writer.name, writer.choice, writer.opens_in)
        for writer in WRITERS.values()
    )
    return _table(("ending", "what is written", "`what=`", "opens in"), rows)


TABLES = {"READERS": readers, "WRITERS": writers}


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (headings, ("---",) * len(headings), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def with_tables(page: str) -> str:
    """Return the page with the tables of today."""
    for name, table in TABLES.items():
        begin, end = f"<!-- from {name}: begin -->", f"<!-- from {name}: end -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{table()}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Write the table of options in README.md and docs/usage.md anew from that of the package.

    python scripts/make_options.py

A test compares them, so that the pages cannot go stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuprof_widgets.options import GROUPS, OPTIONS, TOPICS, Option, ProfileOptions, options_of

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "usage.md")
BEGIN, END = "<!-- from the options: begin -->", "<!-- from the options: end -->"

HEADINGS = ("option", "keyword", "meaning", "default")


def table() -> str:
    """Return the table as it has to stand in the pages, with the topics of ``--record``."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells) + " |" for cells in _rows()]
    topics = ", ".join(f"`{topic}`" for topic in TOPICS)
    return "\n".join([*lines, "", f"`TOPICS` are separated by commas: {topics}."])


def _rows() -> Iterator[tuple[str, ...]]:
    keywords = options_of(ProfileOptions)
    for group, heading in GROUPS.items():
        yield f"**{heading}**", "", "", ""
        for name, option in OPTIONS.items():
            if option.group == group:
                keyword = f"`{name}`" if name in keywords else ""
                yield _flags(option), keyword, _marked(option.help), _default(option)


def _flags(option: Option) -> str:
    value = f"[={option.metavar}]" if option.bare else f" {option.metavar}".rstrip()
    *short, long = option.flags
    return ", ".join(f"`{flag}`" for flag in (*short, f"{long}{value}"))


def _marked(text: str) -> str:
    return re.sub(r"(?<!\S)--[\w-]+", r"`\g<0>`", text)


def _default(option: Option) -> str:
    if option.is_flag:
        return "on" if option.default else "off"
    return "" if option.default is None else f"`{option.default}`"


def with_table(page: str) -> str:
    """Return the page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")

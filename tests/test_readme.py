"""The README: short, and every link of it leads somewhere. Sphinx checks the links of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = sorted(set(re.findall(r"\]\((?!https?://)([^)\s]+)\)", README)))
MOST_WORDS = 900


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_it_can_be_read_in_a_few_minutes() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_it_has_links() -> None:
    assert len(LINKS) > 10


@pytest.mark.parametrize("link", LINKS)
def test_its_links_lead_somewhere(link: str) -> None:
    path, _, anchor = link.partition("#")
    page = ROOT / path
    assert page.exists()
    assert not anchor or anchor in anchors(page)

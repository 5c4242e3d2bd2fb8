"""All that can be observed of the project's own profiles is what it was, unless a commit says so.

After a change that is meant, `scripts/record_profiles.py` tells how the digest is written anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.digest import differences, digest, subjects

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data"
RECORDED = [DATA / "recorded", DATA / "gpu", DATA.parents[1] / "notebooks" / "data"]
PROFILES = subjects([*RECORDED, *DATA.glob("*.json*")])
KEPT = json.loads(Path(__file__).with_name("digest.json").read_text(encoding="utf-8"))

DRAWN = ("picture",)
"""What depends on the fonts and the release of the library that draws it."""


def test_the_digest_is_of_all_profiles() -> None:
    assert set(KEPT) == set(PROFILES)


@pytest.mark.parametrize("name", KEPT)
def test_nothing_observable_has_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.digest.picture_png", lambda profile: b"")
    kept, now = (
        {topic: value for topic, value in each.items() if topic not in DRAWN}
        for each in (KEPT[name], digest(PROFILES[name]))
    )
    assert differences(kept, now) == []


def test_a_changed_a_new_and_a_lost_item_are_told_apart() -> None:
    assert differences({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == [
        "b: changed",
        "c: gone",
        "d: new",
    ]

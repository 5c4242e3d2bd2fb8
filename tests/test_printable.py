"""What of a name is shown as it is, and what is written out."""

from __future__ import annotations

import pytest

from gpuprof_widgets.exceptions import printable


@pytest.mark.parametrize(
    "text", ["", "aten::mm", "größer 漢字 µs", "\u2003\u2003Linear_0", "a\u00a0b"]
)
def test_letters_signs_and_spaces_of_all_widths_stay(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\u202eb", r"a\u202eb"),
        ("a\u200bb", r"a\u200bb"),
        ("\ud800", r"\ud800"),
        ("a\x9bb\x7f", r"a\x9bb\x7f"),
    ],
)
def test_what_steers_or_hides_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown

"""Numbers and names as people read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.columns import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops,
    format_ns,
    format_ratio,
    format_share,
    signed_ns,
)
from gpuprof_widgets.exceptions import printable


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (12.5, "12.5 ns"),
        (1234, "1.23 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (5_400_000_000_000, "5400 s"),
        (-1500, "-1.50 µs"),
    ],
)
def test_times_have_three_digits_and_a_unit(ns: float, text: str) -> None:
    assert format_ns(ns) == text


@given(st.integers(1, 999_499_999_999))
def test_a_time_read_back_is_right_to_half_a_percent(ns: int) -> None:
    match = re.fullmatch(r"([\d.]+) (ns|µs|ms|s)", format_ns(ns))
    assert match
    unit = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[match[2]]
    assert float(match[1]) * unit == pytest.approx(ns, rel=0.00501)
    assert len(match[1].replace(".", "")) <= 3


def test_sizes_and_operations_have_their_units_and_bandwidths_those_of_data_sheets() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1536) == "1.50 KiB"
    assert format_bytes(3 * 2**30) == "3.00 GiB"
    assert format_flops(2_710_000) == "2.71 MFLOP"
    assert format_bandwidth(0) == "0 B/s"
    assert format_bandwidth(450e9) == "450 GB/s"
    assert format_bandwidth(3.35e12) == "3.35 TB/s"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (0.0001, "less than 0.1 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (1, "100 %"),
    ],
)
def test_shares_are_percentages(share: float, text: str) -> None:
    assert format_share(share) == text


def test_a_time_is_many_times_another_not_thousands_of_percent_of_it() -> None:
    ratios = [0.385, 1.5, 9.99, 10, 433.03, 12345]
    assert list(map(format_ratio, ratios)) == ["38 %", "150 %", "999 %", "10x", "433x", "12,345x"]


def test_a_difference_has_its_sign_and_a_count_its_noun() -> None:
    assert list(map(signed_ns, [-2_000, 0, 61])) == ["−2.00 µs", "0 ns", "+61 ns"]
    assert format_count(1, "call") == "1 call"
    assert format_count(12345, "call") == "12,345 calls"


STAYS = ["", "aten::mm", "größer 漢字 µs", "\u2003\u2003Linear_0", "a\u00a0b"]
"""Letters, signs and spaces of all widths."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *zip(STAYS, STAYS, strict=True),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\u202eb", r"a\u202eb"),
        ("a\u200bb", r"a\u200bb"),
        ("\ud800", r"\ud800"),
        ("a\x9bb\x7f", r"a\x9bb\x7f"),
    ],
)
def test_what_steers_or_hides_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown

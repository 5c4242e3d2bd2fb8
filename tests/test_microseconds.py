"""Text of microseconds to integer nanoseconds, against Decimal."""

from __future__ import annotations

from decimal import ROUND_UP, Decimal, Inexact, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.trace.events import nanoseconds

DIGITS = st.text("0123456789", min_size=1, max_size=17)
NUMBERS = st.one_of(
    DIGITS,
    st.builds("{}.{}".format, DIGITS, st.text("0123456789", min_size=1, max_size=5)),
    st.builds("-{}.{}".format, DIGITS, DIGITS),
    st.floats(0, 1e12).map(repr),
)


@given(st.lists(NUMBERS, max_size=20))
def test_every_number_is_what_decimal_makes_of_it(texts: list[str]) -> None:
    found, valid = nanoseconds([text.encode() for text in texts])
    for text, ns, known in zip(texts, found.tolist(), valid.tolist(), strict=True):
        exact = Decimal(text) * 1000
        assert known == (abs(exact) < 2**62)
        if known:
            assert ns == int(exact.to_integral_value())


@pytest.mark.parametrize(
    "text",
    [
        b"1e999999999",
        b'"-1e999999999999999999999"',
        b"9" * 5_000_000,
        b"",
        b"null",
        b"NaN",
        b"1e999",
        b'"1e999999"',
        b"[1]",
        b'"x"',
        b"1.2.3",
        b"9" * 20,
    ],
)
def test_what_is_no_number_is_not_valid(text: bytes) -> None:
    assert nanoseconds([text, b"1"])[1].tolist() == [False, True]


@pytest.mark.parametrize("text", [b"1e-999999999", b"0." + b"0" * 5_000_000 + b"1"])
def test_what_is_too_small_is_zero(text: bytes) -> None:
    found, valid = nanoseconds([text])
    assert (found.tolist(), valid.tolist()) == ([0], [True])


def test_the_decimals_of_the_code_that_runs_do_not_matter() -> None:
    """A cell may have set its own precision, rounding and traps."""
    with localcontext() as context:
        context.prec, context.rounding = 3, ROUND_UP
        context.traps[Inexact] = True
        found, _ = nanoseconds([b"-1712195495545500.6834", b"1e999999999"])
    assert found[0] == -1712195495545500683

"""Files of cProfile that are damaged or made to do harm: one error, or what is left, counted."""

from __future__ import annotations

import marshal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.plain_data import plain_statistics
from gpuprof_widgets.trace.pstats import is_pstats, parse_pstats

FILE = Path("cell.prof")
FUNCTIONS = st.tuples(st.text(), st.integers(0, 2**31 - 1), st.text())
COUNTS = st.integers(0, 2**62 - 1)
TIMES = st.floats(-1e6, 1e6)
STATS = st.dictionaries(
    FUNCTIONS,
    st.tuples(
        COUNTS,
        COUNTS,
        TIMES,
        TIMES,
        st.dictionaries(FUNCTIONS, st.tuples(COUNTS, COUNTS, TIMES, TIMES), max_size=4),
    ),
    max_size=6,
)


@given(STATS, st.integers(0, marshal.version))
def test_statistics_are_read_as_marshal_reads_them(stats: dict[Any, Any], version: int) -> None:
    assert plain_statistics(marshal.dumps(stats, version), FILE) == stats


@given(STATS.filter(bool), st.data())
def test_a_file_that_is_cut_off_says_where(stats: dict[Any, Any], data: st.DataObject) -> None:
    whole = marshal.dumps(stats)
    cut = data.draw(st.integers(2, len(whole) - 1))
    with pytest.raises(TraceError, match=rf"cell\.prof: .*ends at byte {cut:,} "):
        plain_statistics(whole[:cut], FILE)


@given(st.binary(max_size=80))
def test_any_bytes_are_statistics_or_one_error(tail: bytes) -> None:
    with suppress(TraceError):
        parse_pstats(b"{" + tail, FILE)


@given(STATS.filter(bool), st.data())
def test_a_changed_byte_is_statistics_or_one_error(
    stats: dict[Any, Any], data: st.DataObject
) -> None:
    whole = bytearray(marshal.dumps(stats))
    whole[data.draw(st.integers(1, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(TraceError):
        parse_pstats(bytes(whole), FILE)


def _key(line: int = 1) -> bytes:
    return marshal.dumps(("a.py", line, "f"))


HARMFUL = {
    "code object": b"{" + marshal.dumps(compile("1", "x", "eval")) + b"i\x01\x00\x00\x000",
    "code as value": b"{" + _key() + marshal.dumps(compile("1", "x", "eval")) + b"0",
    "text of 2 GiB": b"{)\x03u\xff\xff\xff\x7f",
    "negative length": b"{)\x03u\xff\xff\xff\xff",
    "tuple of 2**31": b"{(\xff\xff\xff\x7f",
    "list": b"{" + _key() + b"[\xff\xff\xff\x7f0",
    "deep": b"{" + b")\x01" * 100_000,
    "holds itself": b"{\xa9\x03r\x00\x00\x00\x00",
    "refers to nothing": b"{)\x03r\x05\x00\x00\x00",
    "refers before the start": b"{)\x03r\xff\xff\xff\xff",
    "number of 2**31 digits": b"{" + _key() + b"l\xff\xff\xff\x7f",
    "float that is none": b"{" + _key() + b"f\x03abc0",
    "key that is no function": marshal.dumps({(1, 2): 3}),
    "none is a function": marshal.dumps({("a", 1, "f"): 3}),
    "no end": b"{" + _key(),
    "entry of many dicts": b"{" + _key() + b"(" + (100_000).to_bytes(4, "little") + b"{0" * 100_000,
    "tuple for a number": b"{" + _key() + b")\x02)\x00i\x00\x00\x00\x000",
    "dict for a number": b"{" + _key() + b")\x02{0i\x00\x00\x00\x000",
}


REASONS = {
    "code object": "byte 1 begins an object of type 'c'",
    "code as value": "byte 17 begins an object of type 'c'",
    "tuple of 2**31": "ends at byte 6 within",
    "list": "byte 17 begins an object of type '['",
    "deep": "objects in one another, 9 deep, at byte 17",
    "holds itself": "an object that holds itself at byte 8",
    "refers before the start": "an object that holds itself at byte 8",
    "number of 2**31 digits": "a number of 2,147,483,647 digits at byte 22",
    "float that is none": "text or a number at byte 22 cannot be read",
    "key that is no function": "a key before byte 13 is no function",
    "none is a function": "none of its 1 functions has calls",
    "no end": "ends at byte 17 within",
    "entry of many dicts": "a tuple of 100,000 items at byte 22.",
}
"""What the error says of them."""


@pytest.mark.parametrize("name", HARMFUL)
def test_harmful_files_are_one_clear_error(name: str) -> None:
    with pytest.raises(TraceError, match=r"cell\.prof: starts as a file of cProfile") as caught:
        parse_pstats(HARMFUL[name], FILE)
    assert str(caught.value).count("cell.prof") == 1
    assert REASONS.get(name, "") in str(caught.value)


def test_functions_that_share_their_callers_are_refused() -> None:
    """A thousand functions with the same thousand callers: a million pairs in 60 kB."""
    callers = {("a.py", line, "f"): (1, 1, 0.0, 0.0) for line in range(1000)}
    data = marshal.dumps({("b.py", line, "g"): (1, 1, 0.0, 0.0, callers) for line in range(1000)})
    assert is_pstats(data)
    with pytest.raises(TraceError, match="1,000,000 pairs of caller and callee"):
        parse_pstats(data, FILE)


def test_functions_with_impossible_numbers_are_left_out_and_counted() -> None:
    good, odd = (1, 1, 1e-6, 2e-6), (1, 1, float("nan"), 0.0)
    stats = {
        ("a.py", 1, "f"): (*good, {}),
        ("a.py", 2, "g"): (
            *good,
            {("a.py", 1, "f"): good, ("a.py", 9, "h"): odd, ("a.py", 2**64, "h"): good},
        ),
        ("a.py", -(2**64), "no line"): (*good, {}),
        ("a.py", 3, "nan"): (*odd, {}),
        ("a.py", 4, "huge"): (2**70, 1, 0.0, 0.0, {}),
        ("a.py", 5, "infinite"): (1, 1, 0.0, float("inf"), {}),
        ("a.py", 6, "text"): (1, 1, "0", 0.0, {}),
        ("a.py", 7, "short"): (1, 1, 0.0, 0.0),
    }
    record = parse_pstats(marshal.dumps(stats), FILE)
    assert record.calls is not None
    assert record.calls.functions["name"].tolist() == ["f", "g"]
    assert record.calls.edges["callee"].tolist() == [1]
    assert record.metadata["notes"] == [
        "6 of 8 functions have no valid line, calls or times and were left out",
        "2 of 3 pairs of caller and callee have no valid line, calls or times and were left out",
    ]

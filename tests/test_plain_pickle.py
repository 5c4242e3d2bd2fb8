"""Pickles of plain data: the same as `pickle` reads, and nothing else, whatever the file asks."""

from __future__ import annotations

import os
import pickle
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.plain_data import PROTOCOLS, is_pickle, plain_data

FILE = Path("snapshot.pickle")
NUMBERS = st.integers(-(2**70), 2**70)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.tuples(NUMBERS, NUMBERS),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.lists(inner, min_size=4).map(tuple)
    ),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from(PROTOCOLS))
def test_plain_data_is_read_as_pickle_reads_it(content: Any, protocol: int) -> None:
    assert plain_data(pickle.dumps(content, protocol), FILE) == content


def test_what_is_referred_to_again_is_one_object() -> None:
    frames = [{"line": number} for number in range(400)]  # more than one byte can number
    content = plain_data(pickle.dumps([frames, frames[::-1]]), FILE)
    assert all(a is b for a, b in zip(content[0], reversed(content[1]), strict=True))


class Harmful:
    """Runs a command when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_that_would_run_a_command_is_refused_by_name(
    tmp_path: Path, protocol: int
) -> None:
    mark = tmp_path / "ran"
    data = pickle.dumps({"segments": [Harmful(mark)], "device_traces": []}, protocol)
    with pytest.raises(TraceError, match=r"asks for (posix|nt)\.system\..*was run"):
        plain_data(data, FILE)
    assert not mark.exists()
    pickle.loads(data)
    assert mark.exists(), "the pickle is one that does it"


def _nested_key(depth: int) -> bytes:
    """A dict whose key is a tuple in a tuple in a tuple: its hash overflows the C stack."""
    return b"\x80\x04}K\x01" + b"\x85" * depth + b"K\x01s."


HARMFUL = {
    "nested key": _nested_key(300_000),
    "nested key, by the memo": b"\x80\x04}K\x01\x85\x94" + b"h\x00\x85" * 600 + b"K\x01s.",
    "nested key behind texts": b"\x80\x04}K\x01\x85" + b"\x8c\x01a\x86" * 600 + b"K\x01s.",
    "memo of 2**31": b"\x80\x02]r\xff\xff\xff\x7f.",
    "calls a function": b"\x80\x02}R.",
    "old global": b"\x80\x02cbuiltins\neval\n.",
    "large number": b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\x01" * 99 + b".",
    "text beyond the end": b"\x80\x04\x8d" + b"\xff" * 8 + b".",
    "bytearray of 2**62": b"\x80\x05\x96\x00\x00\x00\x00\x00\x00\x00\x40.",
    "empty stack": b"\x80\x04.",
    "no mark": b"\x80\x04}u.",
    "list as key": b"\x80\x04}]K\x01s.",
    "not text": b"\x80\x04\x8c\x02\xff\xfe.",
    "nothing but dicts": b"\x80\x04" + b"}" * 100_000 + b".",
    "nothing but lists": b"\x80\x04" + b"]" * 100_000 + b".",
    "nothing but tuples": b"\x80\x04" + b"K\x01\x85" * 100_000 + b".",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_harmful_and_damaged_pickles_are_one_clear_error(name: str) -> None:
    assert is_pickle(HARMFUL[name])
    with pytest.raises(TraceError, match=r"snapshot\.pickle: "):
        plain_data(HARMFUL[name], FILE)


@pytest.mark.parametrize("what", [b"}", b"]", b"K\x01\x85"])
def test_containers_are_refused_before_they_take_memory(what: bytes) -> None:
    """One byte in the file is a hundred in memory: most of the file is not looked at."""
    with pytest.raises(TraceError, match="made to do harm") as error:
        plain_data(b"\x80\x04" + what * 1_000_000 + b".", FILE)
    at = re.search(r"at byte ([\d,]+)", str(error.value))
    assert at is not None
    assert int(at[1].replace(",", "")) < 0.4 * len(what) * 1_000_000


def test_old_protocols_are_no_pickles() -> None:
    """Python 3 writes them on request alone; they are text, and begin as other files do."""
    assert [is_pickle(pickle.dumps({"a": [1]}, protocol)) for protocol in (0, 1, 2)] == [
        *(False, False, True)
    ]


@given(st.binary(max_size=60), st.sampled_from(PROTOCOLS))
def test_any_bytes_are_plain_data_or_one_error(tail: bytes, protocol: int) -> None:
    with suppress(TraceError):
        plain_data(bytes([0x80, protocol]) + tail, FILE)


@given(PLAIN, st.sampled_from(PROTOCOLS), st.data())
def test_a_pickle_that_is_cut_off_says_so(content: Any, protocol: int, data: st.DataObject) -> None:
    whole = pickle.dumps(content, protocol)
    cut = data.draw(st.integers(min(2, len(whole) - 1), len(whole) - 1))
    with pytest.raises(TraceError, match="cut off or damaged"):
        plain_data(whole[:cut], FILE)

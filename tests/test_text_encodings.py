"""Traces in other encodings than UTF-8, and bytes that are no text: read, repaired, counted."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.trace import files as text_encodings
from gpuprof_widgets.trace.files import as_utf8
from gpuprof_widgets.trace.readers import parse
from tests.trace_files import kineto

CHINESE = "矩阵乘法"
NAMES = ["aten::mm", CHINESE, "café"]


def text(*names: str) -> str:
    """A trace with names that are not escaped, as C++ writes them."""
    written = kineto(*(f"name {number}" for number in range(len(names)))).decode()
    for number, name in enumerate(names):
        written = written.replace(f"name {number}", name)
    return written


def read(data: bytes) -> tuple[list[str], list[str]]:
    record = parse(data, Path("trace.json"))
    return record.trace.slices["name"].tolist(), list(record.metadata["notes"])


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-8", b""),
        ("utf-8", codecs.BOM_UTF8),
        ("utf-16-le", codecs.BOM_UTF16_LE),
        ("utf-16-be", codecs.BOM_UTF16_BE),
        ("utf-16-le", b""),
        ("utf-16-be", b""),
        ("utf-32-le", codecs.BOM_UTF32_LE),
        ("utf-32-be", codecs.BOM_UTF32_BE),
        ("utf-32-le", b""),
        ("utf-32-be", b""),
    ],
)
def test_every_unicode_encoding_reads_the_same(encoding: str, mark: bytes) -> None:
    assert read(mark + text(*NAMES).encode(encoding)) == (NAMES, [])


@pytest.mark.parametrize(
    ("name", "shown", "count"),
    [
        (b"caf\xe9", "caf\ufffd", "1 character of the file is"),
        (b"a\xff\xfeb", "a\ufffd\ufffdb", "2 characters of the file are"),
        (
            CHINESE.encode("gbk"),
            "\ufffd" * 4 + "\u02f7\ufffd",
            "5 characters of the file are",
        ),
        (CHINESE.encode()[:-1], "矩阵乘\ufffd", "1 character of the file is"),
        (CHINESE.encode() + b"\xff\xff", CHINESE + "\ufffd\ufffd", "2 characters of the file are"),
    ],
)
def test_what_is_no_text_is_replaced_and_counted(name: bytes, shown: str, count: str) -> None:
    data = text("aten::mm", "X").encode().replace(b'"X", "pid"', b'"' + name + b'", "pid"')
    assert read(data) == (["aten::mm", shown], [f"{count} not UTF-8 and became \ufffd"])


def test_half_a_character_of_utf16_is_counted() -> None:
    data = text("aten::mm", "X!").encode("utf-16-le")
    broken = data.replace("!".encode("utf-16-le"), b"\x00\xd8")
    assert read(broken) == (
        ["aten::mm", "X\ufffd"],
        ["1 character of the file is not UTF-16-LE and became \ufffd"],
    )


def test_zero_bytes_at_the_end_are_left_out_and_counted() -> None:
    """A file whose last blocks were reserved and never written ends so."""
    names, notes = read(text("aten::mm").encode() + b"\0" * 4_096)
    assert names == ["aten::mm"]
    assert notes == ["4,096 zero bytes at the end of the file were left out"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.integers(1, 7))
def test_text_is_the_same_however_it_falls_into_blocks(name: str, block: int) -> None:
    data = json.dumps({"name": name}, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_encodings, "_BLOCK_BYTES", block)
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
            assert as_utf8(data.encode(encoding)) == (data.encode(), [])


@given(st.binary(max_size=60))
def test_any_bytes_become_text(data: bytes) -> None:
    whole = b'{"name": "' + data + b'"}'
    found, notes = as_utf8(whole)
    found.decode()
    assert (found == whole) == (notes == [])


def test_what_was_replaced_by_others_is_not_counted_again() -> None:
    data = '{"name": "\ufffd\ufffd?"}'.encode()
    assert as_utf8(data) == (data, [])
    notes = ["1 character of the file is not UTF-8 and became \ufffd"]
    assert as_utf8(data.replace(b"?", b"\xff"))[1] == notes

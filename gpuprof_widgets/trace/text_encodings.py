"""Text files in other encodings than UTF-8, as UTF-8: what was repaired is told in one line."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks; that of UTF-32 begins as that of UTF-16."""

_UNMARKED = (
    (re.compile(rb"[{\[\s]\0\0\0"), "utf-32-le"),
    (re.compile(rb"\0\0\0[{\[\s]"), "utf-32-be"),
    (re.compile(rb"[{\[\s]\0[^\0]\0"), "utf-16-le"),
    (re.compile(rb"\0[{\[\s]\0[^\0]"), "utf-16-be"),
)
_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[\[{\"\d\]-])")
"""How JSON starts. cProfile's files start with a brace too, but no quotation mark follows."""

_REPLACED = "\ufffd"
_CHINESE = "gb18030"
_LATIN = "latin-1"
_NOT_LATIN = re.compile(rb"[\x80-\x9f\xfe\xff]|[\xc2-\xf4][\x80-\xbf]|\xc3(?![A-Za-z])")
"""Controls, bytes that damaged files have more often than words, what UTF-8 begins with; of a lone
byte that begins most accented letters in UTF-8, that it does not begin a word in capitals."""
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]+")
_BLOCK_BYTES = 1 << 20


def as_utf8(data: bytes) -> tuple[bytes, list[str]]:
    """The text in UTF-8, and notes on what was repaired; what is no JSON text stays as it is.

    Read are UTF-8, UTF-16 and UTF-32 with or without a byte order mark, GBK, which programs on a
    Chinese Windows write, and Latin-1. Other bytes that are not UTF-8 become U+FFFD.
    """
    encoding, start = _marked(data)
    if encoding != "utf-8":
        return _from_wide(data, encoding, start)
    text = data[start:] if start else data
    if not _JSON.match(text):
        return (text, []) if start else (data, [])
    text, ends = _without_padding(text)
    repaired, notes = valid_utf8(text)
    return repaired, ends + notes


def _marked(data: bytes) -> tuple[str, int]:
    """The encoding, and how many bytes its mark takes."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding, len(mark)
    found = (encoding for pattern, encoding in _UNMARKED if pattern.match(data))
    return next(found, "utf-8"), 0


def _from_wide(data: bytes, encoding: str, start: int) -> tuple[bytes, list[str]]:
    blocks = _decoded(data, encoding, start)
    text = b"".join(block.encode("utf-8", "replace") for block in blocks)
    marks = text.count(_REPLACED.encode())
    return text, [_lost(marks, encoding.upper())] if marks else []


def _decoded(data: bytes, encoding: str, start: int = 0, errors: str = "replace") -> Iterator[str]:
    """The text in blocks, so that it is never in the memory as a whole beside its bytes."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    for at in range(start, len(data), _BLOCK_BYTES):
        yield decoder.decode(data[at : at + _BLOCK_BYTES])
    yield decoder.decode(b"", final=True)


def _without_padding(text: bytes) -> tuple[bytes, list[str]]:
    """Without the zero bytes that a file has at its end where its last blocks were not written."""
    if not text.endswith(b"\0"):
        return text, []
    kept = text.rstrip(b"\0")
    return kept, [f"{len(text) - len(kept):,} zero bytes at the end of the file were left out"]


def valid_utf8(text: bytes) -> tuple[bytes, list[str]]:
    """Text of one byte or more per character in UTF-8, and notes, whatever it starts with."""
    if text.isascii() or _is_utf8(text):
        return text, []
    wrong, right = _counted(text)
    if not right and _is_latin(text):
        latin = b"".join(block.encode() for block in _decoded(text, _LATIN))
        return latin, [
            f"the file is not in UTF-8: it was read as Latin-1 (beyond ASCII: {wrong:,})"
        ]
    if wrong > max(right, 1):
        chinese = _strictly(text, _CHINESE)
        if chinese is not None:
            return chinese, ["the file is not in UTF-8: it was read as GBK"]
    repaired = b"".join(block.encode() for block in _decoded(text, "utf-8"))
    return repaired, [_lost(wrong, "UTF-8")]


def _is_utf8(text: bytes) -> bool:
    try:
        return all(block is not None for block in _decoded(text, "utf-8", errors="strict"))
    except UnicodeDecodeError:
        return False


def _counted(text: bytes) -> tuple[int, int]:
    """How many characters beyond ASCII are not UTF-8, and how many are."""
    wrong = beyond = 0
    for block in _decoded(text, "utf-8"):
        wrong += block.count(_REPLACED)
        beyond += len(block) - len(block.encode("ascii", "ignore"))
    return wrong, beyond - wrong


def _is_latin(text: bytes) -> bool:
    """Whether letters beyond ASCII stand alone, as in most words; two bytes each have those of GBK.

    Where two bytes could be a character of UTF-8, whole or cut, the text is damaged UTF-8.
    """
    if _NOT_LATIN.search(text):
        return False
    runs = Counter(len(run[0]) == 1 for run in _BEYOND_ASCII.finditer(text))
    return runs[True] > runs[False]


def _strictly(text: bytes, encoding: str) -> bytes | None:
    try:
        return b"".join(block.encode() for block in _decoded(text, encoding, errors="strict"))
    except UnicodeDecodeError:
        return None


def _lost(count: int, encoding: str) -> str:
    noun, verb = ("character", "is") if count == 1 else ("characters", "are")
    return f"{count:,} {noun} of the file {verb} not {encoding} and became {_REPLACED}"

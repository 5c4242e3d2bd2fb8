"""What a reader adds to a record: notes at its times, and the place at which its reports open.

Both are part of the metadata. They are left out of redacted copies, where the text may say
anything, and where the times or rows that they name become others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Annotated, Any, SupportsIndex, TypedDict, TypeVar

import msgspec

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record

REMARKS, FOCUS = "remarks", "focus"
"""Keys of the metadata."""

Moment = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Row = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

AnyRecord = TypeVar("AnyRecord", bound=Record)


class Remark(TypedDict):
    """A note; ``end_ns`` is ``start_ns`` where it is on a moment."""

    text: str
    start_ns: Moment
    end_ns: Moment


class Focus(TypedDict):
    """Where reports open: the brushed range (None for the whole trace), the selected slices."""

    range_ns: Annotated[list[Moment], msgspec.Meta(min_length=2, max_length=2)] | None
    rows: list[Row]
    about: str


def with_remark(record: AnyRecord, text: str, at: int | tuple[int, int]) -> AnyRecord:
    """Return the record with a note at a moment or over a range, in ns.

    Raises an `OptionError` for an empty text, and for times outside of the trace.
    """
    words = " ".join(text.split()) if isinstance(text, str) else ""
    if not words:
        raise OptionError("a note has a text, as in profile.note('the copy waits here', 1_000_000)")
    start, end = _bounds(record, (at, at) if isinstance(at, SupportsIndex) else at)
    remark = Remark(text=words, start_ns=start, end_ns=end)
    return _with(record, REMARKS, [*record.metadata.get(REMARKS, ()), remark])


def with_focus(
    record: AnyRecord, range_ns: tuple[int, int] | None, rows: Sequence[int], about: str
) -> AnyRecord:
    """Return the record whose reports open with a range (ns) brushed and slices selected.

    Raises an `OptionError` for bounds that are not a range, or that lie outside of the trace.
    """
    bounds = None if range_ns is None else list(_bounds(record, range_ns))
    if bounds and bounds[0] == bounds[1]:
        raise OptionError("a range must end after its start")
    return _with(record, FOCUS, Focus(range_ns=bounds, rows=sorted(rows), about=about))


def remarks(record: Record) -> list[Remark]:
    """Return the notes on times of the trace, in order of time."""
    first, last = record.trace.start_ns, record.trace.end_ns
    inside = [
        remark
        for remark in record.metadata.get(REMARKS, ())
        if remark["start_ns"] <= last and remark["end_ns"] >= first
    ]
    return sorted(inside, key=lambda remark: (remark["start_ns"], remark["end_ns"]))


def focus(record: Record) -> Focus | None:
    """Return the place at which reports of the record open, None for its beginning."""
    found: Focus | None = record.metadata.get(FOCUS)
    if not found or not (found["range_ns"] or found["rows"]):
        return None
    first, last = record.trace.start_ns, record.trace.end_ns
    start, end = found["range_ns"] or (first, last)
    is_there = first <= start <= end <= last
    return found if is_there and max(found["rows"], default=-1) < len(record.trace) else None


def without_places(metadata: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the metadata without these keys, whose times or rows are no longer those."""
    return {key: value for key, value in metadata.items() if key not in keys}


def _with(record: AnyRecord, key: str, value: Any) -> AnyRecord:
    return replace(record, metadata={**record.metadata, key: value})


def _bounds(record: Record, moments: Sequence[int]) -> tuple[int, int]:
    first, last = record.trace.start_ns, record.trace.end_ns
    try:
        start, end = (index(moment) for moment in moments if not isinstance(moment, bool))
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{moments!r} is neither a moment nor a range: these are whole numbers of ns, "
            "as 1_000_000 or (1_000_000, 2_000_000)"
        ) from error
    if not first <= start <= end <= last:
        raise OptionError(
            f"{start:,} to {end:,} ns is not within the trace, which is from {first:,} to {last:,}"
        )
    return start, end

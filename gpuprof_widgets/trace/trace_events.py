"""One event of a Chrome trace as an object, and what stands around the events in the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpuprof_widgets.trace.json_sizes import without_vast_args
from gpuprof_widgets.trace.mending import as_json, mended

Id = int | str | float | None


class Event(msgspec.Struct, gc=False):
    """One event as the file has it; ``ts`` and ``dur`` stay text, to be read exactly."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: dict[str, Any] | None = None
    id: Id = None
    s: str | None = None
    bp: Any = None
    id2: Any = None
    bind_id: Any = None
    flow_in: Any = None
    flow_out: Any = None
    sf: Id = None
    stack: Any = None


@dataclass
class TraceFile:
    """The keys of a file beside its events; the events come in batches, once.

    ``samples``: the global samples, which have of an event ``name``, ``tid``, ``ts`` and ``sf``.
    As batches are taken, ``mended`` counts the events that were read although they are not as they
    should be, ``left_out`` those that could not be, ``without_args`` those whose args are too much;
    ``notes`` say what is odd beside them.
    """

    header: dict[str, Any]
    batches: Iterable[list[Event]] = ()
    samples: Sequence[Event] = ()
    left_out: int = 0
    mended: int = 0
    without_args: int = 0
    notes: list[str] = field(default_factory=list)


_EVENT = msgspec.json.Decoder(Event)
KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Decodes an object without what is under its keys."""


def counted(item: bytes, file: TraceFile) -> Event | None:
    """The event that this is, as it is or mended; the file counts which."""
    without = without_vast_args(item)
    file.without_args += without is not None
    item = item if without is None else without
    with suppress(msgspec.DecodeError, RecursionError):
        return _EVENT.decode(item)
    event = mended(item, _coerced) if item[:1] == b"{" else None
    file.mended += event is not None
    file.left_out += event is None
    return event


def _coerced(item: bytes) -> Event:
    """An event whose values are not of the types that they should be."""
    written = KEYS.decode(item)
    values = {key: any_value(raw) for key, raw in written.items() if key in Event.__struct_fields__}
    if not isinstance(values.get("ph"), str):
        raise msgspec.ValidationError("an event is of some kind")
    args = values.pop("args", None)
    values |= {
        key: _text(values[key]) for key in ("name", "cat", "s") if values.get(key) is not None
    }
    values |= {key: _id(values[key]) for key in ("pid", "tid", "id", "sf") if key in values}
    values |= {key: written[key] for key in ("ts", "dur") if key in written}
    values["name"] = values.get("name") or ""
    values["args"] = args if args is None or isinstance(args, dict) else {"args": args}
    return Event(**values)


def any_value(raw: msgspec.Raw) -> Any:
    """The value in this JSON; as text where its numbers are beyond all types."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return msgspec.json.decode(as_json(bytes(raw)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _id(value: Any) -> Id:
    known = value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))
    return value if known else _text(value)

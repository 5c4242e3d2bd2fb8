"""Bad traces, one of each kind: what is in the file, and what becomes of it.

Everything is by hand and small. A file is either read, and one line of the notes counts what was
repaired or left out, or it is refused in one message. Fuzzers take these as seeds as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bad:
    """A bad file, and what is expected of it.

    Read: ``slices`` are the names that are left, ``notes`` patterns of all notes in their order.
    Refused: ``error`` is a pattern of the message.
    """

    content: bytes
    slices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    durations_ns: dict[str, int] = field(default_factory=dict)


def event(name: Any = "a", **fields: Any) -> dict[str, Any]:
    """A complete event; fields replace its own, `ABSENT` removes them."""
    own = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10, "dur": 5}
    return {key: value for key, value in (own | fields).items() if value is not ABSENT}


ABSENT = object()


def trace(*events: dict[str, Any], **beside: Any) -> bytes:
    """A file of these events in object form."""
    return json.dumps({"schemaVersion": 1, **beside, "traceEvents": events}).encode()


def with_text(text: str, *, of: str = "HERE") -> bytes:
    """A file of three events; the second is called, or has an arg, as this text stands there."""
    middle = event("b", ts=20, args={"value": of})
    return trace(event("a"), middle, event("c", ts=30)).replace(f'"{of}"'.encode(), text.encode())


def named(text: bytes) -> bytes:
    """A file of three events, the second with this text where its name is."""
    return trace(event("a"), event("HERE", ts=20), event("c", ts=30)).replace(b"HERE", text)


MENDED = r"1 of 3 events are not well-formed and were mended"
LEFT_OUT = r"1 of 2 events are not well-formed and were left out"
UNTIMED = r"1 of 2 events have no valid ts or dur and were left out"
CUT = r"ends at byte [\d,]+, in or after event \d.*cut off"
PLACE = r"the text is not JSON at byte [\d,]+ \(.+\): its events were read one by one"
TOO_DEEP = r"nested deeper than in any trace"

THREE = ("a", "b", "c")
WHOLE = trace(event("a"), event("b", ts=20), event("c", ts=30))
LIST = json.dumps([event("a"), event("b", ts=20)]).encode()

NOT_JSON = {
    "NaN": Bad(with_text("NaN"), THREE, (PLACE, MENDED)),
    "a nan of Windows": Bad(with_text("-nan(ind)"), THREE, (PLACE, MENDED)),
    "None of Python": Bad(with_text("None"), THREE, (PLACE, MENDED)),
    "a word that begins as one of JSON": Bad(with_text("nullptr"), THREE, (PLACE, MENDED)),
    "a number beyond all types": Bad(with_text("1e999"), THREE, (MENDED,)),
    "an integer of 5,000 digits": Bad(with_text("9" * 5000), THREE, (MENDED,)),
    "a trailing comma in args": Bad(with_text('"x",'), THREE, (PLACE, MENDED)),
    "a trailing comma in the list": Bad(WHOLE.replace(b"}]}", b"},]}"), THREE, (PLACE,)),
    "no comma between events": Bad(WHOLE.replace(b"}, {", b"} {"), THREE, (PLACE,)),
    "a trailing comma in the object": Bad(WHOLE[:-1] + b",}", THREE, (PLACE,)),
    "an unescaped quote": Bad(named(b'say "x"'), ("a", 'say "x"', "c"), (PLACE, MENDED)),
    "quotes and commas": Bad(named(b'x", "y'), ("a", 'x", "y', "c"), (PLACE, MENDED)),
    "an object as the file of a function": Bad(  # kineto's issue 1459
        named(b'{"device": "cpu", "dtype": "x"}(1): run'),
        ("a", '{"device": "cpu", "dtype": "x"}(1): run', "c"),
        (PLACE, MENDED),
    ),
    "an unescaped backslash": Bad(
        named(b"C:\\new\\User"), ("a", "C:\\new\\User", "c"), (PLACE, MENDED)
    ),
    "a backslash at the end": Bad(named(b"C:\\dir\\"), ("a", "C:\\dir\\", "c"), (PLACE, MENDED)),
    "a tab": Bad(named(b"x\ty"), ("a", "x\ty", "c"), (PLACE, MENDED)),
    "a null character": Bad(named(b"x\0y"), ("a", "x\0y", "c"), (PLACE, MENDED)),
    "half a character": Bad(named(b"x\\ud83d"), ("a", "x\ufffd", "c"), (PLACE, MENDED)),
    "no value": Bad(
        named(b"b").replace(b'"ts": 20', b'"ts": '), ("a", "c"), (PLACE, LEFT_OUT.replace("2", "3"))
    ),
    "rubbish between events": Bad(
        WHOLE.replace(b"}, {", b"}, #!? {", 1), ("a", "c"), (PLACE, r"1 of 3 events .* left out")
    ),
    **{
        f"{what} nested {depth:,} deep": Bad(
            with_text(opens * depth + "1" + closes * depth), error=TOO_DEEP
        )
        for what, opens, closes in (("lists", "[", "]"), ("objects", '{"a":', "}"))
        for depth in (2_000, 100_000)
    },
    "a header that is not JSON": Bad(
        WHOLE.replace(b'"schemaVersion": 1', b'"host" "a"'),
        THREE,
        (PLACE, r"the text around the events is not JSON, and was not read"),
    ),
    "an unescaped quote in the header": Bad(
        WHOLE.replace(b'"schemaVersion": 1', b'"host": "a"b"'), THREE, (PLACE,)
    ),
}

CUT_OFF = {
    "cut in an event": Bad(WHOLE[:-30], ("a", "b"), (CUT, r"1 of 3 events .* left out")),
    "cut in a long text of escaped quotes": Bad(
        WHOLE[: WHOLE.index(b'"c"') + 1] + b'\\"' * 100_000,
        ("a", "b"),
        (CUT, r"1 of 3 events .* left out"),
    ),
    "cut after an event": Bad(WHOLE[:-2], THREE, (CUT,)),
    "cut before the first event ends": Bad(WHOLE[:80], error=r"ends at byte 80 of 80.*cut off"),
    "cut in the header": Bad(WHOLE[:15], error=r"ends at byte 15 of 15.*cut off"),
    "a list without its end": Bad(LIST[:-1], ("a", "b")),
    "a list that ends with a comma": Bad(LIST[:-1] + b",\n", ("a", "b")),
    "a list cut in an event": Bad(LIST[:-20], ("a",), (CUT, r"1 of 2 events .* left out")),
    "another order of keys after a broken event": Bad(
        trace(
            event("a"), event("b", ts=20), *({"zz": 1} | event("c", ts=30 + n) for n in range(9))
        ).replace(b'"b"', b'"b'),
        ("a", *"c" * 9),
        (PLACE, r"1 of 11 events are not well-formed and were left out"),
    ),
    "rubbish after the end": Bad(
        WHOLE + b" and more", THREE, (r"8 bytes after the first JSON value, which ends at byte",)
    ),
    "a trace after another": Bad(
        WHOLE + WHOLE, THREE, (r"bytes after the first JSON value.*save it in a file of its own",)
    ),
}

TIMES = {
    "no dur": Bad(trace(event("a"), event("b", dur=ABSENT)), ("a",), (UNTIMED,)),
    "no ts": Bad(trace(event("a"), event("b", ts=ABSENT)), ("a",), (UNTIMED,)),
    "a negative dur": Bad(trace(event("a"), event("b", dur=-1)), ("a",), (UNTIMED,)),
    "a negative ts": Bad(trace(event("a"), event("b", ts=-5)), ("b", "a")),
    "a word as ts": Bad(trace(event("a"), event("b", ts="soon")), ("a",), (UNTIMED,)),
    "a number as text": Bad(
        trace(event("a"), event("b", ts="20.5", dur="7")),
        ("a", "b"),
        durations_ns={"b": 7000},
    ),
    "an exponent": Bad(
        trace(event("a"), event("b", ts=20, dur=1e-07)), ("a", "b"), durations_ns={"b": 0}
    ),
    "a ts of another year": Bad(
        trace(event("a"), event("c", ts=11), event("b", ts=1_700_000_000_000_000)),
        ("a", "c"),
        (r"1 of 3 events are more than 104 days away",),
    ),
    "ts 0 and dur 0": Bad(
        trace(event("a", ts=10**9), event("c", ts=10**9 + 9), event("b", ts=0, dur=0)),
        ("a", "c"),
        (r"1 of 3 events have ts 0 and dur 0",),
    ),
    "a counter at 0": Bad(
        trace(event("a", ts=10**9), {"ph": "C", "name": "x", "pid": 1, "ts": 0, "args": {"v": 1}}),
        ("a",),
        (r"1 of 1 counter readings are long before",),
    ),
    "a counter without a number": Bad(
        trace(event("a"), {"ph": "C", "name": "x", "pid": 1, "ts": 1, "args": {"v": "?", "w": 1}}),
        ("a",),
        (r"1 of 2 counter readings have no valid ts or number",),
    ),
}

PAIRS = {
    "a B without E": Bad(
        trace(event("b", ph="B", ts=4, dur=ABSENT), event("a")),
        ("b", "a"),
        (r"1 of 1 begin and end events begin slices that never end",),
        durations_ns={"b": 11_000},
    ),
    "an E without B": Bad(
        trace(event("a"), event("b", ph="E", dur=ABSENT)),
        ("a",),
        (r"1 of 1 begin and end events end slices that never began",),
    ),
    "an arrow beside all slices": Bad(
        trace(
            event("a"),
            event("x", ph="s", id=1, dur=ABSENT, cat="flow", ts=11),
            event("x", ph="f", id=1, dur=ABSENT, cat="flow", ts=90),
        ),
        ("a",),
        (r"2 of 2 ends of arrows",),
    ),
    "slices that cross": Bad(
        trace(event("a", cat="x"), event("b", cat="x", ts=12)),
        ("a", "b"),
        (r"1 of 2 slices cross others of their thread, and are on sub-tracks",),
    ),
}

WRONG_TYPES = {
    "a number as name": Bad(trace(event("a"), event(5)), ("a", "5"), (MENDED.replace("3", "2"),)),
    "a list as args": Bad(
        trace(event("a"), event("b", args=[1])), ("a", "b"), (MENDED.replace("3", "2"),)
    ),
    "null as args": Bad(trace(event("a"), event("b", args=None)), ("a", "b")),
    "an object as pid": Bad(
        trace(event("a"), event("b", pid={})), ("a", "b"), (MENDED.replace("3", "2"),)
    ),
    "a number as kind": Bad(trace(event("a"), event("b", ph=5)), ("a",), (LEFT_OUT,)),
    "a number as event": Bad(
        WHOLE.replace(b"}]", b"}, 7]"),
        THREE,
        (r"1 of 4 events are not well-formed and were left out",),
    ),
    "an unknown kind": Bad(
        trace(event("a"), event("b", ph="?")), ("a",), (r"1 event of kind '\?' is not read",)
    ),
    "a correlation beyond 64 bits": Bad(
        trace(event("a"), event("b", ts=20, args={"correlation": 2**64, "External id": 10**40})),
        ("a", "b"),
        (r"1 of 1 values of 'correlation'", r"1 of 1 values of 'External id'"),
    ),
    "a rank beyond 64 bits": Bad(
        trace(event("a"), distributedInfo={"rank": 10**30}),
        ("a",),
        ('"distributedInfo" of the file is malformed',),
    ),
    "a base time beyond 64 bits": Bad(trace(event("a"), baseTimeNanoseconds=10**40), ("a",)),
    "devices that are none": Bad(
        trace(event("a"), deviceProperties={"id": 0}),
        ("a",),
        ('"deviceProperties" of the file is malformed',),
    ),
}

OTHERS = {
    "no events": Bad(b'{"traceEvents": []}', error=r"without a single slice \(its events: none\)"),
    "an empty list": Bad(b"[]", error=r"without a single slice"),
    "events that are no list": Bad(
        b'{"traceEvents": 5}', error=r"not a list of objects \(they begin with b'5'"
    ),
    "a notebook": Bad(b'{"cells": [], "nbformat": 4}', error=r"found: cells, nbformat"),
    "an object before the trace": Bad(
        b'{"host": "a"}\n' + WHOLE,
        error=r'no "traceEvents" key \(found: host\)\. [\d,]+ bytes after the first JSON value',
    ),
    "the profiler's span alone": Bad(
        trace(event(cat="Trace", pid="Spans"), event("Iteration Start: x", ph="i", s="g")),
        error=r"its events: 2 of the profiler on itself",
    ),
    "nothing well-timed": Bad(trace(event(ts="x")), error=r"1 of 1 events have no valid ts or dur"),
    "a list of lists": Bad(b"[" * 50_000, error="not a list of objects"),
    "events of nothing": Bad(b"[" + b"{}," * 200_000 + b"{}]", error="200,002 lists and objects"),
    "our own trace, changed": Bad(
        trace(event("a"), gpuprof_widgets={"version": 1, "rows": 1, "columns": {}}),
        error=r"was changed since it was saved\.",
    ),
}

BAD_TRACES: dict[str, Bad] = {
    **NOT_JSON,
    **CUT_OFF,
    **TIMES,
    **PAIRS,
    **WRONG_TYPES,
    **OTHERS,
}
"""All of them by name."""

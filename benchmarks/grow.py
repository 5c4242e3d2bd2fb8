"""Makes a large trace out of a small one of Kineto's, to measure how costs grow.

The events are repeated, each copy later than the one before it and with ids of its own, so that no
link leads from one copy to another. Steps are numbered on; the head and the metadata stay once.
With ``--jitter`` no copy has the times of another one, as in a real run: repeated times compress
to almost nothing.

    python benchmarks/grow.py SOURCE.json.gz TIMES OUT.json.gz [--jitter]
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

Event: TypeAlias = dict[str, Any]

STEP = re.compile(r"ProfilerStep#(\d+)")
PAUSE_US = 1_000
"""Between the end of a copy and the start of the next one."""

DECODER = msgspec.json.Decoder(float_hook=Decimal)  # with the digits as written: "1.500" stays so
ENCODER = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True)
class Ids:
    """Keys of ``args`` that number the same things; a number below ``least`` means nothing."""

    keys: tuple[str, ...]
    least: int = 0


LINKS = ("correlation", "wait_on_cuda_event_record_corr_id", "External id", "external id")
IDS = (
    Ids((*LINKS, "Record function id"), least=1),
    Ids(("Sequence number",)),
    Ids(("Ev Idx", "Profiler Event Index")),
    Ids(("Python id", "Python parent id")),
    Ids(("Seq",)),  # of a collective in its group
    Ids(("Addr",)),  # a block that one copy leaves allocated is none that the next one frees
)


@dataclass(frozen=True)
class Strides:
    """By how much a copy differs from the one before it; ``ids`` by key, ``time`` in µs."""

    time: Decimal
    step: int
    arrow: int
    ids: dict[str, tuple[int, int]]
    """The least id that means something, and the stride."""

    @classmethod
    def of(cls, events: Sequence[Event]) -> Strides:
        """Those that keep the copies of these events apart."""
        timed = [event for event in events if is_repeated(event)]
        start = min(event["ts"] for event in timed)
        end = max(event["ts"] + event.get("dur", 0) for event in timed)
        steps = [int(match[1]) for event in events if (match := step_of(event))]
        arrows = [event["id"] for event in timed if is_arrow(event)]
        strides = [(space, _after_largest(events, space)) for space in IDS]
        return cls(
            time=Decimal(end - start + PAUSE_US),
            step=max(steps, default=0) - min(steps, default=0) + 1,
            arrow=max(arrows, default=0) + 1,
            ids={key: (space.least, stride) for space, stride in strides for key in space.keys},
        )


def _after_largest(events: Sequence[Event], space: Ids) -> int:
    args = (event.get("args", {}) for event in events)
    used = (given[key] for given in args for key in space.keys if isinstance(given.get(key), int))
    return max(used, default=0) + 1


def is_repeated(event: Event) -> bool:
    """Metadata events, which name processes and threads, stay once."""
    return bool(event["ph"] != "M")


def is_arrow(event: Event) -> bool:
    """Whether it is an end of an arrow, which its id joins with the other end."""
    return event["ph"] in ("s", "t", "f")


def step_of(event: Event) -> re.Match[str] | None:
    """The name of the event as that of a step."""
    return STEP.fullmatch(str(event.get("name")))


def copy_of(event: Event, number: int, strides: Strides) -> Event:
    """The event in the copy of that number; the source itself is copy 0."""
    copy = {**event, "ts": event["ts"] + number * strides.time}
    if is_arrow(event):
        copy["id"] += number * strides.arrow
    if step := step_of(event):
        copy["name"] = f"ProfilerStep#{int(step[1]) + number * strides.step}"
    if "args" in event:
        copy["args"] = {
            key: value + number * strides.ids[key][1] if _is_id(key, value, strides) else value
            for key, value in event["args"].items()
        }
    return copy


def _is_id(key: str, value: Any, strides: Strides) -> bool:
    return key in strides.ids and isinstance(value, int) and value >= strides.ids[key][0]


NS = Decimal("0.001")
"""A nanosecond in µs, the unit of the times of a trace."""


def jittered(events: Sequence[Event], seed: int) -> list[Event]:
    """The events, with 50 to 150 % of the time between any two moments at which one starts or ends.

    Nothing changes its place: what began before another event, or within it, still does.
    """
    chance = random.Random(seed)
    moments = sorted({Decimal(at) for event in events for at in (event["ts"], _end(event))})
    gaps = [(after - before) * chance.randint(500, 1_500) for before, after in pairwise(moments)]
    scale = (moments[-1] - moments[0]) / sum(gaps) if gaps else Decimal(1)
    moved = [moments[0] + (passed * scale).quantize(NS) for passed in accumulate(gaps, initial=0)]
    new = dict(zip(moments, moved, strict=True))
    return [
        event
        | {"ts": new[event["ts"]]}
        | ({"dur": new[_end(event)] - new[event["ts"]]} if "dur" in event else {})
        for event in events
    ]


def _end(event: Event) -> Decimal:
    return Decimal(event["ts"] + event.get("dur", 0))


def grown(document: dict[str, Any], times: int, *, jitter: bool = False) -> Iterator[bytes]:
    """The file of the larger trace in blocks, laid out as Kineto lays it out."""
    events = document["traceEvents"]
    repeated = [event for event in events if is_repeated(event)]
    strides = Strides.of(events)
    head = {key: value for key, value in document.items() if key != "traceEvents"}
    members = [b"  %b: %b,\n" % (ENCODER.encode(k), ENCODER.encode(v)) for k, v in head.items()]
    yield b'{\n%b  "traceEvents": [\n' % b"".join(members)
    yield _written(events)
    for number in range(1, times):
        yield b",\n"
        source = jittered(repeated, number) if jitter else repeated
        yield _written([copy_of(event, number, strides) for event in source])
    yield b"\n  ]\n}\n"


def _written(events: Sequence[Event]) -> bytes:
    return b",\n".join(b"  {\n    %b\n  }" % ENCODER.encode(event)[1:-1] for event in events)


def grow(source: Path, times: int, target: Path, *, jitter: bool = False) -> None:
    """Write the trace that has the events of the source so many times; both are gzipped."""
    document = DECODER.decode(gzip.decompress(source.read_bytes()))
    with gzip.open(target, "wb", compresslevel=1) as file:
        file.writelines(grown(document, times, jitter=jitter))


def main() -> None:
    """Write the larger trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="a trace, .json.gz")
    parser.add_argument("times", type=int, help="how many times its events are written")
    parser.add_argument("target", type=Path, help="the .json.gz to write")
    parser.add_argument("--jitter", action="store_true", help="no copy has the times of another")
    arguments = parser.parse_args()
    if arguments.times < 1:
        parser.error("TIMES is 1 or more")
    grow(arguments.source, arguments.times, arguments.target, jitter=arguments.jitter)


if __name__ == "__main__":
    main()

"""Gather the events of a Chrome trace: slices as columns, batch by batch; all others as they are.

Batches are turned into columns at once, so that none has to be kept in memory.

Call stacks become args. A file keeps them as Kineto writes them: ``stackFrames`` is an object of
frames by id, each with a ``name`` and the id of its ``parent``; an event names its innermost frame
as ``sf``, or lists its own frames, outermost first, as ``stack``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from gpuprof_widgets.trace.arrays import Codes, Ints, Mask
from gpuprof_widgets.trace.event_json import Event, TraceFile
from gpuprof_widgets.trace.events import Events, from_codes, nanoseconds, no_rows, text_codes, typed
from gpuprof_widgets.trace.scanned_events import ScannedFile, ScannedSlices, UnusualError
from gpuprof_widgets.trace.schema import CATEGORY_ALIASES

INSTANTS = ("i", "I", "R")
SLICES = frozenset(("X", *INSTANTS))
KNOWN_PHASES = frozenset((*SLICES, *"MCsftBEbneSTpFNOD"))
SAMPLE = "P"
"""The phase of samples of stacks, which are only counted."""

TOGETHER = dict.fromkeys("BE", "B") | dict.fromkeys("bneSTpF", "b")
"""Phases whose events are kept in one list, because their order in the file counts."""

LONGEST_NS = 2**53
"""Every slice is shorter (104 days), because JavaScript holds no exact ns beyond it."""

_MOST_UNKNOWN_PHASES = 20
_LONGEST_PHASE = 20
_OTHER_PHASES = "(other)"

MARKERS = ("Iteration Start", "Record Window End")
"""Starts of the names of Kineto's global instants."""

LAUNCH_ARROWS = frozenset(
    (("ac2g", "ac2g"), ("async_cpu_to_gpu", "async_gpu"), ("async", "launch"))
)
"""Kineto's arrows from launch to kernel, by category and name; the last ones are torch 1.8's."""

MOST_KEYS = 1000
"""Number of keys of args with a column each, because a file of nothing but keys took minutes."""

MORE_ARGS = "More args"
"""The arg that holds all other args of a slice, by key."""

STACK_FRAMES, SAMPLES = "stackFrames", "samples"
CALL_STACK = "Call stack"
"""The arg of a slice with its frames, innermost first, separated by semicolons."""

DEEPEST = 200
"""Number of frames that are followed, so that a circle of parents ends."""

MOST_TEXT = 48 << 20
"""Rough limit on the characters of all stacks: a small file can stand for many times its size."""
_COST_OF_A_FRAME = 8
"""Cost of following a frame, in characters, however short its name is."""
_WITHOUT_STACK = frozenset(("E", "e", "F", "D", SAMPLE))
"""Phases of events that end a slice, whose ``sf`` is the stack at the end, and of samples."""

_NO_TIME = msgspec.Raw(b"0")

_encode = msgspec.json.Encoder().encode


class Dictionary:
    """Numbers values in the order in which they first come."""

    def __init__(self) -> None:
        self._number: dict[Any, int] = {}
        self._codes: list[Codes] = [np.empty(0, np.int32)]

    def add(self, values: Sequence[Any]) -> None:
        number = self._number
        for value in set(values).difference(number):
            number[value] = len(number)
        codes = map(number.__getitem__, values)
        self._codes.append(np.fromiter(codes, dtype=np.int32, count=len(values)))

    def categorical(self, text: Callable[[Any], str]) -> pd.Categorical:
        """Return all values as text, with a sorted dictionary."""
        return from_codes(np.concatenate(self._codes), list(map(text, self._number)))


class Args:
    """Sparse columns of the args of events.

    Events of one kind have the same keys in the same order, so they become columns in one step.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[Ints]] = defaultdict(list)
        self._values: dict[str, list[Any]] = defaultdict(list)
        self._known: dict[bytes, Any] = {}

    def add(self, args: Sequence[dict[str, Any] | None], first_row: int) -> None:
        groups: dict[tuple[str, ...], tuple[list[int], list[dict[str, Any]]]] = {}
        group_of = groups.get
        for row, event_args in enumerate(args, first_row):
            if event_args:
                keys = tuple(event_args)
                group = group_of(keys)
                if group is None:
                    group = groups[keys] = ([], [])
                group[0].append(row)
                group[1].append(event_args)
        for keys, (rows, alike) in groups.items():
            index = np.array(rows, dtype=np.int64)
            values = map(dict.values, alike)
            for key, column in zip(keys, zip(*values, strict=True), strict=True):
                self._rows[key].append(index)
                self._values[key].extend(self._shared(column))

    def _shared(self, column: Sequence[Any]) -> Sequence[Any]:
        """Return the column with equal lists as one object: shapes, types and grids repeat."""
        if type(column[0]) is not list:
            return column
        known = self._known
        try:
            return [known.setdefault(_encode(value), value) for value in column]
        except OverflowError:  # an integer beyond 64 bits
            return column

    def rare(self) -> list[str]:
        """Return the keys beyond `MOST_KEYS`, rarest last, which get no column of their own."""
        if len(self._values) <= MOST_KEYS + 1:  # a saved trace has `MORE_ARGS` in addition
            return []
        values = self._values
        by_number = sorted(values, key=lambda key: (key == MORE_ARGS, -len(values[key])))
        return by_number[MOST_KEYS:]

    def columns(self) -> dict[str, pd.Series]:
        """Return a column per key, and the rare keys together as `MORE_ARGS`."""
        rare = self.rare()
        frequent = self._values.keys() - set(rare)
        columns = {
            key: typed(values, np.concatenate(self._rows[key]))
            for key, values in self._values.items()
            if key in frequent
        }
        together: dict[int, dict[str, Any]] = defaultdict(dict)
        for key in rare:
            rows = np.concatenate(self._rows[key]).tolist()
            for row, value in zip(rows, self._values[key], strict=True):
                together[row][key] = value
        if rare:
            places = sorted(together)
            columns[MORE_ARGS] = typed([together[row] for row in places], np.array(places))
        return columns


class Gathered:
    """All events of a file, as the reader needs them.

    - ``events()``: the slices and instants;
    - ``others``: all other events, by phase ("M", "C", "s", "N", ...; begin and end events under
      "B", async events under "b"). Phases that the format does not know are left out, and so are
      launch arrows, because correlation ids say the same;
    - ``bound``: the slices with a ``bind_id``, where arrows begin or end, by row;
    - ``instants``: the rows that are instants;
    - ``spans``: the profiler's notes on itself (name, ts, dur in ns);
    - ``samples``: number of samples of stacks, as events or in the list under `SAMPLES`;
    - ``left_out``, ``mended``, ``notes``: those of the `TraceFile`;
    - ``without_stack``: number of events whose stacks were too much text; ``untimed``: of slices
      without a valid time;
    - ``phases``: number of events of each kind other than slices; ``total``: of all events.
    """

    def __init__(self, file: TraceFile) -> None:
        self.header = file.header
        self.others: dict[str, list[Event]] = defaultdict(list)
        self.bound: dict[int, Event] = {}
        self.instants: list[int] = []
        self.spans: list[tuple[str, int, int]] = []
        self.phases: Counter[str] = Counter()
        self.total = 0
        self.rows = 0
        self.untimed = 0
        self._ts, self._dur = [no_rows()], [no_rows()]
        self._codes = {name: Dictionary() for name in ("name", "category", "process", "thread")}
        self._args = Args()
        self._scanned: ScannedSlices | None = None
        stacks = CallStacks(self.header.get(STACK_FRAMES))
        for batch in file.batches:
            stacks.give(batch)
            self._add(batch)
            if isinstance(file, ScannedFile) and (self.rows or self.untimed):
                raise UnusualError("slices that only the complete reader knows")
        self.header.pop(STACK_FRAMES, None)
        self.samples = self.phases[SAMPLE] + self._listed_samples()
        if isinstance(file, ScannedFile) and file.slices is not None:  # these are all of the file
            self._scanned = file.slices
            self.rows = file.slices.rows
            self.instants = file.slices.instants()
            self.phases += file.slices.arrows
            self.total += self.rows + file.slices.arrows.total()
        self.left_out, self.mended, self.notes = file.left_out, file.mended, file.notes
        self.without_stack = stacks.left_out

    def _listed_samples(self) -> int:
        """Count and drop the global samples; another list under their key is the user's own."""
        listed = self.header.get(SAMPLES)
        if not isinstance(listed, list) or not all(
            isinstance(sample, dict) and "ts" in sample for sample in listed
        ):
            return 0
        del self.header[SAMPLES]
        return len(listed)

    @property
    def rare_keys(self) -> int:
        """Number of keys of args that are kept together under `MORE_ARGS`."""
        return len(self._args.rare())

    def events(self) -> Events:
        """Return the slices and instants as columns; only once, because it frees their parts."""
        if self._scanned is not None:
            return self._scanned.events(_category, id_text)
        # The codes take half of the memory if every event has a name or thread of its own.
        codes, self._codes = self._codes, {}
        return Events(
            ts=np.concatenate(self._ts),
            dur=np.concatenate(self._dur),
            name=codes.pop("name").categorical(str),
            category=codes.pop("category").categorical(_category),
            process=codes.pop("process").categorical(id_text),
            thread=codes.pop("thread").categorical(id_text),
            args=self._args.columns(),
        )

    def _add(self, batch: list[Event]) -> None:
        if not batch:
            return
        self.total += len(batch)
        slices = [event for event in batch if event.ph in SLICES]
        others = [event for event in batch if event.ph not in SLICES]
        for phase, count in Counter([event.ph for event in others]).items():
            self.phases[self._phase(phase)] += count
        for event in others:
            if event.ph in KNOWN_PHASES and (event.cat, event.name) not in LAUNCH_ARROWS:
                self.others[TOGETHER.get(event.ph, event.ph)].append(event)
        self._add_slices(self._without_markers(slices))

    def _phase(self, written: str) -> str:
        """Return the phase under which to count; of unknown ones, the first few have their own."""
        few = len(self.phases.keys() - KNOWN_PHASES) < _MOST_UNKNOWN_PHASES
        named = written in KNOWN_PHASES or written in self.phases or few
        return written[:_LONGEST_PHASE] if named else _OTHER_PHASES

    def _without_markers(self, slices: list[Event]) -> list[Event]:
        """Move the profiler's own span, "Iteration Start" and "Record Window End" to ``spans``."""
        markers = [event for event in slices if event.cat == "Trace" or event.s == "g"]
        markers = [event for event in markers if _is_marker(event)]
        if not markers:
            return slices
        ts, dur, valid = times(markers)
        for event, at, length, good in zip(markers, ts.tolist(), dur.tolist(), valid, strict=True):
            if good:
                self.spans.append((event.name, at, length))
        return [event for event in slices if not _is_marker(event)]

    def _add_slices(self, slices: list[Event]) -> None:
        ts, dur, valid = times(slices)
        if not valid.all():
            self.untimed += int(np.count_nonzero(~valid))
            slices = [event for event, good in zip(slices, valid.tolist(), strict=True) if good]
            ts, dur = ts[valid], dur[valid]
        self._ts.append(ts)
        self._dur.append(dur)
        self._codes["name"].add([event.name for event in slices])
        self._codes["category"].add([event.cat or event.ph for event in slices])
        self._codes["process"].add([event.pid for event in slices])
        self._codes["thread"].add([event.tid for event in slices])
        self._args.add([event.args for event in slices], self.rows)
        self.instants += [row for row, event in enumerate(slices, self.rows) if event.ph != "X"]
        numbered = enumerate(slices, self.rows)
        self.bound |= {row: event for row, event in numbered if event.bind_id is not None}
        self.rows += len(slices)


def events_of(written: Sequence[Event], ts: Ints, dur: Ints) -> Events:
    """Return these events as columns, at these times (ns)."""
    args = Args()
    args.add([event.args for event in written], 0)
    return Events(
        ts=ts,
        dur=dur,
        name=text_codes([event.name for event in written]),
        category=text_codes([_category(event.cat or event.ph) for event in written]),
        process=text_codes([id_text(event.pid) for event in written]),
        thread=text_codes([id_text(event.tid) for event in written]),
        args=args.columns(),
    )


def _is_marker(event: Event) -> bool:
    """Whether this is a slice or instant by which Kineto says when it recorded."""
    if event.cat == "Trace":
        return event.pid in ("Spans", "Traces")
    return event.s == "g" and event.name.startswith(MARKERS)


def times(events: Sequence[Event]) -> tuple[Ints, Ints, Mask]:
    """Return start and duration in ns, and which events have both valid; instants last 0 ns."""
    ts, good_ts = nanoseconds(_texts([event.ts for event in events]))
    written = [event.dur if event.ph == "X" else _NO_TIME for event in events]
    dur, good_dur = nanoseconds(_texts(written))
    return ts, dur, good_ts & good_dur & (dur >= 0) & (dur < LONGEST_NS)


def _texts(raws: Sequence[msgspec.Raw]) -> list[bytes]:
    """Return the raw texts as bytes; joining and splitting is several times faster than a loop."""
    texts = b"\n".join(raws).split(b"\n") if raws else []
    return texts if len(texts) == len(raws) else [bytes(raw) for raw in raws]


def id_text(value: Any) -> str:
    """Return a process or thread id as text."""
    return "" if value is None else str(value)


def _category(written: str) -> str:
    """Return today's name of a category; events without one have their phase as ``written``."""
    if written in INSTANTS:
        return "cpu_instant_event"
    return CATEGORY_ALIASES.get(written, "other" if written in KNOWN_PHASES else written)


class CallStacks:
    """The stacks of a file's events; each text is made once.

    ``left_out`` counts the events whose stack was not read because of too much text before it.
    """

    def __init__(self, frames: Any) -> None:
        self._frames: dict[str, Any] = frames if isinstance(frames, dict) else {}
        self._known: dict[str, str] = {}
        self._room = MOST_TEXT
        self.left_out = 0

    def give(self, events: Iterable[Event]) -> None:
        """Add to the args of each event the stack that it has."""
        for event in events:
            if (event.sf is None and event.stack is None) or event.ph in _WITHOUT_STACK:
                continue
            text = self._text(event)
            self.left_out += text is None
            if text:
                event.args = {**(event.args or {}), CALL_STACK: text}

    def _text(self, event: Event) -> str | None:
        """Return the event's stack, "" if it has none, None if there is no room for it."""
        if event.sf is None:
            frames = event.stack if isinstance(event.stack, list) else []
            return ";".join(name for name in frames[: -DEEPEST - 1 : -1] if isinstance(name, str))
        frame = str(event.sf)
        if frame not in self._known and self._room > 0:
            names = list(self._names(frame))
            self._room -= sum(map(len, names)) + _COST_OF_A_FRAME * len(names)
            self._known[frame] = ";".join(names)
        return self._known.get(frame)

    def _names(self, frame: str) -> Iterator[str]:
        """Yield the names of a frame and of its callers."""
        for _ in range(DEEPEST):
            entry = self._frames.get(frame)
            if not isinstance(entry, dict):
                return
            yield str(entry.get("name", ""))
            if entry.get("parent") is None:
                return
            frame = str(entry["parent"])

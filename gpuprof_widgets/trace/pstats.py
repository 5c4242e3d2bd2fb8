"""cProfile's statistics as `Calls`, and back as the file that pstats and snakeviz open.

cProfile counts in seconds (float64); `Calls` has them rounded to whole nanoseconds, which is the
resolution of its clock. Written back, each time is that number of nanoseconds in seconds.
"""

from __future__ import annotations

import marshal
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.assemble import empty_trace
from gpuprof_widgets.trace.files import write_whole
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.schema import LANGUAGE

Ints = NDArray[np.int64]

Function = tuple[str, int, str]
"""File, first line and name, as cProfile keys its functions."""

Numbers = tuple[int, int, float, float]
"""Primitive calls, calls, seconds inside, seconds inside and below."""

Stats = Mapping[Function, tuple[int, int, float, float, Mapping[Function, Numbers]]]

NUMBER_COLUMNS = ("primitive_calls", "calls", "self_ns", "total_ns")
MOST = 2**62
"""Calls, and ns, that fit an int64 and sums of a few."""
_MARSHAL_DICT = (b"{", b"\xfb")
_MARSHAL_KEYS = (b"(", b"\xa8", b")", b"\xa9", b"0")


def calls_of_stats(stats: Stats) -> Calls:
    """`Calls` from cProfile's ``stats`` (after ``create_stats()``), in the order of its keys."""
    names = list(dict.fromkeys([*stats, *(c for entry in stats.values() for c in entry[4])]))
    row = {name: number for number, name in enumerate(names)}
    own = [stats[name][:4] if name in stats else (0, 0, 0.0, 0.0) for name in names]
    functions = pd.DataFrame(
        {
            "file": pd.Series([name[0] for name in names], dtype=object),
            "line": np.array([name[1] for name in names], dtype=np.int64),
            "name": pd.Series([name[2] for name in names], dtype=object),
            **_columns(own),
        }
    )
    edges = [
        (row[caller], row[callee], numbers)
        for callee, entry in stats.items()
        for caller, numbers in entry[4].items()
    ]
    edge_table = pd.DataFrame(
        {
            "caller": np.array([edge[0] for edge in edges], dtype=np.int32),
            "callee": np.array([edge[1] for edge in edges], dtype=np.int32),
            **_columns([_swapped(edge[2]) for edge in edges]),
        }
    )
    return Calls(_ordered(functions), _ordered(edge_table))


def stats_of_calls(calls: Calls) -> dict[Function, Any]:
    """The ``stats`` of cProfile from `Calls`: what ``marshal.dump`` writes for pstats."""
    table = calls.functions
    names = list(zip(table["file"], table["line"].tolist(), table["name"], strict=True))
    callers: list[dict[Function, Numbers]] = [{} for _ in names]
    edges = zip(
        calls.edges["caller"].tolist(),
        calls.edges["callee"].tolist(),
        _numbers(calls.edges),
        strict=True,
    )
    for caller, callee, numbers in edges:
        callers[callee][names[caller]] = _swapped(numbers)
    own = _numbers(table)
    return {name: (*numbers, by) for name, numbers, by in zip(names, own, callers, strict=True)}


def _swapped(numbers: Any) -> Numbers:
    """The numbers of a caller, which cProfile writes with all calls before the primitive ones."""
    first, second, own, total = numbers
    return second, first, own, total


def dump_pstats(calls: Calls) -> bytes:
    """The bytes of a file that ``pstats.Stats(path)`` and snakeviz open."""
    return marshal.dumps(stats_of_calls(calls))


def save_pstats(calls: Calls, path: str | os.PathLike[str]) -> Path:
    """Write a file that pstats and snakeviz open, whole or not at all; returns its path."""
    data = dump_pstats(calls)
    return write_whole(path, lambda file: file.write(data))


def is_pstats(data: bytes) -> bool:
    """Whether these bytes start as a marshalled dict whose keys are tuples."""
    return data[:1] in _MARSHAL_DICT and data[1:2] in _MARSHAL_KEYS


def parse_pstats(data: bytes, path: Path) -> Record:
    """The record of a file of cProfile: calls, and a trace without slices."""
    calls, notes = _calls_and_notes(data, path)
    return Record(
        empty_trace(), calls, {"source": str(path), "recorded_by": "cProfile", "notes": notes}
    )


def load_calls(data: bytes, path: Path) -> Calls:
    """`Calls` from the bytes of a pstats file; ``path`` is named in errors."""
    return _calls_and_notes(data, path)[0]


def _calls_and_notes(data: bytes, path: Path) -> tuple[Calls, list[str]]:
    """The calls, and what of them is not plausible and was left out."""
    stats = plain_statistics(data, path)
    if not isinstance(stats, dict):
        raise TraceError(
            f"{path}: starts as a file of cProfile, but holds a {type(stats).__name__} where a "
            "dict of functions was expected; write it again with cProfile's dump_stats."
        )
    kept = {name: entry for name, entry in stats.items() if _has_line(name) and _is_entry(entry)}
    total = sum(len(entry[4]) for entry in kept.values())
    if total > len(data):
        raise TraceError(
            f"{path}: {total:,} pairs of caller and callee in a file of {len(data):,} bytes: its "
            "functions share their callers, which cProfile does not write. It was made to do harm."
        )
    edges = {name: _plausible(entry[4]) for name, entry in kept.items()}
    if stats and not kept:
        raise TraceError(
            f"{path}: starts as a file of cProfile, but none of its {len(stats):,} functions has "
            "calls, times and callers; write it again with cProfile's dump_stats."
        )
    calls = calls_of_stats({name: (*entry[:4], edges[name]) for name, entry in kept.items()})
    wrong = (
        (len(stats) - len(kept), f"of {len(stats):,} functions"),
        (total - sum(map(len, edges.values())), f"of {total:,} pairs of caller and callee"),
    )
    what = "have no valid line, calls or times and were left out"
    return calls, [f"{count:,} {of} {what}" for count, of in wrong if count]


def _is_entry(entry: Any) -> bool:
    """Whether this is what cProfile has of a function: numbers, and a dict of its callers."""
    return (
        type(entry) is tuple
        and len(entry) == 5
        and isinstance(entry[4], dict)
        and _are_numbers(entry[:4])
    )


def _has_line(function: Function) -> bool:
    return abs(function[1]) < MOST


def _plausible(callers: Mapping[Function, Any]) -> dict[Function, Numbers]:
    return {
        caller: numbers
        for caller, numbers in callers.items()
        if _has_line(caller)
        and type(numbers) is tuple
        and len(numbers) == 4
        and _are_numbers(numbers)
    }


def _are_numbers(numbers: tuple[Any, ...]) -> bool:
    """Two counts and two times in seconds; a clock that was set back makes times negative."""
    counts, times = numbers[:2], numbers[2:]
    return all(type(n) is int and 0 <= n < MOST for n in counts) and all(
        type(t) in (int, float) and abs(t) < MOST / 1e9 for t in times
    )


def _columns(numbers: list[Any]) -> dict[str, Any]:
    columns = list(zip(*numbers, strict=True)) or [()] * 4
    seconds = [np.array(column, dtype=np.float64) for column in columns[2:]]
    return {
        "primitive_calls": np.array(columns[0], dtype=np.int64),
        "calls": np.array(columns[1], dtype=np.int64),
        "self_ns": np.rint(seconds[0] * 1e9).astype(np.int64),
        "total_ns": np.rint(seconds[1] * 1e9).astype(np.int64),
    }


def _numbers(table: pd.DataFrame) -> list[Numbers]:
    primitive, calls, own, total = (table[name].to_numpy() for name in NUMBER_COLUMNS)
    return list(
        zip(
            primitive.tolist(),
            calls.tolist(),
            (own / 1e9).tolist(),
            (total / 1e9).tolist(),
            strict=True,
        )
    )


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Columns in the order in which `Calls` describes them."""
    first = [name for name in table.columns if name not in NUMBER_COLUMNS]
    return table[[*first, "calls", "primitive_calls", "self_ns", "total_ns"]]


_FUNCTION = ["file", "line", "name"]
_NUMBERS = ["calls", "primitive_calls", "self_ns", "total_ns"]
_ENDING = re.compile(r"(\.(prof|pstats|profile|cprof|gz|zst|bz2|xz))+$")
_SAVED_AS = "cell"
"""The name under which a saved profile has the calls of the whole."""


def added_up(several: Sequence[Calls]) -> Calls:
    """The calls of several processes as one table; functions are the same by file, line, name."""
    if len(several) == 1:
        return several[0]
    every = pd.concat([calls.functions for calls in several], ignore_index=True)
    number = every.groupby(_FUNCTION, sort=False).ngroup().to_numpy()
    functions = every.groupby(_FUNCTION, sort=False, as_index=False)[_NUMBERS].sum()
    functions = functions.astype({"file": object, "name": object})
    edges, first = [], 0
    for calls in several:
        place = number[first : first + len(calls.functions)]
        first += len(calls.functions)
        ends = {end: place[calls.edges[end].to_numpy()] for end in ("caller", "callee")}
        edges.append(calls.edges.assign(**ends))
    pairs = pd.concat(edges, ignore_index=True).groupby(["caller", "callee"], as_index=False)
    ends_as = {"caller": np.int32, "callee": np.int32}
    return Calls(functions, pairs[_NUMBERS].sum().astype(ends_as))


def only_calls(record: Record) -> bool:
    """Whether a record is of a file of cProfile: calls, and no trace."""
    return record.calls is not None and not len(record.trace) and not record.calls_of_workers


def one_of_calls(records: Mapping[str, Record], source: str) -> Record:
    """Files of cProfile added up; each of them stays in ``calls_of_workers``, by its name."""
    calls = [record.calls for record in records.values() if record.calls is not None]
    first = next(iter(records.values()))
    notes = [
        f"{name}: {note}"
        for name, record in records.items()
        for note in record.metadata.get("notes") or []
    ]
    added = f"{len(calls)} files of cProfile ({', '.join(list(records)[:6])}"
    added += f" and {len(calls) - 6} more" if len(calls) > 6 else ""
    told = f"{added}) were added up; calls_of_workers has each of them"
    return Record(
        first.trace,
        added_up(calls),
        {"source": source, "notes": [*notes, told]},
        dict(zip(_labels(records), calls, strict=True)),
    )


def _labels(names: Iterable[str]) -> list[str]:
    """The files' names without their endings, as the files of a saved profile can be called."""
    labels: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.@+-]+", "_", _ENDING.sub("", name)).lstrip("._") or "file"
        label, number = plain, 2
        while label in (*labels, _SAVED_AS):
            label, number = f"{plain}_{number}", number + 1
        labels.append(label)
    return labels


DEEPEST = 8
"""Objects in one another; cProfile's statistics have 5."""

_REFERRED_TO = 0x80
_END_OF_DICT = object()
_UNFINISHED = object()
_PLAIN_MARSHAL_FUNCTION = (str, int, str)
_LONGEST_TUPLE = 5
"""Items of what is known of a function; a caller has 4, a function's name 3."""
_LONGEST_NUMBER = 64
"""Digits (of 15 bits) of an integer."""


def plain_statistics(data: bytes, path: Path) -> Any:
    """What the marshalled data holds; `TraceError` if that is more than statistics, or damaged."""
    reader = _Reader(data, path)
    try:
        return reader.value(0)
    except TraceError:  # which is a ValueError
        raise
    except (struct.error, IndexError) as error:
        raise reader.error(
            f"ends at byte {len(data):,} within what began as a file of cProfile; it was cut off "
            "or damaged"
        ) from error
    except (UnicodeDecodeError, OverflowError, ValueError) as error:
        raise reader.error(
            f"text or a number at byte {reader.at:,} cannot be read ({error})"
        ) from error


class _Reader:
    """Reads one object after the other; ``referred`` are those that later ones may stand for."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.referred: list[Any] = []
        self.kinds: dict[int, Callable[[int], Any]] = {
            ord("N"): lambda _: None,
            ord("i"): lambda _: self.unpacked("<i"),
            ord("l"): lambda _: self._long(),
            ord("g"): lambda _: self.unpacked("<d"),
            ord("f"): lambda _: float(self._taken(self.unpacked("<B"))),
            ord("("): lambda depth: self._tuple(self.unpacked("<i"), depth),
            ord(")"): lambda depth: self._tuple(self.unpacked("<B"), depth),
            **{ord(kind): lambda _: self._text("<i", "utf-8") for kind in "ut"},
            **{ord(kind): lambda _: self._text("<i", "latin-1") for kind in "aA"},
            **{ord(kind): lambda _: self._text("<B", "latin-1") for kind in "zZ"},
        }

    def error(self, what: str) -> TraceError:
        return TraceError(
            f"{self.path}: starts as a file of cProfile but cannot be read: {what}. Copy the file "
            "again, or write it again with cProfile's dump_stats or Profile.save_pstats."
        )

    def value(self, depth: int) -> Any:
        """The next object, or the mark that ends a dict."""
        if depth > DEEPEST:
            raise self.error(f"objects in one another, {depth} deep, at byte {self.at:,}")
        byte = self.data[self.at]
        self.at += 1
        kind = byte & ~_REFERRED_TO
        if kind == ord("r"):
            return self._reference()
        if kind == ord("0"):
            return _END_OF_DICT
        place = len(self.referred)
        if byte & _REFERRED_TO:
            self.referred.append(_UNFINISHED)
        found = self._dict(depth) if kind == ord("{") else self._other(kind, depth)
        if byte & _REFERRED_TO:
            self.referred[place] = found
        return found

    def unpacked(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def _other(self, kind: int, depth: int) -> Any:
        read = self.kinds.get(kind)
        if read is None:
            raise self.error(
                f"byte {self.at - 1:,} begins an object of type {chr(kind)!r}, where statistics "
                "have numbers, text, tuples and dicts"
            )
        return read(depth)

    def _reference(self) -> Any:
        number = self.unpacked("<i")
        if number < 0 or self.referred[number] is _UNFINISHED:
            raise self.error(f"an object that holds itself at byte {self.at:,}")
        return self.referred[number]

    def _taken(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if length < 0 or self.at > len(self.data):
            raise IndexError(length)
        return self.data[start : self.at]

    def _text(self, length_layout: str, encoding: str) -> str:
        return self._taken(self.unpacked(length_layout)).decode(encoding, "surrogatepass")

    def _long(self) -> int:
        """Digits of 15 bits, the lowest first; their number is negative where the number is."""
        count = self.unpacked("<i")
        if abs(count) > _LONGEST_NUMBER:
            raise self.error(f"a number of {abs(count):,} digits at byte {self.at:,}")
        digits = [self.unpacked("<H") for _ in range(abs(count))]
        size: int = sum(digit << 15 * place for place, digit in enumerate(digits))
        return -size if count < 0 else size

    def _tuple(self, length: int, depth: int) -> tuple[Any, ...]:
        if not 0 <= length <= len(self.data) - self.at:
            raise IndexError(length)
        if length > _LONGEST_TUPLE:
            raise self.error(f"a tuple of {length:,} items at byte {self.at:,}")
        found = tuple(self._inner(depth) for _ in range(length))
        if any(type(item) in (tuple, dict) for item in found[:-1]):
            raise self.error(f"a tuple or dict before byte {self.at:,} where a number belongs")
        return found

    def _inner(self, depth: int) -> Any:
        found = self.value(depth + 1)
        if found is _END_OF_DICT:
            raise self.error(f"the end of a dict that did not begin, at byte {self.at - 1:,}")
        return found

    def _dict(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while (key := self.value(depth + 1)) is not _END_OF_DICT:
            if type(key) is not tuple or tuple(map(type, key)) != _PLAIN_MARSHAL_FUNCTION:
                raise self.error(
                    f"a key before byte {self.at:,} is no function (file, line and name)"
                )
            found[key] = self._inner(depth)
        return found


_PLACE = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

BUILT_IN = "~"
"""The file that cProfile gives to what has none."""


def calls_from_slices(trace: Trace, label: str) -> Calls:
    """What cProfile would have counted, from the exact ``python_function`` slices.

    ``label``: the run's region. As in cProfile, only its thread counts, ``total_ns`` counts a
    function once where it calls itself, and ``primitive_calls`` leaves such calls out.
    """
    slices = trace.slices
    counted = (slices["category"] == "python_function") & (slices["count"] > 0)
    frames = slices[counted & _on_thread_of(trace, label)]
    row = np.full(len(slices) + 1, -1, dtype=np.int64)  # the last entry answers for parent -1
    row[frames.index] = np.arange(len(frames))
    parent = row[frames["parent"].to_numpy()]
    function, places = _functions(frames["name"])
    ts, dur = frames["ts"].to_numpy(), frames["dur"].to_numpy()
    own = links.self_times(ts, ts + dur, parent)
    inner = parent >= 0
    caller, callee = function[parent[inner]], function[inner]
    edge = np.full(len(frames), -1, dtype=np.int64)
    edge[inner], pairs = pd.factorize(caller * len(places) + callee)
    return Calls(
        functions=places.join(_sums(function, len(places), parent, own, dur)),
        edges=pd.DataFrame(
            {"caller": pairs // max(len(places), 1), "callee": pairs % max(len(places), 1)}
        ).join(_sums(edge, len(pairs), parent, own, dur)),
    )


def _on_thread_of(trace: Trace, label: str) -> NDArray[np.bool_]:
    """Whether a slice is on the thread of the region with this name; all are if there is none."""
    slices = trace.slices
    lane = trace.tracks["lane"].to_numpy()[slices["track"].to_numpy()]
    region = np.flatnonzero((slices["category"] == "user_annotation") & (slices["name"] == label))
    return np.asarray(lane == lane[region[0]] if len(region) else np.ones(len(slices), dtype=bool))


def _functions(names: pd.Series) -> tuple[Ints, pd.DataFrame]:
    """Per frame the row of its function, and the functions' ``file``, ``line`` and ``name``."""
    frame_name, distinct = pd.factorize(names)
    places = pd.Index(
        [function_place(name) for name in distinct], dtype=object, tupleize_cols=False
    )
    function_of_name, functions = pd.factorize(pd.Index(places, dtype=object, tupleize_cols=False))
    table = pd.DataFrame(list(functions), columns=["file", "line", "name"])
    return function_of_name[frame_name].astype(np.int64), table.astype({"line": np.int64})


def functions_of_frames(trace: Trace) -> tuple[pd.DataFrame, Ints]:
    """``file``, ``line`` and ``name`` of all frames' functions, and per slice the row of its own.

    -1 is what is no frame.
    """
    frames = np.flatnonzero((trace.slices["category"] == "python_function").to_numpy())
    of_frame, table = _functions(trace.slices["name"].iloc[frames])
    function = np.full(len(trace), -1, np.int64)
    function[frames] = of_frame
    return table, function


def function_place(name: str) -> tuple[str, int, str]:
    """File, line and name of a frame as torch writes it: ``train.py(12): step``.

    Built-in functions have cProfile's file ``~`` and no address, so that their calls add up.
    """
    found = _PLACE.match(name)
    if found:
        return found["file"], int(found["line"]), found["name"]
    return BUILT_IN, 0, _ADDRESS.sub("", name)


def frames_of(record: Record) -> str:
    """What its frames are of, as a legend says it: Python, if nothing else is known."""
    return str(record.metadata.get(LANGUAGE, "Python")) or "functions"


def function_kind(record: Record) -> str:
    """What a frame of this record is called: a Python function, if nothing else is known."""
    return f"{record.metadata.get(LANGUAGE, 'Python')} function".strip()


def with_cell_labels(trace: Trace, cell_labels: Mapping[str, str]) -> Trace:
    """The trace with frames of the notebook's cells named after them: ``Cell [3](12): step``."""
    names = trace.slices["name"].cat
    renamed = names.rename_categories([_labelled(name, cell_labels) for name in names.categories])
    return replace(trace, slices=trace.slices.assign(name=renamed))


def _labelled(name: str, cell_labels: Mapping[str, str]) -> str:
    found = _PLACE.match(name)
    if not found:
        return name
    # torch leaves out the part of the path that is on sys.path, or the root's slash.
    for file, label in cell_labels.items():
        if file.endswith(found["file"]):
            return f"{label}({found['line']}): {found['name']}"
    return name


def _sums(code: Ints, rows: int, parent: Ints, own: Ints, dur: Ints) -> pd.DataFrame:
    """Calls and times of the frames of each code; -1 is left out."""
    counted = code >= 0
    outermost = counted & ~links.below_its_like(parent, code + 1)
    total = np.zeros(rows, dtype=np.int64)
    np.add.at(total, code[outermost], dur[outermost])
    self_ns = np.zeros(rows, dtype=np.int64)
    np.add.at(self_ns, code[counted], own[counted])
    return pd.DataFrame(
        {
            "calls": np.bincount(code[counted], minlength=rows),
            "primitive_calls": np.bincount(code[outermost], minlength=rows),
            "self_ns": self_ns,
            "total_ns": total,
        }
    )

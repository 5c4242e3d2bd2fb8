"""The quick reader of Chrome traces gives what the complete reader gives, or leaves it to that."""

from __future__ import annotations

import ctypes.util
import gzip
import json
import lzma
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import packing, readers, scanned_events
from gpuprof_widgets.trace.chrome_trace import complete_record, parse_chrome_trace, quick_record
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.scanned_events import UnusualError, is_compiled, scanned_file
from tests.records import JSON, NAMES, assert_same_record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not is_compiled() and shutil.which("cc") is None, reason="there is no C compiler"
    ),
]

PATH = Path("trace.json")
DATA = Path(__file__).parent / "data"


def quick(text: bytes, size: int = 1 << 20) -> Record | None:
    return quick_record((text[at : at + size] for at in range(0, len(text), size)), PATH)


def trace(*events: str, head: str = "") -> bytes:
    return f'{{{head}"traceEvents": [{", ".join(events)}]}}'.encode()


def event(**changes: str | None) -> str:
    """Return a slice with these values in JSON; None leaves a key out."""
    plain: dict[str, str | None] = {
        "ph": '"X"',
        "cat": '"cpu_op"',
        "name": '"aten::mm"',
        "pid": "1",
        "tid": "2",
        "ts": "10.5",
        "dur": "3.25",
    }
    values = {**plain, **changes}
    members = [f'"{key}": {value}' for key, value in values.items() if value]
    return f"{{{', '.join(members)}}}"


def assert_quick(text: bytes) -> None:
    """The quick reader reads it, as the complete one does."""
    read = quick(text)
    assert read is not None
    assert_same_record(read, complete_record(text, PATH))


def assert_left_to_the_complete_reader(text: bytes) -> None:
    assert quick(text) is None


@pytest.mark.parametrize(
    "number",
    [
        *("0", "7", "12.5", "100.123", "1712195495545500.683", "5.0", "0.001"),
        # more than 3 decimals: half to even
        *("1.0005", "1.0015", "1.00050001", "1.0014999", "1.00250", "123456789012.0004999"),
    ],
)
def test_times_are_read_exactly(number: str) -> None:
    assert_quick(trace(event(ts=number), event(ts=number)))
    if len(number) < 15:
        assert_quick(trace(event(), event(dur=number)))


@pytest.mark.parametrize(
    "number",
    ["-5", "1e3", "1.5E2", '"7"', "null", "4611686018427387.904", "99999999999999999999", "true"],
)
def test_odd_times_are_left_to_the_complete_reader(number: str) -> None:
    assert_left_to_the_complete_reader(trace(event(), event(ts=number)))
    assert_left_to_the_complete_reader(trace(event(), event(dur=number)))


def test_durations_that_are_too_long_are_left_to_the_complete_reader() -> None:
    assert_quick(trace(event(dur="9007199254740.991")))
    assert_left_to_the_complete_reader(trace(event(), event(dur="9007199254740.992")))


@pytest.mark.parametrize(
    "values",
    [
        ["1", "-7", "0"],
        ["999999999999999999", "9999999999999999999", "-0", "123456789012345678901234567890"],
        ["1.5", "0.1", "-0.0", "21.79487", "12.345678901234567"],
        ["1", "2.5"],
        ["9007199254740993", "0.5"],
        ["1e5", "2"],
        ["1e5", "2.5"],
        ['"a"', "1"],
        ["true", "1"],
        ["null", "0.5"],
        ["[1, [2, 3]]", "[]", "{}", '{"a": [null]}'],
        ['"\\u00e9\\n"', '"é"', '""'],
    ],
)
def test_args_have_the_types_of_their_values(values: list[str]) -> None:
    events = [event(args=f'{{"x": {value}, "y": 1}}') for value in values]
    assert_quick(trace(*events))
    assert_quick(trace(*reversed(events)))


@pytest.mark.parametrize(
    "changes",
    [
        {"args": "{}"},
        {"cat": '""'},
        {"pid": None, "tid": None},
        {"pid": '"Spans"', "tid": '"stream 7"'},
        {"name": '"void f<a, b>(\\"x\\", {1}, [2])"'},
        {"name": '"é"'},
        {"ph": '"i"', "dur": None, "s": '"t"'},
        {"id": "5", "bp": '"e"', "id2": '{"local": 1}', "cname": "[1, {}]"},
        {"ph": '"C"', "args": '{"value": 5}'},
        {"ph": '"s"', "cat": '"ac2g"', "name": '"ac2g"', "id": "5"},
        {"ph": '"f"', "cat": '"fwdbwd"', "id": "5"},
        {"cat": '"Trace"', "pid": '"Spans"'},
        {"ph": '"i"', "s": '"g"', "name": '"Iteration Start: Profiler"'},
        {"ph": '"?"'},
    ],
    ids=str,
)
def test_what_profilers_write_is_read_quickly(changes: dict[str, str | None]) -> None:
    assert_quick(trace(event(), event(**changes), event(ts="20")))


@pytest.mark.parametrize(
    "changes",
    [
        {"sf": "5"},
        {"stack": '["a", "b"]'},
        {"bind_id": "5", "flow_out": "true"},
        {"name": None},
        {"name": '"\\ud83d\\ude00"'},
        {"cat": "null"},
        {"pid": "1.0"},
        {"args": "null"},
        {"args": '{"x": 1, "x": 2}'},
        {"args": '{"\\u0078": 1}'},
        {"ph": '"\\u0058"'},
        {"cat": '"Trace"'},
        {"args": json.dumps(dict.fromkeys(map(str, range(200)), 1))},
        {"x": "[" * 100 + "]" * 100},
        # keys of events may be written with escapes
        {"\\u006eame": '"other"'},
        {"\\u0061rgs": '{"q": 1}'},
        # numbers that no float holds are mended, and noted
        {"bp": "[-1e400]"},
        {"args": '{"x": 1e999}'},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_odd_slices_are_left_to_the_complete_reader(changes: dict[str, str | None]) -> None:
    assert_left_to_the_complete_reader(trace(event(), event(**changes)))


def test_a_key_that_comes_twice_is_left_to_the_complete_reader() -> None:
    twice = event().replace("{", '{"name": "first", ', 1)
    assert_left_to_the_complete_reader(trace(twice))
    assert_left_to_the_complete_reader(trace(event(), head='"a": 1, "a": 2, '))
    assert_left_to_the_complete_reader(trace(event(), head='"traceEvents": [], '))


def test_arrows_do_not_count_as_unknown_phases() -> None:
    arrow = event(ph='"s"', cat='"ac2g"', name='"ac2g"', id="1")
    assert_quick(trace(event(), arrow, *(event(ph=f'"?{n}"') for n in range(50))))


def test_spaces_without_end_are_skipped() -> None:
    assert_quick(b" " * 3_000_000 + trace(event()) + b"\n" * 3_000_000)


def test_keys_without_end_are_left_to_the_complete_reader() -> None:
    events = [event(args=f'{{"key {number}": 1}}') for number in range(1001)]
    assert_quick(trace(*events[:1000]))
    assert_left_to_the_complete_reader(trace(*events))


def test_lists_without_end_are_left_to_the_complete_reader() -> None:
    empty = event(args=json.dumps({"x": [[]] * 200_000}, separators=(",", ":")))
    assert_left_to_the_complete_reader(trace(empty))
    with pytest.raises(TraceError, match="lists and objects"):
        complete_record(trace(empty), PATH)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        trace(event())[:-1],
        trace(event()) + b"x",
        trace(event()).replace(b", ", b",, ", 1),
        trace(event()).replace(b'"dur": 3.25', b'"dur": 03.25'),
        trace(event()).replace(b'"dur": 3.25', b'"dur": 3.'),
        trace(event()).replace(b"aten::mm", b"aten\n::mm"),
        trace(event()).replace(b"aten::mm", b"aten\\x::mm"),
        trace(event()).replace(b"aten::mm", b"aten\\u12g4::mm"),
        trace(event()).replace(b"aten::mm", b"aten\xff::mm"),
        trace(event()).replace(b"aten::mm", b"aten\xc3"),
        trace(event(), "{}")[:-2] + b",]}",
        trace(event(args='{"x": nulL}')),
        trace(event(args='{"x": [1,]}')),
        trace(event(args='{"x" 1}')),
        b"\xef\xbb\xbf" + trace(event()),
        trace(event()).decode().encode("utf-16"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_what_is_no_json_is_left_to_the_complete_reader(text: bytes, size: int) -> None:
    assert quick(text, size) is None


def test_a_bare_list_and_any_layout_are_read_quickly() -> None:
    wide = json.dumps([json.loads(event(args='{"x": [1, 2]}'))] * 3, indent="\t").encode()
    assert_quick(wide.replace(b"\n", b" \r\n "))
    assert_quick(json.dumps(json.loads(wide), separators=(",", ":")).encode())


def test_the_header_may_stand_before_and_behind_the_events() -> None:
    head = '"schemaVersion": 1, "distributedInfo": {"rank": 3}, '
    before = trace(event(), head=head)
    behind = before[:-1] + b', "baseTimeNanoseconds": 1700000000000, "x": "\\n"}'
    assert_quick(before)
    assert_quick(behind)
    record = quick(behind)
    assert record is not None
    assert (record.metadata["schema_version"], record.metadata["x"]) == (1, "\n")
    assert record.trace.epoch_ns == 1700000000000 + 10500


def test_events_longer_than_a_block_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanned_events, "BLOCK_BYTES", 64)
    assert_quick(trace(event(), event(name=f'"{"n" * 5000}"'), event(args='{"x": "é"}')))


def test_more_odd_events_than_one_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanned_events, "_MOST_ODD", 3)
    counters = [event(ph='"C"', args=f'{{"value": {n}}}', ts=str(n)) for n in range(20)]
    assert_quick(trace(event(), *counters, event()))


PLAIN_NUMBERS = st.sampled_from(["0", "3", "10.5", "7.125", "1000000.001"])
TEXTS = st.one_of(st.sampled_from(["cpu_op", "kernel", "aten::mm", "Trace", "fwdbwd"]), NAMES)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """JSON texts of traces, most of them plain, some with anything anywhere."""
    is_wild = draw(st.booleans())
    events = []
    for _ in range(draw(st.integers(0, 6))):
        phase = draw(st.sampled_from("XXXXiMCsfBEbeN"))
        args = st.dictionaries(NAMES if is_wild else st.sampled_from("abcd"), JSON, max_size=3)
        values: dict[str, Any] = {
            "ph": phase,
            "cat": draw(TEXTS if is_wild else st.sampled_from(["cpu_op", "kernel", "ac2g"])),
            "name": draw(TEXTS),
            "pid": draw(st.sampled_from([0, 1, "1", "Spans"])),
            "tid": draw(st.sampled_from([7, "stream 7", -3])),
            "args": draw(args),
        }
        if is_wild:
            keys = [*values, "id", "s", "bind_id", "x"]
            values |= draw(st.dictionaries(st.sampled_from(keys), JSON, max_size=1))
        escaped = draw(st.booleans())
        members = [
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=escaped)}"
            for key, value in values.items()
        ]
        members += [f'"{key}": {draw(PLAIN_NUMBERS)}' for key in ("ts", "dur")]
        between = draw(st.sampled_from([",", ", ", ",\n    "]))
        events.append(f"{{{between.join(members)}}}")
    text = trace(*events).decode().encode("utf-8", "replace")
    if is_wild and draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.binary(max_size=2)) + text[at + draw(st.integers(0, 3)) :]
    return text


def test_both_readers_give_the_same_record_or_error() -> None:
    compared = 0

    @settings(max_examples=max(100, settings().max_examples))  # of few, none may be plain
    @given(documents(), st.sampled_from([1, 7, 100, 1 << 20]))
    def compare(text: bytes, size: int) -> None:
        nonlocal compared
        read = quick(text, size)
        if read is not None:
            compared += 1
            assert_same_record(read, complete_record(text, PATH))

    compare()
    assert compared > 0


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(DATA.rglob("*.json.gz")) if "graph_profile" not in path.name],
    ids=lambda path: path.name,
)
def test_own_traces_are_read_quickly(path: Path) -> None:
    text = packing.unpacked(path.read_bytes(), path)
    assert_quick(text)


@pytest.mark.slow
def test_real_traces_are_the_same_to_both_readers(shared_trace: Path) -> None:
    text = packing.unpacked(shared_trace.read_bytes(), shared_trace)
    assert_quick(text)


class TestPackedFiles:
    """The quick reader takes packed files as they are unpacked."""

    TEXT = trace(event(), event(args='{"x": 1}'))

    @pytest.fixture(autouse=True)
    def none_is_unpacked_as_a_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise AssertionError("unpacked as a whole")

        monkeypatch.setattr(readers, "unpacked", fail)

    @pytest.mark.parametrize("packed", [gzip.compress(TEXT), lzma.compress(TEXT)])
    def test_they_are_read_quickly(self, packed: bytes) -> None:
        record = readers.parse(packed, PATH)
        assert_same_record(record, complete_record(self.TEXT, PATH))

    @pytest.mark.parametrize(
        "packed",
        [gzip.compress(TEXT) + b"behind", gzip.compress(TEXT)[:-9], gzip.compress(TEXT + b"\0")],
    )
    def test_those_with_a_fault_are_unpacked_as_a_whole(self, packed: bytes) -> None:
        with pytest.raises(AssertionError, match="unpacked as a whole"):
            readers.parse(packed, PATH)

    def test_zlib_serves_where_there_is_no_isal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(packing, "quick_zlib", zlib)
        assert len(readers.parse(gzip.compress(self.TEXT), PATH).trace.slices) == 2


def test_without_the_library_all_is_read_by_the_complete_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = trace(event())
    monkeypatch.setattr(scanned_events, "_library", lambda: None)
    assert not is_compiled()
    assert quick(text) is None
    assert_same_record(parse_chrome_trace(text, PATH), complete_record(text, PATH))


@pytest.mark.parametrize("version", [0, 2])
def test_a_library_of_another_version_is_not_used(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanned_events, "_VERSION", version)
    assert scanned_events._library.__wrapped__() is None


def test_a_library_that_lacks_a_function_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanned_events, "LIBRARY", ctypes.util.find_library("m"))
    assert scanned_events._library.__wrapped__() is None


def test_the_library_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scanner is freed, also one that stops in the middle."""
    library = scanned_events._library()
    assert library is not None
    alive: list[int] = []
    new, free = library.scanner_new, library.scanner_free

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

        def scanner_new(self, seed: int) -> int:
            alive.append(int(new(seed)))
            return alive[-1]

        def scanner_free(self, address: int) -> None:
            alive.remove(address)
            free(address)

    monkeypatch.setattr(scanned_events, "_library", Counting)
    for text in (trace(event()), trace(event())[:-5], trace(event(sf="1"))):
        quick(text)
    with pytest.raises(UnusualError):
        list(scanned_file([b"{]"]).batches)
    assert alive == []

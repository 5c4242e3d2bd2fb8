"""Columns beside the JSON of a saved profile: they make the same trace, or are not used."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import archive
from gpuprof_widgets.trace.archive import COLUMNS, TRACE, save, trace_of_columns, write_columns
from gpuprof_widgets.trace.gather import MOST_KEYS
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.packing import Growth
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from tests.records import assert_same_record, assert_same_trace, records
from tests.test_archive import a_record

pytestmark = pytest.mark.slow

CHECKSUM = 4711
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

Header = dict[str, Any]
Arrays = list[np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def _columns_of_any_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LEAST_SLICES", 0)


def packed_columns(trace: Trace, checksum: int) -> bytes:
    file = io.BytesIO()
    write_columns(trace, checksum, file)
    return file.getvalue()


def read(packed: bytes, checksum: int = CHECKSUM) -> Trace | None:
    return trace_of_columns(packed, checksum, Growth(Path("run.gpuprof"), len(packed)))


def taken_apart(packed: bytes) -> tuple[Header, Arrays]:
    """The header as JSON has it, and the arrays."""
    content = io.BytesIO(zstandard.ZstdDecompressor().decompressobj().decompress(packed))
    size = int.from_bytes(content.read(8), "little")
    header = msgspec.json.decode(content.read(size))
    arrays = []
    for column in header["columns"]:
        wide = np.dtype(column["type"]).itemsize
        arrays.append(np.frombuffer(content.read(column["length"] * wide), column["type"]).copy())
    assert not content.read()
    return header, arrays


def put_together(header: Header, arrays: Arrays) -> bytes:
    text = msgspec.json.encode(header)
    content = [len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays)]
    return zstandard.compress(b"".join(content))


def members_of(saved: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(saved) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(members: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


@given(records(), st.integers(0, 60), st.integers(0, 60))
def test_columns_give_an_equal_trace_of_the_whole_and_of_a_window(
    record: Record, a: int, b: int
) -> None:
    for trace in (record.trace, window(record, min(a, b), max(a, b)).trace):
        found = read(packed_columns(trace, CHECKSUM))
        assert found is not None
        assert_same_trace(found, trace)


@same_folder
@given(records())
def test_the_json_alone_gives_the_same_record(tmp_path: Path, record: Record) -> None:
    saved = save(record, tmp_path / "run.gpuprof")
    members = members_of(saved)
    assert COLUMNS in members
    del members[COLUMNS]
    assert_same_record(load(zipped(members, tmp_path / "old.gpuprof")), load(saved))


def test_values_that_were_one_object_are_one_again(shared_record: Record) -> None:
    found = read(packed_columns(shared_record.trace, CHECKSUM))
    assert found is not None
    for key, values in shared_record.trace.args.items():
        if values.dtype == object:
            assert len(set(map(id, values))) == len(set(map(id, found.args[key]))), key


def test_saved_columns_are_read_and_not_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(a_record(), tmp_path / "run.gpuprof")
    monkeypatch.setattr(archive, "quick_packed_record", None)
    monkeypatch.setattr(archive, "complete_record", None)
    assert_same_record(load(saved), a_record())


def test_only_large_traces_have_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = a_record()
    for least, expected in ((len(record.trace), True), (len(record.trace) + 1, False)):
        monkeypatch.setattr(archive, "LEAST_SLICES", least)
        assert (COLUMNS in members_of(save(record, tmp_path / "run.gpuprof"))) is expected


def test_the_json_counts_where_someone_changed_it(tmp_path: Path) -> None:
    members = members_of(save(a_record(), tmp_path / "run.gpuprof"))
    other = window(a_record(), 0, 12)
    members[TRACE] = members_of(save(other, tmp_path / "other.gpuprof"))[TRACE]
    found = load(zipped(members, tmp_path / "changed.gpuprof"))
    assert_same_trace(found.trace, other.trace)


def test_the_json_is_read_where_the_columns_are_broken(tmp_path: Path) -> None:
    members = members_of(save(a_record(), tmp_path / "run.gpuprof"))
    for broken in (b"", b"no zstandard", members[COLUMNS][:-9], members[COLUMNS][:40]):
        changed = zipped(members | {COLUMNS: broken}, tmp_path / "changed.gpuprof")
        assert_same_record(load(changed), a_record())


def test_the_json_is_read_where_the_columns_do_not_unpack_from_the_zip(tmp_path: Path) -> None:
    saved = save(a_record(), tmp_path / "run.gpuprof")
    columns = members_of(saved)[COLUMNS]
    content = bytearray(saved.read_bytes())
    content[content.index(columns) + len(columns) // 2] ^= 1
    saved.write_bytes(content)
    with pytest.raises(zipfile.BadZipFile, match="Bad CRC-32"):
        members_of(saved)
    assert_same_record(load(saved), a_record())


def test_columns_alone_are_no_profile(tmp_path: Path) -> None:
    members = members_of(save(a_record(), tmp_path / "run.gpuprof"))
    del members[TRACE]
    with pytest.raises(TraceError, match=r"not a saved profile: trace\.json\.gz is missing"):
        load(zipped(members, tmp_path / "changed.gpuprof"))


def with_arg(values: Any) -> Record:
    """A record whose first slices have these values as an arg."""
    record = a_record()
    series = pd.Series(values, index=np.arange(len(values)))
    return replace(record, trace=replace(record.trace, args={"odd": series}))


@pytest.mark.parametrize(
    "values",
    [
        pd.array(["a", "b"], dtype="str"),
        pd.Categorical(["a", "b"]),
        np.array([True, False]),
        np.array([1, 2], np.uint8),
        np.array([0.5, 2], np.float32),
    ],
)
def test_args_of_other_types_are_those_of_the_json(tmp_path: Path, values: Any) -> None:
    saved = save(with_arg(values), tmp_path / "run.gpuprof")
    found = read(members_of(saved)[COLUMNS], zipfile.ZipFile(saved).getinfo(TRACE).CRC)
    assert found is not None
    members = members_of(saved)
    del members[COLUMNS]
    assert_same_trace(found, load(zipped(members, tmp_path / "old.gpuprof")).trace)


def test_numbers_that_json_does_not_have_are_left_to_it(tmp_path: Path) -> None:
    record = with_arg(np.array([0.5, np.nan]))
    saved = save(record, tmp_path / "run.gpuprof")
    members = members_of(saved)
    del members[COLUMNS]
    assert_same_record(load(saved), load(zipped(members, tmp_path / "old.gpuprof")))


def column(header: Header, table: str, name: str) -> int:
    """The place of a column."""
    places = [(each["table"], each["name"]) for each in header["columns"]]
    return places.index((table, name))


def with_number(table: str, name: str, number: float, at: int = -1) -> Callable[..., None]:
    """A change that puts a number into a column."""

    def change(header: Header, arrays: Arrays) -> None:
        arrays[column(header, table, name)][at] = number

    return change


def with_entry(table: str, name: str, /, **entries: Any) -> Callable[..., None]:
    """A change of what the header says about a column."""

    def change(header: Header, arrays: Arrays) -> None:
        header["columns"][column(header, table, name)] |= entries

    return change


def in_header(**entries: Any) -> Callable[..., None]:
    def change(header: Header, arrays: Arrays) -> None:
        header.update(entries)

    return change


def without(table: str, name: str) -> Callable[..., None]:
    def change(header: Header, arrays: Arrays) -> None:
        place = column(header, table, name)
        del header["columns"][place], arrays[place]

    return change


def shorter(table: str, name: str) -> Callable[..., None]:
    def change(header: Header, arrays: Arrays) -> None:
        place = column(header, table, name)
        header["columns"][place]["length"] -= 1
        arrays[place] = arrays[place][:-1]

    return change


def with_an_owner_too_early(header: Header, arrays: Arrays) -> None:
    """A slice outside of a window counts 0 events."""
    arrays[column(header, "slices", "count")][0] = 0
    arrays[column(header, "slices", "ts")][0] = -(2**62)


def with_rows_twice(header: Header, arrays: Arrays) -> None:
    """Every arg has each of its values twice, for the same row."""
    for place, each in enumerate(header["columns"]):
        if each["table"] in ("rows", "args"):
            each["length"] *= 2
            arrays[place] = np.repeat(arrays[place], 2)


def with_many_lists(header: Header, arrays: Arrays) -> None:
    header["columns"][column(header, "args", "Input Dims")]["values"] = [[[]] * 200_000]


def with_many_args(header: Header, arrays: Arrays) -> None:
    """Many times the first arg."""
    place = column(header, "args", "Input Dims")
    for number in range(MOST_KEYS + 1):
        header["columns"].append(header["columns"][place] | {"name": f"arg {number}"})
        arrays.append(arrays[place])


WRONG: dict[str, Callable[[Header, Arrays], None]] = {
    "another version": in_header(version=2),
    "unknown key": in_header(more=1),
    "bounds of text": in_header(bounds=["0", 1, 2]),
    "bounds that leave slices out": in_header(bounds=[0, 20, 0]),
    "clock beyond all times": in_header(bounds=[0, 35, 2**62]),
    "no tracks": in_header(tracks={}),
    "slices out of order": with_number("slices", "track", 0),
    "slice that is its own parent": with_number("slices", "parent", 4, at=4),
    "parent before all rows": with_number("slices", "parent", -2),
    "time before the start": with_number("slices", "ts", -1, at=0),
    "time without end": with_number("slices", "dur", 2**63 - 1),
    "owner before the start": with_an_owner_too_early,
    "duration below 0": with_number("slices", "dur", -1),
    "name of no text": with_number("slices", "name", 99),
    "texts that repeat": with_entry("slices", "category", values=["cpu_op"] * 5),
    "texts that are none": with_entry("slices", "category", values=[1, 2, 3, 4, 5]),
    "numbers for text": with_entry("slices", "name", values=None),
    "objects of Python": with_entry("slices", "ts", type="|O"),
    "length below 0": with_entry("slices", "ts", length=-1),
    "longer than memory": with_entry("slices", "ts", length=2**60),
    "longer than the file": with_entry("flows", "kind", length=1000),
    "column that is missing": without("slices", "depth"),
    "table that is missing": without("counters", "ts"),
    "column that is not known": with_entry("slices", "depth", name="more"),
    "columns of two lengths": shorter("slices", "depth"),
    "reading that is no number": with_number("counters", "value", np.nan),
    "arrow from no slice": with_number("flows", "source", 99),
    "arg of no row": with_number("rows", "", 99),
    "arg of a row below 0": with_number("rows", "", -1, at=0),
    "args of one row twice": with_rows_twice,
    "arg of the wrong kind": with_entry("args", "Input Dims", values=["text"]),
    "arg of no value": with_number("args", "Input Dims", 99),
    "arg below all values": with_number("args", "Input Dims", -1),
    "arg without rows": with_entry("args", "Input Dims", rows=99),
    "arg of two lengths": shorter("args", "Bytes"),
    "arg of 32 bits": with_entry("args", "Input Dims", values=None),
    "more lists than any profiler writes": with_many_lists,
    "more args than are read": with_many_args,
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_columns_that_make_no_trace_are_not_used(
    tmp_path: Path, change: Callable[[Header, Arrays], None]
) -> None:
    saved = members_of(save(a_record(), tmp_path / "run.gpuprof"))
    header, arrays = taken_apart(packed_columns(a_record().trace, CHECKSUM))
    assert read(put_together(header, arrays)) is not None
    change(header, arrays)
    wrong = put_together(header, arrays)
    assert read(wrong) is None

    header["checksum"] = zipfile.ZipFile(tmp_path / "run.gpuprof").getinfo(TRACE).CRC
    changed = zipped(saved | {COLUMNS: put_together(header, arrays)}, tmp_path / "changed.gpuprof")
    assert_same_record(load(changed), a_record())


def test_a_header_longer_than_the_memory_is_not_read() -> None:
    assert read(zstandard.compress((2**62).to_bytes(8, "little") + b"{}")) is None


@pytest.mark.parametrize("left", [10, 3000])
def test_columns_that_unpack_to_too_much_are_not_used(left: int) -> None:
    packed = packed_columns(a_record().trace, CHECKSUM)
    growth = Growth(Path("run.gpuprof"), 0)
    growth.left = left
    assert trace_of_columns(packed, CHECKSUM, growth) is None
    assert growth.left == left  # the JSON may still be read


@given(st.data())
def test_columns_changed_anywhere_never_break_the_findings(data: st.DataObject) -> None:
    text, arrays = taken_apart(packed_columns(a_record().trace, CHECKSUM))
    place = data.draw(st.sampled_from([at for at, array in enumerate(arrays) if array.nbytes]))
    content = bytearray(arrays[place].tobytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    arrays[place] = np.frombuffer(content, arrays[place].dtype)
    trace = read(put_together(text, arrays))
    if trace is not None:
        findings(Record(trace))

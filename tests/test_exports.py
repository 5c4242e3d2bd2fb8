"""`Profile.export` and `gpuprof convert`: the name says the format; it reads back equal."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from time import thread_time_ns

import pandas as pd
import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses.call_tree import SOURCES, call_tree
from gpuprof_widgets.exceptions import OptionError, RecordingError
from gpuprof_widgets.exports import STACKS, WRITERS, Writer, export
from gpuprof_widgets.profiles import Profile, load
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.writers.tables import without_marks
from tests import hostile
from tests.command_lines import gpuprof, small_trace
from tests.export_cases import a_profile, as_ns, events_of
from tests.records import assert_same_record
from tests.test_stack_files import read_collapsed
from tests.traces import calls_of, trace_of

pytestmark = pytest.mark.slow

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def profile() -> Profile:
    return a_profile()


def test_stacks_of_every_call_tree_can_be_exported() -> None:
    assert [*STACKS] == [*SOURCES]


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_every_format_is_written_by_its_endings(
    writer: Writer, profile: Profile, tmp_path: Path
) -> None:
    for ending in (*writer.endings, writer.endings[0].upper()):
        path = profile.export(tmp_path / f"run{ending}")
        assert path == tmp_path / f"run{ending}"
        assert path.stat().st_size > 0
    if ".html" not in writer.endings:  # Bokeh's ids are never the same
        assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_every_format_takes_names_that_are_attacks(writer: Writer, tmp_path: Path) -> None:
    path = export(hostile.record(), tmp_path / f"run{writer.endings[0]}")
    assert path.stat().st_size > 0


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_a_record_of_nothing_is_written_or_refused_in_words(writer: Writer, tmp_path: Path) -> None:
    path = tmp_path / f"run{writer.endings[0]}"
    if writer.endings[0] in (".gpuprof", ".html", ".png", ".svg"):
        assert export(trace_of(), path).stat().st_size > 0
        return
    if writer.endings[0] in (".csv", ".parquet"):
        with pytest.warns(UserWarning, match="the table operators has no rows: the trace has no "):
            export(trace_of(), path)
        return
    with pytest.raises(RecordingError, match=r"this profile has (no|neither)"):
        export(trace_of(), path)
    assert list(tmp_path.iterdir()) == []


def test_calls_alone_have_no_timeline_but_stacks(tmp_path: Path, capsys: Capsys) -> None:
    record = trace_of(calls=calls_of((None, "main", 1, 500)))
    Profile(record.trace, record.calls, record.metadata).save(calls := tmp_path / "calls.gpuprof")
    for target in (tmp_path / "run.json", tmp_path / "run.json.gz", "-"):
        called = gpuprof(capsys, "convert", calls, target)
        assert (called.code, called.out) == (1, "")
        assert "this profile has no timeline" in called.err
        assert "Write .prof, .speedscope.json, .collapsed" in called.err
    for ending in ("prof", "speedscope.json", "collapsed"):
        assert gpuprof(capsys, "convert", calls, tmp_path / f"run.{ending}").code == 0
    ops = gpuprof(capsys, "convert", calls, tmp_path / "ops.collapsed", "--what", "ops")
    assert (ops.code, (tmp_path / "ops.collapsed").exists()) == (1, False)
    assert "no stacks of ops, annotations and calls of the runtime that took time" in ops.err
    table = gpuprof(capsys, "convert", calls, tmp_path / "run.csv")
    assert (table.code, table.out) == (0, "")
    assert "note: " in table.err
    assert "the table operators has no rows: the trace has no ops" in table.err


def self_times(record: Record) -> dict[str, int]:
    """Self time by name in the tree that the flame graph shows, without that of whole threads."""
    tree = call_tree(record)
    tree = tree[(tree["category"] != "thread") & (tree["self_ns"] > 0)]
    return {str(name): int(ns) for name, ns in tree.groupby("name")["self_ns"].sum().items()}


def spin(ns: int) -> None:
    """Take so long in Python alone, however busy the machine is."""
    end = thread_time_ns() + ns
    while thread_time_ns() < end:
        pass


def test_a_sampled_recording_is_saved_and_exported_with_all_its_times(tmp_path: Path) -> None:
    with gpuprof_widgets.profile(quiet=True, python="sampled", name="run") as run:
        spin(40_000_000)
    assert any(name.endswith(": spin") for name in self_times(run))
    assert "spin(40_000_000)" in set(run.sampled_lines()["code"])
    assert_same_record(load(run.save(tmp_path / "run.gpuprof")), run)
    written: Counter[str] = Counter()
    for stack, ns in read_collapsed(run.export(tmp_path / "run.collapsed").read_bytes()).items():
        written[stack[-1]] += ns
    assert written == self_times(run)
    told = json.loads(run.export(tmp_path / "run.speedscope.json").read_text())
    assert "spin" in {frame["name"] for frame in told["shared"]["frames"]}
    with pytest.raises(RecordingError, match="this profile was sampled, so that its calls are not"):
        run.export(tmp_path / "run.prof")


def test_a_table_reads_back_equal(profile: Profile, tmp_path: Path) -> None:
    expected = profile.kernels()
    parquet = pd.read_parquet(profile.export(tmp_path / "k.parquet", what="kernels"))
    numbers = expected.select_dtypes("number")
    pd.testing.assert_frame_equal(parquet[numbers.columns], numbers)
    assert parquet["name"].tolist() == expected["name"].tolist()
    written = pd.read_csv(profile.export(tmp_path / "k.csv", what="kernels"))
    assert without_marks(written)["name"].tolist() == expected["name"].tolist()
    ops = pd.read_csv(profile.export(tmp_path / "ops.csv"))
    assert ops["name"].tolist() == profile.operators()["name"].tolist()


def test_selected_ranges_have_a_track(profile: Profile, tmp_path: Path) -> None:
    ranges = {"slow": (5, 30), "whole": (0, 60)}
    path = profile.export(tmp_path / "run.json", ranges=ranges)
    found = {
        e["name"]: (as_ns(e["ts"]), as_ns(e["dur"]), e["tid"])
        for e in events_of(path)
        if e.get("cat") == "selected_range"
    }
    assert found == {"slow": (5, 25, "selected ranges"), "whole": (0, 60, "selected ranges")}
    back = load(path)
    assert len(back.trace) == len(profile.trace) + 2
    for analysis in ("operators", "kernels", "breakdown", "copies", "launches"):
        columns = ["name", "dur_ns", "total_ns", "time_ns", "cpu_total_ns", "device_self_ns"]
        expected = getattr(profile, analysis)().filter(columns)
        pd.testing.assert_frame_equal(getattr(back, analysis)().filter(columns), expected)


@pytest.mark.parametrize("given_range", [(-1, 5), (5, 5), (9, 3), (0, 10**9)])
def test_a_range_outside_of_the_trace_is_refused(
    profile: Profile, given_range: tuple[int, int], tmp_path: Path
) -> None:
    with pytest.raises(
        OptionError, match=r"'mine' from .* is not within the trace, which is from 0"
    ):
        profile.export(tmp_path / "run.json", ranges={"mine": given_range})
    assert list(tmp_path.iterdir()) == []


def test_another_name_or_part_is_refused_in_words(profile: Profile, tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"run\.xlsx: the end of the name chooses the format; .*\.gpup"
    ):
        profile.export(tmp_path / "run.xlsx")
    with pytest.raises(
        OptionError, match=r"there is no 'kernel' to write\. Did you mean 'kernels'"
    ):
        profile.export(tmp_path / "run.csv", what="kernel")
    with pytest.raises(OptionError, match=r"run\.json: this format has no parts to choose"):
        profile.export(tmp_path / "run.json", what="kernels")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return small_trace(tmp_path / "in")


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_convert_writes_what_export_writes(
    writer: Writer, trace: Path, tmp_path: Path, capsys: Capsys
) -> None:
    path, expected = (tmp_path / f"{name}{writer.endings[0]}" for name in ("run", "expected"))
    if writer.endings[0] == ".prof":
        trace = a_profile().save(tmp_path / "calls.gpuprof")
    called = gpuprof(capsys, "convert", trace, path)
    notes = [f"Note: {note}.\n" for note in load(trace).metadata.get("notes", ())]
    assert (called.code, called.out, called.err) == (0, "", "".join(notes))
    load(trace).export(expected)
    assert path.stat().st_size == pytest.approx(expected.stat().st_size, abs=1_000)
    if ".html" not in writer.endings:
        assert path.read_bytes() == expected.read_bytes()


def test_convert_takes_a_part_a_range_and_redacts(
    trace: Path, tmp_path: Path, capsys: Capsys
) -> None:
    table = tmp_path / "kernels.csv"
    assert gpuprof(capsys, "convert", trace, table, "--what", "kernels").code == 0
    assert pd.read_csv(table)["name"].tolist() == ["gemm", "Memcpy HtoD (Pageable -> Device)"]
    stacks = tmp_path / "gpu.collapsed"
    assert gpuprof(capsys, "convert", trace, stacks, "--what", "device").code == 0
    weights = [int(line.rpartition(" ")[2]) for line in stacks.read_text().splitlines()]
    assert sum(weights) == load(trace).kernels()["total_ns"].sum()
    marked = tmp_path / "marked.json"
    gpuprof(capsys, "convert", trace, marked, "--range", "a=b=1us:3us", "--range", "all=0:20000")
    ranges = [e["name"] for e in events_of(marked) if e.get("cat") == "selected_range"]
    assert sorted(ranges) == ["a=b", "all"]
    piped = gpuprof(capsys, "convert", trace, "-", "--range", "all=0:20000")
    assert "selected_range" in piped.out
    profile = replace(load(trace), metadata={"host": "gpu17", "source": "/home/me/x"})
    profile.save(told := tmp_path / "told.gpuprof")
    gpuprof(capsys, "convert", told, clean := tmp_path / "clean.gpuprof", "--redact")
    assert load(clean).metadata == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run.json", "--range", "1us:3us"), "a range has a name and two times"),
        (("run.json", "--range", "a=3us:1us"), "the end of a range must be after its start"),
        (("run.csv", "--what", "kernel"), "Did you mean 'kernels'?"),
        (("-", "--what", "kernels"), "this format has no parts to choose"),
    ],
)
def test_convert_refuses_before_it_reads(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: Capsys
) -> None:
    name, *rest = words
    target = name if name == "-" else tmp_path / name
    called = gpuprof(capsys, "convert", tmp_path / "is not there", target, *rest)
    assert called.code > 0
    assert told in called.err

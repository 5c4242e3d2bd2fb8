"""cProfile's statistics: to tables and back."""

from __future__ import annotations

import cProfile
import marshal
import pstats
from pathlib import Path

import pytest

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.pstats import calls_of_stats, dump_pstats, load_calls, stats_of_calls
from gpuprof_widgets.trace.readers import load
from tests.records import assert_same_calls
from tests.traces import Shared

# Of a function cProfile writes primitive calls first, of its callers all calls first.
STATS = {
    ("a.py", 1, "main"): (1, 1, 1e-6, 9e-6, {}),
    ("a.py", 5, "fib"): (2, 6, 8e-6, 8e-6, {
        ("a.py", 1, "main"): (2, 2, 3e-6, 8e-6),
        ("a.py", 5, "fib"): (4, 0, 5e-6, 5e-6),
    }),
}  # fmt: skip


def test_functions_and_edges_have_whole_nanoseconds() -> None:
    calls = calls_of_stats(STATS)
    assert calls.functions.to_dict("list") == {
        "file": ["a.py", "a.py"],
        "line": [1, 5],
        "name": ["main", "fib"],
        "calls": [1, 6],
        "primitive_calls": [1, 2],
        "self_ns": [1000, 8000],
        "total_ns": [9000, 8000],
    }
    assert calls.edges.to_dict("list") == {
        "caller": [0, 1],
        "callee": [1, 1],
        "calls": [2, 4],
        "primitive_calls": [2, 0],
        "self_ns": [3000, 5000],
        "total_ns": [8000, 5000],
    }


def test_tables_turn_back_into_the_statistics() -> None:
    assert stats_of_calls(calls_of_stats(STATS)) == STATS


def test_a_caller_without_an_entry_gets_a_row() -> None:
    calls = calls_of_stats({("a", 1, "f"): (1, 1, 0.0, 0.0, {("b", 2, "g"): (1, 1, 0.0, 0.0)})})
    assert calls.functions["name"].tolist() == ["f", "g"]
    assert calls.functions["calls"].tolist() == [1, 0]


def test_a_real_run_comes_back_as_pstats_has_it(tmp_path: Path) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(sorted, [3, 1, 2], key=lambda x: -x)
    path = tmp_path / "cell.prof"
    profiler.dump_stats(path)
    again = tmp_path / "again.prof"
    again.write_bytes(dump_pstats(load(path).calls))  # type: ignore[arg-type]
    expected, found = (pstats.Stats(str(p)).stats for p in (path, again))  # type: ignore[attr-defined]
    assert list(found) == list(expected)
    for name, (primitive, calls, own, total, _) in expected.items():
        assert found[name][:2] == (primitive, calls)
        assert found[name][2:4] == pytest.approx((own, total), abs=0.5e-9)


@pytest.mark.parametrize("name", ["cprofile-cycle.pstats", "bittensor.pstats"])
def test_real_files_are_read_whole(name: str, shared: Shared) -> None:
    path = shared(f"pstats/{name}")
    record = load(path)
    calls = record.calls
    assert calls is not None
    assert len(record.trace) == 0
    stats = marshal.loads(path.read_bytes())
    assert len(calls.functions) == len(stats)
    assert len(calls.edges) == sum(len(entry[4]) for entry in stats.values())
    assert calls.functions["calls"].sum() == sum(entry[1] for entry in stats.values())
    assert calls.functions["self_ns"].sum() == pytest.approx(
        sum(entry[2] for entry in stats.values()) * 1e9, abs=len(stats)
    )
    assert_same_calls(load_calls(dump_pstats(calls), path), calls)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.prof"
    path.write_bytes(marshal.dumps(STATS)[:-9])
    with pytest.raises(TraceError, match=r"cut\.prof: starts as a file of cProfile"):
        load(path)

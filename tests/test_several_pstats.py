"""Files of cProfile of several ranks or workers: added up as pstats does, and told apart."""

from __future__ import annotations

import cProfile
import marshal
import pstats
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.profiles import load
from gpuprof_widgets.trace.pstats import added_up, calls_of_stats, load_calls, stats_of_calls
from tests.records import assert_same_calls

NAMES = [("a.py", 1, "main"), ("a.py", 5, "step"), ("b.py", 9, "<lambda>"), ("~", 0, "<len>")]
COUNTS = st.integers(0, 1000)
NUMBERS = st.tuples(
    COUNTS, COUNTS, COUNTS.map(lambda ns: ns / 1e9), COUNTS.map(lambda ns: ns / 1e9)
)
STATS = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(NUMBERS, st.dictionaries(st.sampled_from(NAMES), NUMBERS)).map(
        lambda pair: (*pair[0], pair[1])
    ),
    min_size=1,
)


def run(*sizes: int) -> bytes:
    """What cProfile writes of a few sorts."""
    profiler = cProfile.Profile()
    for size in sizes:
        profiler.runcall(sorted, range(size), key=lambda number: -number)
    profiler.create_stats()
    return marshal.dumps(profiler.stats)  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(3):
        (tmp_path / f"rank{rank}.prof").write_bytes(run(*[10] * (rank + 1)))
    return tmp_path


def numbers(stats: dict[Any, Any]) -> dict[Any, Any]:
    """Functions and callers with whole nanoseconds."""
    return {
        name: (*counts[:2], *(round(time * 1e9) for time in counts[2:4]))
        for name, counts in stats.items()
    }


@given(st.lists(STATS, min_size=1, max_size=4))
def test_sums_are_those_of_pstats(several: list[dict[Any, Any]]) -> None:
    calls = added_up([calls_of_stats(stats) for stats in several])
    expected = pstats.Stats.__new__(pstats.Stats)
    expected.init(_AsProfiler(several[0]))  # type: ignore[attr-defined]
    for stats in several[1:]:
        other = pstats.Stats.__new__(pstats.Stats)
        other.init(_AsProfiler(stats))  # type: ignore[attr-defined]
        expected.add(other)
    found = stats_of_calls(calls)
    told: dict[Any, Any] = expected.stats  # type: ignore[attr-defined]
    assert numbers({name: found[name] for name in told}) == numbers(told)
    for name, entry in told.items():
        assert numbers(found[name][4]) == numbers(entry[4])


class _AsProfiler:
    """What `pstats.Stats` takes in place of a file."""

    def __init__(self, stats: dict[Any, Any]) -> None:
        self.stats = stats

    def create_stats(self) -> None:
        """They are there already."""


def test_a_folder_of_them_is_one_profile(folder: Path) -> None:
    profile = load(folder)
    assert profile.calls is not None
    whole = pstats.Stats(*map(str, sorted(folder.iterdir())))
    assert profile.calls.functions["calls"].sum() == whole.total_calls  # type: ignore[attr-defined]
    assert list(profile.calls_of_workers) == ["rank0", "rank1", "rank2"]
    one = load_calls((folder / "rank1.prof").read_bytes(), folder)
    assert_same_calls(profile.calls_of_workers["rank1"], one)
    assert profile.metadata["notes"] == [
        "3 files of cProfile (rank0.prof, rank1.prof, rank2.prof) were added up; "
        "calls_of_workers has each of them"
    ]


def test_names_that_would_leave_a_folder_do_not(tmp_path: Path) -> None:
    """The names of the files become names in a zip."""
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "..prof").write_bytes(run(3))
    (tmp_path / "one" / "a b.prof").write_bytes(run(3))
    names = list(load(sorted(tmp_path.glob("*/*"))).calls_of_workers)
    assert names == ["one_.", "one_a_b", "two_."]


def test_what_cannot_be_read_beside_them_is_told(folder: Path) -> None:
    (folder / "rank9.prof").write_bytes(run(10)[:50])
    profile = load(folder)
    assert len(profile.calls_of_workers) == 3
    assert any("rank9.prof beside it was left out" in note for note in profile.metadata["notes"])


def test_a_trace_and_a_profile_of_cprofile_are_not_one(folder: Path) -> None:
    trace = folder / "trace.json"
    trace.write_text('[{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]')
    with pytest.raises(TraceError, match="one of them has no times"):
        load([folder / "rank0.prof", trace])

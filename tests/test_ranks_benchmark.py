"""The benchmark of many ranks: what it measures, and what its table says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.large_traces import write
from benchmarks.made_traces import MadeTrace
from benchmarks.many_ranks import (
    DASK,
    HERE,
    ONE,
    PACKAGES,
    SOURCE,
    TITLE,
    Figures,
    header,
    measure,
    record,
    sources_in,
    table,
)
from tests.test_large_traces import MACHINE, made

pytestmark = pytest.mark.slow

RESULTS = {
    ONE: Figures([1.0, 1.2, 0.9], [300_000_000] * 3),
    HERE: Figures([4.5, 4.0, 4.2], [900_000_000] * 3, 2),
    DASK[0]: Figures([9.0], [0]),
    DASK[1]: Figures([4.5], [0], 2),
}
TRACES: list[MadeTrace] = [made(1_000_000), made(981_771)]


def test_the_table_shows_medians_spans_and_ratios_to_one_rank() -> None:
    assert table(RESULTS).splitlines()[2:] == [
        "| one rank | 1 | 1.00 (0.90–1.20) | 1.00 | 300 (300–300) |",
        "| all ranks | 2 | 4.20 (4.00–4.50) | 4.20 | 900 (900–900) |",
        "| all ranks, `cluster=` with one worker | 1 | 9.00 (9.00–9.00) | 9.00 |  |",
        "| all ranks, `cluster=` with two workers | 2 | 4.50 (4.50–4.50) | 4.50 |  |",
    ]


def test_without_dask_it_says_so() -> None:
    absent = Figures(failure="ModuleNotFoundError: No module named 'distributed'")
    results = RESULTS | dict.fromkeys(DASK, absent)
    assert table(results).count("No module named 'distributed' |  |  |") == 2
    assert "Dask" not in header(MACHINE, TRACES, results, 3)


def test_the_files_say_how_it_was_measured_and_hold_no_path(tmp_path: Path) -> None:
    assert PACKAGES.title in MACHINE["versions"]
    text = header(MACHINE, TRACES, RESULTS, 3)
    assert "2 ranks, 1,981,771 events, 630 MB of text" in text
    assert "Two workers of Dask are 2.00 times as fast as one." in text
    write(tmp_path / "x.json", text, record(MACHINE, TRACES, RESULTS), TITLE)
    assert (tmp_path / "x.md").read_text() == f"# {TITLE}\n\n{text}\n"
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept["routes"]["all ranks"]["seconds"] == [4.5, 4.0, 4.2]
    assert "somewhere" not in (tmp_path / "x.json").read_text()


def test_a_route_is_measured_in_a_process_of_its_own() -> None:
    files = sources_in(SOURCE)
    assert len(files) > 1
    measured = measure(HERE, files, 300)
    assert measured.seconds > 0
    assert measured.peak > 10_000_000
    assert measured.processes == 1  # small files

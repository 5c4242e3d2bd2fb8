"""The benchmark of many ranks: what it measures, and what its table says."""

from __future__ import annotations

import pytest

from benchmarks.many_ranks import (
    DASK,
    HERE,
    ONE,
    SOURCE,
    Figures,
    measure,
    sources_in,
    table,
)

pytestmark = pytest.mark.slow

RESULTS = {
    ONE: Figures([1.0, 1.2, 0.9], [300_000_000] * 3),
    HERE: Figures([4.5, 4.0, 4.2], [900_000_000] * 3, 2),
    DASK[0]: Figures([9.0], [0]),
    DASK[1]: Figures([4.5], [0], 2),
}


def test_the_table_shows_medians_spans_and_ratios_to_one_rank() -> None:
    assert table(RESULTS).splitlines()[2:] == [
        "| one rank | 1 | 1.00 (0.90–1.20) | 1.00 | 300 (300–300) |",
        "| all ranks | 2 | 4.20 (4.00–4.50) | 4.20 | 900 (900–900) |",
        "| all ranks, `cluster=` with one worker | 1 | 9.00 (9.00–9.00) | 9.00 |  |",
        "| all ranks, `cluster=` with two workers | 2 | 4.50 (4.50–4.50) | 4.50 |  |",
    ]


def test_a_route_is_measured_in_a_process_of_its_own() -> None:
    files = sources_in(SOURCE)
    assert len(files) > 1
    measured = measure(HERE, files, 300)
    assert measured.seconds > 0
    assert measured.peak > 10_000_000
    assert measured.processes == 1  # small files

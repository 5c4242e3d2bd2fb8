"""A bounded number of broken files of every format; ``make fuzz`` runs more of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuprof_widgets.trace.readers import parse
from tests.fuzz_readers import FILE, UnsoundError, broken, case, check, check_record
from tests.fuzz_seeds import Seed, seed_of_real_file, seeds

CASES = 240
"""Of all seeds together; they take a few seconds."""

BATCH = 60


@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: seed.name)
def test_a_seed_is_a_good_file(seed: Seed) -> None:
    record = parse(seed.data, FILE)
    check_record(record)
    assert len(record.trace) or record.calls is not None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_a_broken_file_is_a_sound_record_or_one_error(first: int) -> None:
    assert wrong_ones({number: case(number) for number in range(first, first + BATCH)}) == {}


def test_so_is_a_broken_part_of_a_real_file(shared_trace: Path) -> None:
    seed = seed_of_real_file(shared_trace)
    check_record(parse(seed.data, FILE))
    rng = random.Random(seed.name)
    assert wrong_ones({number: (seed, broken(seed, rng, [seed])) for number in range(10)}) == {}


def wrong_ones(cases: Mapping[int, tuple[Seed, bytes]]) -> dict[int, str]:
    """What is wrong with the reading of any of these files, by their numbers."""
    wrong = {}
    for number, (seed, data) in cases.items():
        try:
            check(data)
        except Exception as problem:
            wrong[number] = f"{seed.name}: {type(problem).__name__}: {problem}"
    return wrong


def test_a_case_is_the_same_every_time() -> None:
    assert [case(number)[1] for number in range(20)] == [case(number)[1] for number in range(20)]


def test_a_record_that_cannot_be_is_seen() -> None:
    record = parse(seeds()[0].data, FILE)
    record.trace.slices.loc[0, "dur"] = -5
    with pytest.raises(UnsoundError, match="a duration below zero"):
        check_record(record)

"""The search for the least merging: the page that it returns, and how many pages it makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.views.encoding import ENOUGH, TRIES, least_merged

SPAN = 10**10
BUDGET = 1_000_000


def searched(*, power: float, floor: int) -> tuple[int, int]:
    """The size found where sizes fall by a power law down to a floor; and the pages made."""
    made: list[int] = []

    def size(longest_ns: int) -> int:
        made.append(longest_ns)
        return floor + round(8 * BUDGET * longest_ns**-power)

    found = least_merged(size, int, span_ns=SPAN, unmerged_size=floor + 8 * BUDGET, budget=BUDGET)
    assert len(set(made)) == len(made)
    return found, len(made)


@given(st.floats(0.15, 0.6), st.integers(0, BUDGET // 2))
def test_a_smooth_size_comes_close_to_the_budget(power: float, floor: int) -> None:
    size, made = searched(power=power, floor=floor)
    assert ENOUGH * BUDGET <= size <= BUDGET
    assert made <= TRIES


@pytest.mark.parametrize("step", [7, 10**5, 10**6, SPAN // 2])
def test_a_step_is_found_from_its_lower_side(step: int) -> None:
    def size(longest_ns: int) -> int:
        return 2 * BUDGET if longest_ns < step else BUDGET // 4

    found = least_merged(size, int, span_ns=SPAN, unmerged_size=3 * BUDGET, budget=BUDGET)
    assert found == BUDGET // 4


def test_where_nothing_fits_everything_is_merged_at_once() -> None:
    made: list[int] = []

    def size(longest_ns: int) -> int:
        made.append(longest_ns)
        return 2 * BUDGET

    least_merged(size, int, span_ns=SPAN, unmerged_size=3 * BUDGET, budget=BUDGET)
    assert made == [10**5, SPAN]


def test_a_span_of_one_nanosecond_has_one_page() -> None:
    for size in BUDGET, BUDGET + 1:
        found = least_merged(
            lambda _, size=size: size, int, span_ns=1, unmerged_size=size + 1, budget=BUDGET
        )
        assert found == size

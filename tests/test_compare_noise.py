"""How sure a comparison is of a step or run as a whole: noise, intervals, and what was unlike."""

from __future__ import annotations

from functools import cache
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpuprof_widgets.analyses.compare.measured import run_names
from gpuprof_widgets.analyses.compare.sentences import ratio_interval
from gpuprof_widgets.analyses.compare.tables import Earlier
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, annotation, op, trace_of

pytestmark = pytest.mark.slow


def plain(dur: int, **about: Any) -> Record:
    """A run without steps."""
    return trace_of(op("aten::mm", ts=0, dur=dur), **about)


@cache
def arrangements(n: int, m: int, u: int) -> int:
    """In how many orders of n and m values u pairs have the second one larger."""
    if u < 0 or n * m == 0:
        return int(u == 0)
    return arrangements(n - 1, m, u - m) + arrangements(n, m - 1, u)


def rank_sum_p(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """The two-sided p value of Mann and Whitney's test, exactly."""
    n, m = len(a), len(b)
    u = int((b[:, None] > a[None, :]).sum())
    least = min(u, n * m - u)
    return min(1.0, 2 * sum(arrangements(n, m, k) for k in range(least + 1)) / comb(n + m, n))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (5, 8), (12, 9)])
def test_what_lies_outside_of_the_interval_the_rank_sum_test_rejects(n: int, m: int) -> None:
    random = np.random.default_rng(n)
    a, b = random.lognormal(0, 0.2, n), random.lognormal(0.1, 0.2, m)
    low, high = ratio_interval(a, b)
    assert rank_sum_p(a * low * 0.999, b) < 0.05
    assert rank_sum_p(a * high * 1.001, b) < 0.05
    assert rank_sum_p(a * (low + high) / 2, b) > 0.3


def test_three_steps_have_no_interval() -> None:
    assert all(np.isnan(ratio_interval(np.array([1.0, 2, 3]), np.array([1.0, 2, 3, 4]))))


def stepped(*durations: int) -> Record:
    """Steps of these lengths (ns), each with a product of matrices."""
    rows: list[Row] = []
    at = 0
    for number, dur in enumerate(durations):
        rows.append(annotation(f"ProfilerStep#{number}", ts=at, dur=dur))
        rows.append(op("aten::mm", ts=at, dur=300))
        at += dur
    return trace_of(*rows)


NOISY = (1_000, 1_010, 990, 1_005, 995, 1_000, 1_002, 998)


def first(a: Record, b: Record, **about: Any) -> str:
    return Comparison(a, b, **about).findings()[0].text


def test_a_difference_has_its_uncertainty() -> None:
    slower = tuple(dur + 250 for dur in NOISY)
    low, high = ratio_interval(np.array(NOISY, float), np.array(slower, float))
    assert 1.2 < low < 1.25 < high < 1.3
    assert first(stepped(*NOISY), stepped(*slower)) == (
        "B's step takes 25 % more time: 1.00 µs → 1.25 µs (medians of 8 and 8 steps; 95 % interval "
        f"of B / A: {low:.3g} to {high:.3g}; the steps of one run vary by 5.50 ns)."
    )


def test_an_interval_that_holds_one_is_noise() -> None:
    a, b = (1_000, 1_000, 1_000, 2_000), (1_100, 1_100, 1_100, 900)
    assert first(stepped(*a), stepped(*b)).startswith("No difference beyond the noise")


def test_runs_without_steps_are_told_from_noise_by_other_runs() -> None:
    a, b = plain(600), plain(650)
    assert "cannot be distinguished" in first(a, b)
    assert first(a, b, earlier=Earlier(times_ns=(640, 660))) == (
        "No difference beyond the noise: 600 ns → 650 ns per run "
        "(2 other runs of A's code took 640 ns to 660 ns)."
    )
    few = first(a, b, earlier=Earlier(times_ns=(605,)))
    assert few.endswith("cannot be distinguished; 1 other run of A's code took 605 ns).")
    near = first(a, b, earlier=Earlier(times_ns=(590, 610, 620)))
    assert near.startswith("No difference beyond the noise")
    far = first(a, b, earlier=Earlier(times_ns=(600, 610, 605)))
    assert far.endswith("600 ns → 650 ns (3 other runs of A's code took 600 ns to 610 ns).")


def test_single_slow_steps_are_named_where_they_make_the_averages() -> None:
    slow = stepped(*NOISY[:-1], 9_000)
    slower, faster = (stepped(*(dur + more for dur in NOISY)) for more in (200, -200))
    title = "Single slow steps dominate the averages"
    assert title in [each.title for each in Comparison(slow, slower).findings()]
    assert title not in [each.title for each in Comparison(stepped(*NOISY), faster).findings()]


def test_an_interval_of_many_steps_is_that_of_all() -> None:
    random = np.random.default_rng(5)
    a, b = random.lognormal(0, 0.2, 1_500), random.lognormal(0.1, 0.2, 900)
    ratios = np.sort((b[:, None] / a[None, :]).ravel())
    k = int(len(ratios) / 2 - 1.96 * (len(ratios) * (1_500 + 900 + 1) / 12) ** 0.5)
    assert ratio_interval(a, b) == pytest.approx((ratios[k - 1], ratios[-k]), rel=2e-3)


def test_a_run_that_did_not_reach_its_end_is_named() -> None:
    texts = [each.text for each in Comparison(plain(9), plain(99, error="E: 3")).findings()]
    assert "B raised `E`: it has not done all that the other run did." in texts


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        ({"source": "/r/a/x.zip"}, {"source": "/r/b/y.zip"}, ("x.zip", "y.zip")),
        (
            {"label": "x", "source": "a/x.zip", "rank": 0},
            {"label": "x", "source": "b/x.zip", "rank": 1},
            ("x, a/x.zip", "x, b/x.zip"),
        ),
        ({"label": "x", "rank": 0}, {"label": "x", "rank": 1}, ("x, rank 0", "x, rank 1")),
        ({"label": "x"}, {"label": "x"}, ("x", "x")),
        ({}, {}, ("", "")),
    ],
)
def test_runs_of_one_name_are_called_by_what_differs(
    a: dict[str, Any], b: dict[str, Any], names: tuple[str, str]
) -> None:
    assert run_names(plain(9, **a), plain(9, **b)) == names

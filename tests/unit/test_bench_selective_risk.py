"""Coverage at a risk, curves and the paired bootstrap, against cases whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.selective_risk import Cases, coverage, curve, difference


def cases(*pairs: tuple[float, int]) -> Cases:
    return Cases(np.array([score for score, _ in pairs]), np.array([bool(unsafe) for _, unsafe in pairs]))


def test_a_curve_has_one_point_for_every_threshold() -> None:
    found = curve(cases((0.3, 1), (0.1, 0), (0.2, 0), (math.inf, 1)))
    assert found == [(0.1, 0.25, 0.0), (0.2, 0.5, 0.0), (0.3, 0.75, pytest.approx(1 / 3))]


def test_equal_scores_come_together() -> None:
    tied = cases((0.1, 0), (0.2, 0), (0.2, 1), (0.2, 0))
    assert [point[1] for point in curve(tied)] == [0.25, 1.0]
    assert coverage(tied, 0.2)[0] == 0.25 and coverage(tied, 0.25)[0] == 1.0


def test_coverage_goes_on_behind_a_stretch_of_higher_risk() -> None:
    found = cases((0.1, 0), (0.2, 1), (0.3, 0), (0.4, 0), (0.5, 0), (0.6, 1))
    assert coverage(found, 0.2)[0] == pytest.approx(5 / 6)
    assert coverage(found, 0.19)[0] == pytest.approx(1 / 6)
    assert coverage(found, 1.0)[0] == 1.0


def test_nothing_is_covered_where_the_first_is_unsafe_or_nothing_can_be_accepted() -> None:
    assert coverage(cases((0.1, 1), (0.2, 0)), 0.4)[0] == 0.0
    assert coverage(cases((math.inf, 0)), 0.5)[0] == 0.0 and curve(cases((math.inf, 0))) == []


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
)
def test_a_weighted_case_is_that_many_cases(drawn: list, risk: float) -> None:
    weights = np.array([[float(count) for *_, count in drawn]])
    repeated = [(float(score), int(unsafe)) for score, unsafe, count in drawn for _ in range(count)]
    one = coverage(cases(*((float(s), int(u)) for s, u, _ in drawn)), risk, weights)[0]
    assert one == pytest.approx(coverage(cases(*repeated), risk)[0] if repeated else 0.0)


def test_a_better_score_covers_more_and_the_interval_says_so() -> None:
    random = np.random.default_rng(3)
    unsafe = random.random(600) < 0.2
    good, bad = unsafe + random.normal(0, 0.4, 600), random.normal(0, 1, 600)
    found = difference(Cases(good, unsafe), Cases(bad, unsafe), risk=0.05)
    assert found["a"] > 0.6 > 0.2 > found["b"]
    assert 0.3 < found["low"] < found["difference"] < found["high"] < 1.0
    assert difference(Cases(good, unsafe), Cases(bad, unsafe), risk=0.05) == found  # the same resamples every time


def test_a_score_does_not_differ_from_itself_in_another_unit() -> None:
    random = np.random.default_rng(4)
    score, unsafe = random.random(200), random.random(200) < 0.1
    found = difference(Cases(score, unsafe), Cases(3 * score + 1, unsafe), risk=0.05)
    assert (found["difference"], found["low"], found["high"]) == (0.0, 0.0, 0.0)


def test_the_interval_is_that_of_a_plain_bootstrap() -> None:
    random = np.random.default_rng(5)
    unsafe = random.random(80) < 0.15
    a, b = unsafe + random.normal(0, 0.7, 80), random.normal(0, 1, 80)
    plain = []
    for _ in range(2000):
        picked = random.integers(0, 80, 80)
        pair = (coverage(Cases(s[picked], unsafe[picked]), 0.05)[0] for s in (a, b))
        plain.append(next(pair) - next(pair))
    found = difference(Cases(a, unsafe), Cases(b, unsafe), 0.05)
    assert np.allclose((found["low"], found["high"]), np.quantile(plain, (0.05, 0.95)), atol=0.05)

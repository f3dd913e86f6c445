"""In worlds of known risk a certificate is false as seldom as it says, and what looks like one is not."""

import math

import numpy as np
import pytest

from benchmarks.certificate_simulation import (
    CONFIDENCE,
    WORLDS,
    certified,
    lapses,
    most_that_may_be_false,
    one_of_each,
    power,
    repeat,
    searched,
)
from carnator_core.certify import LabelledPair, certify, prepare
from carnator_core.risk import accepted_needed
from carnator_core.signature import Discrepancies
from support.certificates import some_settings

REPETITIONS, CLUSTERS = 500, 300
ALLOWED = most_that_may_be_false(REPETITIONS)
GROWS, FLAT = "risk grows with distance", "risk just above 5 % everywhere"
NEAREST, CLUSTERED = "nearest of 10 donors", "clusters of 4, just above 5 %"


@pytest.mark.parametrize("name", WORLDS)
def test_a_certificate_is_false_as_seldom_as_it_says(name: str) -> None:
    found = repeat(WORLDS[name], certified, REPETITIONS, CLUSTERS, seed=1)
    assert found.false <= ALLOWED < 0.145
    assert found.certified > 0.02, "of none at all nothing would follow"


def test_where_risk_can_be_told_there_are_certificates_and_they_accept_much() -> None:
    found = repeat(WORLDS[GROWS], certified, REPETITIONS, 1000, seed=2)
    assert found.certified > 0.75 and found.coverage > 0.4


@pytest.mark.parametrize("name", [GROWS, FLAT])
def test_thresholds_that_are_searched_on_the_data_of_the_bound_are_false_much_more_often(name: str) -> None:
    found = repeat(WORLDS[name], searched, REPETITIONS, CLUSTERS, seed=3)
    assert found.false > ALLOWED + 0.05


def test_calibrating_on_any_donor_says_nothing_of_the_nearest() -> None:
    found = repeat(WORLDS[NEAREST], certified, REPETITIONS, CLUSTERS, seed=4, nearest=False)
    assert found.false > ALLOWED


def test_dependent_pairs_that_are_counted_one_by_one_are_false_more_often() -> None:
    found = repeat(WORLDS[CLUSTERED], certified, REPETITIONS, CLUSTERS // 4, seed=5, drawn=False)
    assert found.false > ALLOWED


def test_the_simulation_takes_the_very_steps_of_certify() -> None:
    random = np.random.default_rng(6)
    development, tested = (WORLDS[GROWS].draw(count, random) for count in (100, 500))

    def pairs(cases, name: str) -> list[LabelledPair]:
        return [
            LabelledPair(Discrepancies(*map(float, row)), bool(bad), f"{name}t{i}", f"{name}d{i}", accepted_by={})
            for i, (row, bad) in enumerate(zip(cases.distances, cases.unsafe, strict=True))
        ]

    arguments = pairs(tested, "x"), some_settings()
    certificate = certify(*arguments, development=pairs(development, "y"))
    accepts = certified(development, tested)
    order = [int(pair.target[2:]) for pair in prepare(*arguments, development=pairs(development, "y")).tested]
    drawn = tested.of(np.array(order))
    assert certificate.accepted == accepts(drawn.distances).sum() < 500
    covered = [certificate.covers(pair.discrepancies) for pair in arguments[0]]
    assert covered == accepts(tested.distances).tolist()


def test_one_pair_of_each_cluster_is_drawn() -> None:
    random = np.random.default_rng(7)
    cases = WORLDS[CLUSTERED].draw(50, random)
    assert len(cases.cluster) == 200
    assert sorted(one_of_each(cases, random).cluster) == list(range(50))


@pytest.mark.parametrize(
    ("accepted", "risk", "share"), [(45, 0.01, 0.636), (116, 0.0207, 0.57), (231, 0.0207, 0.80), (463, 0.0207, 0.99)]
)
def test_the_power_is_what_arithmetic_says(accepted: int, risk: float, share: float) -> None:
    assert power(accepted, risk) == pytest.approx(share, abs=0.01)


def test_too_few_pairs_have_no_power_at_all() -> None:
    assert power(accepted_needed(0, 0.05, CONFIDENCE) - 1, 0.001) == 0.0


@pytest.mark.parametrize("audited", [1.0, 1 / 3])
def test_a_certificate_at_its_bound_lapses_falsely_in_at_most_one_of_twenty_cases(audited: float) -> None:
    share, _ = lapses(0.05, 300, audited, 500)
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)


def test_a_broken_one_lapses_after_some_dozens_of_audits() -> None:
    share, median = lapses(0.15, 300, 1.0, 300)
    assert share > 0.98 and 25 <= median <= 50

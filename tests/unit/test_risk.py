"""Risk: exact bounds, clusters, the path of limits and the e-process, each against what it must be by definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from carnator_core.risk import (
    DEVELOPMENT_SHARE,
    LAPSE_AT,
    Components,
    Score,
    accepted_needed,
    clusters,
    evidence_against,
    fixed_sequence,
    is_development,
    limits_of,
    one_per_cluster,
    p_values,
    strongest_evidence,
    upper_bound,
)

DELTA, CONFIDENCE = 0.05, 0.9
counts = st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
levels = st.sampled_from([0.8, 0.9, 0.95, 0.99])


# -- bounds --------------------------------------------------------------------------------------------------------


@given(counts, levels)
def test_the_bound_is_the_risk_under_which_so_few_unsafe_ones_have_the_probability_left_over(found, level) -> None:
    unsafe, accepted = found
    bound = upper_bound(unsafe, accepted, level)
    if unsafe == accepted:
        assert bound == 1.0
    else:
        assert unsafe / max(accepted, 1) < bound <= 1.0
        assert binom.cdf(unsafe, accepted, bound) == pytest.approx(1 - level, rel=1e-6)


@given(counts, levels)
def test_the_bound_grows_with_unsafe_ones_and_falls_with_safe_ones(found, level) -> None:
    unsafe, accepted = found
    bound = upper_bound(unsafe, accepted, level)
    assert upper_bound(unsafe + 1, accepted + 1, level) >= bound >= upper_bound(unsafe, accepted + 1, level)


def test_the_papers_fifty_safe_pairs_give_its_bound() -> None:
    assert upper_bound(0, 50, 0.9) == pytest.approx(0.0450074, abs=1e-7)
    assert upper_bound(0, 50, 0.95) > 0.05


@pytest.mark.parametrize("wrong", [(-1, 3), (4, 3)])
def test_more_unsafe_than_accepted_is_an_error(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no share"):
        upper_bound(*wrong, 0.9)


def test_the_counts_that_certify_five_percent() -> None:
    assert [accepted_needed(u, 0.05, 0.90) for u in range(6)] == [45, 77, 105, 132, 158, 184]
    assert accepted_needed(0, 0.05, 0.95) == 59 and accepted_needed(0, 0.1, 0.9) == 22


@given(st.integers(0, 20), st.floats(0.005, 0.4), levels)
def test_the_needed_count_is_the_least_that_suffices(unsafe: int, delta: float, level: float) -> None:
    needed = accepted_needed(unsafe, delta, level)
    assert upper_bound(unsafe, needed, level) <= delta < upper_bound(unsafe, needed - 1, level)


@pytest.mark.parametrize(("delta", "level"), [(0.0, 0.9), (1.0, 0.9), (0.05, 0.0), (0.05, 1.0)])
def test_what_no_number_of_pairs_can_show_is_an_error(delta: float, level: float) -> None:
    with pytest.raises(ValueError, match="no number of pairs"):
        accepted_needed(0, delta, level)


@given(counts, st.floats(0.01, 0.3), levels)
def test_a_test_passes_exactly_if_the_bound_does(found, delta: float, level: float) -> None:
    unsafe, accepted = found
    bound = upper_bound(unsafe, accepted, level)
    if accepted and abs(bound - delta) > 1e-9:
        assert (p_values(np.array([unsafe]), np.array([accepted]), delta)[0] <= 1 - level) == (bound <= delta)


# -- clusters ------------------------------------------------------------------------------------------------------

names = st.sampled_from("abcdefghijkl")
members = st.lists(st.sets(names, min_size=1, max_size=3), max_size=25)


@given(members, st.randoms())
def test_clusters_are_the_connected_components_whatever_the_order(found: list[set[str]], random) -> None:
    components: list[set[str]] = []
    for group in found:
        touching = [c for c in components if c & group]
        components = [c for c in components if not c & group] + [set().union(group, *touching)]
    expected = [min(next(c for c in components if c >= group)) for group in found]
    assert clusters(found) == expected
    order = list(range(len(found)))
    random.shuffle(order)
    assert clusters([found[i] for i in order]) == [expected[i] for i in order]


@given(st.lists(st.tuples(names, names), max_size=25), st.randoms())
def test_one_pair_is_drawn_of_each_cluster_whatever_the_order(pairs: list[tuple[str, str]], random) -> None:
    pairs = list(dict.fromkeys(pairs))
    found, told = [a for a, _ in pairs], [a + b for a, b in pairs]
    drawn = [told[i] for i in one_per_cluster(found, told)]
    assert sorted(name[0] for name in drawn) == sorted(set(found))
    order = list(range(len(pairs)))
    random.shuffle(order)
    again = one_per_cluster([found[i] for i in order], [told[i] for i in order])
    assert [told[order[i]] for i in again] == drawn


def test_a_long_chain_is_one_component_and_costs_little() -> None:
    assert set(clusters([{f"{i:06d}", f"{i + 1:06d}"} for i in range(20000)])) == {"000000"}


def test_components_can_grow_together() -> None:
    components = Components()
    components.join("ab")
    components.join("cd")
    assert components.root("a") != components.root("d")
    components.join("bc")
    assert len({components.root(name) for name in "abcd"}) == 1 and components.root("e") == "e"


def test_about_a_quarter_of_the_clusters_chooses_the_score() -> None:
    share = np.mean([is_development(f"cluster {i}") for i in range(4000)])
    assert share == pytest.approx(DEVELOPMENT_SHARE, abs=0.03)


# -- score ---------------------------------------------------------------------------------------------------------

distances = st.integers(5, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.floats(0.0, 10.0), min_size=4, max_size=4), min_size=n, max_size=n),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@given(distances)
def test_a_score_weighs_every_family_and_grows_with_every_distance(found) -> None:
    values, unsafe = np.array(found[0]), np.array(found[1])
    score = Score.fit(values, unsafe)
    assert (score.weights > 0).all() and score.weights.sum() == pytest.approx(1.0)
    assert score.guarded(values).all()
    assert (score.of(values * 2 + 1e-3) >= score.of(values) - 1e-12).all()


def test_a_family_that_tells_weighs_more_the_more_unsafe_pairs_say_so() -> None:
    random = np.random.default_rng(0)

    def weight(unsafe_pairs: int) -> float:
        unsafe = np.arange(200) < unsafe_pairs
        logs = random.normal(size=(200, 2))
        logs[unsafe, 0] += 2.5
        return Score.fit(np.exp(logs), unsafe).weights[0]

    few, many = weight(2), weight(60)
    assert 0.5 < few < many and many > 0.65


def test_without_an_unsafe_pair_all_families_weigh_alike_in_their_own_spread() -> None:
    logs = np.random.default_rng(0).normal(size=(300, 2)) * [1.0, 2.0]
    weights = Score.fit(np.exp(logs), np.zeros(300, bool)).weights
    assert weights[0] / weights[1] == pytest.approx(2.0, rel=0.1)


# -- path ----------------------------------------------------------------------------------------------------------

scores = st.lists(st.sampled_from([round(0.1 * i, 1) for i in range(60)]) | st.floats(-5, 5), max_size=300)


@given(scores)
def test_limits_go_from_strict_to_loose_and_none_is_hopeless(values: list[float]) -> None:
    limits = limits_of(np.array(values), DELTA, CONFIDENCE)
    accepted = [sum(v < limit for v in values) for limit in limits]
    assert limits[-1] == math.inf and all(a < b for a, b in itertools.pairwise(limits))
    assert all(count >= accepted_needed(0, DELTA, CONFIDENCE) for count in accepted[:-1])
    assert all(limit in values for limit in limits[:-1]), "each is the score of a pair that it does not accept"


def test_the_strictest_limit_accepts_a_quarter_and_enough_to_bear_one_unsafe_pair() -> None:
    values = np.random.default_rng(0).permutation(400) / 400
    for count, first in ((400, 100), (200, 77), (78, 77)):
        found = values[values < count / 400]
        assert (found < limits_of(found, DELTA, CONFIDENCE)[0]).sum() == first
    assert limits_of(values[:77], DELTA, CONFIDENCE).tolist() == [math.inf]


@given(scores, st.integers(0, 2**32 - 1), st.floats(0.0, 0.3))
def test_the_sequence_stops_at_the_first_failure(values: list[float], seed: int, risk: float) -> None:
    values = np.array(values)
    unsafe = np.random.default_rng(seed).random(len(values)) < risk
    found = fixed_sequence(values, unsafe, DELTA, CONFIDENCE)
    passes = [s.accepted > 0 and upper_bound(s.unsafe, s.accepted, CONFIDENCE) <= DELTA for s in found.limits]
    assert passes == [True] * found.passed + [False] * (len(found.limits) - found.passed)
    assert len(found.limits) - found.passed <= 1
    for step in found.limits:
        assert step.accepted == (values < step.limit).sum()
        assert step.unsafe == unsafe[values < step.limit].sum()
    assert found.loosest == (found.limits[found.passed - 1] if found.passed else None)


def test_a_later_pass_does_not_make_up_for_an_earlier_failure() -> None:
    values, unsafe = np.arange(400.0), np.zeros(400, bool)
    unsafe[:5] = True
    assert upper_bound(5, 400, CONFIDENCE) < DELTA
    assert fixed_sequence(values, unsafe, DELTA, CONFIDENCE).loosest is None


# -- lapse ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=60))
def test_the_evidence_is_a_product_of_likelihood_ratios(unsafe: list[bool]) -> None:
    found = evidence_against(unsafe, DELTA)
    expected = list(itertools.accumulate((0.12 / 0.05 if u else 0.88 / 0.95 for u in unsafe), lambda a, b: a * b))
    assert found.tolist() == pytest.approx(expected)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_the_strongest_evidence_never_falls_and_volunteered_verdicts_cannot_hide_audits(verdicts) -> None:
    strongest = [strongest_evidence(verdicts[:i], DELTA) for i in range(len(verdicts) + 1)]
    assert strongest == sorted(strongest) and strongest[0] == 1.0
    audits = evidence_against([unsafe for unsafe, audit in verdicts if audit], DELTA)
    assert strongest[-1] >= max(audits, default=0.0) / 2


def test_a_few_unsafe_audits_in_a_row_bring_a_certificate_down() -> None:
    needed = math.ceil(math.log(LAPSE_AT) / math.log(2.4))
    assert strongest_evidence([(True, True)] * needed, DELTA) >= LAPSE_AT
    assert strongest_evidence([(True, True)] * (needed - 1), DELTA) < LAPSE_AT
    assert strongest_evidence([(True, False)] * (needed + 1), DELTA) >= LAPSE_AT, "volunteered, it takes one more"

"""Certify: what of labelled pairs counts, in which order, and every sentence that says why there is no certificate."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.certify import (
    DEVELOPMENT_NEEDED,
    LabelledPair,
    NotCertified,
    calibrate,
    certify,
    prepare,
)
from carnator_core.risk import GUARD_MARGIN, accepted_needed, upper_bound
from carnator_core.signature import FAMILIES, Discrepancies
from support.certificates import some_pairs, some_settings

SETTINGS = some_settings()


def refused(pairs: list[LabelledPair], settings: dict[str, str] = SETTINGS, **others) -> str:
    with pytest.raises(NotCertified) as caught:
        certify(pairs, settings, **others)
    return str(caught.value)


def with_values(pair: LabelledPair, **values: float | None) -> LabelledPair:
    return dataclasses.replace(pair, discrepancies=dataclasses.replace(pair.discrepancies, **values))


# -- what a certificate says ---------------------------------------------------------------------------------------


def test_a_certificate_says_what_was_found_of_the_tested_part_alone() -> None:
    pairs = some_pairs(400, unsafe=12)
    prepared, found = prepare(pairs, SETTINGS), certify(pairs, SETTINGS)
    taken = [pair for pair in prepared.tested if found.accepts(pair.discrepancies, pair.share)]
    assert found.accepted == len(taken) and found.unsafe == sum(pair.unsafe for pair in taken)
    assert found.clusters == len(prepared.tested) == 400 - found.development
    assert found.bound == upper_bound(found.unsafe, found.accepted, 0.9) <= found.delta == 0.05
    assert found.coverage == pytest.approx(len(taken) / len(prepared.tested))
    kinds = {k: sum(p.kind == k for p in prepared.tested) for k in ("colour", "size")}
    assert found.by_kind == {k: (sum(p.kind == k for p in taken), n) for k, n in kinds.items()}
    assert found.settings == SETTINGS and found.weights.keys() == found.guards.keys() == set(FAMILIES)


def test_the_sentence_tells_the_claim_and_the_data_behind_it() -> None:
    sentence = certify(some_pairs(120), SETTINGS).sentence()
    for part in ("at most 5% of accepted reuse is unsafe", "90% confidence", "0 unsafe of", "bound", "coverage"):
        assert part in sentence


def test_the_path_holds_every_limit_up_to_the_first_failure_and_the_loosest_that_passed_is_taken() -> None:
    found = certify(some_pairs(600, unsafe=60), SETTINGS)
    *passed, failed = found.path
    assert (found.limit, found.accepted, found.unsafe) == dataclasses.astuple(passed[-1])
    assert upper_bound(failed.unsafe, failed.accepted, 0.9) > 0.05
    assert 0.5 < found.coverage < 0.95, "most of the unsafe pairs lie beyond the limit"


def test_the_labels_of_the_tested_part_change_neither_score_nor_guards_nor_limits() -> None:
    pairs = some_pairs(300, unsafe=10)
    one = prepare(pairs, SETTINGS)
    tested = {pair.name for pair in one.tested}
    turned = [dataclasses.replace(p, unsafe=not p.unsafe) if p.name in tested else p for p in pairs]
    other = prepare(turned, SETTINGS)
    assert (one.score.weights == other.score.weights).all() and (one.score.guards == other.score.guards).all()
    assert (one.scores == other.scores).all() and [p.name for p in other.tested] == [p.name for p in one.tested]


@given(st.randoms())
def test_the_order_of_pairs_changes_nothing(random) -> None:
    pairs = some_pairs(200, unsafe=4)
    expected = certify(pairs, SETTINGS)
    random.shuffle(pairs)
    found = certify(pairs, SETTINGS)
    # Sums over other orders differ in the last bit.
    for name in ("weights", "guards"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)
    assert found.limit == pytest.approx(expected.limit) if expected.limit is not None else found.limit is None
    same = [
        f.name for f in dataclasses.fields(found) if f.name not in ("weights", "guards", "limit", "path", "created")
    ]
    assert all(getattr(found, name) == getattr(expected, name) for name in same)


def test_development_pairs_may_be_given_apart_and_no_cluster_of_theirs_is_tested() -> None:
    apart = some_pairs(60, unsafe=3, seed=1)
    apart = [dataclasses.replace(p, target=f"x{i}", donor=f"y{i}") for i, p in enumerate(apart)]
    pairs = some_pairs(150)
    assert certify(pairs, SETTINGS, development=apart).clusters == 150
    shared = [dataclasses.replace(apart[0], donor="d7"), *apart[1:]]
    found = prepare(pairs, SETTINGS, development=shared)
    assert len(found.tested) == 149 and all(pair.donor != "d7" for pair in found.tested)


# -- clusters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", ["donor", "target", "family"])
def test_pairs_that_share_something_count_once(shared: str) -> None:
    pairs = [dataclasses.replace(p, **{shared: f"s{i // 4}"}) for i, p in enumerate(some_pairs(400))]
    assert certify(pairs, SETTINGS).clusters + certify(pairs, SETTINGS).development == 100


def test_a_request_that_was_served_and_served_others_ties_them_together() -> None:
    pairs = [dataclasses.replace(p, donor=f"t{i - 1}") if i % 2 else p for i, p in enumerate(some_pairs(240))]
    assert certify(pairs, SETTINGS).clusters + certify(pairs, SETTINGS).development == 120


def test_which_pair_of_a_cluster_is_tested_does_not_depend_on_its_label() -> None:
    pairs = [dataclasses.replace(p, donor=f"s{i // 3}") for i, p in enumerate(some_pairs(300, unsafe=30))]
    turned = [dataclasses.replace(p, unsafe=not p.unsafe) for p in pairs]
    names = [[pair.name for pair in prepare(given_pairs, SETTINGS).tested] for given_pairs in (pairs, turned)]
    assert names[0] == names[1]


# -- rules besides the score ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ruled_out",
    [
        {"share": 0.66},
        {"work": 1.0},
        {"similarity": 0.49},
    ],
)
def test_what_no_rule_would_let_through_is_not_accepted_whatever_its_label(ruled_out: dict) -> None:
    out = [dataclasses.replace(p, unsafe=True, **ruled_out) for p in some_pairs(100, seed=1)]
    out = [dataclasses.replace(p, target=f"x{i}", donor=f"y{i}") for i, p in enumerate(out)]
    found = certify([*some_pairs(100), *out], SETTINGS, development=some_development())
    assert found.unsafe == 0 and found.clusters == 200 and found.coverage <= 0.5


def some_development() -> list[LabelledPair]:
    found = some_pairs(40, seed=2)
    return [dataclasses.replace(p, target=f"dev{i}", donor=f"devd{i}") for i, p in enumerate(found)]


def test_a_near_empty_region_is_accepted_only_if_the_representation_agrees() -> None:
    late = [dataclasses.replace(p, share=0.01) for p in some_pairs(100)]
    assert "0 of at least 45" in refused(late, development=some_development())
    agreeing = [with_values(p, representation=0.0004) for p in late]
    assert certify(agreeing, SETTINGS, development=some_development()).accepted >= 90
    open_rule = {**SETTINGS, "near-empty threshold": "2"}
    assert certify(late, open_rule, development=some_development()).accepted >= 90
    stricter = refused(late, open_rule, development=some_development(), near_empty=0.0005)
    assert "0 of at least 45" in stricter
    tightened = certify(agreeing, open_rule, development=some_development(), near_empty=0.0005)
    assert tightened.settings["near-empty threshold"] == "0.0005"


def test_pairs_that_a_gate_let_through_have_passed_the_other_rules() -> None:
    gate = {"representation": 0.5, "residual": 9.0, "dynamics": 9.0, "state": 9.0, "near_empty_representation": 0.5}
    late = [dataclasses.replace(p, share=0.01, accepted_by=gate) for p in some_pairs(100)]
    assert certify(late, SETTINGS, development=some_development()).accepted >= 90


def test_nothing_is_accepted_beyond_the_thresholds_that_the_pairs_came_through() -> None:
    gate = {"representation": 0.05, "residual": 0.05, "dynamics": 0.05, "state": 0.05}
    found = certify([dataclasses.replace(p, accepted_by=gate) for p in some_pairs(200)], SETTINGS)
    assert all(guard <= 0.05 for guard in found.guards.values())
    free = certify(some_pairs(200), SETTINGS)
    assert all(guard > 0.05 for guard in free.guards.values())


def test_a_few_pairs_that_came_through_stricter_thresholds_are_left_out_and_told() -> None:
    loose, strict = (dict.fromkeys(FAMILIES, limit) for limit in (1.0, 0.001))
    pairs = [dataclasses.replace(p, accepted_by=strict if i < 6 else loose) for i, p in enumerate(some_pairs(200))]
    found = certify(pairs, SETTINGS)
    assert found.note == "6 verdicts that came through stricter thresholds are left out"
    assert found.clusters + found.development == 194


def test_the_near_empty_rule_of_a_gate_is_not_taken_for_its_threshold() -> None:
    usual = {**dict.fromkeys(FAMILIES, 1.0), "near_empty_representation": 0.0005}
    near_empty = {**usual, "representation": 0.0005}
    pairs = [dataclasses.replace(p, accepted_by=near_empty if i % 2 else usual) for i, p in enumerate(some_pairs(200))]
    assert certify(pairs, SETTINGS).guards["representation"] > 0.01
    strict = {**usual, "representation": 0.0004}
    near = [with_values(p, representation=1e-4) for p in some_pairs(200)]
    found = certify([dataclasses.replace(p, accepted_by=strict) for p in near], SETTINGS)
    assert found.guards["representation"] <= 0.0004


def test_guards_lie_above_all_that_development_saw_by_a_margin() -> None:
    found = prepare(some_pairs(200), SETTINGS)
    seen = [[getattr(p.discrepancies, f) for f in FAMILIES] for p in found.development]
    assert found.score.guards.tolist() == pytest.approx(GUARD_MARGIN * np.max(seen, axis=0))


# -- why there is none ---------------------------------------------------------------------------------------------


def test_no_pairs() -> None:
    assert refused([]) == "there are no verdicts yet"


def test_too_few_pairs() -> None:
    found = prepare(some_pairs(40), SETTINGS)
    have = int(found.eligible.sum())
    assert 20 < have < 40
    assert refused(some_pairs(40)).startswith(f"{have} of at least 45 independent verdicts")
    needed = accepted_needed(0, 0.05, 0.95)
    assert refused(some_pairs(40), confidence=0.95).startswith(f"{have} of at least {needed}")


def test_too_few_to_choose_the_score_on() -> None:
    few = some_development()[: DEVELOPMENT_NEEDED - 1]
    assert f"{len(few)} in the quarter that chooses the score" in refused(some_pairs(100), development=few)


def test_all_of_one_donor() -> None:
    pairs = [dataclasses.replace(p, donor="one") for p in some_pairs(100)]
    assert refused(pairs).startswith("all 100 verdicts hang together")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_discrepancy_that_is_no_number(family: str, bad: float) -> None:
    pairs = some_pairs(100)
    pairs[3] = with_values(pairs[3], **{family: bad})
    assert refused(pairs) == "1 of 100 verdicts have a discrepancy that is not a number"


def test_families_that_only_some_have() -> None:
    pairs = some_pairs(100)
    pairs[3] = with_values(pairs[3], dynamics=None)
    assert "lack discrepancies that others have" in refused(pairs)
    assert "lack discrepancies" in refused([with_values(p, **dict.fromkeys(FAMILIES)) for p in pairs])


def test_a_family_that_all_lack_is_no_obstacle() -> None:
    found = certify([with_values(p, dynamics=None) for p in some_pairs(120)], SETTINGS)
    assert set(found.weights) == set(FAMILIES) - {"dynamics"}
    values = Discrepancies(1e-3, 1e-3, None, 1e-3)
    assert found.accepts(values, 0.3)
    assert not found.accepts(dataclasses.replace(values, dynamics=1e-3), 0.3)


def test_nothing_passes() -> None:
    pairs = [dataclasses.replace(p, unsafe=i % 4 == 0) for i, p in enumerate(some_pairs(300))]
    said = refused(pairs)
    assert said.startswith("nothing passes: ") and "where 5% is asked for at 90% confidence" in said
    assert certify(pairs, SETTINGS, delta=0.6).accepted > 200


def test_the_curve_shows_every_limit_that_could_be_chosen() -> None:
    pairs = some_pairs(300, unsafe=20)
    found = calibrate(prepare(pairs, SETTINGS))
    last = found.curve[-1]
    assert last.accepted == prepare(pairs, SETTINGS).eligible.sum()
    assert [p.accepted for p in found.curve] == sorted({p.accepted for p in found.curve})
    assert all(p.bound == upper_bound(p.unsafe, p.accepted, 0.9) for p in found.curve)
    assert any(p.accepted == found.certificate.accepted for p in found.curve)


# -- accepting -----------------------------------------------------------------------------------------------------

CERTIFICATE = certify(some_pairs(600, unsafe=60), SETTINGS)
NEAR = Discrepancies(1e-4, 1e-4, 1e-4, 1e-4)
distance = st.floats(1e-8, 10.0)


@given(distance, distance, distance, distance, st.floats(0.0, 1.0))
def test_what_is_nearer_in_every_way_is_accepted_too(r: float, u: float, d: float, s: float, share: float) -> None:
    found = Discrepancies(r, u, d, s)
    if CERTIFICATE.accepts(found, share):
        nearer = Discrepancies(r / 2, u / 2, d / 2, s / 2)
        assert CERTIFICATE.accepts(nearer, share)
        assert found.representation <= CERTIFICATE.guards["representation"] and share <= 0.65


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, None, 9.0])
def test_one_value_that_is_missing_no_number_or_beyond_its_guard_is_never_accepted(family: str, bad) -> None:
    assert CERTIFICATE.accepts(NEAR, 0.3)
    assert not CERTIFICATE.accepts(dataclasses.replace(NEAR, **{family: bad}), 0.3)


def test_the_rules_of_the_region_hold_behind_a_certificate() -> None:
    assert CERTIFICATE.accepts(NEAR, 0.65) and not CERTIFICATE.accepts(NEAR, 0.66)
    late = dataclasses.replace(NEAR, representation=0.0006)
    assert CERTIFICATE.accepts(late, 0.05) and not CERTIFICATE.accepts(late, 0.04)


def test_the_excess_over_the_limit_tells_what_is_accepted() -> None:
    far = Discrepancies(*[min(CERTIFICATE.guards.values())] * 4)
    assert CERTIFICATE.excess(far) > 1 and not CERTIFICATE.covers(far)
    assert CERTIFICATE.excess(NEAR) < 1 and CERTIFICATE.covers(NEAR)

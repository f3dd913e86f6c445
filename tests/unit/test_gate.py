"""Gate: every discrepancy at or below its threshold, and nothing else."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.gate import exceeded, explain, thresholds_for
from carnator_core.options import GateOptions
from carnator_core.signature import FAMILIES, Discrepancies

LIMITS = GateOptions(0.1, 0.2, 0.3, 0.4)
AT_LIMITS = Discrepancies(0.1, 0.2, 0.3, 0.4)
value = st.floats(0.0, 1.0)


@given(value, st.none() | value, st.none() | value, value)
def test_a_donor_passes_exactly_if_no_discrepancy_is_above_its_threshold(r, u, d, s) -> None:
    found = Discrepancies(r, u, d, s)
    above = [f for f in FAMILIES if getattr(found, f) is not None and getattr(found, f) > getattr(LIMITS, f)]
    assert exceeded(found, LIMITS) == above


def test_a_value_equal_to_its_threshold_passes() -> None:
    assert exceeded(AT_LIMITS, LIMITS) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_or_infinite_discrepancy_never_passes(family: str, bad: float) -> None:
    wide = GateOptions(1e9, 1e9, 1e9, 1e9)
    assert exceeded(replace(AT_LIMITS, **{family: bad}), wide) == [family]


@pytest.mark.parametrize("family", ["residual", "dynamics"])
def test_an_absent_family_does_not_stand_in_the_way(family: str) -> None:
    strict = GateOptions(0.1, 0.0, 0.0, 0.4)
    found = Discrepancies(0.1, 0.0, 0.0, 0.4)
    assert exceeded(replace(found, **{family: None}), strict) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_explanation_names_the_family_its_value_and_its_threshold(family: str) -> None:
    text = explain(replace(AT_LIMITS, **{family: 0.75}), LIMITS)
    assert text == f"{family} (0.75 > {getattr(LIMITS, family):g})"


def test_a_near_empty_region_is_trusted_only_if_the_representation_agrees_like_a_rewordings() -> None:
    options = GateOptions()
    late = Discrepancies(representation=0.001, residual=0.0, dynamics=0.0, state=0.0)
    assert exceeded(late, thresholds_for(0.049, options)) == ["representation"]
    assert exceeded(late, thresholds_for(0.05, options)) == []
    wording = Discrepancies(representation=0.0003, residual=0.0, dynamics=0.0, state=0.0)
    assert exceeded(wording, thresholds_for(0.0, options)) == []


def test_near_empty_thresholds_never_loosen_what_the_artist_set() -> None:
    strict = GateOptions(representation=0.0)
    assert thresholds_for(0.0, strict).representation == 0.0

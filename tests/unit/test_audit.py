"""Which hits are audited, and how a hit is held against its dense run."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.audit import difference, is_chosen
from carnator_core.identity import digest
from carnator_core.risk import is_development

IDS = [digest("a request", number) for number in range(4000)]
CHOSEN = [18, 51, 82, 115, 117, 164, 184, 188]  # of "request 0" to "request 199" at 5 %
percents = st.floats(0.0, 100.0)


@pytest.mark.parametrize("percent", [1.0, 10.0, 50.0, 99.0])
def test_the_share_of_the_requests_is_the_one_asked_for(percent: float) -> None:
    share = percent / 100
    found = sum(is_chosen(name, percent) for name in IDS) / len(IDS)
    assert abs(found - share) < 4 * math.sqrt(share * (1 - share) / len(IDS))


def test_none_at_0_and_all_at_100() -> None:
    assert not any(is_chosen(name, 0.0) for name in IDS) and all(is_chosen(name, 100.0) for name in IDS)


@given(name=st.text(max_size=40), percents=st.tuples(percents, percents))
def test_a_larger_share_holds_all_of_a_smaller_one(name: str, percents: tuple[float, float]) -> None:
    small, large = sorted(percents)
    assert is_chosen(name, large) or not is_chosen(name, small)


def test_the_choice_is_the_same_in_every_process_and_version() -> None:
    assert [number for number in range(200) if is_chosen(f"request {number}", 5.0)] == CHOSEN


def test_the_choice_says_nothing_about_the_split_of_a_certificate() -> None:
    development = [name for name in IDS if is_development(name)]
    found = sum(is_chosen(name, 30.0) for name in development) / len(development)
    assert abs(found - 0.3) < 4 * math.sqrt(0.3 * 0.7 / len(development))


def test_the_difference_is_told_inside_and_outside_the_region() -> None:
    hit, computed = torch.randn(1, 16, 3, 4, 4), torch.zeros(3, 4, 4, dtype=torch.bool)
    computed[1] = True
    dense = hit.clone()
    dense[:, :, 1] += 0.5
    dense[:, :8, 0] -= 0.2
    found = difference(hit, dense, computed)
    assert found["inside"] == pytest.approx(0.5, rel=1e-3)
    assert found["outside"] == pytest.approx(0.2 / 2, rel=1e-3), "half of the channels of one of two frames"
    assert difference(hit, hit, computed) == {"inside": 0.0, "outside": 0.0}


@pytest.mark.parametrize(("everywhere", "absent"), [(True, "outside"), (False, "inside")])
def test_a_part_that_is_empty_has_no_number(everywhere: bool, absent: str) -> None:
    latent = torch.randn(1, 16, 2, 4, 4)
    found = difference(latent, latent + 1, torch.full((2, 4, 4), everywhere))
    assert found.pop(absent) is None and list(found.values()) == [pytest.approx(1.0, rel=1e-3)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_cannot_be_compared(value: float) -> None:
    latent = torch.zeros(1, 16, 2, 4, 4)
    latent[0, 3, 1, 2, 2] = value
    with pytest.raises(ValueError, match="not finite"):
        difference(latent, torch.zeros_like(latent), torch.ones(2, 4, 4, dtype=torch.bool))

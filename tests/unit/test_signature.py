"""Early Signature: what is kept, and the four distances between two of them."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.signature import (
    FAMILIES,
    EarlySignature,
    build_signature,
    compact,
    discrepancies,
    pool,
)

LATENT, GRID = (4, 3, 8, 12), (3, 4, 6)
seeds = st.integers(0, 10_000)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def signature(seed: int, guided: bool = True, steps: int = 2) -> EarlySignature:
    return build_signature(
        random(16, *GRID, seed=seed),
        random(*LATENT, seed=seed + 1),
        random(*LATENT, seed=seed + 2) if guided else None,
        random(*LATENT, seed=seed + 3) if steps > 1 else None,
    )


def everywhere() -> torch.Tensor:
    return torch.ones(GRID, dtype=torch.bool)


@given(seeds, st.booleans(), st.integers(1, 2))
def test_equal_signatures_are_at_distance_zero(seed: int, guided: bool, steps: int) -> None:
    found = discrepancies(signature(seed, guided, steps), signature(seed, guided, steps), everywhere())
    for family in FAMILIES:
        value = getattr(found, family)
        assert value is None or abs(value) < 1e-6, family


@pytest.mark.parametrize("family", ["residual", "dynamics", "state"])
def test_equal_signatures_are_at_distance_zero_even_where_a_family_is_all_zero(family: str) -> None:
    """A prompt equal to the negative prompt has no residual at all."""
    one = signature(1)
    one = replace(one, **{family: torch.zeros_like(getattr(one, family))})
    assert abs(getattr(discrepancies(one, one, everywhere()), family)) < 1e-6


def test_a_family_is_absent_where_it_does_not_exist() -> None:
    found = discrepancies(signature(1, guided=False), signature(2, guided=False), everywhere())
    assert found.residual is None and found.dynamics is not None
    found = discrepancies(signature(1, steps=1), signature(2, steps=1), everywhere())
    assert found.dynamics is None and found.residual is not None


@given(seeds, seeds)
def test_representation_residual_and_state_are_symmetric(a: int, b: int) -> None:
    there = discrepancies(signature(a), signature(b), everywhere())
    back = discrepancies(signature(b), signature(a), everywhere())
    for family in ("representation", "residual", "state"):
        assert getattr(there, family) == pytest.approx(getattr(back, family), abs=1e-6)


@given(seeds, seeds)
def test_distances_lie_in_their_ranges(a: int, b: int) -> None:
    found = discrepancies(signature(a), signature(b), everywhere())
    for family in ("representation", "residual"):
        assert -1e-6 <= getattr(found, family) <= 2 + 1e-6
    assert found.dynamics >= 0 and found.state >= 0


def test_opposite_hidden_states_are_at_cosine_distance_two() -> None:
    one = signature(1)
    other = replace(one, representation=-one.representation)
    assert discrepancies(other, one, everywhere()).representation == pytest.approx(2.0, abs=1e-5)


def test_dynamics_is_the_difference_relative_to_the_donor() -> None:
    one = signature(1)
    other = replace(one, dynamics=one.dynamics * 3)
    assert discrepancies(other, one, everywhere()).dynamics == pytest.approx(2.0, rel=1e-3)


def test_state_is_the_rms_of_the_worst_frame_in_latent_units() -> None:
    one = signature(1)
    changed = one.state.float()
    changed[:, 1] += 0.5
    found = discrepancies(replace(one, state=compact(changed)), one, everywhere())
    assert found.state == pytest.approx(0.5, rel=5e-3)


@given(seeds, st.integers(0, 2))
def test_distances_do_not_see_a_change_outside_the_replayed_tokens(seed: int, frame: int) -> None:
    """Whole frames are left out here: cells of the coarse grid then lie on one side or the other."""
    replayed = everywhere()
    replayed[frame] = False
    one, other = signature(seed), signature(seed + 50)
    changed = {name: getattr(other, name).clone() for name in FAMILIES}
    for volume in changed.values():
        volume[:, frame] += 7.0
    before, after = (discrepancies(s, one, replayed) for s in (other, EarlySignature(**changed)))
    for family in FAMILIES:
        assert getattr(after, family) == pytest.approx(getattr(before, family), abs=1e-6), family


@given(seeds, st.integers(0, 2), st.sampled_from(FAMILIES))
def test_every_distance_sees_a_change_within_the_replayed_tokens(seed: int, frame: int, family: str) -> None:
    replayed = torch.zeros(GRID, dtype=torch.bool)
    replayed[frame] = True
    one = signature(seed)
    volume = getattr(one, family).clone()
    volume[:, frame] = volume[:, frame].flip(0) + 1.0
    assert getattr(discrepancies(replace(one, **{family: volume}), one, replayed), family) > 0.01


def test_state_sees_exactly_the_cells_of_the_replayed_tokens_when_sides_are_odd() -> None:
    latent, grid = (2, 2, 7, 9), (2, 4, 5)
    state = random(*latent, seed=1)
    one = build_signature(random(4, *grid, seed=2), state, None, None)
    replayed = torch.ones(grid, dtype=torch.bool)
    replayed[:, 3, 4] = False  # the last token: a single latent cell at (6, 8)
    outside, inside = state.clone(), state.clone()
    outside[:, :, 6, 8] += 5.0
    inside[:, :, 6, 7] += 5.0
    assert discrepancies(replace(one, state=compact(outside)), one, replayed).state == 0.0
    assert discrepancies(replace(one, state=compact(inside)), one, replayed).state > 0.5


def test_without_a_replayed_token_every_distance_is_zero() -> None:
    found = discrepancies(signature(1), signature(2), torch.zeros(GRID, dtype=torch.bool))
    assert all(value == 0.0 for value in found.as_dict().values())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_nan_in_a_signature_gives_a_nan_and_never_a_number(family: str) -> None:
    one = signature(1)
    broken = getattr(one, family).clone()
    broken.view(-1)[0] = math.nan
    assert math.isnan(getattr(discrepancies(replace(one, **{family: broken}), one, everywhere()), family))


def test_the_coarse_families_of_a_5b_request_stay_below_8_mb() -> None:
    # Wan2.2 5B at 704×1280×121: latent 48×31×44×80, hidden width 3072. expand() keeps the test small.
    latent, hidden = torch.ones(1).expand(48, 31, 44, 80), torch.ones(1).expand(3072, 31, 22, 40)
    found = build_signature(hidden, latent, latent, latent)
    coarse = {name: t for name, t in found.tensors().items() if name != "state"}
    assert sum(t.numel() * t.element_size() for t in coarse.values()) <= 8_000_000
    assert found.state.shape == latent.shape and found.state.dtype == torch.float16
    assert all(side <= 8 for t in coarse.values() for side in t.shape[1:])


def test_a_small_volume_is_pooled_to_its_own_size() -> None:
    volume = random(2, 3, 5, 8, seed=1)
    torch.testing.assert_close(pool(volume), volume)
    assert pool(random(2, 9, 16, 17, seed=1)).shape == (2, 8, 8, 8)


def test_compact_clamps_what_float16_cannot_hold() -> None:
    found = compact(torch.tensor([1e9, -1e9, 1.5, math.inf]))
    assert found.dtype == torch.float16
    assert found.tolist() == [65504.0, -65504.0, 1.5, 65504.0]


@given(seeds, st.booleans(), st.integers(1, 2))
def test_a_signature_survives_the_way_through_named_tensors(seed: int, guided: bool, steps: int) -> None:
    one = signature(seed, guided, steps)
    again = EarlySignature.from_tensors(dict(one.tensors()))
    for name in FAMILIES:
        a, b = getattr(one, name), getattr(again, name)
        assert (a is None and b is None) or torch.equal(a, b)

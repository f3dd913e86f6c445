"""Evidence region: what differs, how it grows, and how the two sources are blended."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core import evidence

PATCH = (1, 2, 2)
sizes = st.tuples(st.integers(2, 4), st.integers(2, 9), st.integers(2, 9))
wide = st.tuples(st.integers(2, 4), st.integers(5, 10), st.integers(5, 10))
seeds = st.integers(0, 10_000)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def grid_of(size: tuple[int, int, int], patch: tuple[int, int, int] = PATCH) -> tuple[int, ...]:
    return tuple(math.ceil(side / step) for side, step in zip(size, patch, strict=True))


def cells_of(token: tuple[int, ...], patch: tuple[int, int, int]) -> tuple[slice, ...]:
    return tuple(slice(at * step, (at + 1) * step) for at, step in zip(token, patch, strict=True))


@given(sizes, st.sampled_from([PATCH, (1, 1, 1), (2, 2, 2)]), seeds)
def test_token_difference_is_the_rms_within_each_token(size: tuple, patch: tuple, seed: int) -> None:
    a, b = random(3, *size, seed=seed), random(3, *size, seed=seed + 1)
    found = evidence.token_difference(a, b, patch)
    assert found.shape == grid_of(size, patch)
    for token in itertools.product(*map(range, found.shape)):
        cells = (slice(None), *cells_of(token, patch))
        expected = (a[cells] - b[cells]).square().mean().sqrt()
        torch.testing.assert_close(found[token], expected)


@given(sizes, seeds)
def test_token_difference_is_symmetric_and_zero_for_equal_predictions(size: tuple, seed: int) -> None:
    a, b = random(3, *size, seed=seed), random(3, *size, seed=seed + 1)
    assert torch.equal(evidence.token_difference(a, b, PATCH), evidence.token_difference(b, a, PATCH))
    assert not evidence.token_difference(a, a, PATCH).any()


def test_token_difference_of_half_precision_is_taken_in_float32() -> None:
    a = torch.full((1, 1, 2, 2), 300.0, dtype=torch.float16)  # its square overflows float16
    found = evidence.token_difference(a, -a, PATCH)
    assert found.dtype == torch.float32
    assert found.item() == 600.0


@given(sizes, seeds)
def test_a_higher_threshold_never_adds_a_token(size: tuple, seed: int) -> None:
    difference = random(*size, seed=seed).abs()
    regions = [evidence.evidence_region(difference, t) for t in (0.0, 0.3, 0.8, 1.5, 9.0)]
    for larger, smaller in itertools.pairwise(regions):
        assert not (smaller & ~larger).any()


@given(sizes, seeds)
def test_the_region_holds_every_token_above_the_threshold_and_none_far_from_one(size: tuple, seed: int) -> None:
    difference = random(*size, seed=seed).abs()
    region = evidence.evidence_region(difference, 1.0)
    core = (difference > 1.0).nonzero()
    for token in itertools.product(*map(range, size)):
        # within one token of a token that differs, in the same latent frame
        apart = (core - torch.tensor(token)).abs() - torch.tensor([0, 1, 1])
        near = bool((apart.amax(dim=1) <= 0).any()) if len(core) else False
        assert bool(region[token]) == near


def test_equal_predictions_have_an_empty_region_even_at_threshold_zero() -> None:
    assert not evidence.evidence_region(torch.zeros(3, 4, 4), 0.0).any()


def test_dilation_reaches_one_token_in_space_and_none_in_time() -> None:
    mask = torch.zeros(7, 7, 7, dtype=torch.bool)
    mask[3, 3, 3] = True
    grown = evidence.dilate(mask)
    assert grown.dtype == torch.bool
    assert int(grown.sum()) == 9 and bool(grown[3, 2:5, 2:5].all())


def test_the_threshold_rises_from_early_to_late_noise_levels_and_stays_there() -> None:
    found = [evidence.threshold_at(0.2, sigma) for sigma in (1.0, 0.99, 0.96, 0.94, 0.90, 0.82, 0.0)]
    assert found[0] == found[1] == 0.2
    assert found[4] == found[5] == found[6] == pytest.approx(0.4)
    assert found == sorted(found)


@given(sizes, seeds, st.floats(0.0, 1.0))
def test_replayed_tokens_leave_out_no_more_than_the_allowed_share(size: tuple, seed: int, share: float) -> None:
    difference = random(*size, seed=seed).abs()
    region = evidence.evidence_region(difference, 1.2)
    replayed = evidence.replayed_tokens(difference, region, share)
    allowed = int(share * region.numel())
    if int(region.sum()) <= allowed:
        assert torch.equal(replayed, ~region)
    else:
        assert int((~replayed).sum()) == allowed
        left_out, kept = difference[~replayed], difference[replayed]
        assert not len(left_out) or left_out.min() >= kept.max(), "the most different tokens are left out"


@given(sizes, seeds)
def test_region_rows_hold_the_region_and_fill_up_to_a_whole_sixteenth_with_what_differs_most(
    size: tuple, seed: int
) -> None:
    difference = random(*size, seed=seed).abs()
    region = random(*size, seed=seed + 1) > 0.4
    rows = evidence.region_rows(region, difference)
    inside = {i for i, within in enumerate(region.flatten().tolist()) if within}
    bucket = math.ceil(region.numel() / evidence.ROW_BUCKETS)
    assert rows.dtype == torch.int64
    assert rows.tolist() == sorted(set(rows.tolist())) and inside <= set(rows.tolist())
    assert len(rows) == min(region.numel(), bucket * math.ceil(len(inside) / bucket))
    added = [i for i in rows.tolist() if i not in inside]
    left = [i for i in range(region.numel()) if i not in inside and i not in added]
    values = difference.flatten()
    assert not added or not left or min(values[added]) >= max(values[left])


@given(wide, st.sampled_from([PATCH, (1, 1, 1), (2, 2, 2)]), seeds)
def test_blend_weight_has_the_latents_size_and_is_zero_exactly_outside_the_region(
    size: tuple, patch: tuple, seed: int
) -> None:
    region = random(*grid_of(size, patch), seed=seed) > 0.0
    weight = evidence.blend_weight(region, size, patch)
    assert weight.shape == size and weight.dtype == torch.float32
    assert weight.min() >= 0.0 and weight.max() <= 1.0
    for token in itertools.product(*map(range, region.shape)):
        cells = weight[cells_of(token, patch)]
        assert bool((cells > 0).all()) if region[token] else not bool(cells.any())


@given(wide, seeds)
def test_blend_weight_is_one_where_all_neighbours_in_the_frame_are_inside(size: tuple, seed: int) -> None:
    region = evidence.dilate(random(*grid_of(size), seed=seed) > 1.0)
    weight = evidence.blend_weight(region, size, PATCH)
    for t, y, x in itertools.product(*map(range, region.shape)):
        around = region[t, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
        deep = bool(around.all())
        ones = bool((weight[cells_of((t, y, x), PATCH)] > 1 - 1e-6).all())
        assert ones == deep


def test_blend_weight_of_a_full_region_is_one_up_to_the_edges_of_the_frame() -> None:
    weight = evidence.blend_weight(torch.ones(2, 3, 4, dtype=torch.bool), (2, 5, 7), PATCH)
    assert torch.equal(weight, torch.ones(2, 5, 7))


@pytest.mark.parametrize("grid", [(2, 2, 2), (1, 2, 5), (3, 5, 2), (2, 1, 4), (1, 1, 1)])
def test_blend_weight_works_for_a_video_only_one_or_two_tokens_high_or_wide(
    grid: tuple[int, int, int],
) -> None:
    latent = (grid[0], 2 * grid[1], 2 * grid[2])
    assert torch.equal(evidence.blend_weight(torch.ones(grid, dtype=torch.bool), latent, PATCH), torch.ones(latent))

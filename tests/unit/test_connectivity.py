"""Connectivity: masks hold what their rule says and no more, and bits come back as they were packed."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.connectivity import (
    CONSENSUS_MEMORY,
    Connectivity,
    Consensus,
    keep,
    keep_by_density,
    keep_by_mass,
    pack,
    rows_mask,
    unpack,
)
from carnator_core.options import ReuseOptions
from support.attention import a_mass

RULES = {"density": keep_by_density, "mass": keep_by_mass}
HALF_STEP = 2.0**-11  # relative error of one rounding to float16
seeds = st.integers(0, 10**6)


def whole_masses(blocks: int) -> st.SearchStrategy[torch.Tensor]:
    """[blocks, blocks] of small whole numbers, whose sums are exact and which have many ties."""
    row = st.lists(st.integers(0, 9), min_size=blocks, max_size=blocks)
    return st.lists(row, min_size=blocks, max_size=blocks).map(lambda rows: torch.tensor(rows).float())


@given(seeds, st.integers(1, 40), st.integers(1, 1000))
def test_density_keeps_exactly_its_share_of_blocks_the_diagonal_and_the_heaviest(
    seed: int, blocks: int, permille: int
) -> None:
    mass = a_mass(seed, blocks=blocks)
    mask = keep(mass, ReuseOptions(attention_rule="density", attention_percent=permille / 10))
    count = math.ceil(Fraction(permille, 1000) * blocks)
    assert mask.dtype == torch.bool and torch.equal(mask.sum(-1), torch.full(mask.shape[:-1], count))
    own = torch.eye(blocks, dtype=torch.bool)
    assert bool(mask[..., own].all())
    lightest = mass.masked_fill(~mask | own, math.inf).amin(-1)
    assert bool((mass.masked_fill(mask, -1.0).amax(-1) <= lightest).all())


@given(st.integers(1, 6).flatmap(whole_masses), st.integers(1, 64))
def test_mass_keeps_the_smallest_set_that_holds_its_share_and_the_diagonal(mass: torch.Tensor, of_64: int) -> None:
    blocks, mask = len(mass), keep_by_mass(mass, of_64 / 64)
    for own, (row, kept) in enumerate(zip(mass.tolist(), mask.tolist(), strict=True)):
        enough = sum(row) * of_64 / 64
        sizes = (n for n in range(blocks + 1) for some in itertools.combinations(row, n) if sum(some) >= enough)
        chosen, smallest = [value for value, is_kept in zip(row, kept, strict=True) if is_kept], next(sizes)
        assert kept[own] and sum(chosen) >= enough
        if len(chosen) > smallest:
            assert len(chosen) == smallest + 1 and sum(chosen) - row[own] >= enough, "only the diagonal was added"


@pytest.mark.parametrize("rule", RULES)
@given(seed=seeds, blocks=st.integers(1, 70), percent=st.integers(1, 100))
def test_half_precision_masses_are_kept_like_the_same_values_in_full(
    rule: str, seed: int, blocks: int, percent: int
) -> None:
    mass = a_mass(seed, blocks=blocks).half()
    assert torch.equal(RULES[rule](mass, percent / 100), RULES[rule](mass.float(), percent / 100))


def test_nothing_is_made_on_another_device_than_that_of_its_inputs() -> None:
    mass, rows, options = a_mass(), torch.arange(0, 88, 3), ReuseOptions()

    def everything() -> list[torch.Tensor]:
        masks = [rule(mass, 0.5) for rule in RULES.values()]
        connectivity = Connectivity.of(mass, 8, options)
        masks += [rows_mask(masks[0], rows, 8), connectivity.mask(1, mass.device), connectivity.packed]
        return [*masks, Consensus.of(mass, 8).with_request(mass).mask(0, mass.device, options)]

    expected = everything()
    with torch.device("meta"):  # what is made without naming a device has no values now
        found = everything()
    assert all(map(torch.equal, found, expected))


@given(seeds, st.lists(st.integers(1, 3), max_size=3), st.integers(1, 40))
def test_masks_come_back_as_they_were_packed(seed: int, outer: list[int], count: int) -> None:
    mask = torch.rand(*outer, count, generator=torch.Generator().manual_seed(seed)) < 0.5
    packed = pack(mask)
    assert packed.dtype == torch.uint8 and packed.shape == (*outer, -(-count // 8))
    found = unpack(packed, count)
    assert found.dtype == torch.bool and torch.equal(found, mask)


def test_the_first_of_eight_is_the_lowest_bit_and_the_rest_of_the_last_byte_is_zero() -> None:
    assert pack(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1, 1]).bool()).tolist() == [0b10000001, 0b11]


@given(seeds, st.integers(1, 6), st.integers(1, 8), st.data())
def test_rows_keep_what_any_of_their_own_blocks_keeps(seed: int, blocks: int, block: int, data) -> None:
    mask = torch.rand(2, 3, blocks, blocks, generator=torch.Generator().manual_seed(seed)) < 0.3
    chosen = data.draw(st.sets(st.integers(0, blocks * block - 1), min_size=1))
    rows = torch.tensor(sorted(chosen))
    expected = [mask[:, :, part // block].any(dim=2) for part in rows.split(block)]
    assert torch.equal(rows_mask(mask, rows, block), torch.stack(expected, dim=2))


@pytest.mark.parametrize("rule", RULES)
@given(seed=seeds, blocks=st.integers(1, 20), percent=st.integers(1, 100))
def test_connectivity_is_the_mask_of_its_rule(rule: str, seed: int, blocks: int, percent: int) -> None:
    options, mass = ReuseOptions(attention_rule=rule, attention_percent=percent), a_mass(seed, blocks=blocks)
    connectivity = Connectivity.of(mass, 64, options)
    assert (connectivity.block, connectivity.rule) == (64, f"{rule} {percent} %")
    for layer in range(len(mass)):
        assert torch.equal(connectivity.mask(layer, mass.device), keep(mass[layer], options))


@given(seeds, st.integers(1, CONSENSUS_MEMORY))
def test_the_consensus_of_few_requests_is_their_mean(seed: int, requests: int) -> None:
    masses = [a_mass(seed + number, blocks=5) for number in range(requests)]
    consensus = Consensus.of(masses[0], 8)
    for mass in masses[1:]:
        consensus = consensus.with_request(mass)
    assert consensus.count == requests and consensus.mass.dtype == torch.float16
    mean = torch.stack(masses).mean(0)
    assert float((consensus.mass.float() - mean).abs().max()) <= requests * HALF_STEP


@given(st.integers(0, 40))
def test_old_requests_fade_once_there_are_many(later: int) -> None:
    first, other = torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)
    consensus = Consensus(first.half(), 8, CONSENSUS_MEMORY)
    for _ in range(later):
        consensus = consensus.with_request(other)
    left = (1 - 1 / CONSENSUS_MEMORY) ** later
    assert consensus.mass.flatten().tolist() == pytest.approx([left] * 4, abs=later * HALF_STEP)
    assert consensus.count == CONSENSUS_MEMORY + later

"""Tile order: a permutation of the tokens, with an inverse, in which consecutive tokens are neighbours."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.tiles import ENOUGH_BLOCKS, LARGE, SMALL, block_for, inverse, tile_of, tile_order

grids = st.tuples(st.integers(1, 6), st.integers(1, 20), st.integers(1, 20))
blocks = st.integers(0, 8).map(lambda exponent: 1 << exponent)


def positions(grid: tuple[int, int, int], block: int) -> torch.Tensor:
    """[tokens, 3] int64: (t, h, w) of each token in tile order."""
    return torch.stack(torch.unravel_index(tile_order(grid, block), grid), dim=-1)


@given(grids, blocks)
def test_every_token_has_one_place_and_the_inverse_finds_it(grid: tuple[int, int, int], block: int) -> None:
    order = tile_order(grid, block)
    tokens = torch.arange(grid[0] * grid[1] * grid[2])
    assert order.dtype == torch.int64 and torch.equal(order.sort().values, tokens)
    assert torch.equal(order[inverse(order)], tokens) and torch.equal(inverse(order)[order], tokens)


@given(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)), blocks)
def test_where_the_sides_divide_every_block_is_one_whole_box(counts: tuple[int, int, int], block: int) -> None:
    tile = tile_of(block)
    grid = tuple(count * side for count, side in zip(counts, tile, strict=True))
    boxes = positions(grid, block).view(-1, block, 3)
    extent = boxes.amax(dim=1) - boxes.amin(dim=1) + 1
    assert torch.equal(extent, torch.tensor(tile).expand_as(extent))
    assert boxes.amin(dim=1).remainder(torch.tensor(tile)).count_nonzero() == 0


@given(grids, blocks)
def test_boxes_are_filled_one_after_the_other_and_each_touches_the_next(grid: tuple[int, int, int], block: int) -> None:
    boxes = positions(grid, block) // torch.tensor(tile_of(block))
    visited = torch.unique_consecutive(boxes, dim=0)
    assert len(visited) == len(boxes.unique(dim=0)), "no box is left before it is full"
    assert bool((visited.diff(dim=0).abs().sum(-1) == 1).all())


@given(blocks)
def test_a_box_holds_a_block_and_is_as_square_as_it_can_be(block: int) -> None:
    frames, high, wide = tile_of(block)
    assert frames * high * wide == block and frames <= 2 and high == wide


@pytest.mark.parametrize(("block", "tile"), [(1, (1, 1, 1)), (8, (2, 2, 2)), (64, (1, 8, 8)), (128, (2, 8, 8))])
def test_the_boxes_of_known_blocks(block: int, tile: tuple[int, int, int]) -> None:
    assert tile_of(block) == tile


@given(st.integers(-4, 300).filter(lambda block: block < 1 or block & (block - 1)))
def test_a_block_that_is_no_power_of_two_is_refused(block: int) -> None:
    with pytest.raises(ValueError):
        tile_of(block)


def test_the_block_follows_the_size_of_the_video_unless_it_is_chosen() -> None:
    edge = LARGE * ENOUGH_BLOCKS
    assert (block_for(edge - 1), block_for(edge), block_for(edge, 32), block_for(1, 256)) == (SMALL, LARGE, 32, 256)

"""Tile order: the tokens of a video, box by box instead of row by row."""

from __future__ import annotations

import math

import torch

SMALL, LARGE = 64, 128  # tokens per block, as attention kernels have them
ENOUGH_BLOCKS = 100  # fewer would make a block a large part of the video


def block_for(tokens: int, chosen: int = 0) -> int:
    """Tokens per block: what was chosen, or the larger one that leaves enough blocks."""
    return chosen or (LARGE if tokens >= LARGE * ENOUGH_BLOCKS else SMALL)


def tile_of(block: int) -> tuple[int, int, int]:
    """Sides (T', h, w) of a box of ``block`` tokens, a power of two: as square as it can be, at most two frames deep.

    128 tokens are 2×8×8, 64 are 1×8×8, 8 are 2×2×2.
    """
    exponent = block.bit_length() - 1
    if block != 1 << exponent:
        raise ValueError(f"a block of {block} tokens is no power of two")
    frames = exponent % 2 + 1
    side = 1 << exponent // 2
    return frames, side, side


def tile_order(grid: tuple[int, int, int], block: int) -> torch.Tensor:
    """[tokens] int64: the row-by-row index of the token at each position of the tile order.

    Boxes follow each other in a snake and those at the edges are smaller, so nothing is padded: a block of
    consecutive tokens is one box where the sides of the grid divide, else parts of a few boxes that touch.
    """
    position = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij"))
    tile = torch.tensor(tile_of(block)).view(3, 1, 1, 1)
    t, h, w = position // tile
    tiles_high, tiles_wide = (math.ceil(side / step) for side, step in zip(grid[1:], tile_of(block)[1:], strict=True))
    h = torch.where(t % 2 == 0, h, tiles_high - 1 - h)
    w = torch.where((t * tiles_high + h) % 2 == 0, w, tiles_wide - 1 - w)
    box = (t * tiles_high + h) * tiles_wide + w
    return torch.argsort(box.flatten(), stable=True)


def inverse(order: torch.Tensor) -> torch.Tensor:
    """Position in tile order of the token at each row-by-row index."""
    places = torch.empty_like(order)
    places[order] = torch.arange(order.numel(), device=order.device)
    return places

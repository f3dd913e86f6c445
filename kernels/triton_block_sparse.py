"""Block-sparse attention forward in Triton: one flash-attention loop over the list of kept key blocks.

Queries, keys and values are read through tensor descriptors from the [L, H·D] layout in which the host hands them
over, so nothing is copied. Rows (head, query block) are started longest list first, which evens out the last wave.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .block_lists import BlockLists


@triton.jit
def _tile(
    accumulator, peak, total, q, k_desc, v_desc, start, column, n_keys, scale,
    MASKED: tl.constexpr, KEY_TILE: tl.constexpr,
):  # fmt: skip
    """One key tile of the online softmax; ``scale`` includes log2(e)."""
    k = k_desc.load([start, column])
    scores = tl.dot(q, k.T)
    if MASKED:
        inside = start + tl.arange(0, KEY_TILE) < n_keys
        scores = tl.where(inside[None, :], scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1) * scale)
    weights = tl.math.exp2(scores * scale - higher[:, None])
    fade = tl.math.exp2(peak - higher)
    total = total * fade + tl.sum(weights, 1)
    v = v_desc.load([start, column])
    accumulator = tl.dot(weights.to(v.dtype), v, accumulator * fade[:, None])
    return accumulator, higher, total


# Of numbers that change with the region no kernel of its own is made: that would stop a run for a second.
@triton.jit(do_not_specialize=["n_query_blocks", "capacity"])
def _forward(
    q_desc, k_desc, v_desc, o_desc, indices, counts, order, n_query_blocks, n_keys, capacity, scale,
    BLOCK: tl.constexpr, KEY_TILE: tl.constexpr, HEAD_DIM: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    row = tl.load(order + tl.program_id(0))
    head, block = row // n_query_blocks, row % n_query_blocks
    column = head * HEAD_DIM
    count = tl.load(counts + row)
    kept = indices + row.to(tl.int64) * capacity
    TILES: tl.constexpr = BLOCK // KEY_TILE

    q = q_desc.load([block * BLOCK, column])
    peak = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    accumulator = tl.zeros([BLOCK, HEAD_DIM], tl.float32)
    # Only the highest key block can be ragged, and lists ascend: it is the last one. It goes first, outside the
    # pipelined loop, so that the loop needs no mask.
    if RAGGED:
        start = tl.load(kept + tl.maximum(count, 1) - 1) * BLOCK
        if (count > 0) & (start + BLOCK > n_keys):
            for i in tl.static_range(TILES):
                if start + i * KEY_TILE < n_keys:
                    accumulator, peak, total = _tile(
                        accumulator, peak, total, q, k_desc, v_desc, start + i * KEY_TILE, column, n_keys, scale,
                        True, KEY_TILE,
                    )  # fmt: skip
            count -= 1
    # The position of the next tile is loaded one turn ahead: loads that wait for a load are not pipelined deep enough.
    tiles = count * TILES
    start = tl.load(kept) * BLOCK
    for i in tl.range(0, tiles):
        ahead = tl.minimum(i + 1, tiles - 1)
        following = tl.load(kept + ahead // TILES) * BLOCK + (ahead % TILES) * KEY_TILE
        accumulator, peak, total = _tile(
            accumulator, peak, total, q, k_desc, v_desc, start, column, n_keys, scale, False, KEY_TILE
        )
        start = following
    # A row without any key gives zeros, not NaN.
    accumulator = accumulator / tl.where(total > 0, total, 1.0)[:, None]
    o_desc.store([block * BLOCK, column], accumulator.to(o_desc.dtype))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """As ``reference.attend``; q, k, v [B, L, H·D] in half precision, last stride 1, others multiples of 16 bytes."""
    lists.check(q, k, v)
    block, head_dim = lists.block, q.shape[2] // lists.heads
    # Measured on an H200 at head dim 128: a whole block per tile and 8 warps, with shared memory for three tiles.
    key_tile, warps = (block, 8) if block == 128 else (64, 4)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for batch in range(q.shape[0]):
        descriptors = [
            TensorDescriptor(x[batch], list(x[batch].shape), list(x[batch].stride()), [tile, head_dim])
            for x, tile in ((q, block), (k, key_tile), (v, key_tile), (out, block))
        ]
        _forward[(lists.order.numel(),)](
            *descriptors, lists.indices, lists.counts, lists.order, lists.query_blocks, k.shape[1],
            lists.indices.shape[1], math.log2(math.e) / math.sqrt(head_dim),
            BLOCK=block, KEY_TILE=key_tile, HEAD_DIM=head_dim, RAGGED=k.shape[1] % block != 0,
            num_warps=warps, num_stages=3,
        )  # fmt: skip
    return out

"""Block-sparse attention and block mass in plain torch, float32: what every kernel is compared with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .block_lists import BlockLists

CHUNK_BYTES = 16 * 2**20  # of gathered keys and values, or of scores, at a time: what a CPU's caches can hold


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, L, H·D] -> [B, H, L, D] without a copy."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v over the kept key blocks of each query block; skipped blocks cost nothing.

    Rows (head, query block) that keep equally many keys are computed together, so that none needs a padding mask.

    Args:
        q: [B, Lq, H·D]; k, v: [B, Lk, H·D]; any float dtype, any device. Lengths need not be multiples of the block.
    Returns:
        [B, Lq, H·D] in q's dtype; rows without a kept block are zero.
    """
    lists.check(q, k, v)
    query, key, value = (_in_blocks(x, lists.heads, lists.block) for x in (q, k, v))
    out = torch.zeros_like(query)
    for rows, tokens in _chunks(lists, k.shape[1], q.shape[0] * q.shape[2] // lists.heads):
        heads = rows // lists.query_blocks
        kept = lists.indices[rows, : -(-tokens // lists.block)] + heads[:, None] * lists.key_blocks
        out[:, rows] = F.scaled_dot_product_attention(
            query[:, rows], key[:, kept].flatten(2, 3)[:, :, :tokens], value[:, kept].flatten(2, 3)[:, :, :tokens]
        )
    by_head = out.unflatten(1, (lists.heads, -1)).flatten(2, 3)[:, :, : q.shape[1]]
    return by_head.transpose(1, 2).flatten(2).to(q.dtype).contiguous()  # contiguous, as every kernel gives it


def block_mass(q: torch.Tensor, k: torch.Tensor, heads: int, block: int) -> torch.Tensor:
    """Share of the softmax probability that falls on each key block, averaged over the rows of a query block.

    Args:
        q: [Lq, H·D]; k: [Lk, H·D].
    Returns:
        [H, query blocks, key blocks] float32; rows sum to 1.
    """
    query = _in_blocks(q[None], heads, block)[0].unflatten(0, (heads, -1)) / math.sqrt(q.shape[1] // heads)
    keys = split_heads(k[None], heads)[0].float()
    query_blocks, key_blocks = query.shape[1], -(-k.shape[0] // block)
    present = (torch.arange(query_blocks * block, device=q.device) < q.shape[0]).view(query_blocks, 1, block)
    share = present / present.sum(-1, keepdim=True)  # of each row in the mean of its block
    mass = torch.empty(heads, query_blocks, key_blocks, device=q.device)
    step = max(1, CHUNK_BYTES // (4 * block * k.shape[0]))
    for head in range(heads):
        for chunk in (slice(first, first + step) for first in range(0, query_blocks, step)):
            weights = torch.softmax(query[head, chunk].flatten(0, 1) @ keys[head].T, dim=-1)
            # Over the queries first: what is left to be added up by key block is small.
            mean = share[chunk] @ weights.unflatten(0, (-1, block))
            mass[head, chunk] = F.pad(mean[:, 0], (0, -k.shape[0] % block)).unflatten(-1, (-1, block)).sum(-1)
    return mass


def _in_blocks(x: torch.Tensor, heads: int, block: int) -> torch.Tensor:
    """[B, L, H·D] -> [B, H · blocks, block, D] float32, the last block filled up with zeros."""
    filled = F.pad(split_heads(x, heads).float(), (0, 0, 0, -x.shape[1] % block))
    return filled.unflatten(2, (-1, block)).flatten(1, 2)


def _chunks(lists: BlockLists, keys: int, width: int) -> list[tuple[torch.Tensor, int]]:
    """(rows [n] int64, how many keys each of them keeps), without the empty rows; ``width`` counts B·D."""
    # Only the highest key block can be ragged, and lists ascend: it is the last one of a row that keeps it.
    last = lists.indices.gather(1, (lists.counts.long() - 1).clamp(min=0)[:, None])[:, 0]
    missing = -keys % lists.block
    tokens = lists.counts * lists.block - missing * ((lists.counts > 0) & (last == lists.key_blocks - 1))
    rows = torch.argsort(tokens, stable=True)
    counts, sizes = tokens[rows].unique_consecutive(return_counts=True)
    return [
        (part, count)
        for count, group in zip(counts.tolist(), rows.split(sizes.tolist()), strict=True)
        if count
        for part in group.split(max(1, CHUNK_BYTES // (8 * count * width)))
    ]

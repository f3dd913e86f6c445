"""Block-sparse attention and block mass in plain torch, float32: what every kernel is compared with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .block_lists import BlockLists


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, L, H·D] -> [B, H, L, D] without a copy."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v over the kept key blocks of each query block; skipped blocks cost nothing.

    Args:
        q: [B, Lq, H·D]; k, v: [B, Lk, H·D]; any float dtype, any device. Lengths need not be multiples of the block.
    Returns:
        [B, Lq, H·D] in q's dtype; rows without a kept block are zero.
    """
    lists.check(q, k, v)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)  # contiguous, as every kernel gives it
    query, key, value = (split_heads(x, lists.heads) for x in (q, k, v))
    target = split_heads(out, lists.heads)
    inside = torch.arange(lists.block, device=q.device)
    for row, count in enumerate(lists.counts.tolist()):
        head, block = divmod(row, lists.query_blocks)
        rows = slice(block * lists.block, (block + 1) * lists.block)
        kept = (lists.indices[row, :count, None].long() * lists.block + inside).flatten()
        kept = kept[kept < k.shape[1]]
        if kept.numel():
            attended = F.scaled_dot_product_attention(
                query[:, head, rows].float(), key[:, head, kept].float(), value[:, head, kept].float()
            )
            target[:, head, rows] = attended.to(q.dtype)
    return out


def block_mass(q: torch.Tensor, k: torch.Tensor, heads: int, block: int) -> torch.Tensor:
    """Share of the softmax probability that falls on each key block, averaged over the rows of a query block.

    Args:
        q: [Lq, H·D]; k: [Lk, H·D].
    Returns:
        [H, query blocks, key blocks] float32; rows sum to 1.
    """
    query, key = split_heads(q[None].float(), heads)[0], split_heads(k[None].float(), heads)[0]
    query_blocks, key_blocks = -(-q.shape[0] // block), -(-k.shape[0] // block)
    mass = torch.empty(heads, query_blocks, key_blocks, device=q.device)
    for i in range(query_blocks):
        rows = query[:, i * block : (i + 1) * block]
        weights = torch.softmax(rows @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), dim=-1)
        padded = F.pad(weights, (0, key_blocks * block - k.shape[0]))
        mass[:, i] = padded.unflatten(-1, (key_blocks, block)).sum(-1).mean(1)
    return mass

"""Exact block mass in Triton: how much softmax probability falls on each key block, without writing a score to memory.

Each program takes one row (head, query block) and passes over the keys twice: once for the softmax's denominators,
once to add up probabilities per key block. The arithmetic is that of one attention without its values.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _scores(q, k_desc, start, column, n_keys, scale, BLOCK: tl.constexpr):
    """Scaled scores of one key block in units of log2, -inf beyond the last key."""
    scores = tl.dot(q, k_desc.load([start, column]).T) * scale
    inside = start + tl.arange(0, BLOCK) < n_keys
    return tl.where(inside[None, :], scores, float("-inf"))


@triton.jit
def _block_mass(
    q_desc, k_desc, mass, n_queries, n_keys, n_query_blocks, n_key_blocks, scale,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head, block = row // n_query_blocks, row % n_query_blocks
    column = head * HEAD_DIM
    q = q_desc.load([block * BLOCK, column])
    peak = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.range(0, n_key_blocks):
        scores = _scores(q, k_desc, i * BLOCK, column, n_keys, scale, BLOCK)
        higher = tl.maximum(peak, tl.max(scores, 1))
        total = total * tl.math.exp2(peak - higher) + tl.sum(tl.math.exp2(scores - higher[:, None]), 1)
        peak = higher
    normaliser = peak + tl.math.log2(total)
    present = block * BLOCK + tl.arange(0, BLOCK) < n_queries
    share = tl.where(present, 1.0 / tl.minimum(BLOCK, n_queries - block * BLOCK), 0.0)
    for i in tl.range(0, n_key_blocks):
        scores = _scores(q, k_desc, i * BLOCK, column, n_keys, scale, BLOCK)
        falls = tl.sum(tl.math.exp2(scores - normaliser[:, None]), 1) * share
        tl.store(mass + row.to(tl.int64) * n_key_blocks + i, tl.sum(falls, 0))


def block_mass(q: torch.Tensor, k: torch.Tensor, heads: int, block: int) -> torch.Tensor:
    """As ``reference.block_mass``; q, k [L, H·D] in bf16 or fp16, last stride 1, first a multiple of 16 bytes."""
    head_dim = q.shape[1] // heads
    query_blocks, key_blocks = triton.cdiv(q.shape[0], block), triton.cdiv(k.shape[0], block)
    mass = torch.empty(heads, query_blocks, key_blocks, dtype=torch.float32, device=q.device)
    descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), [block, head_dim]) for x in (q, k)]
    _block_mass[(heads * query_blocks,)](
        *descriptors, mass, q.shape[0], k.shape[0], query_blocks, key_blocks, math.log2(math.e) / math.sqrt(head_dim),
        BLOCK=block, HEAD_DIM=head_dim, num_warps=8 if block == 128 else 4, num_stages=3,
    )  # fmt: skip
    return mass

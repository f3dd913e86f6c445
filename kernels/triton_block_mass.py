"""Exact block mass in Triton: how much softmax probability falls on each key block, without writing a score to memory.

Each program takes rows (head, query block) one after another and passes over the keys of each once: what every query
gives to every key block, without the softmax's denominator, goes to a note of the program's own, small enough for the
cache, and is divided once the denominator is known. The arithmetic is half that of an attention.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

PROGRAMS = 512  # some waves of them on any GPU; their notes for 32,760 tokens take 67 MB


@triton.jit
def _block_mass(
    q_desc, k_desc, mass, notes, n_queries, n_keys, n_rows, n_query_blocks, n_key_blocks, scale,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    lanes = tl.arange(0, BLOCK)
    note = notes + tl.program_id(0).to(tl.int64) * n_key_blocks * BLOCK + lanes
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        head, block = row // n_query_blocks, row % n_query_blocks
        column = head * HEAD_DIM
        q = q_desc.load([block * BLOCK, column])
        peak = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for i in tl.range(0, n_key_blocks):
            # In units of log2; each block holds at least one key, so its sum is not 0.
            scores = tl.dot(q, k_desc.load([i * BLOCK, column]).T) * scale
            scores = tl.where((i * BLOCK + lanes < n_keys)[None, :], scores, float("-inf"))
            highest = tl.max(scores, 1)
            given = highest + tl.math.log2(tl.sum(tl.math.exp2(scores - highest[:, None]), 1))
            tl.store(note + i * BLOCK, given)
            higher = tl.maximum(peak, highest)
            total = total * tl.math.exp2(peak - higher) + tl.math.exp2(given - higher)
            peak = higher
        normaliser = peak + tl.math.log2(total)
        present = block * BLOCK + lanes < n_queries
        share = tl.where(present, 1.0 / tl.minimum(BLOCK, n_queries - block * BLOCK), 0.0)
        tl.debug_barrier()  # other threads may have written what this one reads
        for i in tl.range(0, n_key_blocks):
            falls = tl.math.exp2(tl.load(note + i * BLOCK) - normaliser) * share
            tl.store(mass + row * n_key_blocks + i, tl.sum(falls, 0))
        tl.debug_barrier()  # the next row writes there again


def block_mass(q: torch.Tensor, k: torch.Tensor, heads: int, block: int) -> torch.Tensor:
    """As ``reference.block_mass``; q, k [L, H·D] in bf16 or fp16, last stride 1, first a multiple of 16 bytes."""
    head_dim = q.shape[1] // heads
    query_blocks, key_blocks = triton.cdiv(q.shape[0], block), triton.cdiv(k.shape[0], block)
    rows = heads * query_blocks
    programs = min(rows, PROGRAMS)
    mass = torch.empty(heads, query_blocks, key_blocks, dtype=torch.float32, device=q.device)
    notes = torch.empty(programs, key_blocks, block, dtype=torch.float32, device=q.device)
    descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), [block, head_dim]) for x in (q, k)]
    _block_mass[(programs,)](
        *descriptors, mass, notes, q.shape[0], k.shape[0], rows, query_blocks, key_blocks,
        math.log2(math.e) / math.sqrt(head_dim),
        BLOCK=block, HEAD_DIM=head_dim, num_warps=8 if block == 128 else 4, num_stages=3,
    )  # fmt: skip
    return mass

"""Block-sparse attention through torch's compiled flex_attention: for GPUs whose own kernels do not work here."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from .block_lists import BlockLists
from .reference import split_heads


def block_mask(lists: BlockLists, queries: int, keys: int) -> BlockMask:
    """The same lists as flex_attention takes them. It cuts the last blocks off at these lengths by itself."""
    shape = 1, lists.heads, lists.query_blocks
    indices = torch.zeros(lists.counts.numel(), lists.key_blocks, dtype=torch.int32, device=lists.indices.device)
    indices[:, : lists.indices.shape[1]] = lists.indices
    indices, counts = indices.view(*shape, lists.key_blocks), lists.counts.view(shape)
    # Whole blocks: none of them is masked in part.
    return BlockMask.from_kv_blocks(
        torch.zeros_like(counts), torch.zeros_like(indices), counts, indices,
        BLOCK_SIZE=lists.block, seq_lengths=(queries, keys),
    )  # fmt: skip


@functools.cache
def compiled() -> Callable[..., torch.Tensor]:
    """flex_attention, compiled once for all masks; without a compiler it would write every score to memory."""
    return torch.compile(flex_attention)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """As ``reference.attend``, for blocks of 64 and 128, on a CUDA device."""
    lists.check(q, k, v)
    # Its own tiles must not be larger than the blocks of the mask.
    tiles = {"BLOCK_M": lists.block, "BLOCK_N": lists.block} if lists.block < 128 else None
    query, key, value = (split_heads(x, lists.heads) for x in (q, k, v))
    mask = block_mask(lists, q.shape[1], k.shape[1])
    out = compiled()(query, key, value, block_mask=mask, kernel_options=tiles)
    return out.transpose(1, 2).flatten(2).contiguous()

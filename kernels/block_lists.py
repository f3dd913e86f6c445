"""Which key blocks each query block attends to, in the form that kernels read."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class BlockLists:
    """Kept key blocks per row, where row = head · query_blocks + query block.

    Args:
        indices: [rows, capacity] int32, ascending; entries from ``counts`` on are filler.
        counts: [rows] int32, kept blocks per row; 0 gives zeros in the output.
        order: [rows] int32, rows by falling count: long rows first even out the last wave.
        block: tokens per block.
    """

    indices: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor
    heads: int
    query_blocks: int
    key_blocks: int
    block: int

    @classmethod
    def of(cls, mask: torch.Tensor, block: int, most: int | None = None) -> BlockLists:
        """From a [H, query blocks, key blocks] bool mask on any device, without waiting for that device.

        Args:
            most: how many blocks a row keeps at most, if that is known: lists need no more room. Of a row that keeps
                more the last ones are left out.
        """
        if mask.ndim != 3 or mask.dtype != torch.bool:
            raise ValueError(f"a block mask is [heads, query blocks, key blocks] bool, got {mask.dtype} {mask.shape}")
        heads, query_blocks, key_blocks = mask.shape
        if 0 in mask.shape or block < 1:
            raise ValueError(f"a block mask of {tuple(mask.shape)} with blocks of {block} describes nothing")
        rows = mask.reshape(-1, key_blocks)
        capacity = key_blocks if most is None else min(most, key_blocks)
        counts = rows.sum(-1, dtype=torch.int32).clamp(max=capacity)
        # A stable sort of "not kept" puts the kept blocks first, in ascending order.
        indices = torch.sort(~rows, dim=-1, stable=True).indices[:, :capacity].int().contiguous()
        order = torch.argsort(counts, descending=True, stable=True).int()
        return cls(indices, counts, order, heads, query_blocks, key_blocks, block)

    def mask(self) -> torch.Tensor:
        """The [H, query blocks, key blocks] bool mask these lists were made from."""
        filler = torch.arange(self.indices.shape[1], device=self.indices.device) >= self.counts[:, None]
        kept = torch.zeros(self.counts.numel(), self.key_blocks + 1, dtype=torch.bool, device=self.indices.device)
        kept.scatter_(1, self.indices.long().masked_fill(filler, self.key_blocks), True)
        return kept[:, :-1].view(self.heads, self.query_blocks, self.key_blocks)

    @property
    def density(self) -> float:
        """Share of block pairs that are kept."""
        return float(self.counts.sum()) / (self.counts.numel() * self.key_blocks)

    def check(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Raises ValueError if these lists do not describe attention of q [B, Lq, H·D] over k, v [B, Lk, H·D]."""
        if self.block < 1 or self.heads < 1 or len({x.dtype for x in (q, k, v)}) != 1 or not q.is_floating_point():
            raise ValueError(
                f"cannot attend with {self.heads} heads, blocks of {self.block}, dtypes {q.dtype}, {k.dtype}"
            )
        fits = q.ndim == 3 and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[2] == k.shape[2]
        needed = [-(-x.shape[1] // self.block) for x in (q, k)] if fits else []
        if needed != [self.query_blocks, self.key_blocks] or q.shape[2] % self.heads:
            raise ValueError(
                f"lists of {self.heads} heads × {self.query_blocks} × {self.key_blocks} blocks of {self.block} tokens "
                f"do not fit q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
            )

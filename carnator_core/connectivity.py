"""Connectivity: which key blocks each query block attends to, where a block is a compact tile of the token grid.

Attention does not depend on the order of its tokens, so they may be put into tile order, in which every run of
``block`` tokens is one small box of the video. What a block attends to is then measured as *mass*, the share of softmax
probability that falls on each key block, and the pairs with little mass are left out.

Masses are [layers, heads, query blocks, key blocks] and sum to 1 over the key blocks; masks are bool of the same shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .options import ReuseOptions

CONSENSUS_MEMORY = 32  # requests after which a new one counts for 1/32 of the consensus


def kept_per_row(blocks: int, density: float) -> int:
    """How many of so many key blocks each row keeps by density."""
    return max(1, math.ceil(density * blocks - 1e-9))


def most_kept(blocks: int, options: ReuseOptions) -> int | None:
    """How many of so many key blocks a row keeps at most; None where the rule of the options does not say."""
    return kept_per_row(blocks, options.attention_percent / 100) if options.attention_rule == "density" else None


def keep_by_density(mass: torch.Tensor, density: float) -> torch.Tensor:
    """Mask of the heaviest key blocks per row, see ``kept_per_row``; a block always keeps itself.

    Args:
        mass: [..., query blocks, key blocks] float.
    """
    count = kept_per_row(mass.shape[-1], density)
    ranked = mass + 2.0 * torch.eye(*mass.shape[-2:], device=mass.device)  # more than any mass
    return torch.zeros_like(mass, dtype=torch.bool).scatter_(-1, ranked.topk(count, dim=-1).indices, True)


def keep_by_mass(mass: torch.Tensor, share: float) -> torch.Tensor:
    """Mask of the fewest key blocks per row that hold ``share`` of its mass, and the block itself.

    Args:
        mass: [..., query blocks, key blocks] float.
    """
    ordered, places = mass.float().sort(dim=-1, descending=True)  # sums of float16 would lose the small ones
    before = ordered.cumsum(-1) - ordered  # what the heavier ones hold
    kept = torch.zeros_like(mass, dtype=torch.bool).scatter_(-1, places, before < share * ordered.sum(-1, keepdim=True))
    return kept | torch.eye(*mass.shape[-2:], dtype=torch.bool, device=mass.device)


def keep(mass: torch.Tensor, options: ReuseOptions) -> torch.Tensor:
    """Mask by the rule that the options name."""
    rule = keep_by_density if options.attention_rule == "density" else keep_by_mass
    return rule(mass.float(), options.attention_percent / 100)


def pack(mask: torch.Tensor) -> torch.Tensor:
    """[..., n] bool -> [..., ceil(n / 8)] uint8, the first of eight in the lowest bit."""
    filled = torch.nn.functional.pad(mask.to(torch.uint8), (0, -mask.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (filled << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(-1, dtype=torch.uint8)


def unpack(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Inverse of ``pack``: [..., ceil(count / 8)] uint8 -> [..., count] bool."""
    bits = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    return bits.flatten(-2)[..., :count].bool()


def rows_mask(mask: torch.Tensor, rows: torch.Tensor, block: int) -> torch.Tensor:
    """Mask for some tokens as queries: each block of them keeps what any of their own blocks keeps.

    Args:
        mask: [..., query blocks, key blocks] bool over all tokens in tile order.
        rows: [n] int64, ascending positions in tile order, n > 0.
    Returns:
        [..., ceil(n / block), key blocks] bool.
    """
    groups = -(-rows.numel() // block)
    member = torch.zeros(groups, mask.shape[-2], device=mask.device)
    member[torch.arange(rows.numel(), device=mask.device) // block, rows // block] = 1.0
    return member @ mask.float() > 0.5


@dataclass(frozen=True)
class Connectivity:
    """What a dense request attended to, as an entry keeps it.

    Args:
        packed: [layers, heads, blocks, ceil(blocks / 8)] uint8 on the CPU, see ``pack``.
        block: tokens per block.
        rule: the rule it was kept by, as ``Connectivity.rule_of`` names it.
    """

    packed: torch.Tensor
    block: int
    rule: str

    @staticmethod
    def rule_of(options: ReuseOptions) -> str:
        return f"{options.attention_rule} {options.attention_percent:g} %"

    @classmethod
    def of(cls, mass: torch.Tensor, block: int, options: ReuseOptions) -> Connectivity:
        """What the options' rule keeps of mass [layers, heads, blocks, blocks]."""
        packed = torch.stack([pack(keep(layer, options)).cpu() for layer in mass])
        return cls(packed, block, cls.rule_of(options))

    def mask(self, layer: int, device: torch.device) -> torch.Tensor:
        """[heads, blocks, blocks] bool."""
        return unpack(self.packed[layer].to(device), self.packed.shape[-2])


@dataclass(frozen=True)
class Consensus:
    """Mean mass over requests of one model and shape, whatever their prompts.

    Args:
        mass: [layers, heads, blocks, blocks] float16 on the CPU.
        block: tokens per block.
        count: requests in the mean.
    """

    mass: torch.Tensor
    block: int
    count: int

    def with_request(self, mass: torch.Tensor) -> Consensus:
        """The mean with one more request's mass in it; old requests fade once there are many."""
        weight = 1.0 / min(self.count + 1, CONSENSUS_MEMORY)
        mean = torch.lerp(self.mass.float(), mass.float(), weight).half()
        return Consensus(mean, self.block, self.count + 1)

    @classmethod
    def of(cls, mass: torch.Tensor, block: int) -> Consensus:
        return cls(mass.half(), block, 1)

    def mask(self, layer: int, device: torch.device, options: ReuseOptions) -> torch.Tensor:
        """[heads, blocks, blocks] bool."""
        return keep(self.mass[layer].to(device), options)

"""Masses and connectivity for tests: small and random, but what a dense request could have left."""

from dataclasses import replace

import torch

from carnator_core.connectivity import Connectivity
from carnator_core.options import ReuseOptions
from carnator_core.store.entry import Entry
from support.fake_host import a_donor


def a_mass(seed: int = 0, layers: int = 2, heads: int = 2, blocks: int = 11) -> torch.Tensor:
    """[layers, heads, blocks, blocks] float32, sums to 1 over the last axis."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(layers, heads, blocks, blocks, generator=random).mul(3).softmax(-1)


def connected(donor: Entry, mass: torch.Tensor, block: int = 8, options: ReuseOptions | None = None) -> Entry:
    return replace(donor, connectivity=Connectivity.of(mass, block, options or ReuseOptions()))


def a_connected_donor(name: str = "one", seed: int = 0, blocks: int = 11) -> Entry:
    return connected(a_donor(name, seed), a_mass(seed, blocks=blocks))

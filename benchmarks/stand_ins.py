"""What random weights cannot say and is said for them: what differs, how fast x0 changes and what is attended to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from carnator_core import evidence
from carnator_core.connectivity import Consensus
from carnator_core.decision import Decider
from carnator_core.identity import HardKey

from .random_models import Model


@contextmanager
def box_region(share: float) -> Iterator[None]:
    """A box in the middle of every frame, of this share of it, in place of the measured evidence region."""

    def box(difference: torch.Tensor, threshold: float) -> torch.Tensor:
        region = torch.zeros_like(difference, dtype=torch.bool)
        inside = [slice(round(n * (1 - share**0.5) / 2), round(n * (1 + share**0.5) / 2)) for n in region.shape[1:]]
        region[:, inside[0], inside[1]] = True
        return region

    measured = evidence.evidence_region
    evidence.evidence_region = box
    try:
        yield
    finally:
        evidence.evidence_region = measured


@contextmanager
def donor_change(change: Sequence[float]) -> Iterator[None]:
    """This change per step in place of what random predictions gave; none leaves that."""
    measured = Decider._change_in
    if change:
        Decider._change_in = lambda decider, donor: list(change)
    try:
        yield
    finally:
        Decider._change_in = measured


def random_consensus(model: Model, block: int) -> Consensus:
    """Attention that falls anywhere: [layers, heads, blocks, blocks] float16, each row sums to 1."""
    random = torch.Generator().manual_seed(5)
    blocks = -(-model.tokens // block)
    mass = torch.empty(model.layers, model.heads, blocks, blocks, dtype=torch.float16)
    for layer in mass:
        drawn = torch.rand(layer.shape, generator=random)
        layer.copy_(drawn / drawn.sum(-1, keepdim=True))
    return Consensus(mass, block, 1)


def put_consensus(store: Any, key: HardKey, consensus: Consensus) -> None:
    """Make a consensus what the hits of requests with this key attend by, in place of what was measured."""
    from carnator_core.attention import consensus_id

    name = consensus_id(key, consensus.block)
    store.wait()
    store.consensuses.path(name).unlink(missing_ok=True)
    store.consensuses.add(name, consensus.mass, consensus.block)

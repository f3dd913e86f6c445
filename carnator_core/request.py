"""What the core is told of one sampling call."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .attention import AttentionSite
from .identity import HardKey, digest
from .plan import ModelShape, Schedule


@dataclass(frozen=True)
class Request:
    """What the host knows of a request before its first step.

    Args:
        key: everything that must be equal for reuse.
        embedding: [D] pooled text conditioning, unit length.
        text_digest: exact identity of the text conditioning.
        guided: whether an unconditional branch exists.
        attention: how the model attends; None where connectivity cannot be used.
        seed: the number that the host was given for the noise, if any. Which noise it was is in the key.
        reused_input: whether the input latent came from a reused run: such a run never becomes a donor.
    """

    key: HardKey
    embedding: torch.Tensor
    text_digest: str
    shape: ModelShape
    schedule: Schedule
    guided: bool
    attention: AttentionSite | None = None
    reused_input: bool = False
    seed: int | None = None

    @property
    def entry_id(self) -> str:
        """Name of this request's entry: the same for the same request."""
        return digest(self.key.digest, self.text_digest)

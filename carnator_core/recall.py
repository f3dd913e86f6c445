"""Text-level recall: which earlier requests of the same kind had similar words.

Exact inner products in numpy; below a few thousand entries nothing faster is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .identity import HardKey
from .store.entry import EntryInfo


@dataclass(frozen=True)
class Candidate:
    """A recalled entry and the cosine of its text embedding with the target's."""

    info: EntryInfo
    similarity: float


def rank(entries: list[EntryInfo], embedding: torch.Tensor) -> list[Candidate]:
    """Entries by falling text similarity; those with another embedding size are left out."""
    entries = [e for e in entries if e.embedding.shape == embedding.shape]
    if not entries:
        return []
    scores = np.stack([e.embedding.numpy() for e in entries]) @ embedding.numpy()
    order = np.argsort(-scores, kind="stable")
    return [Candidate(entries[i], float(scores[i])) for i in order]


def nearest_other_key(ranked: list[Candidate], key: HardKey) -> list[str]:
    """Key fields in which the textually nearest entry of another kind differs, for the artist to read."""
    return ranked[0].info.key.differs_in(key) if ranked else []

"""What makes two requests the same kind of request: the hard key, field by field."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import torch

DIGEST_BYTES = 16
SAMPLED_VALUES = 211  # a prime, so that samples do not line up with rows or columns


def digest(*parts: object) -> str:
    """Hex digest of plain values (numbers, strings, lists, dicts), stable over processes."""
    text = json.dumps(parts, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def tensor_digest(tensor: torch.Tensor) -> str:
    """Digest of shape, dtype and every value of a tensor on any device."""
    flat = tensor.detach().cpu().contiguous()
    h = hashlib.blake2b(f"{tuple(flat.shape)} {flat.dtype}".encode(), digest_size=DIGEST_BYTES)
    h.update(flat.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def sampled_digest(tensor: torch.Tensor) -> str:
    """Digest of shape, dtype and up to 211 evenly spaced values: enough to tell weights apart, cheap for billions."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() > SAMPLED_VALUES:
        positions = torch.linspace(0, flat.numel() - 1, SAMPLED_VALUES, dtype=torch.float64).round().long()
        flat = flat[positions.to(flat.device)]
    return digest(list(tensor.shape), str(tensor.dtype), tensor_digest(flat))


@dataclass(frozen=True)
class HardKey:
    """Named fields that must all be equal for reuse, each reduced to a short digest or a plain value."""

    fields: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, fields: dict[str, str]) -> HardKey:
        return cls(tuple(sorted(fields.items())))

    @property
    def digest(self) -> str:
        return digest(self.fields)

    def differs_in(self, other: HardKey) -> list[str]:
        """Names of the fields in which two keys differ, in alphabetical order."""
        mine, theirs = dict(self.fields), dict(other.fields)
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))


def pooled_text(conditioning: torch.Tensor) -> torch.Tensor:
    """Normalised mean of the non-padding token embeddings, for recall by inner product.

    Args:
        conditioning: [1, L, D] text embeddings; all-zero rows are padding.
    Returns:
        [D] float32 on the CPU with unit length, or zeros if there is no token.
    """
    tokens = conditioning[0].detach().float().cpu()
    real = tokens.abs().amax(dim=-1) > 0
    mean = tokens[real].mean(dim=0) if bool(real.any()) else torch.zeros(tokens.shape[-1])
    return torch.nn.functional.normalize(mean, dim=0)

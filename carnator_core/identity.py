"""What makes two requests the same kind of request: the hard key, field by field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

DIGEST_BYTES = 16
PIECE_BYTES = 4 << 20  # larger tensors are digested in pieces of this size by several threads
_workers = ThreadPoolExecutor(4, thread_name_prefix="carnator-digest")
RUNS, RUN_VALUES = 16, 16  # short runs: a weight in a mapped file costs 16 pages, not one page per value

# Fields that cannot but differ once another one does: naming them too would blame the wrong setting.
FOLLOWS = {
    "seed": {"video size"},
    "input latent": {"video size"},
    "scheduler": {"steps", "shift"},
    "probe": {"steps", "shift", "scheduler", "sampler"},
}


def digest(*parts: object) -> str:
    """Hex digest of plain values (numbers, strings, lists, dicts), stable over processes."""
    text = json.dumps(parts, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def tensor_digest(tensor: torch.Tensor) -> str:
    """Digest of shape, dtype and every value of a tensor on any device."""
    flat = tensor.detach().cpu().contiguous()
    values = flat.reshape(-1).view(torch.uint8).numpy()
    pieces = [values[start : start + PIECE_BYTES] for start in range(0, values.size, PIECE_BYTES)]
    if len(pieces) > 1:  # a latent of 720p takes tens of milliseconds in one thread
        pieces = _workers.map(_digest_of_bytes, pieces)
    h = hashlib.blake2b(f"{tuple(flat.shape)} {flat.dtype}".encode(), digest_size=DIGEST_BYTES)
    for piece in pieces:
        h.update(piece)
    return h.hexdigest()


def _digest_of_bytes(values: np.ndarray) -> bytes:
    return hashlib.blake2b(values, digest_size=DIGEST_BYTES).digest()


def sampled_digest(tensor: torch.Tensor) -> str:
    """Digest of shape, dtype and up to 256 values of a tensor: enough to tell weights apart, cheap for billions."""
    return sampled_digest_of([("", tensor)])


def sampled_digest_of(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """One digest over names, shapes, dtypes and samples of many tensors, with one copy to the host per device."""
    labels, samples = [], {}
    places: dict[tuple, tuple[torch.Tensor, ...]] = {}
    for name, tensor in named:
        for part in _plain_parts(tensor):
            labels.append((name, list(part.shape), str(part.dtype)))
            place = part.shape, part.device
            if place not in places:
                places[place] = _sample_places(*place)
            samples.setdefault(part.device, []).append(part[places[place]].reshape(-1).view(torch.uint8))
    return digest(labels, [tensor_digest(torch.cat(found)) for found in samples.values()])


def _plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor's values lie in: quantised tensor classes wrap several tensors or present another layout."""
    if hasattr(tensor, "__tensor_flatten__"):
        return [part for name in tensor.__tensor_flatten__()[0] for part in _plain_parts(getattr(tensor, name))]
    return [tensor.as_subclass(torch.Tensor).detach()]


def _sample_places(shape: torch.Size, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Index of up to 256 values in 16 evenly spaced runs, one tensor per axis; no copy of a tensor is needed for it."""
    count = shape.numel()
    if count <= RUNS * RUN_VALUES:
        flat = torch.arange(count)
    else:
        starts = torch.linspace(0, count - RUN_VALUES, RUNS, dtype=torch.float64).long()
        flat = (starts[:, None] + torch.arange(RUN_VALUES)).flatten()
    return tuple(axis.to(device) for axis in torch.unravel_index(flat, shape)) if shape else (...,)


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

    def value(self, name: str) -> str | None:
        return dict(self.fields).get(name)

    def without(self, name: str) -> HardKey:
        """All fields but one."""
        return HardKey(tuple(field for field in self.fields if field[0] != name))

    def differs_in(self, other: HardKey) -> list[str]:
        """Names of the fields in which two keys differ, in alphabetical order, without those that only follow."""
        mine, theirs = dict(self.fields), dict(other.fields)
        found = {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}
        return sorted(name for name in found if not FOLLOWS.get(name, set()) & found)


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

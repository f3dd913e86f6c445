"""The Early Signature of a request and the four discrepancies between two of them.

Families (what the model knows after the probe):
  representation  hidden state of a middle block, conditional lane
  residual        x0 conditional - x0 unconditional (absent without guidance)
  dynamics        change of the conditional x0 between the last two probe steps (absent if the probe has one step)
  state           the conditional x0 itself, in full latent size
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F

FAMILIES = ("representation", "residual", "dynamics", "state")
MAX_CELLS = 8  # per axis of the coarse grid


@dataclass(frozen=True)
class Discrepancies:
    """Distances between a target and a donor, 0 = equal; None where a family is absent."""

    representation: float
    residual: float | None
    dynamics: float | None
    state: float

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True)
class EarlySignature:
    """Compact early states, float16; on the CPU wherever they are kept.

    Args:
        representation: [D, t, h, w] pooled hidden state, each side <= 8.
        residual, dynamics: [C, t, h, w] pooled latents or None.
        state: [C, T, H, W] conditional x0 in model space.
        change: [steps] float32, how much the guided x0 changed at each step of the whole run, relative to its size;
            only a stored request has it, and not if it was stored before this was kept.
    """

    representation: torch.Tensor
    residual: torch.Tensor | None
    dynamics: torch.Tensor | None
    state: torch.Tensor
    change: torch.Tensor | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The families that are present, by name (what the store writes)."""
        return {name: getattr(self, name) for name in FAMILIES if getattr(self, name) is not None}

    def to(self, device: torch.device) -> EarlySignature:
        """Its families on a device; the change per step is read as numbers and stays where it is."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self.tensors().items()})

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor]) -> EarlySignature:
        return cls(*(tensors.get(name) for name in (*FAMILIES, "change")))


def pool(volume: torch.Tensor) -> torch.Tensor:
    """Average a [C, T, H, W] volume over a grid of at most 8×8×8 cells; float32."""
    cells = tuple(min(MAX_CELLS, side) for side in volume.shape[1:])
    return F.adaptive_avg_pool3d(volume.float(), cells)


def compact(volume: torch.Tensor) -> torch.Tensor:
    """float16 on the CPU; values beyond its range are clamped rather than turned into infinities."""
    if volume.dtype == torch.float16 and volume.device.type == "cpu":
        return volume
    limit = torch.finfo(torch.float16).max
    return volume.detach().float().clamp(-limit, limit).to(torch.float16).cpu()


def build_signature(
    hidden: torch.Tensor,
    cond_x0: torch.Tensor,
    uncond_x0: torch.Tensor | None,
    previous_cond_x0: torch.Tensor | None,
) -> EarlySignature:
    """Signature at the end of the probe.

    Args:
        hidden: [D, T', h, w] hidden state of a middle block, conditional lane.
        cond_x0, uncond_x0, previous_cond_x0: [C, T, H, W] x0 predictions; None where they do not exist.
    """
    return EarlySignature(
        representation=compact(pool(hidden)),
        residual=None if uncond_x0 is None else compact(pool(cond_x0 - uncond_x0)),
        dynamics=None if previous_cond_x0 is None else compact(pool(cond_x0 - previous_cond_x0)),
        state=compact(cond_x0),
    )


def relative_change(x0: list[torch.Tensor]) -> torch.Tensor:
    """[steps] float32: RMS of x0 - the x0 before, over the RMS of x0; 0 at the first step.

    Args:
        x0: [C, T, H, W] predictions of consecutive steps.
    """
    change = [0.0]
    for before, after in itertools.pairwise(x0):
        size = float(after.float().square().mean())
        moved = float((after.float() - before.float()).square().mean())
        change.append(math.sqrt(moved / size) if size > 0 else 0.0)
    return torch.tensor(change[: len(x0)])


def _cosine_distance(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> float:
    """1 - cosine of two [C, cells] volumes under cell weights [cells]; 0 if both vanish, 1 if one does."""
    dot = (weight * (a * b).sum(0)).sum()
    norms = (weight * a.square().sum(0)).sum().sqrt(), (weight * b.square().sum(0)).sum().sqrt()
    if max(norms) == 0.0:
        return 0.0
    return float(1.0 - dot / (norms[0] * norms[1]).clamp_min(1e-12))


def _relative_distance(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> float:
    """|a - b| / |b| under cell weights."""
    error = (weight * (a - b).square().sum(0)).sum()
    return float((error / (weight * b.square().sum(0)).sum().clamp_min(1e-12)).sqrt())


def _worst_frame_rms(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> float:
    """Largest per-frame RMS difference of two [C, T, H, W] latents under weights [T, H, W], in latent units."""
    square = (a - b).square().mean(0)
    per_frame = (weight * square).sum((1, 2)) / weight.sum((1, 2)).clamp_min(1e-6)
    return float(per_frame.max().sqrt())


def discrepancies(target: EarlySignature, donor: EarlySignature, replayed: torch.Tensor) -> Discrepancies:
    """The four discrepancies over the tokens that would be replayed.

    Args:
        target, donor: on one device.
        replayed: [T', h, w] bool. Its pooled share weights each cell; with no replayed token every distance is 0,
            as nothing of the donor would be used.
    """
    mask = replayed[None].to(target.state.device).float()

    def cells(volume: torch.Tensor) -> torch.Tensor:
        return F.adaptive_avg_pool3d(mask, volume.shape[1:])[0]

    def pair(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        a, b = getattr(target, name), getattr(donor, name)
        return None if a is None or b is None else (a.float(), b.float(), cells(a))

    def distance(name: str, measure) -> float | None:
        triple = pair(name)
        if triple is None:
            return None
        return measure(*triple) if float(triple[2].sum()) > 0 else 0.0

    state_mask = F.interpolate(mask[None], size=tuple(target.state.shape[1:]), mode="nearest")[0, 0]
    return Discrepancies(
        representation=distance("representation", _cosine_distance),
        residual=distance("residual", _cosine_distance),
        dynamics=distance("dynamics", _relative_distance),
        state=_worst_frame_rms(target.state.float(), donor.state.float(), state_mask),
    )

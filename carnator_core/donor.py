"""A donor in use: what a hit takes from it, step by step, and what it is combined with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import evidence
from .store.entry import EntryInfo, StoredTrajectory


@dataclass
class Donor:
    """An accepted donor and the state of its reuse, on the device of the run.

    Args:
        region: [T', h, w] bool, the tokens that the target computes itself.
        rows: [n] int64, flat indices of the tokens to compute.
        residual: [C, T, H, W] last guidance residual, None without guidance.
        residual_step: the step it is of.
        guided: [C, T, H, W] float16 on the CPU, the donor's x0 of the present step.
        conditional: the same of the conditional branch, at a check.
    """

    info: EntryInfo
    trajectory: StoredTrajectory
    region: torch.Tensor
    rows: torch.Tensor
    residual: torch.Tensor | None
    residual_step: int
    guided: torch.Tensor | None = None
    conditional: torch.Tensor | None = None

    def load(self, step: int, is_check: bool) -> None:
        """Read what a step needs, checked. Raises EntryError."""
        self.guided = self.trajectory.guided(step)
        self.conditional = self.trajectory.conditional(step) if is_check else None

    def remember_residual(self, step: int, residual: torch.Tensor, patch: tuple[int, int, int]) -> None:
        """Take in what guidance adds, [C, T, H, W], from a step that ran both branches."""
        if self.residual is not None:
            # Outside the region's rows a region forward leaves nothing meaningful: keep the older residual there.
            weight = evidence.blend_weight(self.region, tuple(residual.shape[1:]), patch)
            residual = torch.where(weight > 0, residual, self.residual)
        self.residual, self.residual_step = residual, step

    def residual_filled(self, step: int, cond: torch.Tensor) -> torch.Tensor:
        """Unconditional x0 [1, C, T, H, W] where that branch did not run.

        The last guidance residual is scaled along the donor's curve of residual norms, since it shrinks with sigma.
        """
        norms = self.trajectory.residual_norm
        before = float(norms[self.residual_step])
        scale = float(norms[step]) / before if before > 0 else 1.0
        return cond - scale * self.residual.to(cond)[None]

"""Guidance reuse: the last guidance residual stands in where the unconditional branch does not run."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class Guidance:
    """The last guidance residual of a request, on the device of its run.

    Args:
        residual: [C, T, H, W] x0 conditional - x0 unconditional; None without guidance.
        step: the step it is of.
        norms: [steps] RMS of the residuals of a stored request of the same schedule, None where there is none.
    """

    residual: torch.Tensor | None
    step: int
    norms: torch.Tensor | None

    def remember(self, step: int, residual: torch.Tensor, weight: torch.Tensor | None = None) -> None:
        """Take in the residual [C, T, H, W] of a step that ran both branches.

        Args:
            weight: [T, H, W]; where it is 0 the step left nothing meaningful and the older residual stays.
        """
        if weight is not None and self.residual is not None:
            residual = torch.where(weight > 0, residual, self.residual)
        self.residual, self.step = residual, step

    def unconditional(self, step: int, cond: torch.Tensor) -> torch.Tensor:
        """Unconditional x0 [1, C, T, H, W] where that branch did not run.

        The residual is scaled along the stored curve of norms, since it shrinks with sigma.
        """
        scale = 1.0
        if self.norms is not None and float(self.norms[self.step]) > 0:
            scale = float(self.norms[step]) / float(self.norms[self.step])
        return cond - scale * self.residual.to(cond)[None]

"""What a request reuses, step by step: a donor's trajectory after a hit, what needs no donor in an assist."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import evidence
from .guidance import Guidance
from .plan import StepKind, StepPlan
from .store.entry import EntryInfo
from .store.read_ahead import ReadAhead

STEPS_AHEAD = 4  # held steps follow each other faster than a disk reads


@dataclass
class Donor:
    """An accepted donor and the state of its reuse, on the device of the run.

    Args:
        region: [T', h, w] bool, the tokens that the target computes itself.
        rows: [n] int64, flat indices of the tokens to compute.
        plans: what is computed at each reuse step.
        own: [1, C, T, H, W] the target's last guided x0; meaningful inside the region.
        guided: [C, T, H, W] float16 on the CPU, the donor's x0 of the present step.
        conditional: the same of the conditional branch, at a check.
    """

    info: EntryInfo
    trajectory: ReadAhead
    region: torch.Tensor
    rows: torch.Tensor
    guidance: Guidance
    plans: dict[int, StepPlan]
    own: torch.Tensor
    guided: torch.Tensor | None = None
    conditional: torch.Tensor | None = None

    def load(self, step: int) -> None:
        """Take what a step needs, checked, and begin to read what the next ones will. Raises EntryError."""
        self.guided = self.trajectory.guided(step)
        self.conditional = self.trajectory.conditional(step) if self._is_check(step) else None
        for later in range(step + 1, step + 1 + STEPS_AHEAD):
            if later in self.plans:
                self.trajectory.expect(later, self._is_check(later))

    def _is_check(self, step: int) -> bool:
        return self.plans[step].kind is StepKind.CHECK

    def remember_residual(self, step: int, residual: torch.Tensor, patch: tuple[int, int, int]) -> None:
        """Take in what guidance adds, [C, T, H, W], from a step that ran both branches.

        Outside the region's rows a region forward leaves nothing meaningful: the older residual stays there.
        """
        weight = evidence.blend_weight(self.region, tuple(residual.shape[1:]), patch)
        self.guidance.remember(step, residual, weight)


@dataclass
class Assist:
    """A miss that saves what needs no donor, on the device of the run.

    Args:
        plans: what is computed at each step between probe and refine.
        own: [1, C, T, H, W] the last guided x0.
    """

    guidance: Guidance
    plans: dict[int, StepPlan]
    own: torch.Tensor

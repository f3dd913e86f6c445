"""What a request reuses, step by step: a donor's trajectory after a hit, what needs no donor in an assist."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from . import evidence
from .guidance import Guidance
from .plan import StepKind, StepPlan
from .store.entry import EntryInfo
from .store.read_ahead import ReadAhead

STEPS_AHEAD = 4  # held steps follow each other faster than a disk reads or a step is copied to a GPU


@dataclass
class Donor:
    """An accepted donor and the state of its reuse, on the device of the run.

    Args:
        plans: what is computed at each reuse step.
        own: [1, C, T, H, W] the target's last guided x0; meaningful inside the region.
        region: [T', h, w] bool, the tokens that the target computes itself.
        rows: [n] int64, flat indices of the tokens to compute.
        guided: [C, T, H, W] float16, the donor's x0 of the present step.
        conditional: the same of the conditional branch, at a check.
    """

    info: EntryInfo
    trajectory: ReadAhead
    guidance: Guidance
    plans: dict[int, StepPlan]
    own: torch.Tensor
    region: torch.Tensor = field(init=False)
    rows: torch.Tensor = field(init=False)
    _weight: torch.Tensor = field(init=False)
    guided: torch.Tensor | None = None
    conditional: torch.Tensor | None = None

    def limit(self, region: torch.Tensor, rows: torch.Tensor, patch: tuple[int, int, int]) -> None:
        """Compute these rows from now on, and keep of the result what lies in this region."""
        self.region, self.rows = region, rows
        self._weight = evidence.blend_weight(region, tuple(self.own.shape[2:]), patch)

    def load(self, step: int) -> None:
        """Take what a step needs, checked, and begin to read what the next ones will. Raises EntryError."""
        self.guided = self.trajectory.guided(step)
        self.conditional = self.trajectory.conditional(step) if self._is_check(step) else None
        for later in range(step + 1, step + 1 + STEPS_AHEAD):
            if later in self.plans:
                self.trajectory.expect(later, self._is_check(later))

    def _is_check(self, step: int) -> bool:
        return self.plans[step].kind is StepKind.CHECK

    def replayed(self, like: torch.Tensor) -> torch.Tensor:
        """The donor's guided x0 [1, C, T, H, W] of this step, on the device and in the dtype of ``like``."""
        return self.guided.to(like.device).to(like.dtype)[None]  # in this order half as much is copied

    def blended(self, guided: torch.Tensor) -> torch.Tensor:
        """``guided`` [1, C, T, H, W] inside the region, the donor's x0 outside of it."""
        donor, weight = self.replayed(guided), self._weight.to(guided)
        return torch.where(weight > 0, torch.lerp(donor, guided, weight), donor)

    def remember_residual(self, step: int, residual: torch.Tensor) -> None:
        """Take in what guidance adds, [C, T, H, W], from a step that ran both branches.

        Outside the region's rows a region forward leaves nothing meaningful: the older residual stays there.
        """
        self.guidance.remember(step, residual, self._weight)


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

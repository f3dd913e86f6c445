"""What a dense run keeps for later requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .signature import EarlySignature, compact
from .store.entry import Trajectory


@dataclass
class Capture:
    """Filled step by step, float16 on the CPU.

    Args:
        mass: per layer, the mean block mass [heads, blocks, blocks] of the steps in which it was measured.
    """

    guided: dict[int, torch.Tensor] = field(default_factory=dict)
    conditional: dict[int, torch.Tensor] = field(default_factory=dict)
    residual_norm: list[float] = field(default_factory=list)
    signature: EarlySignature | None = None
    _mass: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def keep_guided(self, step: int, x0: torch.Tensor) -> None:
        """x0 [C, T, H, W] after guidance."""
        self.guided[step] = compact(x0)

    def keep_conditional(self, step: int, x0: torch.Tensor) -> None:
        self.conditional[step] = compact(x0)

    def keep_residual(self, residual: torch.Tensor | None) -> None:
        """Size of the guidance residual [C, T, H, W] of the next step."""
        self.residual_norm.append(0.0 if residual is None else float(residual.float().square().mean().sqrt()))

    def keep_mass(self, layer: int, mass: torch.Tensor) -> None:
        """[heads, blocks, blocks] float."""
        self._mass.setdefault(layer, []).append(mass.half().cpu())

    def mass(self, depth: int, times: int) -> torch.Tensor | None:
        """[layers, heads, blocks, blocks] float16 if every layer was measured so many times."""
        layers = [self._mass.get(layer, []) for layer in range(depth)]
        if not times or any(len(found) != times for found in layers):
            return None
        return torch.stack([torch.stack(found).float().mean(0).half() for found in layers])

    def is_whole(self, steps: int) -> bool:
        return self.signature is not None and len(self.guided) == steps

    def trajectory(self) -> Trajectory:
        return Trajectory(self.guided, self.conditional, torch.tensor(self.residual_norm))

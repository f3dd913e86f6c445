"""What a dense run keeps for later requests."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from .connectivity import Connectivity
from .options import ReuseOptions
from .signature import EarlySignature, compact
from .store.entry import Trajectory


@dataclass(frozen=True)
class Attended:
    """What a dense run attended to.

    Args:
        mass: [layers, heads, blocks, blocks] float16 on the CPU, the mean over the steps in which it was measured.
        kept: what the options keep of it.
    """

    mass: torch.Tensor
    kept: Connectivity


@dataclass
class Capture:
    """Filled step by step, float16 on the CPU."""

    guided: dict[int, torch.Tensor] = field(default_factory=dict)
    conditional: dict[int, torch.Tensor] = field(default_factory=dict)
    residual_norm: list[float] = field(default_factory=list)
    signature: EarlySignature | None = None
    _mass: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    _attended: Future[Attended] | None = None

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

    def conclude_mass(self, depth: int, times: int, block: int, options: ReuseOptions) -> None:
        """If every layer was measured so many times, begin to average that and to choose what is kept.

        In a thread of its own: at full size that takes a second of a CPU, while the device computes the next steps.
        """
        layers = [self._mass.get(layer, []) for layer in range(depth)]
        if all(len(found) == times for found in layers):
            worker = ThreadPoolExecutor(1, thread_name_prefix="carnator-mass")
            self._attended = worker.submit(_attended, layers, block, options)
            worker.shutdown(wait=False)

    def attended(self) -> Attended | None:
        """What the run attended to, if that was measured."""
        return None if self._attended is None else self._attended.result()

    def is_whole(self, steps: int) -> bool:
        return self.signature is not None and len(self.guided) == steps

    def trajectory(self) -> Trajectory:
        return Trajectory(self.guided, self.conditional, torch.tensor(self.residual_norm))


def _attended(layers: list[list[torch.Tensor]], block: int, options: ReuseOptions) -> Attended:
    mass = torch.stack([torch.stack(found).float().mean(0).half() for found in layers])
    return Attended(mass, Connectivity.of(mass, block, options))

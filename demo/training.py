"""What the three training scripts share: clips on demand, a time budget, averaged weights."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from . import render
from .codec import Codec
from .grammar import ATTRIBUTES, held_out, scene_from_indices

COUNTS = [len(values) for values in ATTRIBUTES.values()]


def _unflatten(number: int) -> list[int]:
    out = []
    for count in reversed(COUNTS):
        number, digit = divmod(number, count)
        out.append(digit)
    return out[::-1]


def all_scenes(held: bool) -> Tensor:
    """Indices [n, 6] of the attribute combinations that are (or are not) held out from training."""
    rows = [_unflatten(i) for i in range(math.prod(COUNTS))]
    return torch.tensor([row for row in rows if held_out(scene_from_indices(row)) == held])


class World:
    """Draws random scenes and renders them on one device."""

    def __init__(self, device: str, seed: int, held: bool = False, compiled: bool = True) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.chooser = torch.Generator().manual_seed(seed)
        self.table = all_scenes(held)
        self.codec = Codec.load(device=device)
        self.function = torch.compile(render.draw, dynamic=False) if compiled else render.draw

    def scenes(self, count: int) -> Tensor:
        """Random scene indices [count, 6], on the CPU."""
        return self.table[torch.randint(len(self.table), (count,), generator=self.chooser)]

    @torch.no_grad()
    def videos(self, indices: Tensor) -> Tensor:
        """Rendered clips [B, 3, 17, 256, 256] float32 in [-1, 1]."""
        return self.clips(indices)[0]

    @torch.no_grad()
    def clips(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Videos as above, and the latent cells that their objects touch: bool [B, 5, 32, 32]."""
        table = render.parameters(indices.to(self.device), self.generator)
        return render.render(table, self.function), render.object_area(table)


class Budget:
    """Wall-clock budget of a training run: counts from the first `done` call, after compilation."""

    def __init__(self, seconds: float, steps: int | None = None) -> None:
        self.seconds, self.steps, self.step, self.start = seconds, steps, 0, time.monotonic()

    @property
    def fraction(self) -> float:
        """Share of the budget that is used, 0..1 (of the steps if a number of steps is set)."""
        used = self.step / self.steps if self.steps else (time.monotonic() - self.start) / self.seconds
        return min(1.0, used)

    def run(self) -> Iterator[int]:
        """Step numbers until the budget is spent."""
        while self.fraction < 1.0:
            yield self.step
            self.step += 1

    def rate(self, peak: float, floor: float, warmup: int) -> float:
        """Cosine learning rate with linear warm-up."""
        cosine = floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * self.fraction))
        return cosine * min(1.0, (self.step + 1) / warmup)


class Average:
    """Exponential moving average of a module's parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.model = decay, copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model; early steps use a shorter memory."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1.0 - decay)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write safetensors through a temporary file, so that an interrupted run leaves the last good one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    save_file(tensors, temporary, metadata=metadata)
    os.replace(temporary, path)

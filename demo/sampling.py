"""A batched Euler sampler equal to ComfyUI's KSampler (euler, simple) for the demo model, without ComfyUI."""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEPS, CFG, SHIFT = 20, 5.0, 5.0


def simple_sigmas(steps: int = STEPS, shift: float = SHIFT) -> Tensor:
    """The noise levels of scheduler "simple" after ModelSamplingSD3: [steps + 1] float32, 1 ... 0."""
    t = torch.arange(1, 1001) / 1000
    table = shift * t / (1.0 + (shift - 1.0) * t)
    return torch.tensor([float(table[-(1 + int(i * 1000 / steps))]) for i in range(steps)] + [0.0])


def noise_of(seeds: list[int]) -> Tensor:
    """ComfyUI's starting noise of each seed: [n, 16, 5, 32, 32] float32 on the CPU."""
    return torch.cat([torch.randn(1, 16, 5, 32, 32, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


@torch.no_grad()
def sample(
    model: nn.Module,
    context: Tensor,
    noise: Tensor,
    cfg: float = CFG,
    shift: float = SHIFT,
    steps: int = STEPS,
) -> Tensor:
    """Clean normalised latents [B, 16, 5, 32, 32] from contexts [B, 32, 4096] and noise, negative prompt empty."""
    sigmas = simple_sigmas(steps, shift).tolist()
    x, both = noise, torch.cat([torch.zeros_like(context), context])
    for now, after in zip(sigmas, sigmas[1:], strict=False):
        time = torch.full((2 * len(x),), 1000.0 * now, device=x.device)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.device.type == "cuda"):
            empty, text = model(torch.cat([x, x]), time, both).float().chunk(2)
        x = x + (after - now) * (empty + cfg * (text - empty))
    return x

"""Random-weight Wan 2.1 checkpoints, small enough for tests, that ComfyUI's stock loaders accept.

ComfyUI takes width // 128 as the number of heads and fixes the text width at 4096, so width 128 with two
layers, about a million parameters, is the smallest useful model.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import save_file

DIT_NAME = "tiny_wan21_t2v.safetensors"
VAE_NAME = "tiny_wan21_vae.safetensors"

TEXT_WIDTH = 4096
FREQUENCIES = 256
PATCH = (1, 2, 2)

Weights = dict[str, torch.Tensor]


def wan_dit(
    width: int = 128,
    layers: int = 2,
    ffn: int = 128,
    channels: int = 16,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Weights:
    """A text-to-video Wan DiT. 48 channels make ComfyUI take it for the 5B model of Wan 2.2."""
    random = _Random(seed)
    weights: Weights = {}
    patch_size = math.prod(PATCH)

    def linear(name: str, outputs: int, inputs: int, gain: float = 1.0) -> None:
        weights[f"{name}.weight"] = random.normal(outputs, inputs) * (gain / math.sqrt(inputs))
        weights[f"{name}.bias"] = random.normal(outputs) * 0.02

    weights["patch_embedding.weight"] = random.normal(width, channels, *PATCH) / math.sqrt(channels * patch_size)
    weights["patch_embedding.bias"] = torch.zeros(width)
    for name, inputs in (("text_embedding", TEXT_WIDTH), ("time_embedding", FREQUENCIES)):
        linear(f"{name}.0", width, inputs)
        linear(f"{name}.2", width, width)
    linear("time_projection.1", 6 * width, width, gain=0.5)
    for layer in range(layers):
        block = f"blocks.{layer}"
        for attention in ("self_attn", "cross_attn"):
            for projection in ("q", "k", "v", "o"):
                linear(f"{block}.{attention}.{projection}", width, width)
            for norm in ("norm_q", "norm_k"):
                weights[f"{block}.{attention}.{norm}.weight"] = torch.ones(width)
        weights[f"{block}.norm3.weight"] = torch.ones(width)
        weights[f"{block}.norm3.bias"] = torch.zeros(width)
        linear(f"{block}.ffn.0", ffn, width)
        linear(f"{block}.ffn.2", width, ffn)
        weights[f"{block}.modulation"] = random.normal(1, 6, width) / math.sqrt(width)
    weights["head.modulation"] = random.normal(1, 2, width) / math.sqrt(width)
    linear("head.head", channels * patch_size, width)
    return {name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}


def wan_vae(dim: int = 1, seed: int = 0) -> Weights:
    """A Wan 2.1 VAE, its shapes read from ComfyUI's own class. Call it only with the `comfy` fixture."""
    from comfy.ldm.wan.vae import WanVAE

    model = WanVAE(
        dim=dim,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=2,
        attn_scales=[],
        temperal_downsample=[False, True, True],
        dropout=0.0,
    )
    return random_weights(model, seed)


def random_weights(model: torch.nn.Module, seed: int) -> Weights:
    """Random weights of a model's own shapes, of a size at which signals neither vanish nor blow up."""
    random = _Random(seed)
    weights: Weights = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("gamma") or "norm" in name:
            weights[name] = torch.ones_like(tensor)
        elif tensor.ndim >= 2:
            weights[name] = random.normal(*tensor.shape) / math.sqrt(tensor[0].numel())
        else:
            weights[name] = random.normal(*tensor.shape) * 0.01
    return {name: tensor.float().contiguous() for name, tensor in weights.items()}


def write_tiny_models(models: Path) -> None:
    """Writes both files where ComfyUI looks below its models folder."""
    for folder, name, weights in (("diffusion_models", DIT_NAME, wan_dit()), ("vae", VAE_NAME, wan_vae())):
        (models / folder).mkdir(parents=True, exist_ok=True)
        save_file(weights, models / folder / name)


class _Random:
    """Normal numbers from a generator of its own, so that the weights depend on the seed alone."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)

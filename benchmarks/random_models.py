"""Wan models and their VAEs in ComfyUI's own classes with random weights: what is computed does not depend on them."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TEXT_TOKENS, TEXT_WIDTH = 512, 4096


@dataclass(frozen=True)
class Model:
    """A Wan model, the latent of one of its usual videos, [C, T, H, W], and the width of its VAE."""

    name: str
    width: int
    heads: int
    ffn: int
    layers: int
    latent: tuple[int, int, int, int]
    vae_width: int

    @property
    def tokens(self) -> int:
        return math.prod(self.latent[1:]) // 4


MODELS = {
    "5b": Model("Wan2.2-5B, 704×1280×121", 3072, 24, 14336, 30, (48, 31, 44, 80), 160),
    "14b": Model("Wan2.1-14B, 480×832×81", 5120, 40, 13824, 40, (16, 21, 60, 104), 96),
    "tiny": Model("tiny Wan 2.1, 128×160×17", 256, 2, 512, 4, (16, 5, 16, 20), 8),
}


def import_comfy(comfyui: Path) -> None:
    """Put ComfyUI on the path and, without a GPU, set it to the CPU before its memory management is imported."""
    if str(comfyui) not in sys.path:
        sys.path.append(str(comfyui))
    from comfy.cli_args import args

    args.cpu = args.cpu or not torch.cuda.is_available()


def random_model(model: Model) -> Any:
    """ModelPatcher whose weights are drawn on its device."""
    import comfy.model_detection
    import comfy.model_management
    import comfy.model_patcher

    channels = model.latent[0]
    config = comfy.model_detection.model_config_from_unet_config({
        "image_model": "wan2.1", "model_type": "t2v", "dim": model.width, "out_dim": channels, "in_dim": channels,
        "num_heads": model.heads, "ffn_dim": model.ffn, "num_layers": model.layers, "patch_size": (1, 2, 2),
        "freq_dim": 256, "window_size": (-1, -1), "qk_norm": True, "cross_attn_norm": True, "eps": 1e-6,
    })  # fmt: skip
    device = comfy.model_management.get_torch_device()
    config.set_inference_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32, None)
    built = config.get_model({}, "", device=device)
    random = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, weight in built.diffusion_model.named_parameters():
            _draw(name, weight, random)
    return comfy.model_patcher.ModelPatcher(built, device, device)


def random_vae(model: Model) -> Any:
    """ComfyUI's VAE object, of the class that goes with the model: Wan 2.2's for 48 channels, else Wan 2.1's."""
    import comfy.ldm.wan.vae
    import comfy.ldm.wan.vae2_2
    import comfy.sd

    module = comfy.ldm.wan.vae2_2 if model.latent[0] == 48 else comfy.ldm.wan.vae
    built = module.WanVAE(
        dim=model.vae_width, z_dim=model.latent[0], dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
        temperal_downsample=[False, True, True], dropout=0.0,
    )  # fmt: skip
    random = torch.Generator().manual_seed(0)
    weights = built.state_dict()
    for name, weight in weights.items():
        _draw(name, weight, random)
    return comfy.sd.VAE(sd=weights)


def conditioning(seed: int) -> list:
    """As a text encoder node gives it."""
    random = torch.Generator().manual_seed(seed)
    return [[torch.randn(1, TEXT_TOKENS, TEXT_WIDTH, generator=random), {}]]


def _draw(name: str, weight: torch.Tensor, random: torch.Generator) -> None:
    """In place, of a size at which signals neither vanish nor blow up."""
    if name.endswith("gamma"):
        weight.fill_(1.0)
    elif weight.ndim < 2:
        weight.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    else:
        weight.normal_(0.0, 1.0 / math.sqrt(weight[0].numel()), generator=random)

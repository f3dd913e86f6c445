"""Pictures of a latent in the host's latent preview colours: the evidence of a hit, and what a stored run shows."""

from __future__ import annotations

import io
import logging
from typing import Any

import torch
import torch.nn.functional as F

log = logging.getLogger("carnator")

MAX_FRAMES = 8
PREVIEW_SIDE = 256
FRAME_HEIGHT = 160
HEAT_COLOUR = (1.0, 0.35, 0.0)


def heat_mask(heat: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """MASK [T, H, W] at latent size from token heat [T', h, w]; 1 = computed in every reuse step."""
    return F.interpolate(heat[None, None].float(), size=tuple(latent.shape[2:]), mode="nearest")[0, 0]


def evidence_picture(model: Any, latent: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
    """IMAGE [1, h, w, 3] in 0..1: up to eight latent frames side by side with the heat map laid over them.

    Args:
        latent: [1, C, T, H, W] as it leaves the sampler.
        heat: [T', h, w] share of reuse steps in which a token was computed.
    """
    # Colours step back so that the heat is what the eye finds.
    grey = _colours(model, latent).mean(dim=1, keepdim=True) * 0.7 + 0.15
    strength = 0.75 * heat_mask(heat, latent)[:, None]
    frames = torch.lerp(grey.expand(-1, 3, -1, -1), torch.tensor(HEAT_COLOUR).view(1, 3, 1, 1), strength)
    picked = torch.linspace(0, frames.shape[0] - 1, min(MAX_FRAMES, frames.shape[0])).round().long()
    width = max(1, round(frames.shape[3] * FRAME_HEIGHT / frames.shape[2]))
    large = F.interpolate(frames[picked], size=(FRAME_HEIGHT, width), mode="nearest")
    strip = torch.cat(list(F.pad(large, (2, 2, 2, 2), value=1.0)), dim=2)
    return strip.movedim(0, -1)[None].clamp(0, 1)


def in_latent_units(model: Any, latent: torch.Tensor) -> torch.Tensor:
    """The model's own normalised latent, float32 on the CPU, of one as it leaves the sampler."""
    return model.model.latent_format.process_in(latent.float().cpu())


def preview_picture(model: Any, latent: torch.Tensor) -> bytes | None:
    """The middle latent frame as a small JPEG or None where that cannot be made.

    Args:
        model: ModelPatcher.
        latent: [1, C, T, H, W] as it leaves the sampler.
    """
    try:
        from PIL import Image

        middle = latent.shape[2] // 2
        frame = _colours(model, latent[:, :, middle : middle + 1])[0]
        picture = Image.fromarray((frame.movedim(0, -1) * 255).round().to(torch.uint8).numpy())
        scale = PREVIEW_SIDE / max(picture.size)
        picture = picture.resize([max(1, round(side * scale)) for side in picture.size])
        data = io.BytesIO()
        picture.save(data, "JPEG", quality=80)
        return data.getvalue()
    except Exception as error:  # a picture is a courtesy: never the reason for a failed run
        log.debug("no preview: %s", error)
        return None


def _colours(model: Any, latent: torch.Tensor) -> torch.Tensor:
    """[T, 3, H, W] in 0..1 of a latent [1, C, T, H, W] as it leaves the sampler."""
    latent_format, x0 = model.model.latent_format, in_latent_units(model, latent)[0]
    factors = torch.tensor(latent_format.latent_rgb_factors)
    bias = torch.tensor(latent_format.latent_rgb_factors_bias or [0.0, 0.0, 0.0])
    colour = torch.einsum("cthw,cr->trhw", x0, factors) + bias[None, :, None, None]
    return ((colour + 1) / 2).clamp(0, 1)

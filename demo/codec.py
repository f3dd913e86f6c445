"""The linear codec that defines the latents: PCA of 4 x 8 x 8 pixel blocks, 768 numbers -> 16 channels.

The first frame is repeated four times, so 17 frames give 5 latent frames as in Wan 2.1. Every channel has mean 0
and standard deviation 1 over the world; this is the space in which the video model works (ComfyUI's `process_in`
output). What the VAE file gets is that times Wan's channel deviations plus Wan's channel means.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

CHANNELS = 16
PATH = Path(__file__).parent / "models" / "carnator_demo_codec.safetensors"


def to_blocks(video: Tensor) -> Tensor:
    """[B, 3, 1 + 4n, 8h, 8w] -> [B, 768, 1 + n, h, w]."""
    video = torch.cat([video[:, :, :1].expand(-1, -1, 3, -1, -1), video], dim=2)
    b, c, f, h, w = video.shape
    blocks = video.reshape(b, c, f // 4, 4, h // 8, 8, w // 8, 8).permute(0, 1, 3, 5, 7, 2, 4, 6)
    return blocks.reshape(b, c * 256, f // 4, h // 8, w // 8)


def from_blocks(blocks: Tensor) -> Tensor:
    """Inverse of `to_blocks`; the repeated first frame is averaged."""
    b, _, n, h, w = blocks.shape
    video = blocks.reshape(b, 3, 4, 8, 8, n, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, 3, 4 * n, 8 * h, 8 * w)
    return torch.cat([video[:, :, :4].mean(2, keepdim=True), video[:, :, 4:]], dim=2)


@dataclass
class Codec:
    """mean [768], basis [768, 16] (orthonormal columns), deviation [16]; float32."""

    mean: Tensor
    basis: Tensor
    deviation: Tensor

    @classmethod
    def fit(cls, videos: list[Tensor]) -> Codec:
        """Fit to videos in [-1, 1], each [B, 3, F, H, W]."""
        total, outer, count = (
            torch.zeros(768, dtype=torch.float64),
            torch.zeros(768, 768, dtype=torch.float64),
            0,
        )
        for video in videos:
            rows = to_blocks(video).movedim(1, -1).reshape(-1, 768).double().cpu()
            total, outer, count = total + rows.sum(0), outer + rows.T @ rows, count + len(rows)
        mean = total / count
        values, vectors = torch.linalg.eigh(outer / count - torch.outer(mean, mean))
        order = values.argsort(descending=True)[:CHANNELS]
        basis = vectors[:, order]
        basis = basis * torch.where(basis.sum(0) < 0, -1.0, 1.0)
        return cls(mean.float(), basis.float(), values[order].sqrt().float())

    @classmethod
    def load(cls, path: Path = PATH, device: torch.device | str = "cpu") -> Codec:
        """Read the stored codec."""
        from safetensors.torch import load_file

        data = load_file(path, device=str(device))
        return cls(data["mean"], data["basis"], data["deviation"])

    def save(self, path: Path = PATH) -> None:
        """Write safetensors."""
        from safetensors.torch import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"mean": self.mean, "basis": self.basis.contiguous(), "deviation": self.deviation}, path)

    def encode(self, video: Tensor) -> Tensor:
        """[B, 3, 17, 256, 256] in [-1, 1] -> normalised latents [B, 16, 5, 32, 32], same dtype."""
        weight = (self.basis / self.deviation).to(video.dtype)
        offset = (self.mean @ (self.basis / self.deviation)).to(video.dtype)
        return torch.einsum("bcthw,cz->bzthw", to_blocks(video), weight) - offset.view(1, -1, 1, 1, 1)

    def decode(self, latent: Tensor) -> Tensor:
        """Linear decoding, [B, 16, T, h, w] -> [B, 3, 4T - 3, 8h, 8w]; the trained decoder does better."""
        weight = (self.basis * self.deviation).to(latent.dtype)
        blocks = torch.einsum("bzthw,cz->bcthw", latent, weight) + self.mean.to(latent.dtype).view(1, -1, 1, 1, 1)
        return from_blocks(blocks)


def psnr(a: Tensor, b: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of videos in [-1, 1], from the mean squared error over everything."""
    return float(10.0 * torch.log10(4.0 / (a.float() - b.float()).pow(2).mean()))

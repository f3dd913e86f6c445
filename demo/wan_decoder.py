"""A whole-clip training forward of the Wan 2.1 VAE decoder, with the parameter names of Wan's own file layout.

ComfyUI decodes latent frame by latent frame with feature caches; this module computes the same function of the
whole clip at once (checked against the stock VAE in tests/host). Only the decoder exists: text-to-video graphs
never encode.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec import CHANNELS

WAN_MEAN = (
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
    0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
)  # fmt: skip
WAN_DEVIATION = (
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
)  # fmt: skip


class CausalConv(nn.Conv3d):
    """3-D convolution that sees the present and the past: zero padding in front of the first frame."""

    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int, int]) -> None:
        super().__init__(inputs, outputs, kernel, padding=(0, kernel[1] // 2, kernel[2] // 2))
        self.past = kernel[0] - 1

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 0, 0, 0, self.past, 0)) if self.past else x)


class ChannelNorm(nn.Module):
    """Root-mean-square normalisation over channels with a gain, for [B, C, ...]."""

    def __init__(self, channels: int, trailing: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *([1] * trailing)))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(1, keepdim=True) + 1e-12).rsqrt() * self.gamma.to(x.dtype)


class Residual(nn.Module):
    """Two normalised convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            ChannelNorm(inputs, 3), nn.SiLU(), CausalConv(inputs, outputs, (3, 3, 3)),
            ChannelNorm(outputs, 3), nn.SiLU(), nn.Identity(), CausalConv(outputs, outputs, (3, 3, 3)),
        )  # fmt: skip
        if inputs != outputs:
            self.shortcut = CausalConv(inputs, outputs, (1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + (self.shortcut(x) if hasattr(self, "shortcut") else x)


class FrameAttention(nn.Module):
    """Single-head self-attention inside each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels, 2)
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, f, h, w = x.shape
        frames = x.transpose(1, 2).reshape(b * f, c, h, w)
        q, k, v = self.to_qkv(self.norm(frames)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(b * f, c, h, w)
        return x + self.proj(y).view(b, f, c, h, w).transpose(1, 2)


class Upsample(nn.Module):
    """Doubles height and width, halves the channels; with `time` also doubles every frame but the first."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(channels, channels // 2, 3, padding=1))
        if time:
            self.time_conv = CausalConv(channels, 2 * channels, (3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, c = x.shape[:2]
        if hasattr(self, "time_conv"):
            rest = self.time_conv(x[:, :, 1:])
            rest = rest.unflatten(1, (2, c)).permute(0, 2, 3, 1, 4, 5).flatten(2, 3)
            x = torch.cat([x[:, :, :1], rest], dim=2)
        f = x.shape[2]
        frames = x.transpose(1, 2).flatten(0, 1)
        frames = self.resample(F.interpolate(frames, scale_factor=2.0, mode="nearest-exact"))
        return frames.unflatten(0, (b, f)).transpose(1, 2)


class Decoder(nn.Module):
    """conv1, middle, upsamples, head as in Wan 2.1 with dim_mult (1, 2, 4, 4) and two residual blocks."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        wide = 4 * dim
        self.conv1 = CausalConv(CHANNELS, wide, (3, 3, 3))
        self.middle = nn.Sequential(Residual(wide, wide), FrameAttention(wide), Residual(wide, wide))
        layers: list[nn.Module] = []
        stages = ((wide, wide, True), (wide // 2, wide, True), (wide // 2, 2 * dim, False), (dim, dim, None))
        for inputs, outputs, time in stages:
            layers += [Residual(inputs, outputs), Residual(outputs, outputs), Residual(outputs, outputs)]
            if time is not None:
                layers.append(Upsample(outputs, time))
        self.upsamples = nn.Sequential(*layers)
        self.head = nn.Sequential(ChannelNorm(dim, 3), nn.SiLU(), CausalConv(dim, 3, (3, 3, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.upsamples(self.middle(self.conv1(x))))


class WanDecoder(nn.Module):
    """Latents to video: normalised latents [B, 16, T, h, w] -> [B, 3, 4T - 3, 8h, 8w] in about [-1, 1]."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.decoder = Decoder(dim)

    def forward(self, latent: Tensor) -> Tensor:
        return self.decoder(latent)


def to_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """State of a `WanDecoder` -> tensors of a VAE file (bfloat16).

    ComfyUI hands the VAE `latent * deviation + mean` per channel; conv2 undoes that. Of an encoder, which the demo has
    not, the first weight stands in as zeros: newer versions read the number of image channels off its shape.
    """
    scale = 1.0 / torch.tensor(WAN_DEVIATION)
    out = {key: value.detach().cpu().to(torch.bfloat16).contiguous() for key, value in state.items()}
    out["conv2.weight"] = torch.diag(scale).view(CHANNELS, CHANNELS, 1, 1, 1)
    out["conv2.bias"] = -torch.tensor(WAN_MEAN) * scale
    out["encoder.conv1.weight"] = torch.zeros(out["decoder.head.0.gamma"].shape[0], 3, 3, 3, 3, dtype=torch.bfloat16)
    return out


def from_file(tensors: dict[str, Tensor]) -> WanDecoder:
    """Inverse of `to_file`, float32."""
    model = WanDecoder(tensors["decoder.head.0.gamma"].shape[0])
    model.load_state_dict({k: v.float() for k, v in tensors.items() if k.startswith("decoder.")})
    return model

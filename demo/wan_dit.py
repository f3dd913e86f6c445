"""A training forward of the Wan 2.1 video transformer with the parameter names of Wan's own file layout.

Equal to ComfyUI's WanModel for text-to-video (checked in tests/host); plain modules, so that autocast and
torch.compile work on it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec import CHANNELS
from .words import WIDTH

EPS = 1e-6
FREQUENCIES = 256


@lru_cache(maxsize=8)
def rope(grid: tuple[int, int, int], head: int, device: torch.device | str) -> Tensor:
    """Rotation angles of a token grid (frames, rows, columns) as cos and sin: [2, tokens, 1, head // 2] float32."""
    small = 2 * (head // 6)
    axes = []
    for length, size in zip(grid, (head - 2 * small, small, small), strict=True):
        speed = 10000.0 ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        axes.append(torch.outer(torch.arange(length, dtype=torch.float64), speed))
    t, h, w = axes
    angles = torch.cat(
        [
            t[:, None, None].expand(-1, grid[1], grid[2], -1),
            h[None, :, None].expand(grid[0], -1, grid[2], -1),
            w[None, None].expand(grid[0], grid[1], -1, -1),
        ],
        dim=-1,
    ).flatten(0, 2)
    return torch.stack([angles.cos(), angles.sin()]).unsqueeze(2).float().to(device)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate neighbouring pairs of the last axis: x [B, tokens, heads, head]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles[0], angles[1]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Multi-head attention with RMS-normalised queries and keys."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=EPS), nn.RMSNorm(dim, eps=EPS)

    def forward(self, x: Tensor, source: Tensor, angles: Tensor | None = None) -> Tensor:
        split = (self.heads, -1)
        v = self.v(source)
        q = self.norm_q(self.q(x)).to(v.dtype).unflatten(-1, split)
        k = self.norm_k(self.k(source)).to(v.dtype).unflatten(-1, split)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        out = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v.unflatten(-1, split))))
        return self.o(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Self-attention, cross-attention to the prompt, feed-forward; gated and shifted by the time embedding."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads)
        self.norm3 = nn.LayerNorm(dim, eps=EPS)
        self.cross_attn = Attention(dim, heads)
        self.ffn = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, dim))
        self.modulation = nn.Parameter(torch.zeros(1, 6, dim))

    def forward(self, x: Tensor, time: Tensor, text: Tensor, angles: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = (self.modulation + time).to(x.dtype).chunk(6, dim=1)
        y = F.layer_norm(x, x.shape[-1:], eps=EPS).to(x.dtype) * (1 + scale_a) + shift_a
        x = x + self.self_attn(y, y, angles) * gate_a
        x = x + self.cross_attn(self.norm3(x).to(x.dtype), text)
        y = F.layer_norm(x, x.shape[-1:], eps=EPS).to(x.dtype) * (1 + scale_f) + shift_f
        return x + self.ffn(y) * gate_f


class Head(nn.Module):
    """Modulated projection of a token to its patch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.head = nn.Linear(dim, 4 * CHANNELS)
        self.modulation = nn.Parameter(torch.zeros(1, 2, dim))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale = (self.modulation + time).to(x.dtype).chunk(2, dim=1)
        return self.head(F.layer_norm(x, x.shape[-1:], eps=EPS).to(x.dtype) * (1 + scale) + shift)


class WanDiT(nn.Module):
    """The flow model: v(noisy latent, 1000 sigma, prompt) where v = noise - clean."""

    def __init__(self, dim: int = 256, heads: int = 2, layers: int = 6, hidden: int = 1024) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.patch_embedding = nn.Conv3d(CHANNELS, dim, (1, 2, 2), (1, 2, 2))
        self.text_embedding = nn.Sequential(nn.Linear(WIDTH, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim))
        self.time_embedding = nn.Sequential(nn.Linear(FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(dim, heads, hidden) for _ in range(layers))
        self.head = Head(dim)

    @torch.no_grad()
    def initialise(self) -> None:
        """Starting weights that train stably from the first step."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.8 * (2.0 / sum(module.weight.shape)) ** 0.5)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.patch_embedding.weight, std=0.1)
        for layer in (self.head.head, self.time_projection[1]):
            nn.init.zeros_(layer.weight)
        for block in self.blocks:
            block.modulation[:, [2, 5]] = 0.3

    def forward(self, latent: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        """latent [B, 16, T, h, w], timestep [B] in 0..1000, context [B, 32, 4096] -> v like latent."""
        patches = self.patch_embedding(latent)
        b, _, *grid = patches.shape
        x = patches.flatten(2).transpose(1, 2).contiguous()
        speed = 10000.0 ** -(torch.arange(FREQUENCIES // 2, device=x.device) / (FREQUENCIES // 2))
        phase = torch.outer(timestep.float(), speed)
        time = self.time_embedding(torch.cat([phase.cos(), phase.sin()], dim=1).to(x.dtype))
        gates = self.time_projection(time).unflatten(1, (6, self.dim))
        text = self.text_embedding(context.to(x.dtype))
        angles = rope(tuple(grid), self.dim // self.heads, x.device)
        for block in self.blocks:
            x = block(x, gates, text, angles)
        out = self.head(x, time.unsqueeze(1))
        out = out.view(b, *grid, 1, 2, 2, CHANNELS).permute(0, 7, 1, 4, 2, 5, 3, 6)
        return out.reshape(b, CHANNELS, *latent.shape[2:])


def to_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """State of a `WanDiT` -> bfloat16 tensors of a diffusion model file."""
    return {key: value.detach().cpu().to(torch.bfloat16).contiguous() for key, value in state.items()}


def from_file(tensors: dict[str, Tensor]) -> WanDiT:
    """Inverse of `to_file`, float32; the sizes are read from the tensors."""
    layers = 1 + max(int(key.split(".")[1]) for key in tensors if key.startswith("blocks."))
    dim, hidden = tensors["head.modulation"].shape[-1], tensors["blocks.0.ffn.0.weight"].shape[0]
    model = WanDiT(dim, dim // 128, layers, hidden)
    model.load_state_dict({key: value.float() for key, value in tensors.items()})
    return model

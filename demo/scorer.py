"""Reads the six attributes back from a video: the ground truth check of the demo world."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grammar import ATTRIBUTES, Scene

PATH = Path(__file__).parent / "models" / "carnator_demo_scorer.safetensors"
LOOKS = 5  # frames the scorer sees, evenly spread
SIDE = 96


def shrink(video: Tensor) -> Tensor:
    """What the scorer sees of clips: [B, 3, F, H, W] in [-1, 1] -> [B, 15, 96, 96], five frames as channels."""
    frames = torch.linspace(0, video.shape[2] - 1, LOOKS).round().long().to(video.device)
    picked = video.index_select(2, frames).transpose(1, 2).flatten(1, 2)
    return F.interpolate(picked, size=(SIDE, SIDE), mode="area")


class ScorerNet(nn.Module):
    """A small 2-D convolutional network over stacked frames; one output per value of every attribute."""

    def __init__(self) -> None:
        super().__init__()
        widths, strides = (48, 96, 128, 192, 192, 256), (2, 2, 1, 2, 1, 2)
        layers: list[nn.Module] = []
        inputs = 3 * LOOKS
        for width, stride in zip(widths, strides, strict=True):
            layers += [nn.Conv2d(inputs, width, 3, stride, 1), nn.GroupNorm(8, width), nn.SiLU()]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.out = nn.Linear(2 * inputs, sum(len(values) for values in ATTRIBUTES.values()))

    def forward(self, looks: Tensor) -> list[Tensor]:
        """[B, 15, 96, 96] -> one [B, n] tensor of logits per attribute, in the order of `ATTRIBUTES`."""
        maps = self.features(looks)
        pooled = torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], dim=1)
        return list(self.out(pooled).split([len(values) for values in ATTRIBUTES.values()], dim=1))


@dataclass(frozen=True)
class Reading:
    """values: attribute -> most likely value; probabilities: attribute -> value -> probability."""

    values: dict[str, str]
    probabilities: dict[str, dict[str, float]]


class Scorer:
    """`Scorer.load().read(video)`; a video is [F, H, W, 3] float in [0, 1], as ComfyUI's IMAGE."""

    def __init__(self, net: ScorerNet) -> None:
        self.net = net.eval().requires_grad_(False)

    @classmethod
    def load(cls, path: Path = PATH, device: torch.device | str = "cpu") -> Scorer:
        """Read the stored weights."""
        from safetensors.torch import load_file

        net = ScorerNet()
        net.load_state_dict({key: value.float() for key, value in load_file(path).items()})
        return cls(net.to(device))

    @torch.no_grad()
    def read_batch(self, videos: Tensor) -> list[Reading]:
        """Read clips [B, 3, F, H, W] in [-1, 1]."""
        logits = self.net(shrink(videos.float().clamp(-1, 1).to(self.net.out.weight.device)))
        chances = [rows.softmax(1).cpu().tolist() for rows in logits]
        readings = []
        for i in range(len(videos)):
            table = {
                name: dict(zip(values, chance[i], strict=True))
                for (name, values), chance in zip(ATTRIBUTES.items(), chances, strict=True)
            }
            readings.append(Reading({name: max(row, key=row.get) for name, row in table.items()}, table))
        return readings

    def read_detailed(self, video: Tensor) -> Reading:
        """Values and probabilities of one video [F, H, W, 3] in [0, 1]."""
        return self.read_batch(video.permute(3, 0, 1, 2).unsqueeze(0) * 2.0 - 1.0)[0]

    def read(self, video: Tensor) -> dict[str, str]:
        """Attribute -> most likely value of one video [F, H, W, 3] in [0, 1]."""
        return self.read_detailed(video).values

    def score(self, video: Tensor, scene: Scene) -> dict[str, bool]:
        """Attribute -> whether the video [F, H, W, 3] in [0, 1] shows the scene's value."""
        values = self.read(video)
        return {name: values[name] == getattr(scene, name) for name in ATTRIBUTES}

"""Decodes latents and reads the attributes back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import torch
from safetensors.torch import load_file

from demo.codec import Codec
from demo.grammar import Scene
from demo.scorer import Scorer

VAE_FILE = Path("demo/models/vae/carnator_demo_vae.safetensors")

Decode = Callable[[torch.Tensor], torch.Tensor]  # latent [1, C, T, H, W] -> video [F, H, W, 3] in 0..1
# Decoding -> attribute -> probability of the scene's value and of the likeliest other one.
Looks = dict[str, dict[str, tuple[float, float]]]


class LatentScorer:
    """Attribute → whether the decoded video shows what the scene asks for. May be asked by several threads.

    Args:
        decode: what the scorer looks at.
        linear: decodes every cell of a latent on its own, for comparisons of some cells of two latents.
    """

    def __init__(self, decode: Decode, linear: Decode, device: torch.device):
        self._decode, self._linear, self._scorer = decode, linear, Scorer.load(device=device)

    def score(self, latent_file: Path, scene: Scene) -> dict[str, bool]:
        return self._scorer.score(self._decode(read_latent(latent_file)), scene)

    def looks(self, latent: torch.Tensor, scene: Scene) -> Looks:
        """Probabilities in every decoding of a latent [1, C, T, H, W]: ``decode`` and, if it is another, ``linear``."""
        decodings = {"decoded": self._decode, "linear": self._linear}
        if self._decode is self._linear:
            del decodings["linear"]
        return {name: self._read(decode(latent), scene) for name, decode in decodings.items()}

    def _read(self, video: torch.Tensor, scene: Scene) -> dict[str, tuple[float, float]]:
        found = {}
        for name, chances in self._scorer.read_detailed(video).probabilities.items():
            asked = getattr(scene, name)
            other = max(chance for value, chance in chances.items() if value != asked)
            found[name] = (round(chances[asked], 5), round(other, 5))
        return found

    def linear_video(self, latent_file: Path) -> torch.Tensor:
        """[F, H, W, 3] float in 0..1 by the linear codec."""
        return self._linear(read_latent(latent_file))


def read_latent(latent_file: Path) -> torch.Tensor:
    """[1, C, T, H, W] of a file that SaveLatent wrote."""
    return load_file(latent_file)["latent_tensor"]


def make_scorer(kind: str, comfyui: Path, root: Path) -> LatentScorer:
    """``vae``: the stock VAE in this process. ``codec``: the linear codec it was trained on, 1 dB worse, far faster."""
    _import_comfy(comfyui)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    linear = _linear_codec(device)
    return LatentScorer(_stock_vae(root) if kind == "vae" else linear, linear, device)


def _import_comfy(comfyui: Path) -> None:
    sys.path.insert(0, str(comfyui))
    arguments, sys.argv = sys.argv, sys.argv[:1]  # comfy.cli_args may parse them
    from comfy.cli_args import args

    args.cpu = not torch.cuda.is_available()
    sys.argv = arguments


def _linear_codec(device: torch.device) -> Decode:
    from comfy.latent_formats import Wan21

    codec, wan = Codec.load(device=device), Wan21()

    def decode(latent: torch.Tensor) -> torch.Tensor:
        return ((codec.decode(wan.process_in(latent.to(device)))[0] + 1) / 2).clamp(0, 1).permute(1, 2, 3, 0)

    return decode


def _stock_vae(root: Path) -> Decode:
    import comfy.sd
    import comfy.utils

    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(root / VAE_FILE)))
    one_at_a_time = Lock()  # the host's memory management knows one thread only

    def decode(latent: torch.Tensor) -> torch.Tensor:
        with one_at_a_time:
            return vae.decode(latent)[0]

    return decode

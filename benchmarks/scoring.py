"""Decodes latents and reads the attributes back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from demo.codec import Codec
from demo.grammar import Scene
from demo.scorer import Scorer

VAE_FILE = Path("demo/models/vae/carnator_demo_vae.safetensors")

Decode = Callable[[torch.Tensor], torch.Tensor]  # latent [1, C, T, H, W] -> video [F, H, W, 3] in 0..1


class LatentScorer:
    """Attribute → whether the decoded video shows what the scene asks for."""

    def __init__(self, decode: Decode):
        self._decode, self._scorer = decode, Scorer.load()

    def score(self, latent_file: Path, scene: Scene) -> dict[str, bool]:
        latent = load_file(latent_file)["latent_tensor"]
        return self._scorer.score(self._decode(latent), scene)


def make_scorer(kind: str, comfyui: Path, root: Path) -> LatentScorer:
    """``vae``: the stock VAE in this process. ``codec``: the linear codec it was trained on, 1 dB worse, far faster."""
    _import_comfy(comfyui)
    return LatentScorer(_stock_vae(root) if kind == "vae" else _linear_codec())


def _import_comfy(comfyui: Path) -> None:
    sys.path.insert(0, str(comfyui))
    arguments, sys.argv = sys.argv, sys.argv[:1]  # comfy.cli_args may parse them
    from comfy.cli_args import args

    args.cpu = not torch.cuda.is_available()
    sys.argv = arguments


def _linear_codec() -> Decode:
    from comfy.latent_formats import Wan21

    codec, wan = Codec.load(), Wan21()
    return lambda latent: ((codec.decode(wan.process_in(latent))[0] + 1) / 2).clamp(0, 1).permute(1, 2, 3, 0)


def _stock_vae(root: Path) -> Decode:
    import comfy.sd
    import comfy.utils

    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(root / VAE_FILE)))
    return lambda latent: vae.decode(latent)[0]

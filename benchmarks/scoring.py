"""Decodes latents with the stock VAE and reads the attributes back."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from demo.grammar import Scene
from demo.scorer import Scorer

VAE_FILE = Path("demo/models/vae/carnator_demo_vae.safetensors")


class LatentScorer:
    """Holds the stock VAE and the scorer in this process."""

    def __init__(self, comfyui: Path, root: Path):
        sys.path.insert(0, str(comfyui))
        arguments, sys.argv = sys.argv, sys.argv[:1]
        from comfy.cli_args import args

        args.cpu = not torch.cuda.is_available()
        import comfy.sd
        import comfy.utils

        sys.argv = arguments
        self._vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(root / VAE_FILE)))
        self._scorer = Scorer.load()

    def score(self, latent_file: Path, scene: Scene) -> dict[str, bool]:
        """Attribute → whether the decoded video shows what the scene asks for."""
        latent = load_file(latent_file)["latent_tensor"]
        video = self._vae.decode(latent)[0]  # [F, H, W, 3] in 0..1
        return self._scorer.score(video, scene)

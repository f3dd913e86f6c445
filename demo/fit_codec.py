"""Fits the latent codec to rendered clips: python3 -m demo.fit_codec"""

from __future__ import annotations

import argparse
import random

import torch

from .codec import PATH, Codec, psnr
from .grammar import random_scene
from .render import parameters, render


def clips(count: int, seed: int, batch: int = 4) -> list[torch.Tensor]:
    """Random rendered clips, a list of [batch, 3, 17, 256, 256] in [-1, 1]."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    draws = [torch.tensor([random_scene(rng).indices() for _ in range(batch)]) for _ in range(count // batch)]
    return [render(parameters(indices, generator)) for indices in draws]


def main() -> None:
    """Fit, save and print the linear PSNR on other clips."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    codec = Codec.fit(clips(args.clips, args.seed))
    codec.save(PATH)
    held = torch.cat(clips(32, args.seed + 1))
    print(f"linear codec: {psnr(codec.decode(codec.encode(held)), held):.2f} dB on 32 held-out clips")


if __name__ == "__main__":
    main()

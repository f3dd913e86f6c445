"""Trains the video transformer on codec latents of rendered clips: python3 -m demo.train_dit --seconds 400

Flow matching with ComfyUI's conventions: x = sigma * noise + (1 - sigma) * clean, target noise - clean, timestep
1000 sigma. An eighth of the prompts is dropped (all-zero text) for classifier-free guidance.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from . import words
from .grammar import VOCABULARY, prompt, scene_from_indices, tokenize
from .training import Average, Budget, World, save, set_rate
from .wan_dit import WanDiT, from_file, to_file

PATH = Path(__file__).parent / "models" / "diffusion_models" / "carnator_demo_wan.safetensors"
WORDINGS = 4
DROPOUT = 0.12


class Text:
    """Word numbers of prompts and their encoding on the device, equal to `words.encode`."""

    def __init__(self, device: str, seed: int) -> None:
        known = words.load_vectors()
        self.numbers = {word: i for i, word in enumerate(VOCABULARY)}
        self.table = torch.stack([*(known[word] for word in VOCABULARY), torch.zeros(words.WIDTH)]).to(device)
        self.empty = len(VOCABULARY)
        self.random = random.Random(seed)

    def row(self, text: str) -> list[int]:
        """Word numbers, padded to 33."""
        numbers = [self.numbers[word] for word in tokenize(text)]
        return numbers + [self.empty] * (words.TOKENS + 1 - len(numbers))

    def rows(self, indices: Tensor) -> Tensor:
        """Random wordings of scenes [B, 6]: [B, WORDINGS, 33] integers on the CPU."""
        scenes = [scene_from_indices(row) for row in indices.tolist()]
        pick = self.random.randrange
        return torch.tensor([[self.row(prompt(scene, pick(100))) for _ in range(WORDINGS)] for scene in scenes])

    def encode(self, rows: Tensor) -> Tensor:
        """[B, 33] -> [B, 32, 4096] float32."""
        vectors = self.table[rows]
        return vectors[:, :-1] + words.NEXT_WORD * vectors[:, 1:]


class Pool:
    """Latents and wordings that training draws from; renewed a little at every step."""

    def __init__(self, world: World, text: Text, size: int, chunk: int) -> None:
        self.world, self.text, self.chunk, self.next, self.filled = world, text, chunk, 0, 0
        self.latents = torch.empty(size, 16, 5, 32, 32, dtype=torch.bfloat16, device=world.device)
        self.areas = torch.empty(size, 1, 5, 32, 32, dtype=torch.bool, device=world.device)
        self.rows = torch.empty(size, WORDINGS, words.TOKENS + 1, dtype=torch.int64, device=world.device)

    def renew(self) -> None:
        """Render `chunk` new clips over the oldest ones."""
        indices = self.world.scenes(self.chunk)
        part = slice(self.next, self.next + self.chunk)
        videos, areas = self.world.clips(indices)
        self.latents[part] = self.world.codec.encode(videos).to(torch.bfloat16)
        self.areas[part] = areas.unsqueeze(1)
        self.rows[part] = self.text.rows(indices).to(self.world.device)
        self.next = (self.next + self.chunk) % len(self.latents)
        self.filled = max(self.filled, part.stop)

    def batch(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Random latents [count, 16, 5, 32, 32] float32, object areas [count, 1, 5, 32, 32], words [count, 33]."""
        pick = torch.randint(self.filled, (count,), device=self.latents.device)
        wording = torch.randint(WORDINGS, (count,), device=self.latents.device)
        return self.latents[pick].float(), self.areas[pick], self.rows[pick, wording]


def sigmas(count: int, shift: float, device: str) -> Tensor:
    """Random noise levels [count]: a logit-normal draw, shifted towards noise."""
    t = torch.sigmoid(1.2 * torch.randn(count, device=device))
    return shift * t / (1.0 + (shift - 1.0) * t)


def main() -> None:
    """Train within the time budget and write the diffusion model file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--steps", type=int, help="stop by steps instead of seconds")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--pool", type=int, default=24576)
    parser.add_argument("--fill-seconds", type=float, default=25)
    parser.add_argument("--chunk", type=int, default=32, help="clips rendered at once")
    parser.add_argument("--rate", type=float, default=1.2e-3)
    parser.add_argument("--shift", type=float, default=4.0)
    parser.add_argument("--object-weight", type=float, default=5.0, help="loss weight of cells that the object touches")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--out", type=Path, default=PATH)
    args = parser.parse_args()
    torch.manual_seed(7)
    torch.set_float32_matmul_precision("high")
    world, text = World(args.device, seed=301, compiled=not args.eager), Text(args.device, 9)
    pool = Pool(world, text, args.pool, args.chunk)
    pool.renew()
    began = time.monotonic()
    while pool.filled < args.pool and time.monotonic() - began < args.fill_seconds:
        pool.renew()
    rate = pool.filled / (time.monotonic() - began)
    print(f"pool of {pool.filled} clips in {time.monotonic() - began:.1f} s ({rate:.0f} clips/s)", flush=True)
    every = 2 if rate > 1500 else 16

    if args.resume:
        model = from_file(load_file(args.out)).to(args.device)
    else:
        model = WanDiT(layers=args.layers).to(args.device)
        model.initialise()
    average = Average(model, 0.9985)
    if not args.eager:
        for block in model.blocks:
            block.compile(dynamic=False)
    fused = args.device == "cuda"
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=fused)
    began = time.monotonic()
    budget = Budget(args.seconds, args.steps)
    for step in budget.run():
        clean, areas, rows = pool.batch(args.batch)
        rows = torch.where(torch.rand(args.batch, 1, device=args.device) < DROPOUT, text.empty, rows)
        sigma = sigmas(args.batch, args.shift, args.device)
        noise = torch.randn_like(clean)
        level = sigma.view(-1, 1, 1, 1, 1)
        with torch.autocast(args.device, torch.bfloat16):
            out = model(level * noise + (1.0 - level) * clean, 1000.0 * sigma, text.encode(rows))
        # The object is a small part of the picture and most of what the prompt says.
        weight = 1.0 + (args.object_weight - 1.0) * areas
        loss = (weight * (out.float() - (noise - clean)).square()).sum() / weight.expand_as(clean).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        set_rate(optimiser, budget.rate(args.rate, 0.01 * args.rate, 300))
        optimiser.step()
        average.update(model, step)
        if step % every == 0:
            pool.renew()
        if step % 250 == 0:
            print(
                f"dit {step} {time.monotonic() - began:.0f} s loss {loss.item():.4f} norm {norm:.3f}",
                flush=True,
            )
            save(to_file(average.model.state_dict()), args.out)
    save(to_file(average.model.state_dict()), args.out)
    print(f"dit: {budget.step} steps of {args.batch} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Measures the demo world: accuracy of dense generation, the noise floor, the VAE. python3 -m demo.evaluate"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from . import train_decoder, train_dit, wan_decoder, wan_dit, words
from .grammar import ATTRIBUTES, Scene, prompt, scene_from_indices
from .sampling import CFG, SHIFT, STEPS, noise_of, sample
from .scorer import PATH as SCORER
from .scorer import Scorer
from .sheet import contact_sheet
from .training import World, all_scenes

RESULTS = Path(__file__).parent / "results" / "demo_world.json"
SWEEP = ((3.0, 5.0), (4.0, 5.0), (6.0, 5.0), (5.0, 3.0), (5.0, 8.0))


def requests(count: int, seed: int) -> list[tuple[Scene, str]]:
    """Held-out scenes with random wordings."""
    rng = random.Random(seed)
    rows = all_scenes(held=True).tolist()
    scenes = [scene_from_indices(rng.choice(rows)) for _ in range(count)]
    return [(scene, prompt(scene, rng.randrange(100))) for scene in scenes]


class Models:
    """The three networks on one device."""

    def __init__(self, folder: Path, device: str) -> None:
        root = train_dit.PATH.parent.parent
        where = [folder / path.relative_to(root) for path in (train_dit.PATH, train_decoder.PATH, SCORER)]
        self.device = device
        self.dit = wan_dit.from_file(load_file(where[0])).to(device).requires_grad_(False)
        self.decoder = wan_decoder.from_file(load_file(where[1])).to(device).requires_grad_(False)
        self.scorer = Scorer.load(where[2], device)

    @torch.no_grad()
    def videos(self, prompts: list[str], seeds: list[int], cfg: float, shift: float, batch: int = 50) -> list[Tensor]:
        """Generated clips, each [3, 17, 256, 256] float32 in [-1, 1]."""
        out: list[Tensor] = []
        for i in range(0, len(prompts), batch):
            context = torch.stack([words.encode(text) for text in prompts[i : i + batch]]).to(self.device)
            latents = sample(self.dit, context, noise_of(seeds[i : i + batch]).to(self.device), cfg, shift)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                for part in latents.split(10):
                    out += list(self.decoder(part).float().clamp(-1, 1).cpu())
        return out

    def right(self, videos: list[Tensor], scenes: list[Scene]) -> Tensor:
        """Whether each attribute is shown: [n, 6] bool."""
        rows = []
        for i in range(0, len(videos), 50):
            readings = self.scorer.read_batch(torch.stack(videos[i : i + 50]))
            for reading, scene in zip(readings, scenes[i : i + 50], strict=True):
                rows.append([reading.values[name] == getattr(scene, name) for name in ATTRIBUTES])
        return torch.tensor(rows)


def accuracy(right: Tensor) -> dict[str, float]:
    """Share right per attribute, their mean, and the share of clips with all six right."""
    shares = dict(zip(ATTRIBUTES, right.float().mean(0).tolist(), strict=True))
    shares |= {"mean": right.float().mean().item(), "all_six": right.all(1).float().mean().item()}
    return {name: round(share, 4) for name, share in shares.items()}


def main() -> None:
    """Evaluate and write the JSON and a contact sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--models", type=Path, default=train_dit.PATH.parent.parent)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--sweep", action="store_true", help="also try other CFG and shift values")
    parser.add_argument("--no-vae", action="store_true", help="skip the VAE's PSNR")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--sheet", type=Path)
    args = parser.parse_args()
    models = Models(args.models, args.device)
    wanted = requests(args.prompts, args.seed)
    scenes, prompts = [scene for scene, _ in wanted], [text for _, text in wanted]
    seeds = [args.seed * 1000 + i for i in range(args.prompts)]
    result = {
        "command": f"python3 -m demo.evaluate --prompts {args.prompts} --seed {args.seed}" + " --sweep" * args.sweep,
        "commit": args.commit,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "CPU",
        "date": datetime.date.today().isoformat(),
        "sampler": {"name": "euler", "scheduler": "simple", "steps": STEPS, "cfg": CFG, "shift": SHIFT},
        "prompts": args.prompts,
    }
    began = time.monotonic()
    videos = models.videos(prompts, seeds, CFG, SHIFT)
    result["seconds_per_clip"] = round((time.monotonic() - began) / args.prompts, 4)
    first = models.right(videos, scenes)
    result["dense_accuracy"] = accuracy(first)
    print(json.dumps(result["dense_accuracy"]), flush=True)
    if args.sheet:
        show = [video.permute(1, 2, 3, 0) / 2 + 0.5 for video in videos[:24]]
        contact_sheet(show, prompts[:24], args.sheet)
    again = models.right(models.videos(prompts, [seed + 500_000 for seed in seeds], CFG, SHIFT), scenes)
    lost = first & ~again
    result["noise_floor"] = {
        "kept": round(1.0 - (lost.sum() / first.sum()).item(), 4),
        "pairs_losing_one": round(lost.any(1).float().mean().item(), 4),
        "other_seed_accuracy": accuracy(again),
    }
    print(json.dumps(result["noise_floor"]), flush=True)
    if not args.no_vae:
        world = World(args.device, seed=777, held=True, compiled=False)
        small = args.device == "cpu"
        ours, linear = train_decoder.quality(models.decoder, world, 8 if small else 64, 2 if small else 8)
        result["vae_psnr_db"] = {
            "decoder": round(ours, 2),
            "linear_codec": round(linear, 2),
            "encoder_included": False,
        }
        print(json.dumps(result["vae_psnr_db"]), flush=True)
    if args.sweep:
        result["sweep"] = {
            f"cfg {cfg:g} shift {shift:g}": accuracy(models.right(models.videos(prompts, seeds, cfg, shift), scenes))
            for cfg, shift in SWEEP
        }
        print(json.dumps(result["sweep"], indent=1), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

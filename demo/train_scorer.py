"""Trains the scorer on rendered clips, as they are, through the codec and through the VAE.

python3 -m demo.train_scorer --seconds 60
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from . import train_decoder
from .grammar import ATTRIBUTES
from .scorer import PATH, ScorerNet, shrink
from .training import Average, Budget, World, all_scenes, save, set_rate
from .wan_decoder import WanDecoder, from_file


@torch.no_grad()
def looks(world: World, decoder: WanDecoder, count: int, source: str) -> tuple[Tensor, Tensor]:
    """Shrunken clips [count, 15, 96, 96] bfloat16 and their attribute numbers [count, 6].

    source: "plain" (as rendered), "linear" (codec with noise on the latent) or "vae" (codec, a little noise, VAE).
    """
    indices = world.scenes(count)
    video = world.videos(indices)
    if source != "plain":
        latent = world.codec.encode(video)
        latent = latent + torch.rand(count, 1, 1, 1, 1, device=latent.device) * 0.35 * torch.randn_like(latent)
        if source == "linear":
            video = world.codec.decode(latent)
        else:
            with torch.autocast(latent.device.type, torch.bfloat16):
                video = decoder(latent).float()
    return shrink(video.clamp(-1, 1)).to(torch.bfloat16), indices.to(video.device)


def augment(x: Tensor) -> Tensor:
    """Random blur, contrast, brightness and noise per clip: [B, 15, 96, 96] -> float32."""
    x = x.float()
    b = len(x)
    rand = lambda low, high: low + (high - low) * torch.rand(b, 1, 1, 1, device=x.device)  # noqa: E731
    blurred = F.avg_pool2d(F.pad(x, (2, 2, 2, 2), mode="replicate"), 5, 1)
    x = torch.lerp(x, blurred, rand(-0.3, 1.0).clamp(min=0.0))
    return x * rand(0.85, 1.12) + rand(-0.08, 0.08) + rand(0.0, 0.12) * torch.randn_like(x)


def right(net: ScorerNet, x: Tensor, truth: Tensor) -> Tensor:
    """Share of right readings per attribute: [6]."""
    with torch.no_grad():
        parts = [net(part.float()) for part in x.split(256)]
    logits = [torch.cat(column) for column in zip(*parts, strict=True)]
    return torch.stack([(rows.argmax(1) == truth[:, i]).float().mean() for i, rows in enumerate(logits)])


def main() -> None:
    """Train within the time budget and write the scorer file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--clips", type=int, default=6144, help="training clips per source")
    parser.add_argument("--held", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--vae", type=Path, default=train_decoder.PATH)
    parser.add_argument("--out", type=Path, default=PATH)
    args = parser.parse_args()
    torch.manual_seed(13)
    decoder = from_file(load_file(args.vae)).to(args.device)
    if args.device == "cuda":
        train_decoder.conv_channels_last(decoder)
    world = World(args.device, seed=401, compiled=not args.eager)
    began = time.monotonic()
    parts = []
    for source, clips in (("plain", args.clips), ("linear", args.clips), ("vae", args.clips // 2)):
        parts += [looks(world, decoder, args.chunk, source) for _ in range(clips // args.chunk)]
        print(f"scorer data {source}: {time.monotonic() - began:.0f} s", flush=True)
    x, truth = (torch.cat(column) for column in zip(*parts, strict=True))
    world.table = all_scenes(held=True)
    parts = [looks(world, decoder, args.chunk, "vae") for _ in range(max(1, args.held // args.chunk))]
    held_x, held_truth = (torch.cat(column) for column in zip(*parts, strict=True))

    net = ScorerNet().to(args.device)
    average = Average(net, 0.995)
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)
    budget = Budget(args.seconds, args.steps)
    for step in budget.run():
        pick = torch.randint(len(x), (args.batch,), device=x.device)
        with torch.autocast(args.device, torch.bfloat16):
            logits = net(augment(x[pick]))
        loss = sum(F.cross_entropy(rows.float(), truth[pick, i], label_smoothing=0.02) for i, rows in enumerate(logits))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        set_rate(optimiser, budget.rate(2e-3, 2e-5, 100))
        optimiser.step()
        average.update(net, step)
        if step % 500 == 0:
            print(f"scorer {step} {time.monotonic() - budget.start:.0f} s loss {loss.item():.3f}", flush=True)
    shares = right(average.model, held_x, held_truth).tolist()
    names = dict(zip(ATTRIBUTES, (round(share, 4) for share in shares), strict=True))
    state = {key: value.to(torch.bfloat16).cpu().contiguous() for key, value in average.model.state_dict().items()}
    save(state, args.out, {"held_out": str(names)})
    print(f"scorer: {budget.step} steps, held-out clips through the VAE: {names}", flush=True)


if __name__ == "__main__":
    main()

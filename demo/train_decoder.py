"""Trains the VAE decoder on rendered clips and their codec latents: python3 -m demo.train_decoder --seconds 200"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from .codec import psnr
from .training import Average, Budget, World, save, set_rate
from .wan_decoder import WanDecoder, from_file, to_file

PATH = Path(__file__).parent / "models" / "vae" / "carnator_demo_vae.safetensors"


def conv_channels_last(model: nn.Module) -> None:
    """Put every convolution weight into the memory layout that cuDNN prefers."""
    for module in model.modules():
        if isinstance(module, nn.Conv3d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last_3d)
        elif isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)


def crops(videos: Tensor, latents: Tensor, count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random aligned crops: ([count, 3, 17, 8 size, 8 size], [count, 16, 5, size, size])."""
    clip = torch.randint(len(videos), (count,), generator=generator).tolist()
    side = latents.shape[-1] - size + 1
    rows, columns = (torch.randint(side, (count,), generator=generator).tolist() for _ in range(2))
    where = list(zip(clip, rows, columns, strict=True))
    video = torch.stack([videos[i, :, :, 8 * r : 8 * (r + size), 8 * c : 8 * (c + size)] for i, r, c in where])
    return video, torch.stack([latents[i, :, :, r : r + size, c : c + size] for i, r, c in where])


@torch.no_grad()
def quality(model: nn.Module, world: World, count: int = 64, batch: int = 8) -> tuple[float, float]:
    """PSNR in dB on fresh clips of `world`: (decoder, linear codec)."""
    ours, linear = [], []
    for _ in range(count // batch):
        video = world.videos(world.scenes(batch))
        latent = world.codec.encode(video)
        with torch.autocast(video.device.type, torch.bfloat16):
            out = model(latent)
        ours.append(10 ** (-psnr(out.float().clamp(-1, 1), video) / 10))
        linear.append(10 ** (-psnr(world.codec.decode(latent).clamp(-1, 1), video) / 10))
    return tuple(float(-10 * torch.tensor(sum(x) / len(x)).log10()) for x in (ours, linear))


def main() -> None:
    """Train within the time budget and write the VAE file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--steps", type=int, help="stop by steps instead of seconds")
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--crop", type=int, default=16, help="latent rows and columns of a crop")
    parser.add_argument("--pool", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="do not compile the renderer")
    parser.add_argument("--out", type=Path, default=PATH)
    args = parser.parse_args()
    torch.manual_seed(3)
    world = World(args.device, seed=101, compiled=not args.eager)
    chunk = min(8, args.pool)
    videos = torch.empty(args.pool, 3, 17, 256, 256, dtype=torch.bfloat16, device=args.device)
    latents = torch.empty(args.pool, 16, 5, 32, 32, device=args.device)

    def refill(start: int) -> None:
        fresh = world.videos(world.scenes(chunk))
        videos[start : start + chunk] = fresh.to(torch.bfloat16)
        latents[start : start + chunk] = world.codec.encode(fresh)

    began = time.monotonic()
    for start in range(0, args.pool, chunk):
        refill(start)
    print(f"pool of {args.pool} clips in {time.monotonic() - began:.1f} s", flush=True)

    model = from_file(load_file(args.out)) if args.resume else WanDecoder(args.dim)
    model = model.to(args.device)
    if args.device == "cuda":
        conv_channels_last(model)
    average = Average(model, 0.998)
    fused = args.device == "cuda"
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)
    cpu = torch.Generator().manual_seed(5)
    budget = Budget(args.seconds, args.steps)
    for step in budget.run():
        whole = budget.fraction > 0.85  # the last part sees whole frames
        size, count = (32, max(1, args.batch // 4)) if whole else (args.crop, args.batch)
        target, latent = crops(videos, latents, count, size, cpu)
        latent = latent + 0.05 * torch.rand(count, 1, 1, 1, 1, device=args.device) * torch.randn_like(latent)
        with torch.autocast(args.device, torch.bfloat16):
            out = model(latent).float()
        error = out - target.float()
        loss = error.abs().mean() + 2.0 * error.square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        set_rate(optimiser, budget.rate(args.rate, 0.03 * args.rate, 100))
        optimiser.step()
        average.update(model, step)
        if step % 4 == 0:
            refill((step // 4 * chunk) % args.pool)
        if step % 200 == 0:
            level = 6.02 - 10 * error.square().mean().log10().item()
            seconds = time.monotonic() - budget.start
            print(
                f"decoder {step} {seconds:.0f} s loss {loss.item():.4f} {level:.2f} dB norm {norm:.2f}",
                flush=True,
            )
            save(to_file(average.model.state_dict()), args.out)
    save(to_file(average.model.state_dict()), args.out)
    held = World(args.device, seed=202, held=True, compiled=not args.eager)
    final = from_file(load_file(args.out)).to(args.device)
    ours, linear = quality(final, held, *((64, 8) if fused else (2, 2)))
    print(
        f"decoder: {budget.step} steps, {ours:.2f} dB on held-out clips (linear codec {linear:.2f} dB)",
        flush=True,
    )


if __name__ == "__main__":
    main()

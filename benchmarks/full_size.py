"""Whole sampling runs of Wan models at full size with random weights, in ComfyUI's own sampler: speed only.

What is computed does not depend on the values of weights, so they are random, and the evidence region is a box of a
given share in place of what random predictions would give. Everything else is the pack as it is shipped: key, store,
probe, signature, gate, region rows, layer window, guidance reuse, checks, refine.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from carnator_core import evidence
from carnator_core.options import GateOptions, Options, ProbeOptions
from scripts.testbed.console import Stop, say

TEXT_TOKENS, TEXT_WIDTH = 512, 4096
GUIDANCE = 5.0
OPEN_GATE = GateOptions(*[1e9] * 5)


@dataclass(frozen=True)
class Model:
    """A Wan model and the latent of one of its usual videos, [C, T, H, W]."""

    name: str
    width: int
    heads: int
    ffn: int
    layers: int
    latent: tuple[int, int, int, int]


MODELS = {
    "5b": Model("Wan2.2-5B, 704×1280×121", 3072, 24, 14336, 30, (48, 31, 44, 80)),
    "14b": Model("Wan2.1-14B, 480×832×81", 5120, 40, 13824, 40, (16, 21, 60, 104)),
}


def measure(comfyui: Path, name: str, steps: int, regions: list[float]) -> dict[str, Any]:
    """Stock, a miss and hits of several region shares, in one process. Raises Stop if a miss is not stock."""
    sys.path.append(str(comfyui))
    model = MODELS[name]
    patcher = _random_model(model)
    device = patcher.load_device
    say(f"{model.name} on {torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}, {steps} steps")
    with tempfile.TemporaryDirectory(prefix="full-size-") as folder:
        return {"model": model.name, "steps": steps, "rows": _rows(patcher, model, steps, regions, Path(folder))}


def _rows(patcher: Any, model: Model, steps: int, regions: list[float], folder: Path) -> list[dict[str, Any]]:
    prompts = [_conditioning(seed) for seed in (1, 2, 3)]
    negative = _conditioning(9)
    # Loading, imports and warming up count for nobody.
    _sample(patcher, model, 2, prompts[0], negative)
    _ours(patcher, model, 4, prompts[0], negative, folder / "warm")
    stock, dense = _timed(lambda: _sample(patcher, model, steps, prompts[0], negative))
    run, miss_seconds, latent = _ours(patcher, model, steps, prompts[0], negative, folder)
    if not torch.equal(latent, dense) or run.report.decision.value != "miss":
        raise Stop(f"a miss is not the stock latent: {run.report.status()}")
    rows = [
        {"what": "stock", "seconds": round(stock, 3), "speedup": 1.0},
        _row("miss", run, miss_seconds, stock),
    ]
    for share in regions:
        with _box_region(share):
            run, seconds, latent = _ours(patcher, model, steps, prompts[1], negative, folder)
        if run.report.decision.value != "hit" or not bool(torch.isfinite(latent).all()):
            raise Stop(f"no hit at a region of {share:.0%}: {run.report.status()}")
        rows.append(_row(f"hit, region {share:.0%}", run, seconds, stock))
    return rows


def _row(what: str, run: Any, seconds: float, stock: float) -> dict[str, Any]:
    report = run.report
    row = {
        "what": what,
        "seconds": round(seconds, 3),
        "speedup": round(stock / seconds, 3),
        "region": report.region_share,
        "own_share": round(report.own_seconds / seconds, 4),
        "steps": report.steps,
        "predicted_work": report.predicted_work,
    }
    if torch.cuda.is_available():
        row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    say(f"  {row}")
    return row


def _ours(patcher: Any, model: Model, steps: int, positive: list, negative: list, folder: Path) -> tuple:
    from carnator_core.hosts.comfy_run import ComfyRun
    from carnator_core.store.registry import open_store

    options = Options(probe=ProbeOptions(min_text_similarity=-1.0), gate=OPEN_GATE)
    run = ComfyRun(options, folder)
    attached = run.attach(patcher)
    seconds, latent = _timed(lambda: _sample(attached, model, steps, positive, negative))
    open_store(folder, options.store).wait()  # the writing of an entry overlaps what follows the sampler
    return run, seconds, latent


def _timed(call: Any) -> tuple[float, torch.Tensor]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    latent = call()  # arrives on the CPU, so the device has finished
    return time.perf_counter() - started, latent


def _sample(patcher: Any, model: Model, steps: int, positive: list, negative: list) -> torch.Tensor:
    import comfy.sample

    latent = torch.zeros(1, *model.latent)
    noise = comfy.sample.prepare_noise(latent, 1)
    with torch.inference_mode():
        return comfy.sample.sample(
            patcher, noise, steps, GUIDANCE, "uni_pc", "simple", positive, negative, latent, disable_pbar=True, seed=1
        )


def _conditioning(seed: int) -> list:
    random = torch.Generator().manual_seed(seed)
    return [[torch.randn(1, TEXT_TOKENS, TEXT_WIDTH, generator=random), {}]]


def _random_model(model: Model) -> Any:
    """ModelPatcher over ComfyUI's own class, its weights drawn on the device."""
    import comfy.model_detection
    import comfy.model_management
    import comfy.model_patcher

    channels = model.latent[0]
    config = comfy.model_detection.model_config_from_unet_config({
        "image_model": "wan2.1", "model_type": "t2v", "dim": model.width, "out_dim": channels, "in_dim": channels,
        "num_heads": model.heads, "ffn_dim": model.ffn, "num_layers": model.layers, "patch_size": (1, 2, 2),
        "freq_dim": 256, "window_size": (-1, -1), "qk_norm": True, "cross_attn_norm": True, "eps": 1e-6,
    })  # fmt: skip
    device = comfy.model_management.get_torch_device()
    config.set_inference_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32, None)
    built = config.get_model({}, "", device=device)
    random = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, weight in built.diffusion_model.named_parameters():
            if weight.ndim < 2:
                weight.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            else:
                weight.normal_(0.0, 1.0 / math.sqrt(weight[0].numel()), generator=random)
    return comfy.model_patcher.ModelPatcher(built, device, device)


@contextmanager
def _box_region(share: float) -> Iterator[None]:
    """A box in the middle of every frame, of this share of it, in place of the measured evidence region."""

    def box(difference: torch.Tensor, threshold: float) -> torch.Tensor:
        region = torch.zeros_like(difference, dtype=torch.bool)
        inside = [slice(round(n * (1 - share**0.5) / 2), round(n * (1 + share**0.5) / 2)) for n in region.shape[1:]]
        region[:, inside[0], inside[1]] = True
        return region

    measured = evidence.evidence_region
    evidence.evidence_region = box
    try:
        yield
    finally:
        evidence.evidence_region = measured

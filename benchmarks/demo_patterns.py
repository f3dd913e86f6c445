"""What depends on values, measured on the demo model for use at full size, where weights are random.

Which evaluations core's EasyCache skips at its default threshold, and how much the guided x0 changes at each step, by
which held steps are chosen. Both with uni_pc, over three base prompts of the stream *tune*.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from demo.words import encode
from scripts.testbed.console import say
from scripts.testbed.environment import ROOT

from .own_input import with_own_input
from .random_models import import_comfy
from .stream_run import StreamRequest, load_stream

MODEL = ROOT / "demo" / "models" / "diffusion_models" / "carnator_demo_wan.safetensors"
SHIFT, GUIDANCE, SAMPLER, PROMPTS = 5.0, 5.0, "euler", 3
LATENT = (1, 16, 5, 32, 32)


def measure(comfyui: Path, numbers_of_steps: list[int]) -> dict[str, Any]:
    """Step counts -> skips of the median prompt, and the median change of each step."""
    import_comfy(comfyui)
    import comfy.sd
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    model = ModelSamplingSD3().patch(comfy.sd.load_diffusion_model(str(MODEL)), SHIFT)[0]
    requests = [request for request in load_stream("tune") if request.base is None][:PROMPTS]
    found: dict[str, Any] = {"sampler": SAMPLER, "prompts": [request.id for request in requests]}
    for steps in numbers_of_steps:
        skips = sorted((_skips(model, request, steps) for request in requests), key=len)
        change = torch.stack([_change(model, request, steps) for request in requests]).median(0).values
        found[str(steps)] = {"easycache_skips": skips[PROMPTS // 2], "change": [round(c, 4) for c in change.tolist()]}
        say(f"  {steps} steps: EasyCache skips {len(skips[PROMPTS // 2])}")
    return found


def _sample(model: Any, request: StreamRequest, steps: int) -> None:
    import comfy.sample

    latent, negative = torch.zeros(LATENT), [[encode("")[None], {}]]
    noise = comfy.sample.prepare_noise(latent, request.seed)
    with torch.inference_mode():
        comfy.sample.sample(
            model, noise, steps, GUIDANCE, SAMPLER, "simple", [[encode(request.prompt)[None], {}]], negative, latent,
            disable_pbar=True, seed=request.seed,
        )  # fmt: skip


def _skips(model: Any, request: StreamRequest, steps: int) -> list[int]:
    """Steps of the stock sampler with EasyCache in which the model did not run."""
    from comfy_extras.nodes_easycache import EasyCacheNode

    model = model.clone()
    model.add_wrapper_with_key("diffusion_model", "own_input", with_own_input)
    cached = EasyCacheNode.execute(model, 0.2, 0.15, 0.95, False).result[0]
    ran: list[bool] = []

    def count(executor: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append(False)
        return executor(*args, **kwargs)

    cached.add_wrapper_with_key("predict_noise", "count", count)
    hook = model.model.diffusion_model.blocks[0].register_forward_hook(lambda *_: ran.__setitem__(-1, True))
    try:
        _sample(cached, request, steps)
    finally:
        hook.remove()
    return [step for step, evaluated in enumerate(ran) if not evaluated]


def _change(model: Any, request: StreamRequest, steps: int) -> torch.Tensor:
    """[steps], as a stored donor has it."""
    from carnator_core.hosts.comfy_run import ComfyRun
    from carnator_core.options import Options
    from carnator_core.store.registry import open_store

    with tempfile.TemporaryDirectory(prefix="patterns-") as folder:
        run = ComfyRun(Options(), Path(folder))
        _sample(run.attach(model), request, steps)
        store = open_store(Path(folder), Options().store)
        store.wait()
        return store.signature(run.report.entry_id).change

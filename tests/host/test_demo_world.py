"""The demo weights in ComfyUI's own classes: they load, and our training forwards compute the same function."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from demo import sampling, wan_decoder, wan_dit, words
from demo.grammar import tokenize
from support.pack import node_classes
from support.paths import ROOT

MODELS = ROOT / "demo" / "models"
DIT = MODELS / "diffusion_models" / "carnator_demo_wan.safetensors"
VAE = MODELS / "vae" / "carnator_demo_vae.safetensors"
TEXT = "a large red star drifts left over the ocean in snow"


@pytest.fixture(scope="module")
def model(comfy: ModuleType) -> Any:
    import comfy.sd

    return comfy.sd.load_diffusion_model(str(DIT))


@pytest.fixture(scope="module")
def clip(pack: ModuleType) -> Any:
    return node_classes()["CarnatorDemoTextEncoder"].execute().args[0]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_all_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in Path(MODELS).rglob("*.safetensors")) < 24e6


def test_the_transformer_loads_as_wan_2_1(model: Any) -> None:
    from comfy.model_base import WAN21

    assert isinstance(model.model, WAN21)
    assert len(model.model.diffusion_model.blocks) == 6


def test_our_transformer_forward_equals_the_stock_one(model: Any) -> None:
    ours, stock = wan_dit.from_file(load_file(DIT)), model.model.diffusion_model
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(2, 16, 2, 8, 8, generator=generator)
    arguments = latent, torch.tensor([900.0, 300.0]), torch.stack([words.encode(TEXT), words.encode("")])
    with torch.no_grad():
        assert distance(ours(*arguments), stock(*arguments)) < 1e-4


def test_our_decoder_equals_the_stock_vae(comfy: ModuleType) -> None:
    import comfy.sd

    tensors = load_file(VAE)
    vae = comfy.sd.VAE(sd=dict(tensors))
    latent = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    from comfy.latent_formats import Wan21

    with torch.no_grad():
        ours = wan_decoder.from_file(tensors)(latent).clamp(-1, 1) / 2 + 0.5
        stock = vae.decode(Wan21().process_out(latent))
    assert stock.shape == (1, 9, 64, 64, 3)
    assert distance(ours[0].permute(1, 2, 3, 0), stock[0]) < 1e-3


def test_our_sampler_equals_the_stock_one(model: Any) -> None:
    import comfy.sample
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    steps = 3
    context = words.encode(TEXT)[None]
    noise = sampling.noise_of([11])[:, :, :2, :8, :8].contiguous()
    (shifted,) = ModelSamplingSD3().patch(model, sampling.SHIFT)
    with torch.inference_mode():
        stock = comfy.sample.sample(
            shifted, noise, steps, sampling.CFG, "euler", "simple",
            [[context, {}]], [[torch.zeros_like(context), {}]], torch.zeros_like(noise), seed=11, disable_pbar=True,
        )  # fmt: skip
    ours = sampling.sample(wan_dit.from_file(load_file(DIT)), context, noise, steps=steps)
    assert distance(model.model.process_latent_in(stock), ours) < 1e-3


def test_the_noise_is_comfyuis(comfy: ModuleType) -> None:
    import comfy.sample

    assert torch.equal(comfy.sample.prepare_noise(torch.zeros(1, 16, 5, 32, 32), 7), sampling.noise_of([7]))


def encoded(clip: Any, text: str) -> torch.Tensor:
    return clip.encode_from_tokens_scheduled(clip.tokenize(text))[0][0]


def test_the_text_encoder_encodes_as_in_training(clip: Any) -> None:
    assert torch.equal(encoded(clip, TEXT)[0], words.encode(TEXT))
    assert encoded(clip, "").shape == (1, words.TOKENS, words.WIDTH)
    assert not encoded(clip, "").any()


def test_the_text_encoder_reads_weights(clip: Any) -> None:
    plain = tokenize("a red ball")
    assert torch.equal(encoded(clip, "a (red:1.5) ball")[0], words.encode_words(plain, [1.0, 1.5, 1.0]))

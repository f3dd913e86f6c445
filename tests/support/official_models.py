"""Tiny weights under the file names of the official Wan workflows, so that these run as they are on a CPU.

The diffusion models and VAEs are what ComfyUI's stock loaders detect by their tensors. The text encoder is a one-layer
UMT5: ComfyUI always builds the full size from such a file, so a small custom node of the test server passes the sizes
on that the file names in its header.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from .paths import ROOT
from .tiny_models import Weights, random_weights, wan_dit, wan_vae

TEXT_ENCODER = {"num_layers": 1, "d_ff": 64, "num_heads": 2, "d_kv": 16, "vocab_size": 512}
SIZES_KEY = "tiny_umt5_config"

SHRUNK_TEXT_ENCODER_NODE = f'''"""Test only: lets the stock CLIPLoader open a UMT5 whose header names smaller sizes."""

import json

import comfy.sd
from safetensors import safe_open

_load_clip = comfy.sd.load_clip


def load_clip(ckpt_paths, *args, model_options={{}}, **kwargs):
    for path in ckpt_paths:
        with safe_open(path, "pt") as file:
            sizes = (file.metadata() or {{}}).get("{SIZES_KEY}")
        if sizes:
            model_options = {{**model_options, "umt5xxl_model_config": json.loads(sizes)}}
    return _load_clip(ckpt_paths, *args, model_options=model_options, **kwargs)


comfy.sd.load_clip = load_clip
NODE_CLASS_MAPPINGS = {{}}
'''


def write_official_models(base: Path) -> None:
    """Fills ``base/models`` and ``base/custom_nodes`` of a test server. Call it only with the `comfy` fixture."""
    from comfy.taesd.taehv import TAEHV

    decoder = {n: t.bfloat16() for n, t in random_weights(TAEHV(latent_channels=48), 0).items() if "decoder" in n}
    loras = {f"loras/{name}.safetensors": lora(seed) for seed, name in enumerate(LORAS)}
    files = {
        "diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors": wan_dit(seed=10),
        "diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors": wan_dit(seed=11),
        "diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors": wan_dit(seed=12),
        "diffusion_models/wan2.2_ti2v_5B_fp16.safetensors": wan_dit(seed=13, channels=48),
        "vae/wan_2.1_vae.safetensors": wan_vae(),
        "vae/wan2.2_vae.safetensors": decoder,  # the smallest decoder of 48 channels that ComfyUI knows
        **loras,
    }
    for name, weights in files.items():
        path = base / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(weights, path)
    encoder = base / "models" / "text_encoders" / "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
    encoder.parent.mkdir(parents=True, exist_ok=True)
    save_file(text_encoder(), encoder, metadata={SIZES_KEY: json.dumps(TEXT_ENCODER)})
    node = base / "custom_nodes" / "shrunk_text_encoder" / "__init__.py"
    node.parent.mkdir(parents=True, exist_ok=True)
    node.write_text(SHRUNK_TEXT_ENCODER_NODE)


LORAS = (
    "wan2.2_t2v_lightx2v_4steps_lora_v1.1_high_noise",
    "wan2.2_t2v_lightx2v_4steps_lora_v1.1_low_noise",
    "Wan21_CausVid_bidirect2_T2V_1_3B_lora_rank32",
)


def lora(seed: int, rank: int = 4, width: int = 128) -> Weights:
    """A LoRA of the tiny models' attention and feed-forward layers."""
    random = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for block in range(2):
        for layer in ("self_attn.q", "self_attn.v", "ffn.0"):
            name = f"diffusion_model.blocks.{block}.{layer}"
            weights[f"{name}.lora_down.weight"] = torch.randn(rank, width, generator=random) / math.sqrt(width)
            weights[f"{name}.lora_up.weight"] = torch.randn(width, rank, generator=random) / math.sqrt(rank)
            weights[f"{name}.alpha"] = torch.tensor(float(rank))
    return weights


def text_encoder() -> Weights:
    """A one-layer UMT5 with its tokenizer, trained on this project's README."""
    import comfy.ops
    import comfy.text_encoders.t5
    import sentencepiece

    sizes = json.loads((Path(comfy.text_encoders.t5.__file__).parent / "umt5_config_xxl.json").read_text())
    model = comfy.text_encoders.t5.T5({**sizes, **TEXT_ENCODER}, torch.float32, "cpu", comfy.ops.manual_cast)
    weights = random_weights(model, 5)
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    tokenizer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(words[i : i + 6]) for i in range(len(words))),
        model_writer=tokenizer, vocab_size=TEXT_ENCODER["vocab_size"], pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        model_type="unigram", hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    weights["spiece_model"] = torch.frombuffer(bytearray(tokenizer.getvalue()), dtype=torch.uint8).clone()
    # By this tensor of the last layer ComfyUI knows a UMT5-XXL.
    weights["encoder.block.23.layer.1.DenseReluDense.wi_1.weight"] = torch.zeros(1, 4096)
    return weights

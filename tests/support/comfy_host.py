"""ComfyUI inside the test process, on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from .paths import put_comfyui_first


def import_comfy(comfyui: Path) -> ModuleType:
    """Imports `comfy` with its flags set; comfy.model_management reads them when it is imported."""
    put_comfyui_first(comfyui)
    arguments, sys.argv = sys.argv, sys.argv[:1]  # comfy.cli_args may parse them
    try:
        from comfy.cli_args import args

        args.cpu = True
        args.use_pytorch_cross_attention = True  # as the test server is started
        import comfy
        import comfy.sample
        import comfy.samplers
        import comfy.sd
    finally:
        sys.argv = arguments
    return comfy


def random_conditioning(seed: int, tokens: int = 16, scale: float = 1.0) -> list[list[object]]:
    """Conditioning as CLIPTextEncode would give it, for models without a text encoder."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(1, tokens, 4096, generator=generator) * scale, {}]]

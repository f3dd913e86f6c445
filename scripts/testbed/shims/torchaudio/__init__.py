"""Lets ComfyUI import torchaudio without it. Only sound nodes call it; a real torchaudio takes precedence."""

from . import functional, transforms

__all__ = ["functional", "transforms"]
__version__ = "0.0.0"

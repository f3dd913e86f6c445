"""Lets ComfyUI import torchvision without it. Wan never calls it; a real torchvision takes precedence."""

from . import models, transforms

__all__ = ["models", "transforms"]
__version__ = "0.0.0"

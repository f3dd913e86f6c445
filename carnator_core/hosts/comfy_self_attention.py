"""A hand on one block's self-attention, through the host's own attention override."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

OVERRIDE = "optimized_attention_override"


def with_self_attention(
    options: dict, attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]
) -> dict:
    """A copy of one block call's transformer_options in which its self-attention goes through ``attend``.

    A block attends to itself first, so only the first call is ours. Any other, and the first one if ``attend`` returns
    None, goes on as it would have: through an override that was there before, or to the host's function.

    Args:
        attend: (q, k, v), each [B, L, H*D] -> the same shape as q, or None.
    """
    earlier = options.get(OVERRIDE)
    calls = 0

    def override(function: Callable, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            attended = attend(*args[:3])
            if attended is not None:
                return attended
        return function(*args, **kwargs) if earlier is None else earlier(function, *args, **kwargs)

    return {**options, OVERRIDE: override}

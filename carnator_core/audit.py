"""Audits: some hits are run again densely, so that people can compare and a certificate can be watched.

Which ones is told by a hash of the request's id alone. So nothing that the run found, looks like or is thought of has a
say in it, the same request is always or never audited, and a larger share holds all that a smaller one did.
"""

from __future__ import annotations

import torch

from .identity import digest

INSIDE, OUTSIDE = "inside", "outside"


def is_chosen(request_id: str, percent: float) -> bool:
    """Whether a request is among the share of 0 to 100 percent whose hits are audited."""
    return int(digest("audit", request_id)[:12], 16) < percent / 100 * 16**12


def difference(hit: torch.Tensor, dense: torch.Tensor, computed: torch.Tensor) -> dict[str, float | None]:
    """Root mean square of the difference of two latents, inside and outside the region that the hit computed.

    Args:
        hit, dense: [1, C, T, H, W] in latent units (the model's own normalised latents, about unit variance).
        computed: [T, H, W] bool, where any reuse step was the hit's own.
    Returns:
        In latent units, 4 significant digits; None for a part that is empty.
    Raises ValueError for latents that are not finite.
    """
    squares = (hit - dense)[0].double().square().mean(dim=0)
    if not bool(squares.isfinite().all()):
        raise ValueError("the results are not finite")
    parts = {INSIDE: squares[computed], OUTSIDE: squares[~computed]}
    return {name: float(f"{float(part.mean().sqrt()):.4g}") if part.numel() else None for name, part in parts.items()}

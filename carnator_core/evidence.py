"""The evidence region: which tokens the new prompt really changes.

All functions work on one request. Latents are [C, T, H, W] in model space (about unit variance); token grids are
[T', h, w] with T' = T / patch[0] and so on, in the order in which the DiT flattens them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

EARLY_SIGMA, LATE_SIGMA, LATE_RISE = 0.99, 0.90, 1.0
ROW_BUCKETS = 16


def token_difference(target: torch.Tensor, donor: torch.Tensor, patch: tuple[int, int, int]) -> torch.Tensor:
    """Root mean square difference of two x0 predictions within each token.

    Args:
        target, donor: [C, T, H, W], any float dtype, same device; sides need not be multiples of the patch.
    Returns:
        [T', h, w] float32, in latent units.
    """
    square = (target.float() - donor.float()).square().mean(dim=0)
    return F.avg_pool3d(square[None, None], patch, ceil_mode=True, count_include_pad=False)[0, 0].sqrt()


def threshold_at(base: float, sigma: float) -> float:
    """tau of the region at a noise level: ``base`` down to sigma 0.99, rising linearly to twice that at 0.90.

    Early predictions are blurry means, so that a change shows with a third of its final amplitude; measured on the
    stream *tune* of the demo world.
    """
    rise = (EARLY_SIGMA - sigma) / (EARLY_SIGMA - LATE_SIGMA)
    return base * (1.0 + LATE_RISE * min(1.0, max(0.0, rise)))


def dilate(mask: torch.Tensor) -> torch.Tensor:
    """Grow a [T', h, w] bool mask by one token in height and width, within each latent frame.

    Not in time: measured on *tune*, one latent frame costs 8 % of the tokens and saves 0.2 % that the next check
    finds anyway.
    """
    return F.max_pool3d(mask[None, None].float(), (1, 3, 3), stride=1, padding=(0, 1, 1))[0, 0] > 0.5


def evidence_region(difference: torch.Tensor, threshold: float) -> torch.Tensor:
    """Tokens that the target must compute itself: difference above an absolute threshold, dilated. [T', h, w] bool."""
    return dilate(difference > threshold)


def replayed_tokens(difference: torch.Tensor, region: torch.Tensor, max_share: float) -> torch.Tensor:
    """Tokens that would be replayed, for the gate to judge.

    A region over the allowed share is held at that share (its most different tokens), so that a global edit shows
    up in the discrepancies of what would then be replayed instead of vanishing with its tokens.
    """
    allowed = int(max_share * region.numel())
    if int(region.sum()) <= allowed:
        return ~region
    kept = torch.zeros(region.numel(), dtype=torch.bool, device=region.device)
    kept[difference.flatten().topk(allowed).indices] = True
    return ~kept.view_as(region)


def region_rows(region: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """Flat token indices [n] to compute, ascending, int64: the region, filled up to a whole sixteenth of all tokens.

    Few different sizes let attention libraries keep their plans: a new length can cost them more than the step. What
    fills up are the tokens outside that differ most.
    """
    inside = int(region.sum())
    if inside == 0:
        return torch.empty(0, dtype=torch.int64, device=region.device)
    bucket = math.ceil(region.numel() / ROW_BUCKETS)
    count = min(region.numel(), bucket * math.ceil(inside / bucket))
    urgency = difference.flatten() + region.flatten() * (1.0 + difference.max())
    return urgency.topk(count).indices.sort().values


def blend_weight(region: torch.Tensor, latent_shape: tuple[int, int, int], patch: tuple[int, int, int]) -> torch.Tensor:
    """Weight of the target's own x0: 0 outside the region, 1 inside, feathered over one token at its inner border.

    Returns:
        [T, H, W] float32 on the region's device.
    """

    def neighbours(grid: torch.Tensor) -> torch.Tensor:
        return F.avg_pool3d(F.pad(grid, (1, 1, 1, 1)), (1, 3, 3), stride=1)

    mask = region[None, None].float()
    # The share of neighbours inside the region falls off at its border; edges of the frame do not count as outside.
    soft = neighbours(mask) / neighbours(torch.ones_like(mask))
    weight = soft * mask
    for axis, repeats in enumerate(patch, start=2):
        weight = weight.repeat_interleave(repeats, dim=axis)
    t, h, w = latent_shape
    return weight[0, 0, :t, :h, :w]

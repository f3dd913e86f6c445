"""The evidence region: which tokens the new prompt really changes.

All functions work on one request. Latents are [C, T, H, W] in model space (about unit variance); token grids are
[T', h, w] with T' = T / patch[0] and so on, in the order in which the DiT flattens them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def token_difference(target: torch.Tensor, donor: torch.Tensor, patch: tuple[int, int, int]) -> torch.Tensor:
    """Root mean square difference of two x0 predictions within each token.

    Args:
        target, donor: [C, T, H, W], any float dtype, same device; sides need not be multiples of the patch.
    Returns:
        [T', h, w] float32, in latent units.
    """
    square = (target.float() - donor.float()).square().mean(dim=0)
    return F.avg_pool3d(square[None, None], patch, ceil_mode=True, count_include_pad=False)[0, 0].sqrt()


def dilate(mask: torch.Tensor, space: int = 1, time: int = 1) -> torch.Tensor:
    """Grow a [T', h, w] bool mask by ``space`` tokens in height and width and ``time`` latent frames.

    Why in time: a moved object's region is needed where the donor's was and where the target's will be.
    """
    kernel = (2 * time + 1, 2 * space + 1, 2 * space + 1)
    return F.max_pool3d(mask[None, None].float(), kernel, stride=1, padding=(time, space, space))[0, 0] > 0.5


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


def region_rows(region: torch.Tensor) -> torch.Tensor:
    """Flat token indices [n] of a [T', h, w] region, ascending, int64."""
    return region.flatten().nonzero()[:, 0]


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

"""PSNR and SSIM of two videos, over some of their pixels.

SSIM as defined by Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error visibility to structural
similarity", IEEE Transactions on Image Processing 13(4), 2004: Gaussian windows of 11 x 11 pixels with sigma 1.5,
K1 = 0.01, K2 = 0.03, without padding; per frame and colour channel, then averaged.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2  # for values in 0..1
MOST_DB = 100.0  # what equal videos get, whose PSNR has no bound


def replayed_pixels(mask: torch.Tensor) -> torch.Tensor:
    """Where no reuse step computed anything.

    Args:
        mask: [T, h, w] float at latent size, 0 = replayed throughout; the evidence output of the Reuse Sampler.
    Returns:
        [4 T - 3, 8 h, 8 w] bool: the first latent frame is one frame, every other one four.
    """
    frames = torch.cat([mask[:1], mask[1:].repeat_interleave(4, dim=0)])
    return (frames == 0).repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)


def psnr(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor) -> float | None:
    """Peak signal-to-noise ratio in dB, at most ``MOST_DB``; None where there are no pixels.

    Args:
        a, b: [F, H, W, C] float in 0..1.
        where: [F, H, W] bool.
    """
    if not where.any():
        return None
    error = (a - b)[where].double().pow(2).mean().clamp(min=10 ** (-MOST_DB / 10))
    return float(-10 * error.log10())


def ssim(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor) -> float | None:
    """Mean structural similarity of the windows that lie wholly inside ``where``; None if there are none.

    Args:
        a, b: [F, H, W, C] float in 0..1.
        where: [F, H, W] bool.
    """
    inside = F.max_pool2d((~where).float()[:, None], WINDOW, stride=1)[:, 0] == 0
    if not inside.any():
        return None
    a, b = a.movedim(-1, 1).float(), b.movedim(-1, 1).float()
    mean_a, mean_b = _blurred(a), _blurred(b)
    var_a, var_b = _blurred(a * a) - mean_a**2, _blurred(b * b) - mean_b**2
    covariance = _blurred(a * b) - mean_a * mean_b
    similar = (2 * mean_a * mean_b + C1) * (2 * covariance + C2)
    similar = similar / ((mean_a**2 + mean_b**2 + C1) * (var_a + var_b + C2))
    return float(similar.mean(dim=1)[inside].double().mean())


def _blurred(images: torch.Tensor) -> torch.Tensor:
    """[..., H, W] -> [..., H - 10, W - 10]. Sums of shifted images: a convolution may round to TF32 on a GPU."""
    offsets = torch.arange(WINDOW) - WINDOW // 2
    weights = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    weights = (weights / weights.sum()).tolist()
    for axis in (-1, -2):
        size = images.shape[axis] - WINDOW + 1
        images = sum(weight * images.narrow(axis, i, size) for i, weight in enumerate(weights))
    return images

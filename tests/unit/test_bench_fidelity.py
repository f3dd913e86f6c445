"""PSNR and SSIM against values known by other means, and which pixels they read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import binom

from benchmarks.fidelity import MOST_DB, psnr, replayed_pixels, ssim
from benchmarks.summary import upper_bound


def video(seed: int, frames: int = 2, side: int = 32) -> torch.Tensor:
    return torch.rand(frames, side, side, 3, generator=torch.Generator().manual_seed(seed))


EVERYWHERE = torch.ones(2, 32, 32, dtype=torch.bool)


def test_psnr_of_a_known_error() -> None:
    a = torch.full((2, 32, 32, 3), 0.5)
    assert psnr(a, a + 0.1, EVERYWHERE) == pytest.approx(20.0, abs=1e-4)
    assert psnr(a, a + 0.01, EVERYWHERE) == pytest.approx(40.0, abs=1e-3)
    assert psnr(a, a, EVERYWHERE) == MOST_DB


def test_equal_videos_are_wholly_similar_and_flat_ones_differ_by_their_means() -> None:
    assert ssim(video(1), video(1), EVERYWHERE) == pytest.approx(1.0)
    a, b = 0.25, 0.75
    found = ssim(torch.full((2, 32, 32, 3), a), torch.full((2, 32, 32, 3), b), EVERYWHERE)
    assert found == pytest.approx((2 * a * b + 1e-4) / (a * a + b * b + 1e-4), abs=1e-4)


def test_ssim_agrees_with_filters_of_scipy() -> None:
    a, b = video(2), (video(2) + 0.2 * video(3)).clamp(0, 1)
    values = []

    def blurred(image: np.ndarray) -> np.ndarray:
        return gaussian_filter(image, 1.5, radius=5)

    for x, y in torch.stack([a, b]).movedim(-1, 2).flatten(1, 2).double().transpose(0, 1).numpy():
        mx, my = blurred(x), blurred(y)
        vx, vy, cov = blurred(x * x) - mx * mx, blurred(y * y) - my * my, blurred(x * y) - mx * my
        full = (2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
        values.append(full[5:-5, 5:-5].mean())
    assert ssim(a, b, EVERYWHERE) == pytest.approx(np.mean(values), abs=1e-5)


def test_only_the_chosen_pixels_count() -> None:
    a, b = video(4), video(5)
    where = EVERYWHERE.clone()
    where[:, :, 16:] = False
    same = torch.where(where[..., None], a, b)
    assert psnr(a, same, where) == MOST_DB and psnr(a, same, EVERYWHERE) < 20
    assert ssim(a, same, where) == pytest.approx(1.0) and ssim(a, same, EVERYWHERE) < 0.9


def test_without_pixels_or_whole_windows_there_is_no_value() -> None:
    assert psnr(video(1), video(2), ~EVERYWHERE) is None and ssim(video(1), video(2), ~EVERYWHERE) is None
    narrow = torch.zeros_like(EVERYWHERE)
    narrow[:, :, :10] = True
    assert ssim(video(1), video(2), narrow) is None and psnr(video(1), video(2), narrow) is not None


def test_a_cell_of_the_mask_is_eight_pixels_and_four_frames_and_one_in_the_first() -> None:
    mask = torch.zeros(5, 4, 4)
    mask[0, 0, 0], mask[2, 1, 3] = 1.0, 0.125
    found = ~replayed_pixels(mask)
    expected = torch.zeros(17, 32, 32, dtype=torch.bool)
    expected[0, :8, :8] = True
    expected[5:9, 8:16, 24:32] = True
    assert torch.equal(found, expected)


def test_a_mask_cell_covers_what_the_codec_decodes_from_it() -> None:
    from demo.codec import Codec

    codec, latent = Codec.load(), torch.zeros(1, 16, 5, 32, 32)
    changed = latent.clone()
    changed[0, :, 3, 10, 20] = 1.0
    mask = torch.zeros(5, 32, 32)
    mask[3, 10, 20] = 1.0
    difference = (codec.decode(latent) - codec.decode(changed)).abs().amax(dim=1)[0] > 1e-6
    assert difference.any() and not (difference & replayed_pixels(mask)).any()


@pytest.mark.parametrize(("events", "trials"), [(0, 1), (0, 60), (3, 60), (12, 300), (59, 60)])
def test_at_the_bound_so_few_events_have_the_probability_that_is_left(events: int, trials: int) -> None:
    assert binom.cdf(events, trials, upper_bound(events, trials)) == pytest.approx(0.1)


def test_the_bound_of_all_and_of_nothing() -> None:
    assert upper_bound(4, 4) == 1.0 and math.isnan(upper_bound(0, 0))
    assert upper_bound(0, 300) == pytest.approx(1 - 0.1 ** (1 / 300))

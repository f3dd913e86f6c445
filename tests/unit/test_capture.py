"""What a dense run keeps: connectivity of the mean over its measured steps, and only if nothing of that is missing."""

import pytest
import torch

from carnator_core.capture import Capture
from carnator_core.connectivity import Connectivity
from carnator_core.options import ReuseOptions
from support.attention import a_mass

LAYERS, BLOCK, OPTIONS = 3, 8, ReuseOptions(attention_percent=30.0)


def measured(steps: int) -> tuple[Capture, torch.Tensor]:
    """A capture of so many steps, and the mean of what they measured."""
    capture, masses = Capture(), [a_mass(seed, layers=LAYERS).half() for seed in range(steps)]
    for mass in masses:
        for layer in reversed(range(LAYERS)):  # in whatever order layers come
            capture.keep_mass(layer, mass[layer])
    return capture, torch.stack(masses).float().mean(0).half()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_connectivity_is_kept_of_the_mean_over_all_measured_steps(steps: int) -> None:
    capture, mean = measured(steps)
    capture.conclude_mass(LAYERS, steps, BLOCK, OPTIONS)
    found = capture.attended()
    assert torch.equal(found.mass, mean)
    assert torch.equal(found.kept.packed, Connectivity.of(mean, BLOCK, OPTIONS).packed)
    assert (found.kept.block, found.kept.rule) == (BLOCK, "density 30 %")


@pytest.mark.parametrize(("layers", "times"), [(LAYERS + 1, 2), (LAYERS, 3), (LAYERS, 1)])
def test_nothing_is_kept_where_a_measurement_is_missing_or_one_too_many(layers: int, times: int) -> None:
    capture, _ = measured(2)
    capture.conclude_mass(layers, times, BLOCK, OPTIONS)
    assert capture.attended() is None

"""What a tensor must be before it is handed out or stored, for every value that float16 has."""

import math

import pytest
import torch

from carnator_core.store import tensor_file
from carnator_core.store.tensor_file import is_finite, is_mass

EVERY = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16)


def test_of_all_float16_values_the_finite_ones_are_finite() -> None:
    assert is_finite(EVERY[torch.isfinite(EVERY)])
    assert not any(is_finite(value) for value in EVERY[~torch.isfinite(EVERY)])


def test_of_all_float16_values_the_finite_ones_that_are_not_negative_may_be_in_a_mass() -> None:
    good = torch.isfinite(EVERY) & ~(EVERY < 0)
    assert bool(good[EVERY == 0].all()) and int(good.sum()) == 0x7C00 + 1, "a negative zero too"
    assert is_mass(EVERY[good])
    assert not any(is_mass(torch.stack([value, torch.zeros_like(value)])) for value in EVERY[~good])


@pytest.mark.parametrize("size", [0, 1, tensor_file.PIECE, tensor_file.PIECE + 1])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, -1.0])
def test_one_bad_value_anywhere_is_found(size: int, bad: float) -> None:
    values = torch.ones(size, dtype=torch.float16)
    assert is_finite(values) and is_mass(values)
    for at in {0, size // 2, size - 1} if size else ():
        spoiled = values.clone()
        spoiled[at] = bad
        assert is_finite(spoiled) == math.isfinite(bad) and not is_mass(spoiled)


def test_float32_is_checked_too() -> None:
    assert is_finite(torch.tensor([1e38])) and not is_finite(torch.tensor([1.0, math.nan]))

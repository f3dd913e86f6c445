"""The layer window inside one forward: what rows outside the region are taken to be."""

import pytest
import torch

from support.one_forward import Forward


def plans():
    from carnator_core.plan import StepKind, StepPlan

    return StepPlan(StepKind.CHECK, record_window=True), StepPlan(StepKind.REGION)


def test_recording_the_window_does_not_change_the_forward(tiny) -> None:
    forward = Forward(tiny, (1, 3))
    assert torch.equal(forward(plans()[0]), forward())


@pytest.mark.parametrize("first", [0, 1, 2])
def test_with_a_window_of_one_block_and_equal_inputs_the_rows_are_exact(tiny, first: int) -> None:
    """What the block added to the other rows is then just what it would have added again."""
    forward = Forward(tiny, (first, first + 1))
    record, region = plans()
    dense = forward(record)
    assert forward.difference(forward(region), dense) < 1e-5


def test_with_a_wider_window_and_equal_inputs_the_rows_are_close(tiny) -> None:
    forward = Forward(tiny, (0, 3))
    record, region = plans()
    dense = forward(record)
    stale = forward.difference(forward(region), dense)
    forward.patches._added = {name: torch.zeros_like(added) for name, added in forward.patches._added.items()}
    nothing = forward.difference(forward(region), dense)
    assert stale < 0.5 * nothing


def test_with_a_residual_per_layer_and_equal_inputs_the_rows_are_exact(tiny) -> None:
    """Every block then adds to the other rows just what it would have added again."""
    forward = Forward(tiny, (0, 3), "per layer")
    record, region = plans()
    dense = forward(record)
    assert forward.difference(forward(region), dense) < 1e-5


def test_without_a_residual_the_rows_are_those_of_frozen_surroundings(tiny) -> None:
    forward, zeroed = Forward(tiny, (0, 3), "none"), Forward(tiny, (0, 3))
    record, region = plans()
    dense = forward(record)
    zeroed(record)
    zeroed.patches._added = {name: torch.zeros_like(added) for name, added in zeroed.patches._added.items()}
    found = forward(region)
    assert forward.difference(found, zeroed(region)) < 1e-6
    assert forward.difference(found, dense) > 1e-4


def test_each_lane_keeps_what_was_added_to_it_whatever_the_order_and_batching(tiny) -> None:
    forward = Forward(tiny, (1, 2))
    record, region = plans()
    dense = forward()
    forward(record, ("cond",))
    forward(record, ("uncond",))
    assert forward.difference(forward(region), dense) < 1e-5
    swapped = forward(region, ("cond", "uncond")).flip(0)
    assert forward.difference(swapped, dense) < 1e-5
    alone = forward(region, ("cond",))
    assert forward.difference(alone, dense[1:]) < 1e-5


def test_after_release_nothing_of_the_window_is_held(tiny) -> None:
    forward = Forward(tiny, (1, 3))
    forward(plans()[0])
    assert forward.patches._added
    forward.patches.release()
    assert not forward.patches._added


def test_after_standing_aside_every_forward_is_the_stock_one(tiny) -> None:
    forward = Forward(tiny, (1, 3))
    record, region = plans()
    dense = forward(record)
    assert not torch.equal(forward(region), dense)
    forward.patches.stand_aside()
    assert forward.patches.idle and torch.equal(forward(), dense)

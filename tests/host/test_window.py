"""The layer window inside one forward: what rows outside the region are taken to be."""

from types import SimpleNamespace

import pytest
import torch

SIZE, TOKENS = (3, 16, 16), 3 * 8 * 8


class Forward:
    """One forward of the tiny model under a step plan, on two lanes, without a sampler around it."""

    def __init__(self, tiny, window: tuple[int, int]):
        from carnator_core.hosts.comfy_wan_forward import ForwardPatches
        from carnator_core.plan import LayerWindow

        random = torch.Generator().manual_seed(4)
        self.model = tiny.model.model.diffusion_model
        self.x = torch.randn(2, 16, *SIZE, generator=random)
        self.context = torch.randn(2, 16, 4096, generator=random)
        self.rows = torch.randperm(TOKENS, generator=random)[:40].sort().values
        session = SimpleNamespace(window=LayerWindow(*window), rows=self.rows)
        self.patches = ForwardPatches(session, self.model)

    def __call__(self, plan=None, lanes: tuple[str, ...] = ("uncond", "cond")) -> torch.Tensor:
        at = [("uncond", "cond").index(lane) for lane in lanes]
        self.patches.begin(plan)
        options = {"uuids": list(lanes), "cond_or_uncond": [int(lane == "uncond") for lane in lanes]}
        with torch.inference_mode():
            return self.patches.wrapper(
                self.model._forward, self.x[at], torch.full((len(at),), 900.0), self.context[at], None, None, options
            )

    def cells(self) -> torch.Tensor:
        """Latent cells of the rows, [T, H, W] bool."""
        inside = torch.zeros(3, 8, 8, dtype=torch.bool)
        inside.view(-1)[self.rows] = True
        return inside.repeat_interleave(2, 1).repeat_interleave(2, 2)


def plans():
    from carnator_core.plan import StepKind, StepPlan

    return StepPlan(StepKind.CHECK, record_window=True), StepPlan(StepKind.REGION)


def difference(forward: Forward, found: torch.Tensor, expected: torch.Tensor) -> float:
    cells = forward.cells()
    return float((found - expected)[..., cells].norm() / expected[..., cells].norm())


def test_recording_the_window_does_not_change_the_forward(tiny) -> None:
    forward = Forward(tiny, (1, 3))
    assert torch.equal(forward(plans()[0]), forward())


@pytest.mark.parametrize("first", [0, 1, 2])
def test_with_a_window_of_one_block_and_equal_inputs_the_rows_are_exact(tiny, first: int) -> None:
    """What the block added to the other rows is then just what it would have added again."""
    forward = Forward(tiny, (first, first + 1))
    record, region = plans()
    dense = forward(record)
    assert difference(forward, forward(region), dense) < 1e-5


def test_with_a_wider_window_and_equal_inputs_the_rows_are_close(tiny) -> None:
    forward = Forward(tiny, (0, 3))
    record, region = plans()
    dense = forward(record)
    stale = difference(forward, forward(region), dense)
    forward.patches._added = {lane: torch.zeros_like(added) for lane, added in forward.patches._added.items()}
    nothing = difference(forward, forward(region), dense)
    assert stale < 0.5 * nothing


def test_each_lane_keeps_what_was_added_to_it_whatever_the_order_and_batching(tiny) -> None:
    forward = Forward(tiny, (1, 2))
    record, region = plans()
    dense = forward()
    forward(record, ("cond",))
    forward(record, ("uncond",))
    assert difference(forward, forward(region), dense) < 1e-5
    swapped = forward(region, ("cond", "uncond")).flip(0)
    assert difference(forward, swapped, dense) < 1e-5
    alone = forward(region, ("cond",))
    assert difference(forward, alone, dense[1:]) < 1e-5


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

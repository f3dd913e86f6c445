"""Sparse attention inside one forward of ComfyUI's own model, against what the stock forward gives."""

from __future__ import annotations

import pytest
import torch

from support.one_forward import BLOCK, GRID, TOKENS, Forward

LAYERS, BLOCKS = 4, TOKENS // BLOCK


def everything(forward_heads: int = 2) -> torch.Tensor:
    return torch.ones(LAYERS, forward_heads, BLOCKS, BLOCKS, dtype=torch.bool)


@pytest.fixture
def heads(tiny) -> int:
    model = tiny.model.model.diffusion_model
    assert len(model.blocks) == LAYERS
    return model.blocks[0].self_attn.num_heads


def plan(kind: str, **settings: bool):
    from carnator_core.plan import StepKind, StepPlan

    return StepPlan(StepKind(kind), **settings)


@pytest.mark.parametrize("lanes", [("uncond", "cond"), ("cond",)])
def test_with_all_blocks_kept_a_sparse_forward_is_the_stock_one(tiny, heads: int, lanes: tuple[str, ...]) -> None:
    forward = Forward(tiny, (1, 3), keep=everything(heads))
    stock = forward(lanes=lanes)
    torch.testing.assert_close(forward(plan("assist", sparse=True), lanes), stock, atol=2e-5, rtol=1e-4)


def test_with_all_blocks_kept_a_sparse_region_step_is_the_dense_region_step(tiny, heads: int) -> None:
    sparse, dense = Forward(tiny, (1, 3), keep=everything(heads)), Forward(tiny, (1, 3))
    for forward in (sparse, dense):
        forward(plan("check", record_window=True))
    expected = dense(plan("region"))
    assert dense.difference(sparse(plan("region", sparse=True)), expected) < 1e-5
    again = sparse(plan("region", sparse=True))  # from what the first one put into tile order
    assert dense.difference(again, expected) < 1e-5


def test_with_an_empty_window_the_rows_equal_those_of_a_forward_over_all_tokens(tiny, heads: int) -> None:
    random = torch.Generator().manual_seed(7)
    keep = torch.rand(LAYERS, heads, BLOCKS, BLOCKS, generator=random) < 0.4
    keep |= torch.eye(BLOCKS, dtype=torch.bool)
    forward = Forward(tiny, (0, 0), keep=keep)
    # Blocks of rows keep what any of their own blocks keeps: with the same mask for all they keep just that.
    keep[-1] = keep[-1, :, :1]
    assert forward.difference(forward(plan("region", sparse=True)), forward(plan("assist", sparse=True))) < 1e-5


def test_blocks_that_are_not_kept_are_not_seen(tiny, heads: int) -> None:
    """Attention of the first layer is masked by hand: the order of the tokens and the choice of blocks are right."""
    from carnator_core.tiles import inverse, tile_order

    random = torch.Generator().manual_seed(3)
    keep = everything(heads)
    keep[0] = (torch.rand(heads, BLOCKS, BLOCKS, generator=random) < 0.3) | torch.eye(BLOCKS, dtype=torch.bool)
    place = inverse(tile_order(GRID, BLOCK)) // BLOCK
    allowed = keep[0][:, place][:, :, place]  # [heads, tokens, tokens], row by row
    calls = 0

    def masked(function, q, k, v, heads, **kwargs):
        nonlocal calls
        calls += 1
        if calls > 1:
            return function(q, k, v, heads, **kwargs)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return out.transpose(1, 2).flatten(2)

    forward = Forward(tiny, (1, 3), keep=keep)
    expected = forward(optimized_attention_override=masked)
    assert calls == 2 * LAYERS
    torch.testing.assert_close(forward(plan("assist", sparse=True)), expected, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(expected, forward(), atol=1e-3)


def test_measuring_block_mass_leaves_the_forward_as_it_is_and_rows_sum_to_one(tiny, heads: int) -> None:
    forward = Forward(tiny, (1, 3))
    assert torch.equal(forward(plan("dense", capture_mass=True)), forward())
    assert sorted(forward.masses) == list(range(LAYERS))
    for mass in forward.masses.values():
        assert mass.shape == (heads, BLOCKS, BLOCKS)
        torch.testing.assert_close(mass.sum(-1), torch.ones(heads, BLOCKS), atol=1e-5, rtol=0)


def test_an_earlier_override_still_serves_all_other_attention(tiny, heads: int) -> None:
    seen = []

    def earlier(function, *args, **kwargs):
        seen.append(args[1].shape[1])
        return function(*args, **kwargs)

    forward = Forward(tiny, (1, 3), keep=everything(heads))
    forward(plan("assist", sparse=True), optimized_attention_override=earlier)
    assert seen == [16] * LAYERS, "cross-attention only: 16 text tokens"
    seen.clear()
    forward(plan("dense", capture_mass=True), optimized_attention_override=earlier)
    assert seen == [TOKENS, 16] * LAYERS

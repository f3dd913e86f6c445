"""The row-subset block against ComfyUI's own Wan block.

Tolerances allow for float rounding only: the products are the same, but a product over fewer rows may
be summed in another order. In float32 that is some 1e-6 of values of size one, in bfloat16 one or two units
in the last place.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
import torch

TOKENS, WIDTH, HEADS, TEXT = 60, 256, 2, 9
ROUNDING = {
    torch.float32: {"atol": 2e-5, "rtol": 1e-5},
    torch.bfloat16: {"atol": 6e-2, "rtol": 2e-2},
}


def make(dtype: torch.dtype = torch.float32, batch: int = 1, per_frame: bool = True) -> SimpleNamespace:
    """A stock block with random weights, and inputs. The time modulation is [B, 1, 6, D] or [B, 6, D]."""
    import comfy.ops
    from comfy.ldm.flux.layers import EmbedND
    from comfy.ldm.wan.model import WanAttentionBlock

    random = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=random) * scale).to(dtype)

    settings = {"operations": comfy.ops.disable_weight_init, "device": "cpu", "dtype": dtype}
    block = WanAttentionBlock(
        "t2v_cross_attn", WIDTH, 2 * WIDTH, HEADS, cross_attn_norm=True, operation_settings=settings
    )
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            gain = parameter.ndim == 1 and name.endswith("weight")  # of a norm
            parameter.copy_(normal(*parameter.shape, scale=0.1 if gain else WIDTH**-0.5))
            if gain:
                parameter.add_(1.0)
    positions = torch.stack(
        torch.meshgrid(torch.arange(3.0), torch.arange(4.0), torch.arange(5.0), indexing="ij"), dim=-1
    )
    head = WIDTH // HEADS
    rotary = EmbedND(dim=head, theta=10000.0, axes_dim=[head - 4 * (head // 6), 2 * (head // 6), 2 * (head // 6)])
    return SimpleNamespace(
        block=block,
        x=normal(batch, TOKENS, WIDTH),
        modulation=normal(batch, 1, 6, WIDTH, scale=0.5) if per_frame else normal(batch, 6, WIDTH, scale=0.5),
        freqs=rotary(positions.view(1, TOKENS, 3)).movedim(1, 2),  # as WanModel.rope_encode gives it
        context=normal(batch, TEXT, WIDTH),
    )


def stock(case: SimpleNamespace) -> torch.Tensor:
    with torch.no_grad():
        return case.block(case.x, e=case.modulation, freqs=case.freqs, context=case.context, transformer_options={})


def by_rows(case: SimpleNamespace, rows: torch.Tensor) -> torch.Tensor:
    from carnator_core.hosts.comfy_wan_block import evaluate_rows

    with torch.no_grad():
        return evaluate_rows(case.block, case.x, rows, case.modulation, case.freqs, case.context, {})


def some_rows(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randperm(TOKENS, generator=torch.Generator().manual_seed(seed))[:count].sort().values


def test_the_stock_block_changes_every_row_by_far_more_than_the_tolerance(comfy: ModuleType) -> None:
    case = make()
    assert (stock(case) - case.x).abs().amax(dim=-1).min() > 0.1


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("per_frame", [True, False], ids=["B16D", "B6D"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_with_all_rows_it_equals_the_stock_block(comfy, dtype: torch.dtype, per_frame: bool, batch: int) -> None:
    case = make(dtype, batch, per_frame)
    found = by_rows(case, torch.arange(TOKENS))
    assert found.dtype == dtype
    torch.testing.assert_close(found, stock(case), **ROUNDING[dtype])


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("per_frame", [True, False], ids=["B16D", "B6D"])
@pytest.mark.parametrize("count", [1, 7, 41])
def test_a_subset_equals_the_stock_block_at_these_rows(comfy, count: int, per_frame: bool, batch: int) -> None:
    case, rows = make(batch=batch, per_frame=per_frame), some_rows(count)
    torch.testing.assert_close(by_rows(case, rows), stock(case)[:, rows], **ROUNDING[torch.float32])


def test_rows_in_any_order_come_back_in_that_order(comfy: ModuleType) -> None:
    case = make()
    rows = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(by_rows(case, rows), stock(case)[:, rows], **ROUNDING[torch.float32])


@pytest.mark.parametrize("row", [0, 31, TOKENS - 1])
def test_one_row_equals_the_stock_block_there(comfy: ModuleType, row: int) -> None:
    case = make()
    rows = torch.tensor([row])
    torch.testing.assert_close(by_rows(case, rows), stock(case)[:, rows], **ROUNDING[torch.float32])


def test_bfloat16_is_as_close_to_float32_by_rows_as_in_the_stock_block(comfy: ModuleType) -> None:
    case, rows = make(torch.bfloat16), some_rows(20)
    exact = make(torch.bfloat16)
    exact.block.float()
    for name in ("x", "modulation", "freqs", "context"):
        setattr(exact, name, getattr(exact, name).float())
    truth = stock(exact)[:, rows]
    ours = (by_rows(case, rows).float() - truth).norm()
    theirs = (stock(case)[:, rows].float() - truth).norm()
    assert ours < 1.5 * theirs


def test_its_inputs_are_left_as_they_were(comfy: ModuleType) -> None:
    case, rows = make(), some_rows(9)
    before = {name: getattr(case, name).clone() for name in ("x", "modulation", "freqs", "context")}
    by_rows(case, rows)
    for name, value in before.items():
        assert torch.equal(getattr(case, name), value), name


def test_keys_and_values_come_from_all_rows(comfy: ModuleType) -> None:
    case, rows = make(), torch.tensor([2, 3])
    before = by_rows(case, rows)
    case.x[:, 50] *= -1.0
    after = by_rows(case, rows)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, stock(case)[:, rows], **ROUNDING[torch.float32])


def test_queries_feed_forward_and_cross_attention_see_only_the_rows(comfy: ModuleType) -> None:
    case, rows, seen = make(), some_rows(11), {}
    attention, cross = case.block.self_attn, case.block.cross_attn
    watched = {
        "self q": attention.q, "self k": attention.k, "self v": attention.v, "self o": attention.o,
        "cross q": cross.q, "cross o": cross.o, "ffn": case.block.ffn[0],
    }  # fmt: skip
    for name, module in watched.items():
        module.register_forward_hook(lambda m, args, out, name=name: seen.update({name: args[0].shape[1]}))
    by_rows(case, rows)
    assert seen == {**dict.fromkeys(watched, 11), "self k": TOKENS, "self v": TOKENS}


def test_the_stock_block_of_this_host_is_supported(comfy: ModuleType) -> None:
    from carnator_core.hosts.comfy_wan_block import unsupported_block

    assert unsupported_block(make().block) is None


def test_other_block_classes_are_not_supported(comfy: ModuleType) -> None:
    import comfy.ops
    from comfy.ldm.wan.model import VaceWanAttentionBlock, WanAttentionBlock

    from carnator_core.hosts.comfy_wan_block import unsupported_block

    class Derived(WanAttentionBlock):
        pass

    settings = {"operations": comfy.ops.disable_weight_init, "device": "cpu", "dtype": torch.float32}
    for cls in (Derived, VaceWanAttentionBlock):
        block = cls("t2v_cross_attn", WIDTH, WIDTH, HEADS, operation_settings=settings)
        assert cls.__qualname__ in unsupported_block(block)
    image = WanAttentionBlock("i2v_cross_attn", WIDTH, WIDTH, HEADS, operation_settings=settings)
    assert "attention class" in unsupported_block(image)


@pytest.mark.parametrize("part", ["", "self_attn", "cross_attn"])
@pytest.mark.parametrize("where", ["instance", "class"])
def test_a_replaced_forward_is_noticed(comfy: ModuleType, monkeypatch, part: str, where: str) -> None:
    from carnator_core.hosts.comfy_wan_block import changed_forward

    block = make().block
    assert changed_forward(block) is None
    changed = getattr(block, part) if part else block
    monkeypatch.setattr(changed if where == "instance" else type(changed), "forward", lambda *args, **kwargs: args[1])
    assert "forward of" in changed_forward(block)


def test_a_block_with_another_signature_is_noticed(comfy: ModuleType, monkeypatch) -> None:
    from comfy.ldm.wan.model import WanAttentionBlock

    from carnator_core.hosts.comfy_wan_block import changed_forward

    def forward(self, x, e, context, freqs):
        return x

    monkeypatch.setattr(forward, "__module__", WanAttentionBlock.__module__)
    monkeypatch.setattr(WanAttentionBlock, "forward", forward)
    assert "signature" in changed_forward(make().block)

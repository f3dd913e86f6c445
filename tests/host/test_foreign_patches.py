"""What other packs put on a model: declined where it changes the computation in a way that no key can hold."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch


def declined(tiny, tmp_path: Path, model, call=None) -> str:
    """Status of a run that must be declined and equal to the stock run of the same model."""
    call = call or tiny.call
    stock = call(model)
    result, run = tiny.reuse(tmp_path, call, model)
    assert run.report.decision.value == "declined", run.report.status()
    assert torch.equal(result, stock)
    assert run.report.entry_id is None
    return run.report.status()


@pytest.mark.parametrize("module", ["self_attn", "cross_attn"])
def test_an_object_patch_of_a_blocks_attention_is_declined(tiny, tmp_path: Path, module: str) -> None:
    block = tiny.model.model.diffusion_model.blocks[0]
    part = getattr(block, module)
    stock = type(part).forward

    def scaled(self, x, *args, **kwargs):
        return stock(self, x, *args, **kwargs) * 1.06

    model = tiny.model.clone()
    model.add_object_patch(f"diffusion_model.blocks.0.{module}.forward", types.MethodType(scaled, part))
    assert f"{module}.forward" in declined(tiny, tmp_path, model)


def test_a_compute_dtype_patch_is_declined_and_leaves_later_requests_alone(tiny, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, tiny.call)
    model = tiny.model.clone()
    model.set_model_compute_dtype(torch.bfloat16)
    assert "manual_cast_dtype" in declined(tiny, tmp_path, model)
    _, run = tiny.reuse(tmp_path, tiny.call)
    assert run.report.decision.value == "hit", run.report.status()


def test_an_unknown_object_among_the_options_is_declined(tiny, tmp_path: Path) -> None:
    model = tiny.model.clone()
    model.model_options["transformer_options"]["someone_elses"] = types.SimpleNamespace(strength=1.0)
    assert "someone_elses" in declined(tiny, tmp_path, model)


def test_a_weight_wrapper_is_declined(tiny, tmp_path: Path) -> None:
    model = tiny.model.clone()
    model.add_weight_wrapper("diffusion_model.blocks.0.ffn.0.weight", lambda weight, **kwargs: weight * 1.05)
    assert "weight_wrapper_patches" in declined(tiny, tmp_path, model)


@pytest.mark.parametrize("field", ["time_dim_concat", "concat_latent_image", "area", "guidance"])
def test_whatever_a_node_adds_to_the_conditioning_is_declined(tiny, tmp_path: Path, field: str) -> None:
    value = {"area": (8, 8, 0, 0), "guidance": 3.0}.get(field, torch.randn(1, 16, 1, 8, 8))
    call = tiny.call.but(positive=[[tiny.call.positive[0][0], {field: value}]])
    _, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "declined" and field in run.report.status()


def test_out_of_memory_in_our_own_capture_costs_only_the_reuse(tiny, tmp_path: Path, monkeypatch) -> None:
    import comfy.model_management

    from carnator_core.hosts.comfy_wan_forward import ForwardPatches

    def full(self, *args):
        raise comfy.model_management.OOM_EXCEPTION("our hook found no memory")

    stock = tiny.call(tiny.model)
    monkeypatch.setattr(ForwardPatches, "_keep_hidden", full)
    result, run = tiny.reuse(tmp_path, tiny.call)
    assert torch.equal(result, stock)
    assert (run.report.decision.value, run.report.reason.code.value) == ("declined", "out_of_memory")
    assert sum(run.report.steps.values()) >= tiny.call.steps


def test_what_only_a_hit_needs_is_freed_when_the_gate_refuses(tiny, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, tiny.call)
    far = tiny.call.but(positive=tiny.near(tiny.call.positive, 0.5))
    from carnator_core.hosts.comfy_run import ComfyRun

    held = []
    hook = tiny.model.model.diffusion_model.head.register_forward_hook(lambda *_: held.append(len(run._forward._added)))
    run = ComfyRun(tiny.options(gate=0.0), tmp_path)
    try:
        far(run.attach(tiny.model))
    finally:
        hook.remove()
    assert run.report.reason.code.value == "gate_rejected"
    assert max(held[2:]) == 0

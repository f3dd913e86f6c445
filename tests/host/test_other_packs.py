"""Beside other packs: whatever they put on a model, before or after ours, the result is theirs bit for bit or a hit.

The nodes are the host's own; the wrappers are small ones of the kinds that packs add.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ORDERS = ("before ours", "after ours")
in_both_orders = pytest.mark.parametrize("order", ORDERS)


def run_beside(tiny, root: Path, put: Callable[[Any], Any], order: str, call: Any = None, model: Any = None):
    """(latent, report) of a call with someone else's `put(model)` below or above our own clone."""
    from carnator_core.hosts.comfy_run import ComfyRun

    run, model = ComfyRun(tiny.options(), root), model or tiny.model
    both = run.attach(put(model)) if order == "before ours" else put(run.attach(model))
    return (call or tiny.call)(both), run.report


# -- nodes of the host ---------------------------------------------------------------------------------------------


def easy_cache(model):
    from comfy_extras.nodes_easycache import EasyCacheNode

    return EasyCacheNode.execute(model, 2.0, 0.15, 0.95, False).result[0]


def lazy_cache(model):
    from comfy_extras.nodes_easycache import LazyCacheNode

    return LazyCacheNode.execute(model, 0.5, 0.15, 0.95, False).result[0]


def skip_layer(model):
    from comfy_extras.nodes_slg import SkipLayerGuidanceDiT

    return SkipLayerGuidanceDiT.execute(model, 3.0, 0.0, 1.0, double_layers="1, 2").result[0]


def skip_layer_simple(model):
    from comfy_extras.nodes_slg import SkipLayerGuidanceDiTSimple

    return SkipLayerGuidanceDiTSimple.execute(model, 0.0, 1.0, double_layers="1, 2").result[0]


def context_windows(model):
    from comfy_extras.nodes_context_windows import WanContextWindowsManualNode

    values = {item.id: item.default for item in WanContextWindowsManualNode.define_schema().inputs[1:]}
    values.update(context_length=5, context_overlap=1, context_schedule="standard_static", fuse_method="pyramid")
    return WanContextWindowsManualNode.execute(model, **values).result[0]


def zero_star(model):
    from comfy_extras.nodes_cfg import CFGZeroStar

    return CFGZeroStar.execute(model).result[0]


def cfg_norm(model):
    from comfy_extras.nodes_cfg import CFGNorm

    return CFGNorm.execute(model, 0.9).result[0]


def rescale_cfg(model):
    from comfy_extras.nodes_model_advanced import RescaleCFG

    return RescaleCFG().patch(model, 0.7)[0]


def tangential(model):
    from comfy_extras.nodes_tcfg import TCFG

    return TCFG.execute(model).result[0]


# -- what packs do -------------------------------------------------------------------------------------------------


def scaling(kind: str):
    """A wrapper that changes what the host gets from the model."""

    def scaled(value):
        return [scaled(v) for v in value] if isinstance(value, list) else value * 1.01

    def wrapper(executor, *args, **kwargs):
        return scaled(executor(*args, **kwargs))

    def put(model):
        model = model.clone()
        model.add_wrapper_with_key(kind, "another pack", wrapper)
        return model

    return put


def louder_attention(model):
    model = model.clone()

    def override(function, *args, **kwargs):
        return function(*args, **kwargs) * 1.01

    model.model_options["transformer_options"]["optimized_attention_override"] = override
    return model


def wrapping_late(model):
    """Wrappers that exist only while a run lasts, as ours do."""
    import comfy.model_patcher
    import comfy.patcher_extension as pe

    def outer(executor, *args, **kwargs):
        guider = executor.class_obj
        original = guider.model_options
        guider.model_options = comfy.model_patcher.create_model_options_clone(original)
        pe.add_wrapper_with_key(
            pe.WrappersMP.PREDICT_NOISE, "late", lambda e, *a, **k: e(*a, **k) * 1.01, guider.model_options, True
        )
        try:
            return executor(*args, **kwargs)
        finally:
            guider.model_options = original

    model = model.clone()
    model.add_wrapper_with_key(pe.WrappersMP.OUTER_SAMPLE, "late", outer)
    return model


def attention_during_the_run(model):
    def outer(executor, *args, **kwargs):
        transformer = executor.class_obj.model_options["transformer_options"]
        transformer["optimized_attention_override"] = lambda f, *a, **k: f(*a, **k) * 1.01
        return executor(*args, **kwargs)

    model = model.clone()
    model.add_wrapper_with_key("outer_sample", "late attention", outer)
    return model


DECLINED = {
    "EasyCache": (easy_cache, "easycache"),
    "LazyCache": (lazy_cache, "lazycache"),
    "SkipLayerGuidanceDiT": (skip_layer, "sampler_post_cfg_function"),
    "SkipLayerGuidanceDiTSimple": (skip_layer_simple, "sampler_calc_cond_batch_function"),
    "WanContextWindowsManual": (context_windows, "context"),
    "CFGZeroStar": (zero_star, "sampler_post_cfg_function"),
    "CFGNorm": (cfg_norm, "sampler_post_cfg_function"),
    "RescaleCFG": (rescale_cfg, "sampler_cfg_function"),
    "TCFG": (tangential, "sampler_pre_cfg_function"),
    "attention override": (louder_attention, "optimized_attention_override"),
    "attention override of a run": (attention_during_the_run, "optimized_attention_override"),
    "wrapper of a run": (wrapping_late, "predict_noise wrapper of late"),
    **{
        f"{kind} wrapper": (scaling(kind), f"{kind} wrapper of another pack")
        for kind in ("predict_noise", "calc_cond_batch", "apply_model", "diffusion_model", "sampler_sample")
    },
}


@in_both_orders
@pytest.mark.parametrize("name", DECLINED)
def test_what_sees_or_changes_the_models_calls_is_declined(tiny, tmp_path: Path, name: str, order: str) -> None:
    put, said = DECLINED[name]
    call = tiny.call.but(size=(5, 8, 8), steps=8)
    stock = call(put(tiny.model))
    assert not torch.equal(stock, call(tiny.model)), "it must matter for this to say anything"
    for _ in range(2):  # the second time there would be a donor
        result, report = run_beside(tiny, tmp_path, put, order, call)
        assert (report.decision.value, report.reason.code.value) == ("declined", "foreign_patch"), report.status()
        assert said.lower() in report.status().lower()
        assert torch.equal(result, stock)


def louder_noise(executor, noise, *args, **kwargs):
    return executor(noise * 1.1, *args, **kwargs)


def preparing(executor, *args, **kwargs):
    return executor(*args, **kwargs)


def twice(executor, *args, **kwargs):
    executor(*args, **kwargs)
    return executor(*args, **kwargs)


KEYED = {"outer_sample": louder_noise, "prepare_sampling": preparing}


@in_both_orders
@pytest.mark.parametrize("kind", KEYED)
def test_what_works_around_the_run_is_part_of_the_key(tiny, far, tmp_path: Path, kind: str, order: str) -> None:
    def put(model):
        return tiny.wrapped(model, kind, KEYED[kind], key="another pack")

    tiny.reuse(tmp_path, tiny.call)
    stock = tiny.call(put(tiny.model))
    result, miss = run_beside(tiny, tmp_path, put, order)
    assert miss.decision.value == "miss" and "model options" in miss.status()
    assert torch.equal(result, stock)
    result, hit = run_beside(tiny, tmp_path, put, order)
    assert hit.decision.value == "hit", hit.status()
    assert far(result, stock) < 2e-3


@in_both_orders
def test_an_outer_wrapper_that_samples_twice_gets_the_stock_result_twice(tiny, tmp_path: Path, order: str) -> None:
    def put(model):
        return tiny.wrapped(model, "outer_sample", twice, key="another pack")

    result, report = run_beside(tiny, tmp_path, put, order)
    assert torch.equal(result, tiny.call(tiny.model)), report.status()


# -- latents -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five(tiny, tmp_path_factory):
    """A host with the 48 channels by which ComfyUI knows Wan 2.2 5B."""
    from safetensors.torch import save_file

    from support.tiny_models import wan_dit

    path = tmp_path_factory.mktemp("five") / "five.safetensors"
    save_file(wan_dit(width=256, layers=4, channels=48), path)
    return type(tiny)(path)


def image_to_video_latent(size: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Latent and noise mask as Wan22ImageToVideoLatent makes them from an encoded start image."""
    import comfy.latent_formats

    image = torch.randn(1, 48, 1, *size[1:], generator=torch.Generator().manual_seed(2))
    latent, mask = torch.zeros(1, 48, *size), torch.ones(1, 1, *size)
    latent[:, :, :1], mask[:, :, :1] = image, 0.0
    return comfy.latent_formats.Wan22().process_out(latent) * mask + latent * (1.0 - mask), mask


def test_the_5b_model_without_an_image_gives_a_hit(five, far, tmp_path: Path) -> None:
    import comfy.model_base

    assert isinstance(five.model.model, comfy.model_base.WAN22)
    call = five.call.but(latent=torch.zeros(1, 48, 3, 8, 8))
    stock, miss = five.reuse(tmp_path, call)
    assert miss.report.decision.value == "miss" and torch.equal(stock, call(five.model))
    result, run = five.reuse(tmp_path, call)
    assert run.report.decision.value == "hit", run.report.status()
    assert far(result, stock) < 2e-3


def test_the_5b_model_with_a_start_image_is_declined(five, tmp_path: Path) -> None:
    latent, mask = image_to_video_latent((3, 8, 8))
    call = five.call.but(latent=latent, mask=mask)
    result, run = five.reuse(tmp_path, call)
    assert run.report.decision.value == "declined" and "noise mask" in run.report.status()
    assert torch.equal(result, call(five.model))

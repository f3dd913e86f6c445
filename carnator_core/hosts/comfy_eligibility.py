"""What a ComfyUI run must look like for Carnator to touch it; everything else is declined with a reason."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch

from ..attention import AttentionSite
from ..plan import ModelShape
from ..reasons import Code, Reason
from .comfy_wan_block import changed_forward, unsupported_block

# Conditioning entries that carry text or bookkeeping only. Whatever else a node may add changes where, when or on
# how many tokens a condition works: declined.
TEXT_FIELDS = {"cross_attn", "pooled_output", "uuid", "model_conds"}
# Replaced model objects that only change the schedule, which is part of the key. Others may change what a block
# computes behind our back: declined.
SCHEDULE_OBJECTS = {"model_sampling"}
PATCHER_EXTRAS = ("weight_wrapper_patches", "injections", "hook_patches", "forced_hooks")
GUIDER_METHODS = (
    "__call__", "outer_predict_noise", "predict_noise", "inner_sample", "outer_sample", "sample", "inner_set_conds",
)  # fmt: skip

MODEL_METHODS = ("apply_model", "_apply_model", "process_timestep", "extra_conds")
FORWARDS = ("forward", "forward_orig", "_forward", "unpatchify", "rope_encode")


def supported_samplers() -> dict[Any, tuple[str, bool]]:
    """Sampler function -> (name, multistep).

    Each one passed the test that replaying x0 gives the stock latent, and comes closer to the target than its donor
    is when guidance is reused. deis and lms pass only the first: their long histories carry the held residual on.
    """
    from comfy.extra_samplers import uni_pc
    from comfy.k_diffusion import sampling

    return {
        sampling.sample_euler: ("euler", False),
        sampling.sample_dpmpp_2m: ("dpmpp_2m", True),
        sampling.sample_res_multistep: ("res_multistep", True),
        sampling.sample_ipndm: ("ipndm", True),
        uni_pc.sample_unipc: ("uni_pc", True),
        uni_pc.sample_unipc_bh2: ("uni_pc_bh2", True),
    }


def sampler_identity(sampler: Any) -> tuple[str, bool] | Reason:
    """(name, multistep) of a supported sampler object, or why it is declined."""
    import comfy.samplers

    if type(sampler) is not comfy.samplers.KSAMPLER:
        return Reason.of(Code.UNSUPPORTED_SAMPLER, detail=type(sampler).__qualname__)
    function = sampler.sampler_function
    name = getattr(function, "__name__", repr(function)).removeprefix("sample_")
    if function not in supported_samplers():
        return Reason.of(Code.UNSUPPORTED_SAMPLER, detail=name)
    if sampler.extra_options or sampler.inpaint_options:
        return Reason.of(Code.UNSUPPORTED_SAMPLER, detail=f"{name} with extra options")
    return supported_samplers()[function]


def unsupported_host() -> Reason | None:
    """Why this ComfyUI cannot be used: by what it has rather than by its number, since forks differ."""
    import comfy.ldm.flux.math
    import comfy.patcher_extension as pe

    needed = (
        (pe.WrappersMP, "PREDICT_NOISE"),
        (pe.WrappersMP, "CALC_COND_BATCH"),
        (comfy.ldm.flux.math, "apply_rope1"),
    )
    missing = [name for owner, name in needed if not hasattr(owner, name)]
    return Reason.of(Code.UNSUPPORTED_HOST, detail=f"it has no {', '.join(missing)}") if missing else None


def is_plain_guider(guider: Any) -> bool:
    """Whether a guider samples as CFGGuider does; a class of its own may only set the conditions differently."""
    import comfy.samplers

    stock = comfy.samplers.CFGGuider
    return isinstance(guider, stock) and all(
        getattr(type(guider), name) is getattr(stock, name) for name in GUIDER_METHODS
    )


def check_model(guider: Any) -> Reason | None:
    from comfy.ldm.wan.model import WanModel

    if not is_plain_guider(guider):
        return Reason.of(Code.UNSUPPORTED_MODEL, detail=f"guider {type(guider).__qualname__}")
    diffusion = guider.model_patcher.model.diffusion_model
    if type(diffusion) is not WanModel:
        return Reason.of(Code.UNSUPPORTED_MODEL, detail=type(diffusion).__qualname__)
    channels = guider.model_patcher.model.latent_format.latent_channels
    if diffusion.img_emb is not None or diffusion.ref_conv is not None or diffusion.in_dim != channels:
        return Reason.of(Code.UNSUPPORTED_MODEL, detail="image-to-video variant of Wan")
    why = next(filter(None, map(unsupported_block, diffusion.blocks)), None)
    return Reason.of(Code.UNSUPPORTED_MODEL, detail=why) if why else None


def check_patches(options: dict[str, Any], patcher: Any, ours: Collection[Any] = ()) -> Reason | None:
    """Decline whatever sees the model's calls or its outputs: a region forward would feed it unfinished values.

    Args:
        options: model_options of the guider, or as they arrive at a step.
        patcher: the ModelPatcher they belong to.
        ours: wrappers of this run, which are no one else's.
    """
    import comfy.patcher_extension as pe

    transformer = options.get("transformer_options", {})
    for kind in (pe.WrappersMP.PREDICT_NOISE, pe.WrappersMP.CALC_COND_BATCH, pe.WrappersMP.APPLY_MODEL,
                 pe.WrappersMP.DIFFUSION_MODEL, pe.WrappersMP.SAMPLER_SAMPLE):  # fmt: skip
        for key, wrappers in transformer.get("wrappers", {}).get(kind, {}).items():
            if any(wrapper not in ours for wrapper in wrappers):
                return Reason.of(Code.FOREIGN_PATCH, detail=f"{kind} wrapper of {key}")
    # Code or foreign objects among the options, such as guidance functions: what they do cannot be part of a key.
    settled = {"transformer_options", "to_load_options", "wrappers", "callbacks"}
    given = [*options.items(), *transformer.items()]
    found = [name for name, value in given if name not in settled and not _is_data(value)]
    found += [name for name in patcher.object_patches if name not in SCHEDULE_OBJECTS]
    found += [name for name in PATCHER_EXTRAS if getattr(patcher, name, None)]
    return Reason.of(Code.FOREIGN_PATCH, detail=", ".join(map(str, found))) if found else None


def check_loaded(guider: Any, options: dict[str, Any], ours: Collection[Any]) -> Reason | None:
    """What shows only at the first step: options that another pack's outer wrapper added, and replaced methods."""
    patcher = guider.model_patcher
    blocks = patcher.model.diffusion_model.blocks
    why = _replaced_method(guider) or next(filter(None, map(changed_forward, blocks)), None)
    return Reason.of(Code.FOREIGN_PATCH, detail=why) if why else check_patches(options, patcher, ours)


def _replaced_method(guider: Any) -> str | None:
    """A method that was replaced on an object, where no list of patches shows it: it cannot be part of a key."""
    model = guider.model_patcher.model
    watched = [(guider, GUIDER_METHODS), (model, MODEL_METHODS)]
    watched += [(module, FORWARDS) for module in model.diffusion_model.modules()]
    for owner, names in watched:
        for name in set(names) & vars(owner).keys():
            # The host leaves the stock method itself there when it takes an object patch back.
            if getattr(vars(owner)[name], "__func__", None) is not getattr(type(owner), name, None):
                return f"{type(owner).__qualname__}.{name} was replaced on the object"
    return None


def _is_data(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_data, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (str, int, float, bool)) or torch.is_tensor(value)


def check_conditioning(guider: Any) -> Reason | None:
    conds = guider.conds
    if not {"positive"} <= set(conds) <= {"positive", "negative"}:
        return Reason.of(Code.UNSUPPORTED_CONDITIONING, detail=f"conditions {sorted(conds)}")
    for name, entries in conds.items():
        if len(entries) != 1:
            return Reason.of(Code.UNSUPPORTED_CONDITIONING, detail=f"{len(entries)} {name} entries")
        extra = sorted(k for k, v in entries[0].items() if k not in TEXT_FIELDS and v is not None)
        extra += sorted(entries[0].get("model_conds", {}))
        if extra:
            return Reason.of(Code.UNSUPPORTED_CONDITIONING, detail=f"{name} with {', '.join(extra)}")
        text = entries[0].get("cross_attn")
        if not torch.is_tensor(text) or text.ndim != 3 or text.shape[0] != 1:
            return Reason.of(Code.UNSUPPORTED_CONDITIONING, detail=f"{name} without one text embedding")
    return None


def check_latent(noise: torch.Tensor, latent: torch.Tensor, denoise_mask: Any) -> Reason | None:
    if denoise_mask is not None:
        return Reason.of(Code.UNSUPPORTED_LATENT, detail="noise mask")
    if noise.ndim != 5 or noise.shape != latent.shape:
        return Reason.of(Code.UNSUPPORTED_LATENT, detail=f"shape {tuple(noise.shape)}")
    if noise.shape[0] != 1:
        return Reason.of(Code.UNSUPPORTED_LATENT, detail=f"batch of {noise.shape[0]}")
    if min(noise.shape[-2:]) < 2:
        return Reason.of(Code.UNSUPPORTED_LATENT, detail="smaller than one token")
    return None


def check_schedule(sigmas: torch.Tensor) -> Reason | None:
    values = [float(s) for s in sigmas]
    falling = all(a > b for a, b in zip(values, values[1:], strict=False))
    if not falling or not math.isfinite(values[0]):
        return Reason.of(Code.UNSUPPORTED_SCHEDULE, first=values[0], last=values[-1])
    return None


def model_shape(guider: Any, noise: torch.Tensor) -> ModelShape:
    """Describe the model and this latent to the core. Call after ``check_model``."""
    diffusion = guider.model_patcher.model.diffusion_model
    return ModelShape(
        latent=tuple(noise.shape[1:]),
        patch=tuple(diffusion.patch_size),
        depth=len(diffusion.blocks),
        dim=diffusion.dim,
        ffn_dim=diffusion.ffn_dim,
        context_tokens=guider.conds["positive"][0]["cross_attn"].shape[1],
    )


def attention_site(guider: Any) -> AttentionSite:
    """How the model computes self-attention. Call after ``check_model``."""
    patcher = guider.model_patcher
    layer = patcher.model.diffusion_model.blocks[0].self_attn
    dtype = patcher.get_model_object("manual_cast_dtype") or patcher.model.get_dtype()
    return AttentionSite(patcher.load_device, dtype, layer.num_heads, layer.head_dim)

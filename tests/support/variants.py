"""Requests and models that differ from the tiny host's own in one thing. Call them with the `comfy` fixture."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

Q_WEIGHT = "diffusion_model.blocks.0.self_attn.q.weight"


@dataclass(frozen=True)
class Given:
    """One request of the table: the tiny model's own call unless something is named."""

    call: Any = None
    model: Any = None
    options: Any = None

    def run(self, tiny, root: Path, mode: str):
        options = self.options or tiny.options()
        options = replace(options, store=replace(options.store, mode=mode))
        return tiny.reuse(root, self.call or tiny.call, self.model, options)

    def stock(self, tiny) -> torch.Tensor:
        return (self.call or tiny.call)(self.model or tiny.model)


def with_diffs(tiny, *diffs: float):
    """A clone with full-size patches of these constant values, in this order."""
    model = tiny.model.clone()
    for value in diffs:
        model.add_patches({Q_WEIGHT: ("diff", (torch.full((256, 256), value),))}, 1.0)
    return model


def with_lora(tiny, seed: int = 0, strength: float = 0.5, alpha: float = 4.0):
    """A clone with a low-rank adapter, as the host's LoRA loader makes it."""
    import comfy.lora
    import comfy.lora_convert

    random = torch.Generator().manual_seed(seed)
    name = Q_WEIGHT.removesuffix(".weight")
    file = {
        f"{name}.lora_down.weight": torch.randn(4, 256, generator=random),
        f"{name}.lora_up.weight": torch.randn(256, 4, generator=random) * 0.02,
        f"{name}.alpha": torch.tensor(alpha),
    }
    model = tiny.model.clone()
    keys = comfy.lora.model_lora_keys_unet(model.model, {})
    patches = comfy.lora.load_lora(comfy.lora_convert.convert_lora(file), keys)
    assert model.add_patches(patches, strength)
    return model


def with_shift(tiny, shift: float):
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    return ModelSamplingSD3().patch(tiny.model, shift)[0]


def with_outer(tiny, wrapper, kind: str = "outer_sample", key: str = "other"):
    return tiny.wrapped(tiny.model, kind, wrapper, key=key)


def passing(executor, *args, **kwargs):
    return executor(*args, **kwargs)


def also_passing(executor, *args, **kwargs):
    return executor(*args, **kwargs)


def strong(amount: float):
    def wrapper(executor, *args, **kwargs):
        assert amount
        return executor(*args, **kwargs)

    return wrapper


class Strong:
    def __init__(self, amount: float):
        self.amount = amount

    def __call__(self, executor, *args, **kwargs):
        return executor(*args, **kwargs)


class Slotted(Strong):
    __slots__ = ("depth",)

    def __init__(self, depth: float):
        super().__init__(1.0)
        self.depth = depth


def partial_of(amount: float):
    def wrapper(amount, executor, *args, **kwargs):
        return executor(*args, **kwargs)

    return functools.partial(wrapper, amount)


def with_callback(tiny, callback):
    import comfy.patcher_extension as pe

    model = tiny.model.clone()
    model.add_callback_with_key(pe.CallbacksMP.ON_PRE_RUN, "other", callback)
    return model


def with_setting(tiny, value: Any):
    model = tiny.model.clone()
    model.model_options["transformer_options"]["rope_options"] = {"scale_t": value}
    return model


def with_attachment(tiny):
    model = tiny.model.clone()
    model.set_attachments("someone_elses", object())
    return model


def with_other_weights(tiny, name: str):
    model = tiny.load()
    with torch.no_grad():
        model.model.diffusion_model.get_parameter(name).mul_(1.01)
    return model


def with_own_operations(tiny):
    """The same weights computed by another class of layers."""
    import comfy.ops
    import comfy.sd

    class Operations(comfy.ops.disable_weight_init):
        class Linear(comfy.ops.disable_weight_init.Linear):
            pass

    return comfy.sd.load_diffusion_model(str(tiny.checkpoint), model_options={"custom_operations": Operations})


def on_device(tiny, device: str):
    model = tiny.model.clone()
    model.load_device = torch.device(device)
    return model


def with_options(tiny, **changes: Any):
    options = tiny.options()
    part = "probe" if "probe_percent" in changes else "reuse"
    return replace(options, **{part: replace(getattr(options, part), **changes)})

"""The hard key of a ComfyUI request: every field that must be equal, so that only the prompt text may differ."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import torch

from ..identity import HardKey, digest, sampled_digest, sampled_digest_of, tensor_digest
from ..plan import FINAL_SIGMA, Schedule
from ..store.tensor_file import SCHEMA


def base_weights(patcher: Any) -> str:
    """Digest over names, shapes, dtypes and sampled values of the weights as they were before any patch.

    A loaded model has LoRA merged into its parameters; the patcher's backup then holds the originals. Parameters
    themselves are read, since quantised layers put stand-ins into their state dict. Nothing is remembered from run to
    run: weights can be changed in place, and no counter of PyTorch tells (writes through ``.data`` leave none).
    """
    diffusion = patcher.model.diffusion_model
    own = sorted([*diffusion.named_parameters(), *diffusion.named_buffers()], key=lambda item: item[0])
    backup = {name: kept.weight for name, kept in patcher.backup.items()}
    return sampled_digest_of((name, backup.get(f"diffusion_model.{name}", value)) for name, value in own)


def describe(value: Any, levels: int = 3) -> Any:
    """Plain, order-keeping description of whatever a node may put on a model, the same in every process.

    Tensors by sampled values, functions by qualified name and what they close over, other objects by class and
    attributes, ``levels`` objects deep. Models in there are named only: their weights have a field of their own.
    """
    from comfy.model_patcher import ModelPatcher

    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if torch.is_tensor(value):
        return sampled_digest(value)
    if isinstance(value, (list, tuple)):
        return [describe(v, levels) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(digest(describe(v, levels)) for v in value)
    if isinstance(value, dict):
        return {str(k): describe(v, levels) for k, v in value.items()}
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    name = _qualified_name(value if hasattr(value, "__qualname__") else type(value))
    if levels == 0 or isinstance(value, (type, torch.nn.Module, ModelPatcher)):
        return name
    return [name, describe(_held_by(value), levels - 1)]


def _qualified_name(value: Any) -> str:
    """The host names the modules of nodes by their paths: what leads there is not part of what they do."""
    module = re.split(r"[/\\]", getattr(value, "__module__", None) or "")[-1]
    return f"{module}.{value.__qualname__}"


def _held_by(value: Any) -> Any:
    """What a function, method, partial or other object computes with besides its arguments."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if inspect.ismethod(value):
        return value.__self__
    if inspect.isfunction(value):
        held = list(inspect.getclosurevars(value).nonlocals.items())
        return [value.__code__.co_code.hex(), held, value.__defaults__, value.__kwdefaults__]
    slots = [name for c in type(value).__mro__ for name in getattr(c, "__slots__", ()) if not name.startswith("__")]
    return {**{n: getattr(value, n, None) for n in slots}, **getattr(value, "__dict__", {})}


def weight_patches(patcher: Any) -> str:
    """Digest of LoRA-like patches: order, strengths and sampled content."""
    by_name = sorted(patcher.patches.items(), key=lambda item: str(item[0]))
    return digest([(name, describe(patches)) for name, patches in by_name])


def schedule_objects(patcher: Any) -> str:
    """Digest of replaced model objects (only schedules get this far): classes, numbers and tables."""
    described = {}
    for name, value in sorted(patcher.object_patches.items()):
        plain = describe({k: v for k, v in vars(value).items() if not k.startswith("_")})
        classes = [_qualified_name(c) for c in type(value).__mro__[:4]]
        described[name] = [classes, plain, sampled_digest_of(sorted(value.state_dict().items()))]
    return digest(described)


def surroundings(patcher: Any) -> str:
    """Digest of what computes: versions, device, attention function, compute dtype, fast modes.

    The dtypes are those of the model itself, also while another request's object patch is applied.
    """
    import comfy.ldm.wan.model
    import comfyui_version
    from comfy.cli_args import args

    return digest(
        SCHEMA,
        torch.__version__,
        comfyui_version.__version__,
        str(patcher.load_device),
        _qualified_name(comfy.ldm.wan.model.optimized_attention),
        str(patcher.model.get_dtype()),
        str(patcher.get_model_object("manual_cast_dtype")),
        _qualified_name(type(patcher.model.diffusion_model.blocks[0].ffn[0])),
        sorted(str(mode) for mode in args.fast),
    )


def other_hooks(guider: Any) -> str:
    """Digest of foreign wrappers, callbacks, attachments and options: unknown things are hard."""
    transformer = dict(guider.model_options.get("transformer_options", {}))
    hooks = [
        (kind, str(key), describe(found))
        for group in ("wrappers", "callbacks")
        for kind, by_key in sorted(transformer.pop(group, {}).items())
        for key, found in by_key.items()
        if found and key != "carnator"
    ]
    transformer.pop("sample_sigmas", None)
    # The host keeps a second list of wrappers and callbacks there.
    plain = {k: v for k, v in guider.model_options.items() if k not in ("transformer_options", "to_load_options")}
    patcher = guider.model_patcher
    names = sorted(map(str, [*patcher.attachments, *patcher.additional_models]))
    return digest(hooks, describe(transformer), describe(plain), names)


def conditioning(entry: dict[str, Any], with_text: bool) -> str:
    """Digest of one condition; of the positive prompt only its shape, since its text is the soft part."""
    text = entry["cross_attn"]
    return tensor_digest(text) if with_text else digest(list(text.shape[1:]))


def hard_key(guider: Any, noise: torch.Tensor, latent: str, sampler_name: str, schedule: Schedule) -> HardKey:
    """All fields of a request except the positive prompt's text. The names are shown to the artist.

    Args:
        latent: "empty", or the digest of what the input latent stands for.
    """
    patcher = guider.model_patcher
    negative = guider.conds.get("negative")
    sigmas = [round(s, 6) if s > FINAL_SIGMA else 0.0 for s in schedule.sigmas]
    return HardKey.of(
        {
            "model weights": base_weights(patcher),
            "LoRA or weight patches": weight_patches(patcher),
            "shift": schedule_objects(patcher),
            "model options": other_hooks(guider),
            "software or device": surroundings(patcher),
            "video size": "x".join(map(str, noise.shape)),
            "seed": tensor_digest(noise),
            "input latent": latent,
            "steps": str(schedule.steps),
            "scheduler": digest(sigmas),
            "sampler": sampler_name,
            "CFG": repr(float(guider.cfg)),
            "negative prompt": conditioning(negative[0], with_text=True) if negative else "none",
            "conditioning": conditioning(guider.conds["positive"][0], with_text=False),
            "probe": digest(schedule.probe_end, schedule.checks),
        }
    )

"""The hard key of a ComfyUI request: every field that must be equal, so that only the prompt text may differ."""

from __future__ import annotations

from typing import Any

import torch

from ..identity import HardKey, digest, sampled_digest, tensor_digest
from ..plan import FINAL_SIGMA, Schedule
from ..store.tensor_file import SCHEMA


def base_weights(patcher: Any) -> str:
    """Digest over names, shapes, dtypes and sampled values of the weights as they were before any patch.

    A loaded model has LoRA merged into its parameters; the patcher's backup then holds the originals.
    """
    backup = patcher.backup
    parts = []
    for name, value in sorted(patcher.model.diffusion_model.state_dict().items()):
        original = backup.get(f"diffusion_model.{name}")
        parts.append((name, sampled_digest(value if original is None else original.weight)))
    return digest(parts)


def _content(value: Any) -> Any:
    """Plain, order-keeping description of nested patch data with sampled tensors."""
    if torch.is_tensor(value):
        return sampled_digest(value)
    if isinstance(value, (list, tuple)):
        return [_content(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _content(v) for k, v in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    # A weight adapter (LoRA, LoHa, …) keeps its tensors in attributes.
    return [type(value).__qualname__, _content(getattr(value, "weights", None))]


def weight_patches(patcher: Any) -> str:
    """Digest of LoRA-like patches: order, strengths and sampled content."""
    by_name = sorted(patcher.patches.items(), key=lambda item: str(item[0]))
    return digest([(name, _content(patches)) for name, patches in by_name])


def schedule_objects(patcher: Any) -> str:
    """Digest of replaced model objects (only schedules get this far), with the numbers that describe them."""
    described = {}
    for name, value in sorted(patcher.object_patches.items()):
        numbers = {k: v for k, v in getattr(value, "__dict__", {}).items() if isinstance(v, (int, float, str))}
        described[name] = [type(value).__qualname__, [c.__qualname__ for c in type(value).__mro__[1:4]], numbers]
    return digest(described)


def surroundings(patcher: Any) -> str:
    """Digest of what computes: versions, device, attention function, compute dtype.

    The dtypes are those of the model itself, also while another request's object patch is applied.
    """
    import comfy.ldm.modules.attention
    import comfyui_version

    return digest(
        SCHEMA,
        torch.__version__,
        comfyui_version.__version__,
        str(patcher.load_device),
        comfy.ldm.modules.attention.optimized_attention.__name__,
        str(patcher.model.get_dtype()),
        str(patcher.get_model_object("manual_cast_dtype")),
        type(patcher.model.diffusion_model.blocks[0].ffn[0]).__qualname__,
    )


def other_hooks(guider: Any) -> str:
    """Digest of foreign wrappers, callbacks and options by qualified name: unknown things are hard."""
    transformer = dict(guider.model_options.get("transformer_options", {}))
    for ours in ("carnator", "sample_sigmas"):
        transformer.pop(ours, None)
    wrappers = {
        kind: {str(key): [_content(f) for f in found] for key, found in by_key.items() if key != "carnator"}
        for kind, by_key in transformer.pop("wrappers", {}).items()
    }
    plain = {k: v for k, v in guider.model_options.items() if k != "transformer_options"}
    return digest({k: v for k, v in wrappers.items() if v}, _content(transformer), _content(plain))


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
            "model options": digest(schedule_objects(patcher), other_hooks(guider)),
            "software or device": surroundings(patcher),
            "video size": "x".join(map(str, noise.shape)),
            "seed": tensor_digest(noise),
            "input latent": latent,
            "steps or scheduler": digest(sigmas),
            "sampler": sampler_name,
            "CFG": repr(float(guider.cfg)),
            "negative prompt": conditioning(negative[0], with_text=True) if negative else "none",
            "conditioning": conditioning(guider.conds["positive"][0], with_text=False),
            "probe": digest(schedule.probe_end, schedule.checks),
        }
    )

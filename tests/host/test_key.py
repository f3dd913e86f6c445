"""The hard key: one table of everything that makes a donor unusable.

What leaves it usable is in test_key_stable.py; what is declined instead of keyed in test_declined.py,
test_foreign_patches.py and test_other_packs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from support.variants import (
    Given,
    Slotted,
    Strong,
    also_passing,
    on_device,
    partial_of,
    passing,
    strong,
    with_attachment,
    with_callback,
    with_diffs,
    with_lora,
    with_options,
    with_other_weights,
    with_outer,
    with_own_operations,
    with_setting,
    with_shift,
)


@dataclass(frozen=True)
class Flip:
    """`target` differs from `donor` in one thing, and the miss must name exactly this field."""

    field: str
    target: Callable[[Any], Given]
    donor: Callable[[Any], Given] = lambda t: Given()


def call(field: str, change: Callable[[Any], dict]) -> Flip:
    return Flip(field, lambda t: Given(call=t.call.but(**change(t))))


def model(field: str, target: Callable[[Any], Any], donor: Callable[[Any], Any] | None = None) -> Flip:
    return Flip(
        field,
        lambda t: Given(model=target(t)),
        (lambda t: Given(model=donor(t))) if donor else Flip.donor,
    )


FLIPS = {
    # what the artist sets on the sampler
    "seed": call("seed", lambda t: {"seed": 4}),
    "steps": call("steps", lambda t: {"steps": 14}),
    "one step more": call("steps", lambda t: {"steps": 11}),
    "scheduler": call("scheduler", lambda t: {"scheduler": "normal"}),
    "CFG": call("CFG", lambda t: {"cfg": 5.01}),
    "CFG of one": call("CFG", lambda t: {"cfg": 1.0}),
    "sampler": call("sampler", lambda t: {"sampler": "ipndm"}),
    "height": call("video size", lambda t: {"size": (3, 10, 8)}),
    "width": call("video size", lambda t: {"size": (3, 8, 10)}),
    "frames": call("video size", lambda t: {"size": (2, 8, 8)}),
    "input latent": call("input latent", lambda t: {"latent": torch.full((1, 16, 3, 8, 8), 0.1)}),
    "probe": Flip("probe", lambda t: Given(options=with_options(t, probe_percent=25.0))),
    "refine": Flip("probe", lambda t: Given(options=with_options(t, refine_percent=35.0))),
    # conditioning besides the words of the positive prompt
    "negative prompt": call("negative prompt", lambda t: {"negative": t.near(t.call.negative, 0.001)}),
    "negative length": call("negative prompt", lambda t: {"negative": t.prompt(9, tokens=20)}),
    "positive length": call("conditioning", lambda t: {"positive": t.prompt(1, tokens=20)}),
    # weights
    "first tensor": model("model weights", lambda t: with_other_weights(t, "patch_embedding.weight")),
    "a linear": model("model weights", lambda t: with_other_weights(t, "blocks.1.ffn.0.weight")),
    "a modulation": model("model weights", lambda t: with_other_weights(t, "blocks.3.modulation")),
    "last bias": model("model weights", lambda t: with_other_weights(t, "head.head.bias")),
    # LoRA and other weight patches
    "LoRA added": model("LoRA or weight patches", with_lora),
    "LoRA removed": model("LoRA or weight patches", lambda t: t.model, with_lora),
    "LoRA strength": model("LoRA or weight patches", lambda t: with_lora(t, strength=0.51), with_lora),
    "LoRA content": model("LoRA or weight patches", lambda t: with_lora(t, seed=1), with_lora),
    "LoRA alpha": model("LoRA or weight patches", lambda t: with_lora(t, alpha=8.0), with_lora),
    "LoRA twice": model("LoRA or weight patches", lambda t: with_diffs(t, 0.1, 0.1), lambda t: with_diffs(t, 0.1)),
    "LoRA order": model("LoRA or weight patches", lambda t: with_diffs(t, 0.2, 0.1), lambda t: with_diffs(t, 0.1, 0.2)),
    # objects and options
    "shift added": model("shift", lambda t: with_shift(t, 5.0)),
    "shift": model("shift", lambda t: with_shift(t, 6.0), lambda t: with_shift(t, 5.0)),
    "option added": model("model options", lambda t: with_setting(t, 1.1)),
    "option value": model("model options", lambda t: with_setting(t, 1.1), lambda t: with_setting(t, 1.0)),
    "attachment": model("model options", with_attachment),
    # other packs, as far as they are not declined
    "wrapper added": model("model options", lambda t: with_outer(t, passing)),
    "wrapper's name": model(
        "model options", lambda t: with_outer(t, also_passing), lambda t: with_outer(t, passing)
    ),
    "wrapper's closure": model(
        "model options", lambda t: with_outer(t, strong(2.0)), lambda t: with_outer(t, strong(1.0))
    ),
    "wrapper's attributes": model(
        "model options", lambda t: with_outer(t, Strong(2.0)), lambda t: with_outer(t, Strong(1.0))
    ),
    "wrapper's slots": model(
        "model options", lambda t: with_outer(t, Slotted(2.0)), lambda t: with_outer(t, Slotted(1.0))
    ),
    "wrapper's method": model(
        "model options", lambda t: with_outer(t, Strong(2.0).__call__), lambda t: with_outer(t, Strong(1.0).__call__)
    ),
    "wrapper's arguments": model(
        "model options", lambda t: with_outer(t, partial_of(2.0)), lambda t: with_outer(t, partial_of(1.0))
    ),
    "wrapper of preparation": model("model options", lambda t: with_outer(t, passing, kind="prepare_sampling")),
    "callback": model("model options", lambda t: with_callback(t, lambda patcher: None)),
    # software and device
    "layer classes": model("software or device", with_own_operations),
    "device": model("software or device", lambda t: on_device(t, "cpu:0")),
}  # fmt: skip


@pytest.mark.parametrize("name", FLIPS)
def test_one_thing_changed_is_a_stock_miss_that_names_it(tiny, shelf: Path, tmp_path: Path, name: str) -> None:
    flip, root = FLIPS[name], shelf
    if flip.donor is not Flip.donor:
        root = tmp_path
        flip.donor(tiny).run(tiny, root, "read+write")
    target = flip.target(tiny)
    result, run = target.run(tiny, root, "read")
    assert (run.report.decision.value, run.report.reason.code.value) == ("miss", "key_differs"), run.report.status()
    assert run.report.reason.sentence.partition("differs in: ")[2] == flip.field
    assert torch.equal(result, target.stock(tiny))


def flip_software(monkeypatch, tiny) -> dict[str, Callable[[], None]]:
    import comfy.ldm.modules.attention
    import comfy.ldm.wan.model
    import comfyui_version
    from comfy.cli_args import PerformanceFeature, args

    attention = comfy.ldm.modules.attention.attention_sub_quad
    other = attention if comfy.ldm.wan.model.optimized_attention is not attention else None
    return {
        "torch": lambda: monkeypatch.setattr(torch, "__version__", "2.0.0"),
        "ComfyUI": lambda: monkeypatch.setattr(comfyui_version, "__version__", "0.0.1"),
        "attention": lambda: monkeypatch.setattr(comfy.ldm.wan.model, "optimized_attention", other),
        "fast mode": lambda: monkeypatch.setattr(args, "fast", {PerformanceFeature.Fp16Accumulation}),
        "compute dtype": lambda: monkeypatch.setattr(tiny.model.model, "manual_cast_dtype", torch.float32),
    }


@pytest.mark.parametrize("name", ["torch", "ComfyUI", "attention", "fast mode", "compute dtype"])
def test_other_software_is_a_miss_that_says_so(tiny, shelf: Path, monkeypatch, name: str) -> None:
    flip_software(monkeypatch, tiny)[name]()
    _, run = Given().run(tiny, shelf, "read")
    assert run.report.reason.sentence.endswith("differs in: software or device"), run.report.status()


def test_the_tables_flip_every_field_of_the_key(tiny, shelf: Path) -> None:
    _, run = Given().run(tiny, shelf, "read")
    assert {flip.field for flip in FLIPS.values()} == {name for name, _ in run.session.request.key.fields}


def test_another_positive_prompt_is_not_part_of_the_key(tiny, shelf: Path) -> None:
    _, run = Given(call=tiny.call.but(positive=tiny.prompt(5)), options=tiny.options(gate=0.0)).run(tiny, shelf, "read")
    assert run.report.reason.code.value == "gate_rejected"

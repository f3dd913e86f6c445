"""The hard key: whatever may change the video besides the positive prompt makes a donor unusable."""

from pathlib import Path

import pytest
import torch


def differing(tiny, root: Path, donor, target, donor_model=None, target_model=None) -> list[str]:
    """Fields that a target's miss names, with one donor in the store. The target's latent must be stock."""
    tiny.reuse(root, donor, donor_model)
    result, run = tiny.reuse(root, target, target_model, tiny.options(store="read"))
    assert run.report.decision.value == "miss", run.report.status()
    assert run.report.reason.code.value == "key_differs"
    assert torch.equal(result, target(target_model or tiny.model))
    return run.report.reason.sentence.partition("differs in: ")[2].split(", ")


CALLS = {
    "seed": ({"seed": 4}, {"seed"}),
    "steps": ({"steps": 14}, {"steps or scheduler", "probe"}),
    "scheduler": ({"scheduler": "normal"}, {"steps or scheduler"}),
    "cfg": ({"cfg": 5.5}, {"CFG"}),
    "sampler": ({"sampler": "ipndm"}, {"sampler"}),
    "height": ({"size": (3, 10, 8)}, {"video size", "seed"}),
    "frames": ({"size": (2, 8, 8)}, {"video size", "seed"}),
    "latent": ({"latent": torch.full((1, 16, 3, 8, 8), 0.1)}, {"input latent"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_changed_setting_is_a_miss_that_names_it(tiny, tmp_path: Path, name: str) -> None:
    changes, fields = CALLS[name]
    donor = tiny.call.but(sampler="dpmpp_2m")  # its refine share is that of the other multistep samplers
    found = set(differing(tiny, tmp_path, donor, donor.but(**changes)))
    assert fields <= found
    assert found <= fields | {"probe"}, "nothing else is to blame"


def test_another_negative_prompt_is_a_miss_that_names_it(tiny, tmp_path: Path) -> None:
    target = tiny.call.but(negative=tiny.near(tiny.call.negative, 0.001))
    assert differing(tiny, tmp_path, tiny.call, target) == ["negative prompt"]


def test_another_number_of_text_tokens_is_a_miss_that_names_the_conditioning(tiny, tmp_path: Path) -> None:
    target = tiny.call.but(positive=tiny.prompt(1, tokens=20))
    assert differing(tiny, tmp_path, tiny.call, target) == ["conditioning"]


@pytest.mark.parametrize("reuse", [{"probe_percent": 25.0}, {"refine_percent": 35.0}])
def test_a_donor_with_other_probe_or_check_steps_is_a_miss_that_names_the_probe(tiny, tmp_path: Path, reuse) -> None:
    from dataclasses import replace

    tiny.reuse(tmp_path, tiny.call)
    options = tiny.options()
    part = "probe" if "probe_percent" in reuse else "reuse"
    options = replace(options, **{part: replace(getattr(options, part), **reuse)})
    _, run = tiny.reuse(tmp_path, tiny.call, options=options)
    assert run.report.reason.sentence.endswith("differs in: probe")


LORAS = {
    "added": ((), (0.5,)),
    "strength": ((0.5,), (0.6,)),
    "removed": ((0.5,), ()),
    "a second one": ((0.5,), (0.5, 0.5)),
}


@pytest.mark.parametrize("name", LORAS)
def test_another_lora_or_strength_is_a_miss_that_names_it(tiny, tmp_path: Path, name: str) -> None:
    before, after = LORAS[name]
    found = differing(tiny, tmp_path, tiny.call, tiny.call, tiny.patched(*before), tiny.patched(*after))
    assert found == ["LoRA or weight patches"]


def test_a_lora_with_other_content_is_a_miss(tiny, tmp_path: Path) -> None:
    found = differing(tiny, tmp_path, tiny.call, tiny.call, tiny.patched(0.5), tiny.patched(0.5, seed=7))
    assert found == ["LoRA or weight patches"]


def test_the_order_of_loras_is_part_of_the_key(tiny, tmp_path: Path) -> None:
    key = "diffusion_model.blocks.0.self_attn.q.weight"
    one, two = torch.full((256, 256), 0.01), torch.full((256, 256), 0.02)

    def model(*diffs):
        clone = tiny.model.clone()
        for diff in diffs:
            clone.add_patches({key: ("diff", (diff,))}, 1.0)
        return clone

    found = differing(tiny, tmp_path, tiny.call, tiny.call, model(one, two), model(two, one))
    assert found == ["LoRA or weight patches"]


def test_the_same_lora_again_is_a_hit(tiny, far, tmp_path: Path) -> None:
    stock, _ = tiny.reuse(tmp_path, tiny.call, tiny.patched(4.0))
    result, run = tiny.reuse(tmp_path, tiny.call, tiny.patched(4.0))
    assert run.report.decision.value == "hit", run.report.status()
    assert far(result, stock) < 2e-3
    assert far(tiny.call(tiny.model), stock) > 1e-2, "the patch must matter for this to say anything"


def shifted(tiny, shift: float):
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    return ModelSamplingSD3().patch(tiny.model, shift)[0]


def test_another_shift_is_a_miss_that_names_the_model_options(tiny, tmp_path: Path) -> None:
    found = differing(tiny, tmp_path, tiny.call, tiny.call, shifted(tiny, 5.0), shifted(tiny, 6.0))
    assert {"model options", "steps or scheduler"} <= set(found) <= {"model options", "steps or scheduler", "probe"}


def test_the_same_shift_again_is_a_hit(tiny, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, tiny.call, shifted(tiny, 5.0))
    _, run = tiny.reuse(tmp_path, tiny.call, shifted(tiny, 5.0))
    assert run.report.decision.value == "hit", run.report.status()


def test_a_foreign_outer_wrapper_is_part_of_the_key(tiny, tmp_path: Path) -> None:
    model = tiny.wrapped(tiny.model, "outer_sample", lambda executor, *a, **k: executor(*a, **k), key="other")
    assert differing(tiny, tmp_path, tiny.call, tiny.call, None, model) == ["model options"]


def test_an_unknown_model_option_is_part_of_the_key(tiny, tmp_path: Path) -> None:
    model = tiny.model.clone()
    model.model_options["transformer_options"]["someones_setting"] = 0.7
    assert differing(tiny, tmp_path, tiny.call, tiny.call, None, model) == ["model options"]


def test_other_weights_are_a_miss_that_names_them(tiny, tmp_path: Path) -> None:
    other = tiny.load()
    with torch.no_grad():
        other.model.diffusion_model.blocks[1].ffn[0].weight.mul_(1.01)
    assert differing(tiny, tmp_path, tiny.call, tiny.call, None, other) == ["model weights"]


def test_the_same_file_loaded_again_serves_the_first_ones_donors(tiny, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, tiny.call)
    _, run = tiny.reuse(tmp_path, tiny.call, tiny.load())
    assert run.report.decision.value == "hit", run.report.status()


def test_another_positive_prompt_is_not_part_of_the_key(tiny, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, tiny.call)
    _, run = tiny.reuse(tmp_path, tiny.call.but(positive=tiny.prompt(5)), options=tiny.options(gate=0.0))
    assert run.report.reason.code.value == "gate_rejected"

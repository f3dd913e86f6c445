"""The fingerprint of a model's own weights: the same whatever ComfyUI has done with the model."""

import pytest
import torch


@pytest.fixture
def fresh(tiny):
    """A model that no other test has loaded."""
    import comfy.model_management

    yield tiny.load()
    comfy.model_management.unload_all_models()


def fingerprint(model) -> str:
    from carnator_core.hosts.comfy_identity import base_weights

    return base_weights(model)


def test_it_is_the_same_before_loading_after_loading_and_after_unloading(fresh) -> None:
    import comfy.model_management

    before = fingerprint(fresh)
    comfy.model_management.load_models_gpu([fresh])
    loaded = fingerprint(fresh)
    comfy.model_management.unload_all_models()
    assert before == loaded == fingerprint(fresh)


def test_a_lora_does_not_change_it_before_while_and_after_it_is_merged(tiny, fresh) -> None:
    import comfy.model_management

    key = "diffusion_model.blocks.0.self_attn.q.weight"
    before = fingerprint(fresh)
    patched = fresh.clone()
    patched.add_patches({key: ("diff", (torch.ones(256, 256),))}, 0.5)
    assert fingerprint(patched) == before
    original = fresh.model.diffusion_model.blocks[0].self_attn.q.weight.clone()
    comfy.model_management.load_models_gpu([patched])
    assert not torch.equal(fresh.model.diffusion_model.blocks[0].self_attn.q.weight, original), "it was merged"
    assert fingerprint(patched) == before
    assert fingerprint(fresh) == before, "and the unpatched sibling knows its own weights too"
    comfy.model_management.unload_all_models()
    assert fingerprint(patched) == fingerprint(fresh) == before


def test_a_run_without_the_lora_right_after_one_with_it_is_told_apart(tiny, tmp_path) -> None:
    _, with_lora = tiny.reuse(tmp_path, tiny.call, tiny.patched(0.5))
    result, without = tiny.reuse(tmp_path, tiny.call)
    assert without.report.reason.sentence.endswith("differs in: LoRA or weight patches")
    assert torch.equal(result, tiny.call(tiny.model))


@pytest.mark.parametrize("name", ["patch_embedding.weight", "blocks.3.modulation", "head.head.bias"])
def test_it_sees_a_change_of_any_tensor(fresh, name: str) -> None:
    before = fingerprint(fresh)
    with torch.no_grad():
        fresh.model.diffusion_model.get_parameter(name).add_(0.01)
    assert fingerprint(fresh) != before


def test_it_sees_another_precision_of_the_same_weights(fresh) -> None:
    before = fingerprint(fresh)
    fresh.model.diffusion_model.half()
    assert fingerprint(fresh) != before


def test_it_is_fast(fresh) -> None:
    import time

    started = time.perf_counter()
    fingerprint(fresh)
    tensors = len(fresh.model.diffusion_model.state_dict())
    assert (time.perf_counter() - started) / tensors < 0.002

"""What the pack declines: with a reason, and bit-identical to a run without it."""

from pathlib import Path
from types import ModuleType

import pytest
import torch


def declined(tiny, root: Path, call, model=None) -> str:
    """Reason code of a call that must be declined; its latent must be the stock one."""
    model = model or tiny.model
    result, run = tiny.reuse(root, call, model)
    assert run.report.decision.value == "declined", run.report.status()
    assert torch.equal(result, call(model))
    assert not (root / "default").exists(), "a declined run does not touch the store"
    assert len(run.report.status()) > 20
    return run.report.reason.code.value


def test_every_other_sampler_of_the_host_is_declined(tiny, tmp_path: Path, comfy: ModuleType) -> None:
    import comfy.samplers

    from carnator_core.hosts.comfy_eligibility import supported_samplers

    names = set(comfy.samplers.KSampler.SAMPLERS) - {name for name, _ in supported_samplers().values()}
    assert len(names) > 25
    problems, random = {}, []
    for name in sorted(names):
        call = tiny.call.but(sampler=name, steps=5, size=(1, 6, 6))
        stock = call(tiny.model)
        if not torch.equal(stock, call(tiny.model)):
            random.append(name)
            continue
        result, run = tiny.reuse(tmp_path, call)
        code = run.report.reason.code.value
        if (run.report.decision.value, code) != ("declined", "unsupported_sampler"):
            problems[name] = run.report.status()
        elif not torch.equal(result, stock):
            problems[name] = "another latent"
    assert not problems
    assert not random, "all samplers of this host draw their noise from the seed"


def test_a_supported_sampler_with_extra_options_is_declined(tiny, tmp_path: Path) -> None:
    import comfy.sample
    import comfy.samplers

    from carnator_core.hosts.comfy_run import ComfyRun

    latent = torch.zeros(1, 16, 3, 8, 8)
    noise = comfy.sample.prepare_noise(latent, 3)
    sampler = comfy.samplers.ksampler("ipndm", {"max_order": 2})

    def sample(model):
        sigmas = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "simple", 8)
        with torch.inference_mode():
            return comfy.sample.sample_custom(
                model, noise, 5.0, sampler, sigmas, tiny.call.positive, tiny.call.negative, latent,
                disable_pbar=True, seed=3,
            )  # fmt: skip

    run = ComfyRun(tiny.options(), tmp_path)
    assert torch.equal(sample(run.attach(tiny.model)), sample(tiny.model))
    assert run.report.reason.code.value == "unsupported_sampler"
    assert "ipndm with extra options" in run.report.status()


def test_a_batch_of_two_is_declined(tiny, tmp_path: Path) -> None:
    assert declined(tiny, tmp_path, tiny.call.but(batch=2)) == "unsupported_latent"


def test_a_noise_mask_is_declined(tiny, tmp_path: Path) -> None:
    mask = torch.zeros(1, 1, 3, 8, 8)
    mask[..., :4] = 1.0
    assert declined(tiny, tmp_path, tiny.call.but(mask=mask)) == "unsupported_latent"


@pytest.mark.parametrize(("sampler", "steps"), [("euler", 1), ("euler", 3), ("uni_pc", 4), ("dpmpp_2m", 4)])
def test_too_few_steps_are_declined(tiny, tmp_path: Path, sampler: str, steps: int) -> None:
    assert declined(tiny, tmp_path, tiny.call.but(sampler=sampler, steps=steps)) == "too_few_steps"


def test_two_positive_prompts_are_declined(tiny, tmp_path: Path) -> None:
    combined = tiny.call.positive + tiny.prompt(5)
    assert declined(tiny, tmp_path, tiny.call.but(positive=combined)) == "unsupported_conditioning"


@pytest.mark.parametrize(
    "placed",
    [
        {"area": (3, 4, 4, 0, 0, 0), "strength": 1.0},
        {"mask": torch.ones(1, 8, 8), "mask_strength": 0.5},
        {"start_percent": 0.0, "end_percent": 0.5},
    ],
    ids=["area", "mask", "timestep range"],
)
@pytest.mark.parametrize("side", ["positive", "negative"])
def test_a_condition_that_applies_only_somewhere_is_declined(tiny, tmp_path: Path, side: str, placed: dict) -> None:
    text = getattr(tiny.call, side)[0][0]
    if "area" in placed:
        placed = {**placed, "area": (8, 4, 0, 0)} if text is None else placed
    assert declined(tiny, tmp_path, tiny.call.but(**{side: [[text, placed]]})) == "unsupported_conditioning"


GUIDANCE = {
    "set_model_sampler_cfg_function": lambda args: args["uncond"] + 2 * (args["cond"] - args["uncond"]),
    "set_model_sampler_pre_cfg_function": lambda args: args["conds_out"],
    "set_model_sampler_post_cfg_function": lambda args: args["denoised"] * 0.9,
    "set_model_unet_function_wrapper": lambda apply, args: apply(args["input"], args["timestep"], **args["c"]),
}


@pytest.mark.parametrize("setter", GUIDANCE)
def test_a_function_that_changes_guidance_is_declined(tiny, tmp_path: Path, setter: str) -> None:
    model = tiny.model.clone()
    getattr(model, setter)(GUIDANCE[setter])
    assert declined(tiny, tmp_path, tiny.call, model) == "foreign_patch"


def test_a_block_replacement_is_declined(tiny, tmp_path: Path) -> None:
    model = tiny.model.clone()
    model.set_model_patch_replace(lambda args, extra: extra["original_block"](args), "dit", "double_block", 1)
    assert declined(tiny, tmp_path, tiny.call, model) == "foreign_patch"


def test_a_guider_that_samples_in_its_own_way_is_declined(tiny, tmp_path: Path) -> None:
    import comfy.sample
    import comfy.samplers

    from carnator_core.hosts.comfy_run import ComfyRun

    class OtherGuider(comfy.samplers.CFGGuider):
        def predict_noise(self, *args, **kwargs):
            return super().predict_noise(*args, **kwargs) * 0.9

    latent = torch.zeros(1, 16, 3, 8, 8)
    noise = comfy.sample.prepare_noise(latent, 3)

    def sample(model):
        guider = OtherGuider(model)
        guider.set_conds(tiny.call.positive, tiny.call.negative)
        guider.set_cfg(5.0)
        sigmas = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "simple", 8)
        with torch.inference_mode():
            return guider.sample(
                noise, latent, comfy.samplers.sampler_object("euler"), sigmas, disable_pbar=True, seed=3
            )

    run = ComfyRun(tiny.options(), tmp_path)
    assert torch.equal(sample(run.attach(tiny.model)), sample(tiny.model))
    assert run.report.reason.code.value == "unsupported_model"
    assert "OtherGuider" in run.report.status()


def test_a_host_without_a_hook_is_declined(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ComfyUI before 0.3.60."""
    import comfy.ldm.flux.math

    monkeypatch.delattr(comfy.ldm.flux.math, "apply_rope1")
    assert declined(tiny, tmp_path, tiny.call) == "unsupported_host"


def test_an_object_that_cannot_be_read_is_declined(tiny, tmp_path: Path) -> None:
    class Unreadable:
        def __call__(self, executor, *args, **kwargs):
            return executor(*args, **kwargs)

    wrapper = Unreadable()
    wrapper.itself = [wrapper]
    wrapper.itself.append(wrapper.itself)
    model = tiny.wrapped(tiny.model, "outer_sample", wrapper, key="other")
    assert declined(tiny, tmp_path, tiny.call, model) == "unsupported_host"


def test_a_method_replaced_on_an_object_is_declined(tiny, tmp_path: Path) -> None:
    """No list of patches shows it, and no key could hold what it does."""
    model = tiny.model.model
    diffusion = model.diffusion_model
    for owner, name in ((model, "apply_model"), (diffusion, "forward_orig"), (diffusion.head, "forward")):
        stock = getattr(owner, name)
        setattr(owner, name, lambda *args, _stock=stock, **kwargs: _stock(*args, **kwargs))
        try:
            result, run = tiny.reuse(tmp_path, tiny.call)
        finally:
            delattr(owner, name)
        assert (run.report.decision.value, run.report.reason.code.value) == ("declined", "foreign_patch")
        assert torch.equal(result, tiny.call(tiny.model))

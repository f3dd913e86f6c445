"""After a run, an error or an interrupt the model is as before, and nothing unfinished is stored."""

import copy
from pathlib import Path

import pytest
import torch


@pytest.fixture
def failing(tiny):
    """failing(error, forward): raises the error in that forward of the model, counted from 0."""
    hooks = []

    def arrange(error: BaseException, forward: int) -> None:
        count = []

        def fail(module, inputs):
            count.append(1)
            if len(count) == forward + 1:
                raise error

        hooks.append(tiny.model.model.diffusion_model.head.register_forward_pre_hook(fail))

    yield arrange
    for hook in hooks:
        hook.remove()


def interrupt() -> BaseException:
    import comfy.model_management

    return comfy.model_management.InterruptProcessingException()


ERRORS = {"interrupt": interrupt, "error": lambda: ValueError("something else broke")}
any_error = pytest.mark.parametrize("kind", ERRORS)


def staging(root: Path) -> list[Path]:
    return list((root / "default" / "staging").iterdir())


@any_error
@pytest.mark.parametrize("forward", [0, 4, 9], ids=["probe", "middle", "last"])
def test_a_miss_that_fails_commits_nothing(tiny, tmp_path: Path, stored, failing, kind: str, forward: int) -> None:
    error = ERRORS[kind]()
    failing(error, forward)
    with pytest.raises(type(error)) as caught:
        tiny.reuse(tmp_path, tiny.call)
    assert caught.value is error, "the host must see its own exception"
    assert stored(tmp_path) == [] and staging(tmp_path) == []


@any_error
@pytest.mark.parametrize("forward", [0, 3, 9], ids=["probe", "region", "refine"])
def test_a_hit_that_fails_leaves_the_store_as_it_was(tiny, tmp_path: Path, stored, failing, kind, forward) -> None:
    tiny.reuse(tmp_path, tiny.call)
    before = stored(tmp_path)
    error = ERRORS[kind]()
    failing(error, forward)
    near = tiny.call.but(positive=tiny.near(tiny.call.positive, 0.2))
    options = tiny.options(region_threshold=0.0, max_region_percent=100.0)
    with pytest.raises(type(error)) as caught:
        tiny.reuse(tmp_path, near, options=options)
    assert caught.value is error
    assert stored(tmp_path) == before and staging(tmp_path) == []


@any_error
@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
def test_a_stock_run_after_a_failure_in_a_hit_is_bit_identical(
    tiny, tmp_path: Path, failing, kind: str, sampler: str
) -> None:
    call = tiny.call.but(sampler=sampler)
    expected = call(tiny.model)
    tiny.reuse(tmp_path, call)
    failing(ERRORS[kind](), 3)
    options = tiny.options(region_threshold=0.0, max_region_percent=100.0)
    with pytest.raises(BaseException):  # noqa: B017 - which one is the subject of other tests
        tiny.reuse(tmp_path, call.but(positive=tiny.near(call.positive, 0.2)), options=options)
    assert torch.equal(call(tiny.model), expected)


class Watch:
    """An outer wrapper of someone else: sees the guider before our run begins and after it has ended.

    What it sees is kept on the class, since the attributes of a wrapper are part of the key.
    """

    before = after = None

    def __call__(self, executor, *args, **kwargs):
        guider = executor.class_obj
        Watch.before = (guider.model_options, copy.deepcopy(guider.model_options))
        try:
            return executor(*args, **kwargs)
        finally:
            Watch.after = guider.model_options


@pytest.mark.parametrize("outcome", ["miss", "hit", "declined", "interrupt", "error"])
def test_the_guiders_options_are_the_same_object_with_the_same_content(
    tiny, tmp_path: Path, failing, outcome: str
) -> None:
    watch = Watch()
    model = tiny.wrapped(tiny.model, "outer_sample", watch, key="someone else")
    call = tiny.call.but(steps=3) if outcome == "declined" else tiny.call
    if outcome == "hit":
        tiny.reuse(tmp_path, call, model)
    if outcome in ERRORS:
        failing(ERRORS[outcome](), 5)
        with pytest.raises(type(ERRORS[outcome]())):
            tiny.reuse(tmp_path, call, model)
    else:
        _, run = tiny.reuse(tmp_path, call, model)
        assert run.report.decision.value == outcome
    original, content = watch.before
    assert watch.after is original
    kinds = ("predict_noise", "calc_cond_batch", "diffusion_model")
    wrappers = original["transformer_options"].get("wrappers", {})
    assert not any(wrappers.get(kind) for kind in kinds)
    for options in (content, original):  # a copy of our wrapper is another object than the wrapper
        options["transformer_options"].pop("wrappers")
        options.pop("to_load_options", None)
    assert original == content


@pytest.mark.parametrize("outcome", ["miss", "hit", "interrupt", "error"])
def test_the_artists_model_is_never_touched(tiny, tmp_path: Path, failing, outcome: str) -> None:
    model = tiny.patched(0.5)
    before = (copy.deepcopy(model.model_options), copy.deepcopy(model.wrappers), copy.deepcopy(model.callbacks))
    keys = (set(model.patches), set(model.object_patches), set(vars(model.model.diffusion_model)))
    if outcome == "hit":
        tiny.reuse(tmp_path, tiny.call, model)
    if outcome in ERRORS:
        failing(ERRORS[outcome](), 5)
        with pytest.raises(type(ERRORS[outcome]())):
            tiny.reuse(tmp_path, tiny.call, model)
    else:
        _, run = tiny.reuse(tmp_path, tiny.call, model)
        assert run.report.decision.value == outcome
    assert (model.model_options, model.wrappers, model.callbacks) == before
    assert (set(model.patches), set(model.object_patches), set(vars(model.model.diffusion_model))) == keys


def test_the_attached_model_carries_one_wrapper_and_no_tensor(tiny, tmp_path: Path) -> None:
    from carnator_core.hosts.comfy_run import ComfyRun

    attached = ComfyRun(tiny.options(), tmp_path).attach(tiny.model)
    assert attached is not tiny.model and attached.model is tiny.model.model
    found = {kind: sorted(keys) for kind, keys in attached.wrappers.items() if any(keys.values())}
    assert found == {"outer_sample": ["carnator"]}
    assert attached.model_options == tiny.model.model_options


def test_a_model_can_be_cloned_by_later_nodes_after_it_was_attached(tiny, tmp_path: Path) -> None:
    from carnator_core.hosts.comfy_run import ComfyRun

    run = ComfyRun(tiny.options(), tmp_path)
    later = run.attach(tiny.model).clone()
    assert torch.equal(tiny.call(later), tiny.call(tiny.model))
    assert run.report.decision.value == "miss"


def test_steps_are_reported_to_the_host_as_in_a_stock_run(tiny, tmp_path: Path) -> None:
    """Progress bar and previews: one callback per step, whether it was computed or replayed."""
    import comfy.sample

    from carnator_core.hosts.comfy_run import ComfyRun

    tiny.reuse(tmp_path, tiny.call)
    seen = []
    call, latent = tiny.call, torch.zeros(1, 16, 3, 8, 8)
    run = ComfyRun(tiny.options(), tmp_path)
    with torch.inference_mode():
        comfy.sample.sample(
            run.attach(tiny.model), comfy.sample.prepare_noise(latent, call.seed), call.steps, call.cfg, "euler",
            "simple", call.positive, call.negative, latent, disable_pbar=True, seed=call.seed,
            callback=lambda step, x0, x, total: seen.append((step, total, tuple(x0.shape))),
        )  # fmt: skip
    assert run.report.decision.value == "hit"
    assert seen == [(step, 10, (1, 16, 3, 8, 8)) for step in range(10)]

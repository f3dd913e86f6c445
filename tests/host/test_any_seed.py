"""The seed policy "any seed": a donor of another seed lends its noise, or the run is the stock one of its own seed."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

SAMPLERS = ["euler", "dpmpp_2m", "res_multistep", "ipndm", "uni_pc", "uni_pc_bh2"]
OTHER = 77  # a seed that no donor has
# As in test_hit.py: with this size, wording and threshold a part of the video is computed.
PARTIAL = {"region_threshold": 0.135, "max_region_percent": 100.0}
SIZE = (3, 16, 16)


@pytest.fixture
def any_seed(tiny, tmp_path: Path):
    """any_seed(call, model, **options): (latent, run) under the policy "any seed", one store for all."""

    def run(call, model=None, donor: str | None = None, **options):
        chosen = tiny.options(**options)
        probe = replace(chosen.probe, seed_policy="any seed", donor=donor)
        return tiny.reuse(tmp_path, call, model, replace(chosen, probe=probe))

    return run


@pytest.fixture
def passes(comfy, monkeypatch: pytest.MonkeyPatch):
    """What the guider held and was given each time it sampled, seen by a stand-in for its own method."""
    import comfy.samplers

    original, seen = comfy.samplers.CFGGuider.outer_sample, []

    @functools.wraps(original)
    def outer_sample(self, noise, latent_image, sampler, sigmas, *others, **more):
        given = SimpleNamespace(
            noise=noise.clone(),
            sigmas=sigmas.clone(),
            latent=latent_image.clone(),
            conds={name: [dict(entry) for entry in entries] for name, entries in self.conds.items()},
            attributes=set(vars(self)),
        )
        seen.append(given)
        return original(self, noise, latent_image, sampler, sigmas, *others, **more)

    monkeypatch.setattr(comfy.samplers.CFGGuider, "outer_sample", outer_sample)
    return seen


def noise_of(call) -> torch.Tensor:
    import comfy.sample

    return comfy.sample.prepare_noise(torch.zeros(1, 16, *call.size), call.seed)


def sample(model, call, noise: torch.Tensor) -> torch.Tensor:
    """A call with noise that did not come from its seed."""
    import comfy.sample

    with torch.inference_mode():
        return comfy.sample.sample(
            model, noise, call.steps, call.cfg, call.sampler, call.scheduler, call.positive, call.negative,
            torch.zeros_like(noise), disable_pbar=True, seed=call.seed,
        )  # fmt: skip


# -- hits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_words_with_another_seed_give_the_donors_video(tiny, far, any_seed, tmp_path, sampler) -> None:
    call = tiny.call.but(sampler=sampler)
    donor, _ = tiny.reuse(tmp_path, call)
    other = call.but(seed=OTHER)
    assert far(other(tiny.model), donor) > 0.3, "the seeds must differ for this to say anything"
    result, run = any_seed(other)
    assert run.report.decision.value == "hit", run.report.status()
    assert far(result, donor) < 2e-3
    assert f"with the donor's seed {call.seed}" in run.report.status()
    assert run.report.to_dict()["donor_seed"] == call.seed


@pytest.mark.parametrize("cfg", [5.0, 1.0])
@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
def test_a_hit_is_bit_for_bit_that_of_the_same_request_with_the_donors_seed(
    tiny, far, any_seed, tmp_path: Path, monkeypatch, sampler: str, cfg: float
) -> None:
    from carnator_core import evidence

    monkeypatch.setattr(evidence, "LATE_RISE", 0.0)  # as in test_hit.py
    call = tiny.call.but(size=SIZE, steps=12, sampler=sampler, cfg=cfg)
    donor, _ = tiny.reuse(tmp_path, call)
    near = call.but(positive=tiny.near(call.positive, 0.2))
    expected, known = tiny.reuse(tmp_path, near, options=tiny.options(**PARTIAL))
    assert known.report.decision.value == "hit" and known.report.steps["region"] > 0, known.report.status()
    result, run = any_seed(near.but(seed=OTHER), **PARTIAL)
    assert torch.equal(result, expected)
    assert run.report.steps == known.report.steps and torch.equal(run.session.heat, known.session.heat)
    replayed = (run.session.heat == 0).repeat_interleave(2, 1).repeat_interleave(2, 2).expand_as(result)
    assert 0 < int(replayed.sum()) < replayed.numel()
    own = near.but(seed=OTHER)(tiny.model)
    assert far(result[replayed], donor[replayed]) < 0.3 * far(own[replayed], donor[replayed])


def test_a_hit_is_not_stored_and_counts_for_its_donor(tiny, any_seed, tmp_path: Path, stored) -> None:
    from carnator_core.options import StoreOptions
    from carnator_core.store.registry import open_store

    _, first = tiny.reuse(tmp_path, tiny.call)
    before = stored(tmp_path)
    _, run = any_seed(tiny.call.but(seed=OTHER))
    assert run.report.donor_id == first.report.entry_id and run.report.entry_id is None
    assert stored(tmp_path) == before
    assert [entry.hits for entry in open_store(tmp_path, StoreOptions()).usage()] == [1]


def test_of_several_seeds_the_one_with_the_nearest_words_lends_its_noise(tiny, any_seed, tmp_path: Path) -> None:
    for seed, words in ((1, tiny.prompt(20)), (2, tiny.prompt(21)), (3, tiny.prompt(22))):
        tiny.reuse(tmp_path, tiny.call.but(seed=seed, positive=words), options=tiny.options(gate=0.0))
    _, run = any_seed(tiny.call.but(seed=OTHER, positive=tiny.near(tiny.prompt(21), 0.1)), max_region_percent=100.0)
    assert run.report.donor_seed == 2, run.report.status()


def test_a_stored_request_of_the_same_seed_comes_first(tiny, any_seed, tmp_path: Path, passes) -> None:
    tiny.reuse(tmp_path, tiny.call)
    own = tiny.call.but(seed=OTHER, positive=tiny.near(tiny.call.positive, 0.2))
    tiny.reuse(tmp_path, own)
    passes.clear()
    _, run = any_seed(tiny.call.but(seed=OTHER), gate=0.0)
    assert run.report.reason.code.value == "gate_rejected" and run.report.seed_note is None
    assert len(passes) == 1 and torch.equal(passes[0].noise, noise_of(own))


def test_a_learned_model_borrows_too(tiny, any_seed) -> None:
    """Five runs with other seeds and prompts, as the guide says; then a near wording with a sixth seed."""
    for number in range(5):
        _, run = any_seed(tiny.call.but(seed=number, positive=tiny.prompt(50 + number)), gate=None)
        assert run.report.decision.value == "miss" and run.report.seed_note is None
    near = tiny.near(tiny.prompt(52), 0.001)
    _, run = any_seed(tiny.call.but(seed=OTHER, positive=near), gate=None, min_text_similarity=0.9)
    assert run.report.decision.value == "hit" and run.report.donor_seed == 2, run.report.status()


def test_both_stages_follow_the_donors_seed(tiny, tmp_path: Path) -> None:
    from carnator_core.hosts.comfy_run import ComfyRun

    def stage(call, latent, start: int, end: int, policy: str):
        import comfy.sample

        options = tiny.options(region_threshold=0.05, max_region_percent=100.0)
        one = ComfyRun(replace(options, probe=replace(options.probe, seed_policy=policy)), tmp_path)
        first = latent is None
        latent = torch.zeros(1, 16, *call.size) if first else latent
        noise = noise_of(call) if first else torch.zeros_like(latent)
        with torch.inference_mode():
            result = comfy.sample.sample(
                one.attach(tiny.model), noise, call.steps, call.cfg, call.sampler, call.scheduler, call.positive,
                call.negative, latent, disable_noise=not first, start_step=start, last_step=end,
                force_full_denoise=False, disable_pbar=True, seed=call.seed,
            )  # fmt: skip
        return result, one.report

    call = tiny.call.but(steps=14)
    left, first = stage(call, None, 0, 6, "same seed")
    _, second = stage(call, left, 6, 10_000, "same seed")
    other = call.but(seed=OTHER, positive=tiny.near(call.positive, 0.2))
    left, again = stage(other, None, 0, 6, "any seed")
    assert again.donor_id == first.entry_id and again.donor_seed == call.seed, again.status()
    _, again = stage(other, left, 6, 10_000, "any seed")
    assert again.decision.value == "hit" and again.donor_id == second.entry_id, again.status()
    assert again.donor_seed is None, "a second stage has no noise to replace"


def test_the_node_sets_the_policy_and_older_graphs_do_not_name_it(pack) -> None:
    from support.pack import pack_module

    node = pack_module("nodes.early_probe").CarnatorEarlyProbe
    older, asked = node.execute(10.0, 4, 0.5), node.execute(10.0, 4, 0.5, seed_policy="any seed")
    assert [made.result[0].any_seed for made in (older, asked)] == [False, True]
    last = node.define_schema().inputs[-1]
    assert (last.id, last.optional, last.default) == ("seed_policy", True, "same seed")


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", [5.0, 1.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_refused_donor_leaves_the_stock_latent_of_the_own_seed(
    tiny, any_seed, tmp_path: Path, passes, sampler: str, cfg: float
) -> None:
    call = tiny.call.but(sampler=sampler, cfg=cfg, steps=12)
    tiny.reuse(tmp_path, call)
    other = call.but(seed=OTHER, positive=tiny.near(call.positive, 0.2))
    stock = other(tiny.model)
    passes.clear()
    result, run = any_seed(other, gate=0.0)
    assert torch.equal(result, stock)
    assert [torch.equal(one.noise, noise_of(wanted)) for one, wanted in zip(passes, (call, other), strict=True)]
    assert run.report.decision.value == "miss" and run.report.donor_seed is None
    assert run.report.steps == {"dense": 12}
    note = "before that 2 steps were spent on a donor with seed 3: the nearest donor is too different in"
    assert note in run.report.status() and run.report.discrepancies is not None
    # It is a donor as any other, under its own seed.
    _, again = tiny.reuse(tmp_path, other)
    assert again.report.decision.value == "hit" and again.report.donor_id == run.report.entry_id


def test_what_is_sampled_after_a_refusal_is_given_what_a_stock_run_is_given(tiny, any_seed, tmp_path, passes) -> None:
    call = tiny.call.but(sampler="uni_pc")  # writes into its sigmas
    tiny.reuse(tmp_path, call)
    other = call.but(seed=OTHER, positive=tiny.near(call.positive, 0.2))
    passes.clear()
    other(tiny.model)
    any_seed(other, gate=0.0)
    stock, borrowed, own = passes
    assert torch.equal(borrowed.noise, noise_of(call)) and torch.equal(own.noise, noise_of(other))
    assert own.attributes == stock.attributes and "inner_model" not in own.attributes
    assert torch.equal(own.sigmas, stock.sigmas) and not own.latent.any()
    for name, entries in stock.conds.items():
        (found,), (entry,) = own.conds[name], entries
        assert found.keys() == entry.keys() and found["model_conds"] == entry["model_conds"] == {}
        assert torch.equal(found["cross_attn"], entry["cross_attn"])
        assert found["uuid"] == borrowed.conds[name][0]["uuid"]


def test_the_seconds_of_both_samplings_are_told_but_the_entry_keeps_those_of_one(tiny, any_seed, tmp_path) -> None:
    from carnator_core.options import StoreOptions
    from carnator_core.store.registry import open_store

    tiny.reuse(tmp_path, tiny.call)
    _, run = any_seed(tiny.call.but(seed=OTHER, positive=tiny.near(tiny.call.positive, 0.2)), gate=0.0)
    infos = {info.id: info for info in open_store(tmp_path, StoreOptions()).entries()}
    assert 0 < infos[run.report.entry_id].seconds < run.report.seconds
    assert infos[run.report.entry_id].seed == OTHER


def test_an_assist_does_not_begin_with_the_noise_of_another_seed(tiny, any_seed, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, tiny.call)
    other = tiny.call.but(seed=OTHER, positive=tiny.near(tiny.call.positive, 0.2))
    result, run = any_seed(other, gate=0.0, assist=True)
    assert run.report.decision.value == "miss" and torch.equal(result, other(tiny.model))
    assert run.report.entry_id is not None


def out_of_memory(tiny, monkeypatch) -> None:
    import comfy.model_management

    failed = []

    def full(module, args):
        if args[0].shape[1] < 3 * 8 * 8 and not failed:
            failed.append(1)
            raise comfy.model_management.OOM_EXCEPTION("out of memory")

    hook = tiny.model.model.diffusion_model.blocks[1].ffn[0].register_forward_pre_hook(full)
    monkeypatch.callback = hook.remove


def bad_file(tiny, monkeypatch) -> None:
    from carnator_core.donor import Donor
    from carnator_core.store.tensor_file import EntryError

    def load(self, step):
        raise EntryError("it went bad")

    monkeypatch.setattr(Donor, "load", load)


def swallowed(tiny, monkeypatch) -> None:
    """Someone's code between us and the sampler that takes whatever ends a sampling for an error of its own."""
    import comfy.samplers

    original = comfy.samplers.CFGGuider.outer_sample

    @functools.wraps(original)
    def outer_sample(self, noise, *others, **more):
        try:
            return original(self, noise, *others, **more)
        except BaseException:
            return torch.zeros_like(noise)

    monkeypatch.setattr(comfy.samplers.CFGGuider, "outer_sample", outer_sample)


@pytest.mark.parametrize("trouble", [out_of_memory, bad_file, swallowed])
def test_a_hit_that_fails_before_it_reused_anything_starts_again_too(
    tiny, any_seed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes, trouble
) -> None:
    from carnator_core import evidence

    monkeypatch.setattr(evidence, "LATE_RISE", 0.0)
    call = tiny.call.but(size=SIZE, steps=12)
    tiny.reuse(tmp_path, call)
    other = call.but(seed=OTHER, positive=tiny.near(call.positive, 0.2))
    stock = other(tiny.model)
    passes.clear()
    trouble(tiny, monkeypatch)
    try:
        result, run = any_seed(other, gate=0.0 if trouble is swallowed else 1e3, **PARTIAL)
    finally:
        getattr(monkeypatch, "callback", lambda: None)()
    assert len(passes) == 2 and torch.equal(result, stock)
    assert run.report.decision.value == "miss" and run.report.entry_id is not None
    assert "before that 2 steps were spent on a donor with seed 3" in run.report.status()


@pytest.mark.parametrize("forward", [0, 1, 3], ids=["probe", "after a refusal", "dense"])
@pytest.mark.parametrize("kind", ["interrupt", "error"])
def test_an_interrupt_or_error_passes_and_leaves_nothing(
    tiny, any_seed, tmp_path: Path, stored, kind: str, forward: int
) -> None:
    import comfy.model_management

    tiny.reuse(tmp_path, tiny.call)
    before, other = stored(tmp_path), tiny.call.but(seed=OTHER, positive=tiny.near(tiny.call.positive, 0.2))
    expected = other(tiny.model)
    interrupt = comfy.model_management.InterruptProcessingException
    error, count = (interrupt() if kind == "interrupt" else ValueError("broke")), []

    def fail(module, inputs):
        count.append(1)
        if len(count) == forward + 1:
            raise error

    hook = tiny.model.model.diffusion_model.head.register_forward_pre_hook(fail)
    try:
        with pytest.raises(type(error)) as caught:
            any_seed(other, gate=0.0)
    finally:
        hook.remove()
    assert caught.value is error and stored(tmp_path) == before
    assert not list((tmp_path / "default" / "staging").iterdir())
    assert torch.equal(other(tiny.model), expected)


@pytest.mark.parametrize("gate", [0.0, 1e3], ids=["refused", "hit"])
def test_nothing_stays_on_the_model_or_in_the_random_numbers_of_the_process(
    tiny, any_seed, tmp_path: Path, passes, gate: float
) -> None:
    model = tiny.patched(0.5)
    tiny.reuse(tmp_path, tiny.call, model)
    other = tiny.call.but(seed=OTHER, positive=tiny.near(tiny.call.positive, 0.2))
    other(model)
    passes.clear()
    state, keys = torch.get_rng_state(), set(vars(model.model.diffusion_model))
    hooks = (model.model_options, model.wrappers, model.callbacks)
    before = [str(held) for held in hooks]
    _, run = any_seed(other, model, gate=gate, max_region_percent=100.0)
    assert (run.report.decision.value, len(passes)) == (("hit", 1) if gate else ("miss", 2)), run.report.status()
    assert torch.equal(torch.get_rng_state(), state)
    assert [str(held) for held in hooks] == before and set(vars(model.model.diffusion_model)) == keys


# -- where nothing is borrowed ----------------------------------------------------------------------------------------


def no_attempt(run, result, stock, passes) -> None:
    assert len(passes) == 1 and torch.equal(result, stock)
    assert run.report.seed_note is None and run.report.donor_seed is None


def test_with_the_policy_same_seed_nothing_is_borrowed(tiny, tmp_path: Path, passes) -> None:
    tiny.reuse(tmp_path, tiny.call)
    other = tiny.call.but(seed=OTHER)
    stock = other(tiny.model)
    passes.clear()
    result, run = tiny.reuse(tmp_path, other)
    no_attempt(run, result, stock, passes)
    assert run.report.reason.sentence.endswith("differs in: seed")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"gate": None}, "key_differs"),
        ({"store": "write"}, "store_write_only"),
        ({"donor": ""}, "donor_unavailable"),
        ({"min_text_similarity": 0.999}, "key_differs"),
    ],
    ids=["still learning", "write only", "a pinned donor", "too different words"],
)
def test_nothing_is_borrowed_where_no_hit_can_come_of_it(
    tiny, any_seed, tmp_path: Path, passes, options: dict, code: str
) -> None:
    tiny.reuse(tmp_path, tiny.call)
    other = tiny.call.but(seed=OTHER, positive=tiny.near(tiny.call.positive, 0.2))
    stock = other(tiny.model)
    passes.clear()
    result, run = any_seed(other, **options)
    no_attempt(run, result, stock, passes)
    assert run.report.reason.code.value == code, run.report.status()


def test_another_setting_than_the_seed_must_be_equal(tiny, any_seed, tmp_path: Path, passes) -> None:
    tiny.reuse(tmp_path, tiny.call)
    other = tiny.call.but(seed=OTHER, cfg=4.0)
    stock = other(tiny.model)
    passes.clear()
    result, run = any_seed(other)
    no_attempt(run, result, stock, passes)


def test_noise_that_did_not_come_from_the_donors_seed_is_not_made_again(tiny, any_seed, tmp_path, passes) -> None:
    tiny.reuse(tmp_path, lambda model: sample(model, tiny.call, noise_of(tiny.call) + 1e-3))
    other = tiny.call.but(seed=OTHER)
    stock = other(tiny.model)
    passes.clear()
    result, run = any_seed(other)
    no_attempt(run, result, stock, passes)


def test_a_request_with_noise_of_another_source_may_borrow(tiny, far, any_seed, tmp_path: Path) -> None:
    donor, _ = tiny.reuse(tmp_path, tiny.call)
    odd = torch.randn(1, 16, *tiny.call.size, generator=torch.Generator().manual_seed(5)) * 1.01
    result, run = any_seed(lambda model: sample(model, tiny.call, odd))
    assert run.report.decision.value == "hit" and far(result, donor) < 2e-3


def test_entries_that_name_no_seed_serve_their_own_seed_only(tiny, any_seed, tmp_path, passes, monkeypatch) -> None:
    """As entries do that were made before this policy existed."""
    from carnator_core.hosts import comfy_run

    with monkeypatch.context() as patch:
        patch.setattr(comfy_run, "as_seed", lambda value: None)
        tiny.reuse(tmp_path, tiny.call)
    other = tiny.call.but(seed=OTHER)
    stock = other(tiny.model)
    passes.clear()
    result, run = any_seed(other, gate=0.0)
    no_attempt(run, result, stock, passes)
    _, run = any_seed(tiny.call)
    assert run.report.decision.value == "hit" and run.report.donor_seed is None


def test_an_input_latent_that_shows_something_borrows_nothing(tiny, any_seed, tmp_path: Path, passes) -> None:
    latent = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    call = tiny.call.but(denoise=0.7, latent=latent)
    tiny.reuse(tmp_path, call)
    other = call.but(seed=OTHER)
    stock = other(tiny.model)
    passes.clear()
    result, run = any_seed(other)
    no_attempt(run, result, stock, passes)


def test_where_someone_else_wraps_the_sampler_nothing_is_borrowed(tiny, tmp_path: Path, passes) -> None:
    """It might remember that it was called before; where it wraps us, it sees one call."""
    from carnator_core.hosts.comfy_run import ComfyRun

    calls = []

    def counting(executor, *args, **kwargs):
        calls.append(1)
        return executor(*args, **kwargs)

    options = tiny.options()
    options = replace(options, probe=replace(options.probe, seed_policy="any seed"))
    other = tiny.call.but(seed=OTHER)
    decisions = {}
    for place in ("inside", "outside"):
        for call in (tiny.call, other):
            run = ComfyRun(options, tmp_path / place)
            if place == "inside":
                model = tiny.wrapped(run.attach(tiny.model), "outer_sample", counting)
            else:
                model = run.attach(tiny.wrapped(tiny.model, "outer_sample", counting))
            calls.clear()
            call(model)
            assert len(calls) == 1
        decisions[place] = run.report.decision.value
    assert decisions == {"inside": "miss", "outside": "hit"}


def test_the_arguments_keep_the_layout_in_which_they_came(tiny, tmp_path: Path) -> None:
    """Other packs' wrappers take some by place and some by name."""
    import comfy.samplers
    from comfy.patcher_extension import WrapperExecutor

    from carnator_core.hosts.comfy_seed import BorrowableCall

    guider = comfy.samplers.CFGGuider(tiny.model)
    executor = WrapperExecutor.new_class_executor(guider.outer_sample, guider, [])
    noise, latent, sigmas = noise_of(tiny.call), torch.zeros(1, 16, *tiny.call.size), torch.linspace(1, 0, 5)
    donor = SimpleNamespace(info=SimpleNamespace(seed=5))
    expected = noise_of(tiny.call.but(seed=5))
    places = BorrowableCall(
        executor, (noise, latent, "sampler", sigmas, None, "callback", True, 9), {"latent_shapes": 1}
    )
    args, kwargs = places.with_noise_of(donor)
    assert torch.equal(args[0], expected) and args[2:3] + args[4:] == ("sampler", None, "callback", True, 5)
    assert torch.equal(args[1], latent) and torch.equal(args[3], sigmas) and args[3] is not sigmas
    assert kwargs == {"latent_shapes": 1}
    names = BorrowableCall(executor, (), {"noise": noise, "latent_image": latent, "sigmas": sigmas, "sampler": "s"})
    args, kwargs = names.with_noise_of(donor)
    assert args == () and list(kwargs) == ["noise", "latent_image", "sigmas", "sampler"]
    assert torch.equal(kwargs["noise"], expected) and kwargs["sampler"] == "s"

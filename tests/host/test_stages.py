"""Parts of a schedule, and two stages of which the second continues what the first left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

SAMPLERS = ["euler", "dpmpp_2m", "res_multistep", "ipndm", "uni_pc", "uni_pc_bh2"]
STEPS = 14
SPLIT = 6
MANY = 10_000


def stage(call, model, latent: torch.Tensor | None, start: int, end: int) -> torch.Tensor:
    """What KSamplerAdvanced does: the first stage adds the noise and leaves some, the second finishes."""
    import comfy.sample

    first = latent is None
    latent = torch.zeros(1, 16, *call.size) if first else latent
    noise = comfy.sample.prepare_noise(latent, call.seed) if first else torch.zeros_like(latent)
    with torch.inference_mode():
        return comfy.sample.sample(
            model, noise, call.steps, call.cfg, call.sampler, call.scheduler, call.positive, call.negative, latent,
            disable_noise=not first, start_step=start, last_step=end, force_full_denoise=False,
            disable_pbar=True, seed=call.seed,
        )  # fmt: skip


@pytest.fixture
def reuse_stage(tiny, tmp_path: Path):
    """reuse_stage(call, latent, start, end): (latent, report) through Carnator, one store for all stages."""
    from carnator_core.hosts.comfy_run import ComfyRun

    def run(call, latent, start: int, end: int, **options):
        one = ComfyRun(tiny.options(**options), tmp_path)
        return stage(call, one.attach(tiny.model), latent, start, end), one.report

    return run


@pytest.fixture
def both(reuse_stage):
    """both(call): reports of the two stages and the final latent."""

    def run(call, **options):
        middle, first = reuse_stage(call, None, 0, SPLIT, **options)
        final, second = reuse_stage(call, middle, SPLIT, MANY, **options)
        return first, second, final

    return run


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_stage_is_stock_when_it_misses_and_close_to_it_when_it_hits(tiny, far, reuse_stage, sampler: str) -> None:
    call = tiny.call.but(sampler=sampler, steps=STEPS)
    left = stage(call, tiny.model, None, 0, SPLIT)
    for latent, start, end in ((None, 0, SPLIT), (left, SPLIT, MANY)):
        stock = stage(call, tiny.model, latent, start, end)
        result, report = reuse_stage(call, latent, start, end)
        assert (report.decision.value, torch.equal(result, stock)) == ("miss", True), report.status()
        result, report = reuse_stage(call, latent, start, end)
        assert report.decision.value == "hit", report.status()
        assert far(result, stock) < 2e-3


@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
@pytest.mark.parametrize("first", [True, False], ids=["first stage", "second stage"])
def test_a_region_of_everything_is_the_dense_stage(tiny, far, reuse_stage, sampler: str, first: bool) -> None:
    call = tiny.call.but(sampler=sampler, steps=STEPS)
    left, start, end = (None, 0, SPLIT) if first else (stage(call, tiny.model, None, 0, SPLIT), SPLIT, MANY)
    reuse_stage(call, left, start, end)
    other = call.but(positive=tiny.near(call.positive, 0.5))
    result, report = reuse_stage(
        other, left, start, end, region_threshold=0.0, max_region_percent=100.0, guidance_interval=1,
        window_start_percent=50.0, window_end_percent=50.0,
    )  # fmt: skip
    assert report.decision.value == "hit" and report.steps["region"] > 0
    stock = stage(other, tiny.model, left, start, end)
    assert far(stage(call, tiny.model, left, start, end), stock) > 0.02, "the prompts must differ to say anything"
    assert far(result, stock) < 1e-5


def test_only_the_stage_that_ends_at_zero_refines(tiny, reuse_stage) -> None:
    call = tiny.call.but(steps=STEPS)
    left, _ = reuse_stage(call, None, 0, SPLIT)
    _, report = reuse_stage(call, None, 0, SPLIT)
    assert report.steps["dense"] == 1, report.steps
    reuse_stage(call, left, SPLIT, MANY)
    _, report = reuse_stage(call, left, SPLIT, MANY)
    assert report.steps["dense"] == 2, report.steps


@pytest.mark.parametrize(("start", "end", "steps"), [(0, 2, 4), (2, MANY, 4), (3, MANY, 6), (0, 2, 20)])
def test_a_stage_of_too_few_steps_is_declined(tiny, reuse_stage, start: int, end: int, steps: int) -> None:
    call = tiny.call.but(steps=steps)
    latent = stage(call, tiny.model, None, 0, start) if start else None
    result, report = reuse_stage(call, latent, start, end)
    assert (report.decision.value, report.reason.code.value) == ("declined", "too_few_steps"), report.status()
    assert torch.equal(result, stage(call, tiny.model, latent, start, end))


def test_three_steps_without_refinement_are_enough(tiny, reuse_stage) -> None:
    call = tiny.call.but(steps=STEPS)
    reuse_stage(call, None, 0, 3)
    _, report = reuse_stage(call, None, 0, 3)
    assert report.decision.value == "hit", report.status()


def test_a_noise_level_that_rises_is_declined(tiny, tmp_path: Path) -> None:
    import comfy.sample
    import comfy.samplers

    from carnator_core.hosts.comfy_run import ComfyRun

    latent = torch.zeros(1, 16, 3, 8, 8)
    noise = comfy.sample.prepare_noise(latent, 3)
    sigmas = torch.tensor([1.0, 0.9, 0.8, 0.85, 0.5, 0.2, 0.0])

    def sample(model):
        with torch.inference_mode():
            return comfy.sample.sample_custom(
                model, noise, 5.0, comfy.samplers.sampler_object("euler"), sigmas, tiny.call.positive,
                tiny.call.negative, latent, disable_pbar=True, seed=3,
            )  # fmt: skip

    run = ComfyRun(tiny.options(), tmp_path)
    assert torch.equal(sample(run.attach(tiny.model)), sample(tiny.model))
    assert (run.report.decision.value, run.report.reason.code.value) == ("declined", "unsupported_schedule")


@pytest.mark.parametrize("denoise", [0.3, 0.7])
def test_a_denoise_below_one_shares_work_only_from_an_equal_latent(tiny, far, tmp_path: Path, denoise: float) -> None:
    latent = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    call = tiny.call.but(denoise=denoise, latent=latent)
    stock, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "miss" and torch.equal(stock, call(tiny.model))
    result, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "hit" and far(result, stock) < 2e-3
    _, run = tiny.reuse(tmp_path, call.but(latent=latent + 1e-3))
    assert run.report.reason.sentence.endswith("differs in: input latent")


# -- lineage -------------------------------------------------------------------------------------------------------

PARTIAL = {"region_threshold": 0.05, "max_region_percent": 100.0}


def test_a_changed_prompt_hits_in_both_stages(tiny, far, both) -> None:
    call = tiny.call.but(steps=STEPS)
    first, second, final = both(call)
    assert (first.decision.value, second.decision.value) == ("miss", "miss")
    other = call.but(positive=tiny.near(call.positive, 0.2))
    again_first, again_second, changed = both(other, **PARTIAL)
    assert again_first.donor_id == first.entry_id, again_first.status()
    assert again_second.donor_id == second.entry_id, again_second.status()
    stock = stage(other, tiny.model, stage(other, tiny.model, None, 0, SPLIT), SPLIT, MANY)
    assert far(changed, stock) < far(final, stock)


def test_the_second_stage_uses_the_donor_of_its_own_first_stage(tiny, both) -> None:
    one = tiny.call.but(steps=STEPS)
    two = one.but(positive=tiny.prompt(5))
    stored = {name: both(call, gate=0.0)[:2] for name, call in (("one", one), ("two", two))}
    assert len({report.entry_id for pair in stored.values() for report in pair}) == 4
    for name, call in (("one", one), ("two", two)):
        near = call.but(positive=tiny.near(call.positive, 0.2))
        first, second, _ = both(near, min_text_similarity=0.9, **PARTIAL)
        assert [first.donor_id, second.donor_id] == [report.entry_id for report in stored[name]]


def test_a_second_stage_behind_a_hit_is_never_stored(tiny, tmp_path: Path, stored, reuse_stage) -> None:
    call = tiny.call.but(steps=STEPS)
    left, _ = reuse_stage(call, None, 0, SPLIT)
    reuse_stage(call, left, SPLIT, MANY)
    other = call.but(positive=tiny.near(call.positive, 0.2))
    left, report = reuse_stage(other, None, 0, SPLIT, **PARTIAL)
    assert report.decision.value == "hit"
    before = stored(tmp_path)
    final, report = reuse_stage(other, left, SPLIT, MANY, gate=0.0)
    assert report.reason.code.value == "gate_rejected" and "reused run" in report.status()
    assert torch.equal(final, stage(other, tiny.model, left, SPLIT, MANY))
    # Nor is what continues from that one.
    _, report = reuse_stage(other.but(cfg=4.0), final, 4, MANY, gate=0.0)
    assert report.decision.value == "miss" and report.entry_id is None
    assert stored(tmp_path) == before and len(before) == 2


def test_a_second_stage_behind_an_assist_is_never_stored(tiny, stored, tmp_path: Path, reuse_stage) -> None:
    call = tiny.call.but(steps=STEPS)
    reuse_stage(call, None, 0, SPLIT)
    other = call.but(positive=tiny.near(call.positive, 0.2))
    saving = {"gate": 0.0, "assist": True, "guidance_fresh_sigma": 1.0, "guidance_interval": 3}
    left, report = reuse_stage(other, None, 0, SPLIT, **saving)
    assert report.decision.value == "assist"
    _, report = reuse_stage(other, left, SPLIT, MANY)
    assert report.decision.value == "miss" and "reused run" in report.status()
    assert report.entry_id is None and len(stored(tmp_path)) == 1


def test_what_follows_a_declined_stage_behind_a_hit_is_never_stored(tiny, tmp_path: Path, stored, reuse_stage) -> None:
    call = tiny.call.but(steps=STEPS)
    reuse_stage(call, None, 0, SPLIT)
    other = call.but(positive=tiny.near(call.positive, 0.2))
    left, report = reuse_stage(other, None, 0, SPLIT, **PARTIAL)
    assert report.decision.value == "hit"
    between, report = reuse_stage(other.but(sampler="heun"), left, SPLIT, SPLIT + 3)
    assert report.decision.value == "declined"
    _, report = reuse_stage(other, between, SPLIT + 3, MANY)
    assert report.decision.value == "miss" and report.entry_id is None and len(stored(tmp_path)) == 1


def test_after_a_restart_a_dense_first_stage_leads_to_the_stored_second(tiny, both, monkeypatch) -> None:
    from carnator_core.hosts import comfy_run
    from carnator_core.lineage import Lineage

    call = tiny.call.but(steps=STEPS)
    _, second, _ = both(call)
    for _ in range(2):
        monkeypatch.setattr(comfy_run, "LINEAGE", Lineage())
        _, again, _ = both(call, store="write")
        assert again.reason.code.value == "store_write_only" and again.entry_id == second.entry_id
    monkeypatch.setattr(comfy_run, "LINEAGE", Lineage())
    first, again, _ = both(call.but(positive=tiny.near(call.positive, 0.2)), **PARTIAL)
    assert first.decision.value == "hit" and again.donor_id == second.entry_id


def test_behind_a_donor_that_names_no_output_the_second_stage_runs_densely(tiny, both, monkeypatch) -> None:
    """As entries of version 0.1.0 do."""
    from carnator_core.session import Session

    call = tiny.call.but(steps=STEPS)
    commit = Session.commit
    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", lambda self, seconds, *others: commit(self, seconds))
        both(call)
    first, second, _ = both(call.but(positive=tiny.near(call.positive, 0.2)), **PARTIAL)
    assert first.decision.value == "hit" and second.decision.value == "miss"
    assert "input latent" in second.status() and "not stored" in second.status()


def test_another_first_stage_is_another_input_latent(tiny, reuse_stage) -> None:
    call = tiny.call.but(steps=STEPS)
    left, _ = reuse_stage(call, None, 0, SPLIT, gate=0.0)
    reuse_stage(call, left, SPLIT, MANY)
    far, report = reuse_stage(call.but(positive=tiny.prompt(5)), None, 0, SPLIT, gate=0.0)
    assert report.decision.value == "miss"
    _, report = reuse_stage(call, far, SPLIT, MANY)
    assert "input latent" in report.status()


def test_both_stages_are_learned_without_a_gate(tiny, both) -> None:
    """Five runs with other seeds and prompts, as the guide says; then a near wording."""
    for number in range(5):
        both(tiny.call.but(steps=STEPS, seed=number, positive=tiny.prompt(50 + number)), gate=None)
    call = tiny.call.but(steps=STEPS, seed=0, positive=tiny.near(tiny.prompt(50), 0.001))
    first, second, _ = both(call, gate=None)
    assert "learning" not in first.status() and "learning" not in second.status(), (first.status(), second.status())

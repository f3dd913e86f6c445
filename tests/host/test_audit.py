"""Audits: a hit stays what it is, and its request run again densely is what a stock run would have been."""

from __future__ import annotations

import copy
import itertools
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from carnator_core.identity import tensor_digest
from carnator_core.store.entry import read_info

NEAR = {"region_threshold": 0.135, "max_region_percent": 100.0}  # as in test_hit.py: a part of the video is computed
SIZE = (3, 16, 16)


@pytest.fixture
def call(tiny):
    return tiny.call.but(size=SIZE)


@pytest.fixture
def near(tiny, call):
    return call.but(positive=tiny.near(call.positive, 0.2))


@pytest.fixture
def audited(tiny, tmp_path: Path):
    """audited(call, percent, model, **options): (latent, dense latent, run); what it showed is in ``audited.shown``."""
    from carnator_core.hosts.comfy_audit import Auditor

    def run(call, percent: float = 100.0, model: Any = None, chosen: Any = None, **options):
        result, one = tiny.reuse(tmp_path, call, model, chosen or tiny.options(**{**NEAR, **options}))
        with torch.inference_mode():
            dense = Auditor(tiny.sampler_call(call, model), percent, shown.append).audit(one, result)
        return result, dense, one

    run.shown = shown = []
    return run


def contents(root: Path, entry_id: str) -> dict[str, Any]:
    """All that an entry holds but the times."""
    folder = root / "default" / "entries" / entry_id
    info = asdict(read_info(folder)[0])
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".safetensors"}
    for path in folder.glob("*.safetensors"):
        kept |= {f"{path.name} {name}": tensor_digest(tensor) for name, tensor in load_file(path).items()}
    return {**kept, **{name: value for name, value in info.items() if name not in ("created", "seconds")}}


def staging(root: Path) -> list[Path]:
    return list((root / "default" / "staging").iterdir())


@pytest.mark.parametrize("attention", ["dense", "consensus"])
@pytest.mark.parametrize("sampler", ["euler", "uni_pc", "dpmpp_2m"])
def test_an_audited_hit_is_the_hit_and_its_dense_run_a_donor_like_any(
    tiny, call, near, audited, tmp_path: Path, stored, sampler: str, attention: str
) -> None:
    call, near = call.but(sampler=sampler), near.but(sampler=sampler)
    options = tiny.options(**NEAR, attention=attention)
    for root in (tmp_path, tmp_path / "plain"):
        tiny.reuse(root, call, options=options)
    expected, plain = tiny.reuse(tmp_path / "plain", near, options=options)
    result, dense, run = audited(near, attention=attention)
    assert run.report.decision.value == "hit" and 0 < run.report.region_share < 1
    assert torch.equal(result, expected) and torch.equal(dense, near(tiny.model))
    assert plain.report.request_id == run.report.request_id and run.report.entry_id is None
    assert len(stored(tmp_path)) == 2 and len(stored(tmp_path / "plain")) == 1
    _, miss = tiny.reuse(tmp_path / "stock", near, options=options)
    name = miss.report.entry_id
    stored(tmp_path / "stock")
    donor = contents(tmp_path, name)
    assert donor == contents(tmp_path / "stock", name)
    assert ("connectivity.safetensors kept" in donor) == (attention == "consensus") and "preview.jpg" in donor


def test_the_report_tells_how_far_the_hit_is_from_its_dense_run(tiny, call, near, audited, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, call)
    result, dense, run = audited(near)
    report = run.report.to_dict()
    assert report["audit"] is True
    units = tiny.model.model.latent_format.process_in
    squares = (units(result) - units(dense)).square().mean(dim=1)[0]
    own = run.session.heat.repeat_interleave(2, 1).repeat_interleave(2, 2) > 0
    assert 0 < float(own.float().mean()) < 1
    assert report["dense_difference"]["inside"] == pytest.approx(float(squares[own].mean().sqrt()), rel=1e-3)
    assert report["dense_difference"]["outside"] == pytest.approx(float(squares[~own].mean().sqrt()), rel=1e-3)
    assert "(audited in " in run.report.status() and "differs from the dense run by 0." in run.report.status()
    assert audited.shown == [
        f"audit (step {step} of 10): the hit again, in full; an interrupt keeps the hit" for step in range(1, 11)
    ]


def test_what_the_hit_cost_and_saved_is_told_without_its_audit(tiny, call, near, tmp_path: Path) -> None:
    from carnator_core.hosts.comfy_audit import Auditor
    from carnator_core.options import StoreOptions
    from carnator_core.store.registry import open_store

    tiny.reuse(tmp_path, call)
    result, run = tiny.reuse(tmp_path, near, options=tiny.options(**NEAR))
    before, store = copy.deepcopy(run.report), open_store(tmp_path, StoreOptions())
    uses = [(entry.id, entry.hits, entry.seconds_saved) for entry in store.usage()]
    Auditor(tiny.sampler_call(near), 100.0, print).audit(run, result)
    told = {"audit": True, **{name: getattr(run.report, name) for name in ("audit_note", "dense_difference")}}
    assert run.report == replace(before, **told)
    assert [use for use in ((e.id, e.hits, e.seconds_saved) for e in store.usage()) if use[1]] == uses


def test_the_dense_run_is_the_donor_of_what_comes_next(tiny, call, near, audited, far, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, call)
    _, dense, run = audited(near)
    again, second, repeated = audited(near)
    assert repeated.report.donor_id == run.report.request_id and far(again, dense) < 2e-3
    assert torch.equal(second, dense) and repeated.report.dense_difference["inside"] is None


def test_only_hits_that_are_chosen_are_run_again(tiny, call, near, audited, forwards, tmp_path: Path) -> None:
    from carnator_core.audit import is_chosen

    count = forwards()
    _, dense, run = audited(call)
    assert dense is None and run.report.decision.value == "miss" and len(count) == 10
    _, dense, run = audited(call.but(steps=2))
    assert dense is None and run.report.decision.value == "declined" and len(count) == 12
    _, _, run = audited(near, 0.0)
    hit = len(count) - 12
    assert run.report.decision.value == "hit" and hit < 10 and not run.report.audit and run.report.audit_note is None
    for percent in (20.0, 40.0, 60.0, 80.0):
        count.clear()
        _, dense, run = audited(near, percent, store="read")
        chosen = is_chosen(run.report.request_id, percent)
        assert (dense is not None) == run.report.audit == chosen
        assert len(count) == hit + 10 * chosen


def test_a_store_that_is_only_read_gets_no_donor(tiny, call, near, audited, tmp_path: Path, stored) -> None:
    tiny.reuse(tmp_path, call)
    before = stored(tmp_path)
    result, dense, run = audited(near, store="read")
    assert run.report.audit and torch.equal(dense, near(tiny.model)) and not torch.equal(dense, result)
    assert stored(tmp_path) == before and run.report.store_note is None and "no donor" not in run.report.status()


def test_a_dense_run_that_finds_no_room_is_compared_all_the_same(
    tiny, call, near, audited, tmp_path: Path, stored, monkeypatch
) -> None:
    from carnator_core.store import folder

    tiny.reuse(tmp_path, call)
    before = stored(tmp_path)
    monkeypatch.setattr(folder, "MIN_FREE_BYTES", 1 << 60)
    _, dense, run = audited(near)
    assert run.report.audit and torch.equal(dense, near(tiny.model)) and stored(tmp_path) == before
    assert "that is no donor: less than 5 GB are free" in run.report.status()


def test_with_the_noise_of_a_donor_its_seed_is_run_again(tiny, call, near, audited, tmp_path: Path, stored) -> None:
    tiny.reuse(tmp_path, call)
    options = tiny.options(**NEAR)
    options = replace(options, probe=replace(options.probe, seed_policy="any seed"))
    state = torch.get_rng_state()
    result, dense, run = audited(near.but(seed=77), chosen=options)
    state_after = torch.get_rng_state()
    assert run.report.decision.value == "hit" and run.report.donor_seed == call.seed
    assert torch.equal(dense, near(tiny.model)) and run.report.audit and len(stored(tmp_path)) == 2
    torch.set_rng_state(state)
    near.but(seed=77)(tiny.model)
    assert torch.equal(torch.get_rng_state(), state_after)


def test_a_second_stage_behind_a_hit_is_compared_and_not_stored(
    tiny, call, near, audited, tmp_path: Path, stored
) -> None:
    first = [tiny.reuse(tmp_path, one, options=tiny.options(**NEAR))[0] for one in (call, near)]
    stages = [one.but(denoise=0.6, latent=latent) for one, latent in zip((call, near), first, strict=True)]
    tiny.reuse(tmp_path, stages[0], options=tiny.options(**NEAR))
    before = stored(tmp_path)
    _, dense, run = audited(stages[1])
    assert run.report.decision.value == "hit", run.report.status()
    assert torch.equal(dense, stages[1](tiny.model)) and run.report.audit and stored(tmp_path) == before
    assert "that is no donor: its input latent came from a reused run" in run.report.status()


# -- the record ----------------------------------------------------------------------------------------------------


def test_the_record_has_both_pictures_and_its_verdict_is_one_on_an_audit(
    tiny, call, near, audited, tmp_path: Path
) -> None:
    from carnator_core.hosts.comfy_apply import outcome_of
    from carnator_core.hosts.comfy_picture import preview_picture
    from carnator_core.options import StoreOptions
    from carnator_core.store.registry import open_store
    from carnator_core.store.verdicts import judge_decision

    tiny.reuse(tmp_path, call)
    result, dense, run = audited(near)
    outcome = outcome_of(run, tiny.model, result, dense)
    store = open_store(tmp_path, StoreOptions())
    (record,) = store.history.read()
    assert record.audit and record.picture and record.dense_picture
    assert record.dense_difference == run.report.dense_difference and record.status == outcome.status
    assert store.history.picture(record.id) == preview_picture(tiny.model, result)
    assert store.history.dense_picture(record.id) == preview_picture(tiny.model, dense)
    assert judge_decision(store, record.id, safe=True).origin == "audit"
    result, dense, run = audited(near, 0.0)
    outcome_of(run, tiny.model, result, dense)
    record = store.history.read()[-1]
    assert (record.decision, record.audit, record.dense_picture) == ("hit", False, False)
    assert judge_decision(store, record.id, safe=True).origin == "artist"


def test_it_is_no_setting_of_a_certificate(tiny, call, near, audited, tmp_path: Path) -> None:
    from carnator_core.settings import plan_hash

    tiny.reuse(tmp_path, call)
    hashes = {plan_hash(audited(near, percent, store="read")[2].report.settings) for percent in (0.0, 100.0)}
    assert len(hashes) == 1


# -- trouble -------------------------------------------------------------------------------------------------------


def kept(tiny, near, result, dense, run, told: str) -> None:
    """The hit is what it would have been, and a note tells why it was not audited."""
    assert dense is None and not run.report.audit and run.report.dense_difference is None
    assert run.report.decision.value == "hit" and f"(not audited: {told})" in run.report.status()


@pytest.mark.parametrize("forward", [0, 4, 9], ids=["first step", "middle", "last step"])
@pytest.mark.parametrize("kind", ["raised", "asked for"])
def test_an_interrupt_ends_the_audit_and_loses_no_hit(
    tiny, call, near, audited, tmp_path: Path, stored, forwards, forward: int, kind: str
) -> None:
    from comfy import model_management

    for root in (tmp_path, tmp_path / "plain"):
        tiny.reuse(root, call)
    count = forwards()
    expected, _ = tiny.reuse(tmp_path / "plain", near, options=tiny.options(**NEAR))
    hit, before = len(count), copy.deepcopy(tiny.model.model_options)

    def interrupt(n: int) -> None:
        if n == hit + forward and kind == "raised":
            raise model_management.InterruptProcessingException
        if n == hit + forward:
            model_management.interrupt_current_processing()

    forwards(interrupt)
    try:
        result, dense, run = audited(near)
        assert not model_management.processing_interrupted()
    finally:
        model_management.interrupt_current_processing(False)
    kept(tiny, near, result, dense, run, "interrupted")
    assert torch.equal(result, expected)
    assert len(stored(tmp_path)) == 1 and staging(tmp_path) == []
    assert tiny.model.model_options == before
    assert torch.equal(audited(near)[1], near(tiny.model)), "the next one is whole"


def out_of_memory() -> Exception:
    import comfy.model_management

    return comfy.model_management.OOM_EXCEPTION("CUDA out of memory. Tried to allocate")


@pytest.mark.parametrize(
    ("error", "told"),
    [(out_of_memory, "out of memory"), (lambda: ValueError("broke\nin two"), "broke"), (KeyError, "KeyError")],
    ids=["out of memory", "an error", "an error without words"],
)
def test_a_failure_is_a_note_and_the_hit_stands(
    tiny, call, near, audited, tmp_path: Path, stored, forwards, error, told: str
) -> None:
    tiny.reuse(tmp_path, call)
    count = forwards()
    expected, _ = tiny.reuse(tmp_path, near, options=tiny.options(**NEAR))
    hit = len(count)

    def fail(n: int) -> None:
        if n == hit + 3:
            raise error()

    forwards(fail)
    result, dense, run = audited(near)
    kept(tiny, near, result, dense, run, told)
    assert torch.equal(result, expected) and len(stored(tmp_path)) == 1 and staging(tmp_path) == []


def test_too_little_memory_for_what_a_donor_needs_leaves_the_comparison(
    tiny, call, near, audited, tmp_path: Path, stored, forwards
) -> None:
    """The step that ends the probe keeps more than a stock one, and is done again without."""
    tiny.reuse(tmp_path, call)
    count = forwards()
    tiny.reuse(tmp_path, near, options=tiny.options(**NEAR))
    hit = len(count)

    def fail(n: int) -> None:
        if n == hit:
            raise out_of_memory()

    forwards(fail)
    _, dense, run = audited(near)
    assert run.report.audit and torch.equal(dense, near(tiny.model)) and len(stored(tmp_path)) == 1
    assert "that is no donor: " in run.report.status()


def test_another_call_than_that_of_the_hit_is_no_audit(tiny, call, near, tmp_path: Path, stored) -> None:
    from carnator_core.hosts.comfy_audit import Auditor

    tiny.reuse(tmp_path, call)
    result, run = tiny.reuse(tmp_path, near, options=tiny.options(**NEAR))
    with torch.inference_mode():
        dense = Auditor(tiny.sampler_call(near.but(seed=78)), 100.0, print).audit(run, result)
    kept(tiny, near, result, dense, run, "the call differs from the request in: seed")
    assert len(stored(tmp_path)) == 1


def test_what_another_pack_adds_to_the_sampler_is_part_of_the_dense_run(
    tiny, call, near, audited, tmp_path: Path
) -> None:
    seen = itertools.count()

    class Brighter:
        """What it sees is no attribute of it: those are part of the key."""

        def __call__(self, executor, *args, **kwargs):
            next(seen)
            return executor(*args, **kwargs) + 0.125

    model = tiny.wrapped(tiny.model, "outer_sample", Brighter())
    tiny.reuse(tmp_path, call, model)
    _, dense, run = audited(near, model=model)
    assert run.report.audit and next(seen) == 3
    assert torch.equal(dense, near(model))


def test_nothing_stays_on_the_model_or_in_the_random_numbers(tiny, call, near, audited, tmp_path: Path) -> None:
    model = tiny.patched(0.5)
    tiny.reuse(tmp_path, call, model)
    hooks = (model.model_options, model.wrappers, model.callbacks)
    before = copy.deepcopy(hooks)
    keys = (set(model.patches), set(model.object_patches), set(vars(model.model.diffusion_model)))
    near(model)
    state = torch.get_rng_state()
    _, _, run = audited(near, model=model)
    assert run.report.audit and torch.equal(torch.get_rng_state(), state)
    assert (model.model_options, model.wrappers, model.callbacks) == before
    assert (set(model.patches), set(model.object_patches), set(vars(model.model.diffusion_model))) == keys

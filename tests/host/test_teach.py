"""Short probes: the first run with a clip teaches the model's scale, and leaves nothing else."""

from __future__ import annotations

import copy
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

OTHER = 77
NEAR, FAR = 0.01, 3.0  # amounts of noise on a wording: hardly another one, and another scene
SAMPLERS = ["euler", "dpmpp_2m", "res_multistep", "ipndm", "uni_pc", "uni_pc_bh2"]


@pytest.fixture(scope="module")
def clip(pack) -> Any:
    from support.pack import node_classes

    return node_classes()["CarnatorDemoTextEncoder"].execute().args[0]


@pytest.fixture
def call(tiny):
    """Prompts of as many tokens as the demo text encoder makes."""
    return tiny.call.but(positive=tiny.prompt(1, 32), negative=tiny.prompt(9, 32))


@pytest.fixture
def taught(tiny, clip, tmp_path: Path):
    """taught(call, model, **options): (latent, run) of a run with a clip; what it showed is in ``taught.shown``."""
    from carnator_core.hosts.comfy_teach import Teacher

    def run(call, model=None, root: Path = tmp_path, text_encoder: Any = clip, chosen: Any = None, **options):
        chosen = chosen or tiny.options(**{"gate": None, **options})
        with torch.inference_mode():
            result, one = tiny.reuse(root, call, model, chosen)
            Teacher(tiny.sampler_call(call, model), text_encoder, shown.append).teach(one)
        return result, one

    run.shown = shown = []
    return run


def scales(root: Path) -> list[Path]:
    return sorted((root / "default" / "scales").glob("*"))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_first_run_is_the_stock_one_and_teaches(tiny, taught, call, tmp_path: Path, stored, sampler: str) -> None:
    call = call.but(sampler=sampler)
    expected = call(tiny.model)
    state = torch.get_rng_state()
    result, run = taught(call)
    assert torch.equal(result, expected) and torch.equal(torch.get_rng_state(), state)
    report = run.report
    assert report.decision.value == "miss" and report.learned_pairs == 8
    assert "(learned this model from 5 short probes, " in report.status() and "learning" not in report.status()
    assert stored(tmp_path) == [report.entry_id] and len(scales(tmp_path)) == 1
    assert torch.equal(call(tiny.model), expected)


def test_the_second_run_is_judged_on_that_scale(tiny, taught, call, tmp_path: Path) -> None:
    from carnator_core.options import StoreOptions
    from carnator_core.scale import REFERENCE, TAUGHT_SHARE, medians, setting_of
    from carnator_core.store.registry import open_store

    _, first = taught(call)
    near, far = (call.but(positive=tiny.near(call.positive, amount)) for amount in (NEAR, FAR))
    _, hit = taught(near)
    assert hit.report.decision.value == "hit", hit.report.status()
    assert hit.report.donor_id == first.report.entry_id and hit.report.scale_note is None
    _, refused = taught(far, region_threshold=10.0)
    assert refused.report.reason.code.value == "gate_rejected", refused.report.status()
    found = open_store(tmp_path, StoreOptions()).scales.read(setting_of(first.session.request.key))
    ratio = medians(found).state / REFERENCE.state
    assert refused.report.thresholds.state == pytest.approx(0.06 * ratio * TAUGHT_SHARE)


def test_what_it_cost_is_told_and_the_entry_keeps_the_seconds_of_its_run(taught, call, tmp_path: Path) -> None:
    from carnator_core.options import StoreOptions
    from carnator_core.store.registry import open_store

    _, run = taught(call)
    (info,) = open_store(tmp_path, StoreOptions()).entries()
    assert info.seconds < run.report.seconds and run.report.own_seconds < run.report.seconds
    assert run.report.own_seconds > 0.9 * (run.report.seconds - info.seconds)
    assert taught.shown == [f"learning this model: short probe {n} of 5" for n in range(1, 6)]


@pytest.mark.parametrize(("cfg", "families"), [(5.0, {"residual", "dynamics"}), (1.0, {"dynamics"})])
def test_it_costs_the_steps_of_the_probe_for_each_prompt(taught, call, tmp_path, forwards, cfg, families) -> None:
    count = forwards()
    taught(call.but(cfg=cfg, steps=20))
    assert len(count) == 20 + 5 * 2, "both branches are one forward here"
    (found,) = {tuple(pair.items()) for pair in json.loads(scales(tmp_path)[0].read_text())["distances"][:1]}
    assert families == {name for name, value in found if name in ("residual", "dynamics") and value is not None}


def test_a_short_probe_leaves_the_signature_of_a_whole_run(tiny, clip, taught, call, tmp_path: Path) -> None:
    """Of the same prompt and seed."""
    from carnator_core.options import StoreOptions
    from carnator_core.scale import distance, setting_of
    from carnator_core.store.registry import open_store
    from carnator_core.teaching import PROMPTS, seeds
    from nodes import CLIPTextEncode

    _, run = taught(call.but(steps=20))
    key = run.session.request.key
    whole = [call.but(steps=20)]
    for text, seed in zip(PROMPTS, seeds(key), strict=True):
        whole.append(call.but(steps=20, positive=CLIPTextEncode().encode(clip, text)[0], seed=seed))
    store = open_store(tmp_path / "whole", StoreOptions())
    ids = [tiny.reuse(tmp_path / "whole", one)[1].report.entry_id for one in whole]
    store.wait()
    pairs = itertools.combinations(map(store.signature, ids), 2)
    found = open_store(tmp_path, StoreOptions()).scales.read(setting_of(key))
    assert found == [distance(*pair, (1, 2, 2)) for pair in pairs] and len(found) == 15


def test_the_same_inputs_and_store_teach_the_same(tiny, taught, call, tmp_path: Path) -> None:
    results = []
    for root in (tmp_path / "one", tmp_path / "two"):
        taught(call, root=root)
        result, run = taught(call.but(positive=tiny.near(call.positive, NEAR)), root=root)
        assert run.report.decision.value == "hit"
        results.append((result, scales(root)[0].name, scales(root)[0].read_bytes()))
    (one, *file), (two, *same) = results
    assert torch.equal(one, two) and file == same


def test_another_setting_is_taught_anew_and_another_seed_or_prompt_is_not(tiny, taught, call, tmp_path: Path) -> None:
    taught(call)
    other = call.but(seed=OTHER, positive=tiny.prompt(5, 32), negative=tiny.prompt(6, 32))
    _, run = taught(other)
    assert run.report.scale_note is None and len(scales(tmp_path)) == 1
    assert "learning" not in run.report.status()
    _, run = taught(call.but(cfg=4.0))
    assert run.report.scale_note is not None and len(scales(tmp_path)) == 2


def test_where_enough_pairs_are_stored_nothing_is_taught(tiny, taught, call, tmp_path: Path) -> None:
    for seed in range(5):
        tiny.reuse(tmp_path, call.but(seed=seed, positive=tiny.prompt(40 + seed, 32)), options=tiny.options(gate=None))
    _, run = taught(call.but(seed=OTHER))
    assert run.report.learned_pairs == 8 and run.report.scale_note is None and scales(tmp_path) == []


def test_a_certificate_that_does_not_exist_leaves_a_scale_to_learn(tiny, taught, call, tmp_path: Path) -> None:
    """Its gate then has strict thresholds on the model's own scale."""
    from carnator_core.options import GateOptions

    _, run = taught(call, chosen=replace(tiny.options(), gate=GateOptions(mode="certified")))
    assert run.report.scale_note.startswith("learned this model") and len(scales(tmp_path)) == 1


@pytest.mark.parametrize("case", ["gate", "read", "declined"])
def test_nothing_is_taught_where_it_would_be_of_no_use(tiny, taught, call, tmp_path: Path, forwards, case) -> None:
    if case == "read":
        tiny.reuse(tmp_path, call)
    count = forwards()
    options = {"gate": {"gate": 1.0}, "read": {"store": "read"}, "declined": {}}[case]
    _, run = taught(call.but(steps=2) if case == "declined" else call, **options)
    told = "nothing is learned in a store that is only read" if case == "read" else None
    assert run.report.scale_note == told and scales(tmp_path) == [] and taught.shown == []
    assert len(count) == (2 if case == "declined" else run.report.steps["dense"])


def test_an_input_latent_that_shows_something_is_what_the_probes_start_from(taught, call, tmp_path: Path) -> None:
    latent = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    _, run = taught(call.but(denoise=0.7, latent=latent))
    assert "learned this model" in run.report.status() and len(scales(tmp_path)) == 1


def test_with_any_seed_a_taught_model_borrows_in_its_second_run(tiny, taught, call, tmp_path: Path) -> None:
    _, first = taught(call)
    options = tiny.options(gate=None)
    options = replace(options, probe=replace(options.probe, seed_policy="any seed"))
    _, run = tiny.reuse(tmp_path, call.but(seed=OTHER), options=options)
    assert run.report.decision.value == "hit" and run.report.donor_id == first.report.entry_id


# -- trouble -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", [0, 3, 9], ids=["first probe", "second", "last"])
@pytest.mark.parametrize("kind", ["raised", "asked for"])
def test_an_interrupt_ends_it_and_the_run_before_is_kept(
    tiny, taught, call, tmp_path: Path, stored, forwards, forward: int, kind: str
) -> None:
    from comfy import model_management

    call = call.but(steps=20)
    expected = call(tiny.model)
    before = copy.deepcopy(tiny.model.model_options)

    def interrupt(n: int) -> None:
        if n == call.steps + forward and kind == "raised":
            raise model_management.InterruptProcessingException
        if n == call.steps + forward:
            model_management.interrupt_current_processing()

    count = forwards(interrupt)
    try:
        with pytest.raises(model_management.InterruptProcessingException):
            taught(call)
        assert not model_management.processing_interrupted()
    finally:
        model_management.interrupt_current_processing(False)
    assert len(count) == call.steps + forward + 1
    assert len(stored(tmp_path)) == 1 and scales(tmp_path) == []
    assert not list((tmp_path / "default" / "staging").iterdir())
    assert tiny.model.model_options == before and torch.equal(call(tiny.model), expected)
    _, again = taught(call)
    assert again.report.reason.code.value == "learning"
    assert re.fullmatch(r"miss: learned this model from 5 short probes, \d+ s", again.report.status())


def out_of_memory() -> Exception:
    import comfy.model_management

    return comfy.model_management.OOM_EXCEPTION("CUDA out of memory. Tried to allocate")


@pytest.mark.parametrize(
    ("error", "told"),
    [(out_of_memory, "out of memory"), (lambda: ValueError("broke\nin two"), "broke"), (KeyError, "KeyError")],
    ids=["out of memory", "an error", "an error without words"],
)
@pytest.mark.parametrize("forward", [0, 1], ids=["before its end", "at its end"])
def test_a_failure_is_a_note_and_the_run_stands(
    tiny, taught, call, tmp_path: Path, stored, forwards, error, told: str, forward: int
) -> None:
    expected = call.but(steps=20)(tiny.model)

    def fail(n: int) -> None:
        if n == 20 + forward:
            raise error()

    forwards(fail)
    result, run = taught(call.but(steps=20))
    assert torch.equal(result, expected) and len(stored(tmp_path)) == 1 and scales(tmp_path) == []
    assert run.report.decision.value == "miss" and run.report.learned_pairs == 0
    assert f"(this model was not learned from short probes: {told})" in run.report.status()


def test_a_text_encoder_of_another_model_is_named(tiny, taught, tmp_path: Path, forwards) -> None:
    count = forwards()
    _, run = taught(tiny.call)  # its prompts have 16 tokens
    assert "not learned from short probes: the call differs from the request in: conditioning" in run.report.status()
    assert len(count) == tiny.call.steps


def test_a_text_encoder_without_words_is_no_failed_run(taught, call, tmp_path: Path) -> None:
    _, run = taught(call, text_encoder=object())
    assert "not learned from short probes: " in run.report.status() and scales(tmp_path) == []


def test_a_store_that_cannot_be_written_is_a_note(tiny, taught, call, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, call)
    (tmp_path / "default" / "scales").write_text("no folder")
    _, run = taught(call)
    assert "not learned from short probes: " in run.report.status()


def test_where_someone_else_wraps_the_sampler_nothing_is_taught(tiny, taught, call, tmp_path: Path) -> None:
    """It might remember that it was called before."""
    calls = []

    def counting(executor, *args, **kwargs):
        calls.append(1)
        return executor(*args, **kwargs)

    _, run = taught(call, tiny.wrapped(tiny.model, "outer_sample", counting))
    assert len(calls) == 1 and scales(tmp_path) == []
    assert "another pack wraps the sampler" in run.report.status()


def test_nothing_stays_on_the_model(tiny, taught, call) -> None:
    model = tiny.patched(0.5)
    hooks = (model.model_options, model.wrappers, model.callbacks)
    before = copy.deepcopy(hooks)
    keys = (set(model.patches), set(model.object_patches), set(vars(model.model.diffusion_model)))
    _, run = taught(call, model)
    assert "learned this model" in run.report.status()
    assert (model.model_options, model.wrappers, model.callbacks) == before
    assert (set(model.patches), set(model.object_patches), set(vars(model.model.diffusion_model))) == keys

"""CarnatorApply and CarnatorReport around stock sampler nodes, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from support.pack import pack_module


@pytest.fixture
def user(pack, tmp_path: Path):
    """ComfyUI's user folder, and so every store, lies in tmp_path."""
    import folder_paths

    before = folder_paths.get_user_directory()
    folder_paths.set_user_directory(str(tmp_path / "user"))
    yield tmp_path / "user"
    folder_paths.set_user_directory(before)


@pytest.fixture
def apply(user: Path):
    """apply(model, **inputs): outputs of the node, with a gate that lets everything pass."""
    options = pack_module("carnator_core.options")
    node = pack_module("nodes.apply").CarnatorApply
    defaults = {item.id: item.default for item in pack_module("nodes.inputs").reuse_inputs()}
    links = {
        "probe": options.ProbeOptions(min_text_similarity=-1.0),
        "gate": options.GateOptions(1e3, 1e3, 1e3, 1e3, 1e3),
    }
    return lambda model, **inputs: node.execute(model, **{**defaults, **links, **inputs}).result


def entries(user: Path) -> list[Path]:
    """Folders of all stored entries; the pack writes in the background."""
    for store in pack_module("carnator_core.store.registry").open_stores():
        store.wait()
    return [path for path in user.rglob("entries/*") if path.is_dir()]


def decision(handle) -> str:
    return handle.outcome.report["decision"]


# How each stock node samples a tiny call. Guidance 1 where the guider knows no other.


def by_ksampler(model, call) -> torch.Tensor:
    import nodes

    latent = {"samples": torch.zeros(1, 16, *call.size)}
    return nodes.KSampler().sample(
        model, call.seed, call.steps, call.cfg, call.sampler, call.scheduler, call.positive, call.negative, latent
    )[0]["samples"]


def by_ksampler_advanced(model, call) -> torch.Tensor:
    import nodes

    latent = {"samples": torch.zeros(1, 16, *call.size)}
    return nodes.KSamplerAdvanced().sample(
        model, "enable", call.seed, call.steps, call.cfg, call.sampler, call.scheduler, call.positive, call.negative,
        latent, 0, 10000, "disable",
    )[0]["samples"]  # fmt: skip


def _custom(model, call):
    import comfy.samplers

    sampler = comfy.samplers.sampler_object(call.sampler)
    model_sampling = model.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(model_sampling, call.scheduler, call.steps)
    return sampler, sigmas, {"samples": torch.zeros(1, 16, *call.size)}


def by_sampler_custom(model, call) -> torch.Tensor:
    from comfy_extras.nodes_custom_sampler import SamplerCustom

    sampler, sigmas, latent = _custom(model, call)
    return SamplerCustom.execute(
        model, True, call.seed, call.cfg, call.positive, call.negative, sampler, sigmas, latent
    ).result[0]["samples"]


def _advanced(guider, model, call) -> torch.Tensor:
    from comfy_extras.nodes_custom_sampler import RandomNoise, SamplerCustomAdvanced

    sampler, sigmas, latent = _custom(model, call)
    noise = RandomNoise.execute(call.seed).result[0]
    return SamplerCustomAdvanced.execute(noise, guider, sampler, sigmas, latent).result[0]["samples"]


def by_cfg_guider(model, call) -> torch.Tensor:
    from comfy_extras.nodes_custom_sampler import CFGGuider

    return _advanced(CFGGuider.execute(model, call.positive, call.negative, call.cfg).result[0], model, call)


def by_basic_guider(model, call) -> torch.Tensor:
    from comfy_extras.nodes_custom_sampler import BasicGuider

    return _advanced(BasicGuider.execute(model, call.positive).result[0], model, call)


SAMPLERS = [by_ksampler, by_ksampler_advanced, by_sampler_custom, by_cfg_guider, by_basic_guider]


@pytest.fixture(params=SAMPLERS, ids=lambda sampler: sampler.__name__)
def sample(request):
    """sample(model, call) with one of the stock nodes, as ComfyUI executes nodes."""

    def run(model, call) -> torch.Tensor:
        with torch.inference_mode():
            return request.param(model, call)

    return run


def test_a_miss_is_stock_and_the_next_sampling_is_a_hit(apply, tiny, far, user: Path, sample) -> None:
    stock = sample(tiny.model, tiny.call)
    model, handle = apply(tiny.model)
    assert torch.equal(sample(model, tiny.call), stock)
    assert decision(handle) == "miss" and len(entries(user)) == 1
    again = sample(model, tiny.call)
    assert decision(handle) == "hit", handle.outcome.status
    assert handle.samplings == 2
    assert far(again, stock) < 2e-3
    assert handle.outcome.mask.shape == (3, 8, 8) and handle.outcome.picture.shape[0] == 1


def test_what_one_stock_node_stored_serves_another(apply, tiny) -> None:
    model, handle = apply(tiny.model)
    with torch.inference_mode():
        by_ksampler(model, tiny.call)
        for sampler in (by_ksampler_advanced, by_sampler_custom, by_cfg_guider):
            sampler(model, tiny.call)
            assert decision(handle) == "hit", (sampler.__name__, handle.outcome.status)


def test_a_guider_with_two_prompts_is_declined_by_name(apply, tiny) -> None:
    from comfy_extras.nodes_custom_sampler import DualCFGGuider

    model, handle = apply(tiny.model)
    guider = DualCFGGuider.execute(model, tiny.call.positive, tiny.prompt(5), tiny.call.negative, 5.0, 4.0, "regular")
    with torch.inference_mode():
        _advanced(guider.result[0], model, tiny.call)
    assert decision(handle) == "declined" and "DualCFG" in handle.outcome.status


def test_a_failed_sampling_leaves_the_handle_as_it_was(apply, tiny) -> None:
    model, handle = apply(tiny.model)
    hook = tiny.model.model.diffusion_model.head.register_forward_pre_hook(lambda *_: 1 / 0)
    try:
        with pytest.raises(ZeroDivisionError), torch.inference_mode():
            by_ksampler(model, tiny.call)
    finally:
        hook.remove()
    assert handle.outcome is None and handle.samplings == 0


def test_the_model_carries_one_wrapper_without_tensors_or_locks(apply, tiny) -> None:
    import copy

    model, _ = apply(tiny.model)
    assert {kind: keys for kind, keys in model.wrappers.items() if keys}.keys() == {"outer_sample"}
    (wrapper,) = model.wrappers["outer_sample"]["carnator"]
    copy.deepcopy(vars(wrapper.__self__)["_options"])  # a lock would raise here
    assert not any(torch.is_tensor(value) for value in vars(wrapper.__self__).values())
    assert model.model_options == tiny.model.model_options and "carnator" not in tiny.model.wrappers


def test_the_last_node_before_the_sampler_decides(apply, tiny, user: Path) -> None:
    options = pack_module("carnator_core.options")
    inner, first = apply(tiny.model, store=options.StoreOptions(name="first"))
    outer, second = apply(inner, store=options.StoreOptions(name="second"))
    with torch.inference_mode():
        by_ksampler(outer, tiny.call)
    assert (first.samplings, second.samplings) == (0, 1)
    assert [path.parts[-3] for path in entries(user)] == ["second"]


def test_our_sampler_takes_the_place_of_an_earlier_apply(apply, tiny, user: Path) -> None:
    sampler = pack_module("nodes.reuse_sampler").CarnatorReuseSampler
    model, handle = apply(tiny.model)
    call, latent = tiny.call, {"samples": torch.zeros(1, 16, *tiny.call.size)}
    for reuse in (False, True):
        with torch.inference_mode():
            result, report, _ = sampler.execute(
                model, call.seed, call.steps, call.cfg, call.sampler, call.scheduler, call.positive, call.negative,
                latent, 1.0, reuse,
            ).result  # fmt: skip
        assert decision(report) == ("miss" if reuse else "off") and handle.samplings == 0
        assert torch.equal(result["samples"], call(tiny.model)) and len(entries(user)) == reuse


def test_a_sampling_inside_another_one_has_a_run_of_its_own(apply, tiny, user: Path) -> None:
    inner = tiny.call.but(seed=8)
    applied, handle = apply(tiny.model)
    seen = []

    def samples_too(executor, *args, **kwargs):
        if not seen:
            seen.append(None)
            seen[0] = by_ksampler(applied, inner)
        return executor(*args, **kwargs)

    with torch.inference_mode():
        stock = by_ksampler(tiny.model, tiny.call)
        result = by_ksampler(tiny.wrapped(applied, "outer_sample", samples_too), tiny.call)
        assert torch.equal(result, stock) and torch.equal(seen[0], by_ksampler(tiny.model, inner))
    assert handle.samplings == 2 and len(entries(user)) == 2


def test_switched_off_it_takes_an_earlier_node_out_too(apply, tiny, user: Path) -> None:
    model, handle = apply(apply(tiny.model)[0], reuse=False)
    with torch.inference_mode():
        assert torch.equal(by_ksampler(model, tiny.call), by_ksampler(tiny.model, tiny.call))
    assert handle.outcome is None and entries(user) == []


def test_a_lora_behind_the_node_is_seen_in_the_key(apply, tiny) -> None:
    model, handle = apply(tiny.model)
    with torch.inference_mode():
        by_ksampler(model, tiny.call)
        later = model.clone()
        later.add_patches({"diffusion_model.blocks.0.ffn.0.weight": ("diff", (torch.ones(512, 256),))}, 0.1)
        by_ksampler(later, tiny.call)
    assert "LoRA" in handle.outcome.status


# -- vary this video -----------------------------------------------------------------------------------------------


@pytest.fixture
def unlike(tiny):
    """A call with a prompt that text recall would refuse."""
    return tiny.call.but(positive=[[-tiny.call.positive[0][0], {}]])


def test_a_chosen_donor_skips_text_recall_and_nothing_else(apply, tiny, unlike) -> None:
    options = pack_module("carnator_core.options")
    probe = options.ProbeOptions(min_text_similarity=0.9)
    model, first = apply(tiny.model)
    with torch.inference_mode():
        by_ksampler(model, tiny.call)
        refusing, report = apply(tiny.model, probe=probe, store=options.StoreOptions(mode="read"))
        by_ksampler(refusing, unlike)
        assert report.outcome.report["reason_code"] == "text_too_different"

        read = options.StoreOptions(mode="read")
        pinned, report = apply(tiny.model, probe=probe, donor=first, store=read, max_region_percent=100.0)
        by_ksampler(pinned, unlike)
        assert report.outcome.report["reason_code"] != "text_too_different"
        strict, report = apply(tiny.model, gate=options.GateOptions(0, 0, 0, 0, 0), donor=first, store=read)
        by_ksampler(strict, unlike)
        assert report.outcome.report["reason_code"] == "gate_rejected"


def test_a_chosen_hit_stands_for_its_donor(apply, tiny) -> None:
    model, handle = apply(tiny.model)
    with torch.inference_mode():
        by_ksampler(model, tiny.call)
        stored = handle.entry_id
        by_ksampler(model, tiny.call)
        assert decision(handle) == "hit" and handle.entry_id == stored != ""
        other, report = apply(tiny.model, donor=handle)
        by_ksampler(other, tiny.call)
    assert decision(report) == "hit" and report.outcome.report["donor"]["id"] == stored


def test_a_chosen_donor_of_other_settings_is_refused_by_their_names(apply, tiny) -> None:
    model, handle = apply(tiny.model)
    with torch.inference_mode():
        by_ksampler(model, tiny.call)
        other, report = apply(tiny.model, donor=handle)
        stock = by_ksampler(tiny.model, tiny.call.but(seed=8, cfg=4.0))
        assert torch.equal(by_ksampler(other, tiny.call.but(seed=8, cfg=4.0)), stock)
    assert report.outcome.report["reason_code"] == "donor_differs"
    assert report.outcome.report["reason"].endswith("differs in: CFG, seed")


def test_a_chosen_donor_that_is_gone_or_never_was_says_so(apply, tiny, user: Path) -> None:
    import shutil

    empty = pack_module("carnator_core.handle").ReportHandle()
    model, handle = apply(tiny.model)
    with torch.inference_mode():
        by_ksampler(model, tiny.call)
        shutil.rmtree(entries(user)[0])
        for donor, said in ((handle, "not in this store"), (empty, "names no stored request")):
            other, report = apply(tiny.model, donor=donor, store=None)
            by_ksampler(other, tiny.call.but(seed=4))
            assert report.outcome.report["reason_code"] == "donor_unavailable"
            assert said in report.outcome.status


# -- the report node -----------------------------------------------------------------------------------------------


@pytest.fixture
def show(pack, tmp_path: Path):
    """show(handle): text, JSON data, picture and mask of the report node."""
    import folder_paths

    temp = folder_paths.get_temp_directory()
    folder_paths.set_temp_directory(str(tmp_path))
    node = pack_module("nodes.report").CarnatorReport

    def run(handle):
        output = node.execute(handle)
        text, data, picture, mask = output.result
        assert output.ui["text"] == [text]
        shown = output.ui.get("images", [])
        assert len(shown) == bool(picture.any()) and all((tmp_path / image["filename"]).is_file() for image in shown)
        return text, json.loads(data), picture, mask

    yield run
    folder_paths.set_temp_directory(temp)


def test_a_handle_that_is_not_filled_is_a_sentence(apply, tiny, show) -> None:
    text, data, picture, mask = show(apply(tiny.model)[1])
    assert "no report yet" in text and "LATENT" in text
    assert data == {} and picture.shape == (1, 64, 64, 3) and bool((mask == 1).all())


def test_the_report_of_a_miss_and_of_a_hit(apply, tiny, show) -> None:
    model, handle = apply(tiny.model)
    with torch.inference_mode():
        by_ksampler(model, tiny.call)
        text, data, picture, mask = show(handle)
        assert text.startswith("miss: no earlier request") and "10 dense" in text
        assert data["decision"] == "miss" and data["samplings"] == 1
        assert not bool(picture.any()) and bool((mask == 1).all())

        by_ksampler(model, tiny.call)
    text, data, picture, mask = show(handle)
    assert text.startswith("hit") and "the last of 2 samplings" in text
    assert "of 1e+03 allowed" in text and "text similarity 1.00" in text
    assert data["samplings"] == 2 and data["steps"]["replay"] > 0
    assert picture.shape[1] > 100 and float(picture.max()) <= 1.0 and mask.shape == (3, 8, 8)


def test_the_report_node_never_counts_as_unchanged(pack) -> None:
    node = pack_module("nodes.report").CarnatorReport
    assert node.fingerprint_inputs(report=None) != node.fingerprint_inputs(report=None)

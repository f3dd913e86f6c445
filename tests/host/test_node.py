"""CarnatorReuseSampler as ComfyUI calls it, without a front end."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from support.pack import pack_module

FIRST = 6  # widgets that the first workflows were saved with; these are required
FOLDED = {
    "attention_rule", "attention_block", "window_residual", "guidance_fresh_sigma", "guidance_end_percent",
}  # fmt: skip


@pytest.fixture
def node(pack, tmp_path: Path):
    """The node class; its store and its pictures go to tmp_path."""
    import folder_paths

    user, temp = folder_paths.get_user_directory(), folder_paths.get_temp_directory()
    folder_paths.set_user_directory(str(tmp_path / "user"))
    folder_paths.set_temp_directory(str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    yield pack_module("nodes.reuse_sampler").CarnatorReuseSampler
    folder_paths.set_user_directory(user)
    folder_paths.set_temp_directory(temp)


def execute(node, tiny, call, reuse: bool = True, **changes):
    values = {
        "model": tiny.model, "seed": call.seed, "steps": call.steps, "cfg": call.cfg,
        "sampler_name": call.sampler, "scheduler": call.scheduler, "positive": call.positive,
        "negative": call.negative, "latent_image": {"samples": torch.zeros(1, 16, *call.size)},
        "denoise": call.denoise, "reuse": reuse, "region_threshold": 0.12, "max_region_percent": 60.0,
        "window_start_percent": 20.0, "window_end_percent": 83.0, "guidance_interval": 2, "refine_percent": 6.0,
    }  # fmt: skip
    with torch.inference_mode():
        return node.execute(**{**values, **changes})


def outputs(output) -> tuple[torch.Tensor, dict, torch.Tensor]:
    """Latent, report and mask of the node."""
    latent, handle, mask = output.result
    return latent["samples"], handle.outcome.report, mask


def entries(tmp_path: Path) -> list[Path]:
    pack_module("carnator_core.store.registry").close_stores()  # writes are pending until then
    return [path for path in tmp_path.rglob("entries/*") if path.is_dir()]


def test_off_is_ksampler_and_touches_no_store(node, tiny, tmp_path: Path) -> None:
    latent, report, mask = outputs(execute(node, tiny, tiny.call, reuse=False))
    assert torch.equal(latent, tiny.call(tiny.model))
    assert (report["decision"], report["reason_code"]) == ("off", "off")
    assert mask.shape == (1, 8, 8) and bool((mask == 1).all())
    assert entries(tmp_path) == []


def test_the_first_run_is_ksampler_and_is_stored(node, tiny, tmp_path: Path) -> None:
    latent, report, mask = outputs(execute(node, tiny, tiny.call))
    assert torch.equal(latent, tiny.call(tiny.model))
    assert (report["decision"], report["reason_code"]) == ("miss", "store_empty")
    assert mask.shape == (1, 8, 8) and bool((mask == 1).all())
    (entry,) = entries(tmp_path)
    assert entry.name == report["entry_id"]


def test_the_store_lies_in_a_system_folder_that_is_not_served(node, tiny, tmp_path: Path) -> None:
    execute(node, tiny, tiny.call)
    (entry,) = entries(tmp_path)
    parts = entry.relative_to(tmp_path / "user").parts
    assert parts[0].startswith("__"), parts
    assert parts[1:-1] == ("stores", "default", "entries")


def test_the_second_run_is_a_hit_with_a_mask_a_picture_and_a_status(node, tiny, far, tmp_path: Path) -> None:
    gate = pack_module("carnator_core.options").GateOptions()
    first = execute(node, tiny, tiny.call, gate=gate).result[0]["samples"]
    output = execute(node, tiny, tiny.call, gate=gate)
    latent, report, mask = outputs(output)
    assert report["decision"] == "hit"
    assert far(latent, first) < 2e-3
    assert mask.shape == (3, 8, 8) and mask.dtype == torch.float32 and not bool(mask.any())
    ui = output.ui
    assert ui["text"][0].startswith("hit") and ui["carnator"] == [report]
    (picture,) = ui["images"]
    assert (tmp_path / "temp" / picture["subfolder"] / picture["filename"]).stat().st_size > 100


def test_an_audited_hit_keeps_its_latent_and_leaves_a_donor_and_two_pictures(node, tiny, tmp_path: Path) -> None:
    options = pack_module("carnator_core.options")
    chosen = {"gate": options.GateOptions(*[1e3] * 5), "probe": options.ProbeOptions(min_text_similarity=-1.0)}
    chosen |= {"region_threshold": 0.135, "max_region_percent": 100.0, "hold_threshold": 0.0}
    call = tiny.call.but(size=(3, 16, 16))
    near = call.but(positive=tiny.near(call.positive, 0.2))
    _, report, _ = outputs(execute(node, tiny, call, audit_percent=100.0, **chosen))
    assert report["decision"] == "miss" and not report["audit"] and report["audit_note"] is None
    latent, report, _ = outputs(execute(node, tiny, near, **chosen))
    assert report["decision"] == "hit" and not report["audit"] and len(entries(tmp_path)) == 1
    _, report, _ = outputs(execute(node, tiny, near, reuse=False, audit_percent=100.0, **chosen))
    assert report["decision"] == "off" and not report["audit"] and len(entries(tmp_path)) == 1
    same, report, _ = outputs(execute(node, tiny, near, audit_percent=100.0, **chosen))
    assert torch.equal(same, latent) and report["audit"] and report["donor"]["id"] != report["request_id"]
    assert report["request_id"] in [entry.name for entry in entries(tmp_path)] and report["entry_id"] is None
    history = pack_module("carnator_core.store.history").History(entries(tmp_path)[0].parents[1])
    record = history.find(report["decision_id"])
    assert record.audit and record.dense_difference == report["dense_difference"]
    assert history.picture(record.id) != history.dense_picture(record.id) is not None


def test_without_a_linked_gate_a_new_model_is_learned_first(node, tiny) -> None:
    first, _, _ = outputs(execute(node, tiny, tiny.call))
    latent, report, _ = outputs(execute(node, tiny, tiny.call))
    assert (report["decision"], report["reason_code"]) == ("miss", "learning")
    assert "0 of 8" in report["reason"] and torch.equal(latent, first)


def test_with_a_clip_the_first_run_teaches_and_the_second_is_a_hit(node, tiny, far, tmp_path: Path) -> None:
    import comfy.utils

    from support.pack import node_classes

    clip, shown = node_classes()["CarnatorDemoTextEncoder"].execute().args[0], []
    call = tiny.call.but(positive=tiny.prompt(1, 32), negative=tiny.prompt(9, 32))
    assert outputs(execute(node, tiny, call, reuse=False, clip=clip))[1]["scale_note"] is None
    hook = comfy.utils.PROGRESS_BAR_HOOK
    comfy.utils.set_progress_bar_global_hook(lambda *given, **_: shown.append(given[:2]))
    try:
        output = execute(node, tiny, call, clip=clip)
    finally:
        comfy.utils.set_progress_bar_global_hook(hook)
    first, report, _ = outputs(output)
    assert shown == [(step, call.steps) for step in range(1, call.steps + 1)], "of the run alone"
    assert report["scale_note"].startswith("learned this model from 5 short probes, ") and report["learned_pairs"] == 8
    assert output.ui["text"][0].endswith(f"({report['scale_note']})") and torch.equal(first, call(tiny.model))
    latent, report, _ = outputs(execute(node, tiny, call, clip=clip))
    assert report["decision"] == "hit" and far(latent, first) < 2e-3
    link = node.GET_SCHEMA().inputs[-2]
    assert (link.id, link.optional) == ("clip", True), "saved workflows keep what they have by its place"


def test_the_mask_of_a_partial_hit_lies_between_zero_and_one(node, tiny, tmp_path: Path) -> None:
    call = tiny.call.but(size=(3, 16, 16), steps=12)
    gate = pack_module("carnator_core.options").GateOptions(1e3, 1e3, 1e3, 1e3, 1e3)
    execute(node, tiny, call)
    near = call.but(positive=tiny.near(call.positive, 0.2))
    widgets = {"region_threshold": 0.14, "max_region_percent": 100.0}
    _, report, mask = outputs(execute(node, tiny, near, gate=gate, **widgets))
    assert report["decision"] == "hit", report["reason"]
    assert mask.shape == (3, 16, 16)
    assert mask.min() >= 0.0 and mask.max() <= 1.0 and 0.0 < float(mask.mean()) < 1.0
    assert float(mask.mean()) == pytest.approx(report["region_share"], abs=1e-5)


def test_a_declined_latent_of_any_shape_still_gives_all_outputs(node, tiny) -> None:
    latent = {"samples": torch.zeros(2, 16, 3, 8, 8)}
    result, report, mask = outputs(execute(node, tiny, tiny.call, latent_image=latent))
    assert result.shape == (2, 16, 3, 8, 8)
    assert (report["decision"], report["reason_code"]) == ("declined", "unsupported_latent")
    assert mask.shape == (1, 8, 8)


def test_the_report_is_json(node, tiny) -> None:
    execute(node, tiny, tiny.call)
    for call in (tiny.call, tiny.call.but(seed=99), tiny.call.but(steps=2)):
        _, report, _ = outputs(execute(node, tiny, call))
        assert json.loads(json.dumps(report, allow_nan=False))["decision"] == report["decision"]


def test_linked_options_are_used(node, tiny, tmp_path: Path) -> None:
    options = pack_module("carnator_core.options")
    execute(node, tiny, tiny.call, store=options.StoreOptions(name="mine"))
    assert [path.parts[-3] for path in entries(tmp_path)] == ["mine"]
    strict = options.GateOptions(0.0, 0.0, 0.0, 0.0)
    near = tiny.call.but(positive=tiny.near(tiny.call.positive, 0.5))
    store, probe = options.StoreOptions(name="mine"), options.ProbeOptions(min_text_similarity=-1.0)
    _, report, _ = outputs(execute(node, tiny, near, store=store, probe=probe, gate=strict))
    assert report["reason_code"] == "gate_rejected"
    found = {name: report["thresholds"][name] for name in ("representation", "residual", "dynamics", "state")}
    assert found == {"representation": 0, "residual": 0, "dynamics": 0, "state": 0}


@pytest.mark.parametrize(
    ("widgets", "named"),
    [
        ({"window_start_percent": 90.0, "window_end_percent": 10.0}, "layer window"),
        ({"attention": "mine"}, "attention must be one of"),
        ({"attention_percent": 0.0}, "attention percent"),
        ({"window_residual": "all"}, "window residual must be one of"),
    ],
)
def test_impossible_settings_are_a_clear_error(node, tiny, widgets: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        execute(node, tiny, tiny.call, **widgets)
    with pytest.raises(ValueError, match=named):
        pack_module("nodes.apply").CarnatorApply.execute(tiny.model, True, **widgets)


def test_the_share_of_audits_is_the_last_widget_and_may_be_missing(node) -> None:
    """What comes behind it in a saved workflow would get its value."""
    last = node.GET_SCHEMA().inputs[-1]
    assert (last.id, last.default, last.min, last.max, last.optional) == ("audit_percent", 0.0, 0.0, 100.0, True)


def test_every_input_of_every_node_has_a_tooltip_and_every_node_a_description(pack) -> None:
    from support.pack import node_classes

    for name, cls in node_classes().items():
        schema = cls.GET_SCHEMA()
        assert name.startswith("Carnator") and schema.description, name
        for item in schema.inputs:
            assert item.tooltip and len(item.tooltip) > 10, (name, item.id)


def test_the_samplers_inputs_begin_with_those_of_ksampler(node) -> None:
    import nodes

    required = nodes.KSampler.INPUT_TYPES()["required"]
    found = [item.id for item in node.GET_SCHEMA().inputs]
    assert found[: len(required)] == list(required)


@pytest.mark.parametrize("name", ["CarnatorReuseSampler", "CarnatorApply"])
def test_the_widgets_are_the_engines_options_and_later_ones_may_be_missing(pack, name: str) -> None:
    from support.pack import node_classes

    fields = dataclasses.fields(pack_module("carnator_core.options").ReuseOptions)
    inputs = node_classes()[name].GET_SCHEMA().inputs
    start = [item.id for item in inputs].index("reuse") + 1
    widgets = inputs[start : start + len(fields)]
    assert [(item.id, item.default) for item in widgets] == [(field.name, field.default) for field in fields]
    assert [item.optional for item in widgets] == [at >= FIRST for at in range(len(fields))]
    assert {item.id for item in widgets if item.as_dict().get("advanced")} == FOLDED

"""CarnatorCalibrate and the gate's mode "certified" as ComfyUI runs them."""

import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch

from carnator_core.certificate_file import written
from support.pack import pack_module

THRESHOLDS = 1e3


@pytest.fixture
def node(pack, tmp_path: Path):
    import folder_paths

    user = folder_paths.get_user_directory()
    folder_paths.set_user_directory(str(tmp_path))
    yield pack_module("nodes.calibrate").CarnatorCalibrate
    folder_paths.set_user_directory(user)


def write_verdicts(folder: Path, count: int, settings: dict[str, str], distances: dict[str, float]) -> None:
    """Verdicts of independent safe hits around the given distances."""
    from carnator_core.store.verdicts import FILE
    from support.logs import a_verdict

    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(0)
    with open(folder / FILE, "a", encoding="utf-8") as file:
        for i in range(count):
            scale = float(torch.rand(1, generator=random)) + 1.0
            verdict = a_verdict(
                f"v{i}",
                when=time.time() - 1000,
                target=f"t{i}",
                donor=f"d{i}",
                settings=settings,
                discrepancies={k: v if v is None else v * scale + 1e-3 for k, v in distances.items()},
                accepted_by={**dict.fromkeys(distances, THRESHOLDS), "mode": "thresholds"},
            )
            file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")


# -- the node ------------------------------------------------------------------------------------------------------


def outputs(node, save: bool, store: str = "mine") -> tuple[str, dict, torch.Tensor]:
    options = pack_module("carnator_core.options").StoreOptions(name=store)
    found = node.execute(delta_percent=5.0, confidence_percent=90.0, save=save, store=options)
    text, told, plot = found.result
    assert found.ui["text"] == [text] and found.ui["images"]
    return text, json.loads(told), plot


def test_a_store_without_verdicts_is_a_sentence_and_no_new_store(node, tmp_path: Path) -> None:
    text, told, plot = outputs(node, save=True)
    assert text.startswith("store 'mine': not certified: there are no verdicts yet")
    assert told["certificate"] is None and told["progress"]["needed"] == 45
    assert plot.shape == (1, 440, 720, 3) and 0.0 <= float(plot.min()) < float(plot.max()) <= 1.0
    assert not (tmp_path / "__carnator" / "stores" / "mine").exists()


def test_verdicts_become_a_certificate_only_if_it_is_to_be_saved(node, tmp_path: Path) -> None:
    from support.certificates import some_settings

    folder = tmp_path / "__carnator" / "stores" / "mine"
    distances = {"representation": 0.01, "residual": 0.1, "dynamics": 0.2, "state": 0.02}
    write_verdicts(folder, 31, some_settings(), distances)
    text, told, _ = outputs(node, save=True)
    assert "of at least 45 independent verdicts" in text and told["progress"]["clusters"] < 31
    write_verdicts(folder, 100, some_settings(), distances)
    text, told, before = outputs(node, save=False)
    assert "save is off" in text and told["curve"] == [] and not (folder / "certificates").exists()
    text, told, plot = outputs(node, save=True)
    assert text.startswith("store 'mine': certified: at most 5%")
    assert told["certificate"]["unsafe"] == 0 and told["curve"] and not torch.equal(plot, before)
    assert len(list((folder / "certificates").glob("*.json"))) == 1


def test_a_store_that_cannot_be_read_is_a_sentence(node, tmp_path: Path) -> None:
    folder = tmp_path / "__carnator" / "stores" / "mine"
    folder.mkdir(parents=True)
    (folder / "verdicts.jsonl").mkdir()
    text, told, _ = outputs(node, save=True)
    assert text == "store 'mine': the store 'mine' cannot be used: Is a directory" and told["certificate"] is None


def test_the_node_runs_every_time_and_saves_nothing_by_default(node) -> None:
    schema = node.GET_SCHEMA()
    assert schema.is_output_node and node.fingerprint_inputs() != node.fingerprint_inputs()
    assert {item.id: item.default for item in schema.inputs if item.id == "save"} == {"save": False}


def test_the_gate_node_gives_thresholds_unless_told_otherwise(pack) -> None:
    gate = pack_module("nodes.compatibility_gate").CarnatorCompatibilityGate
    old, new = (gate.execute(0.1, 0.2, 0.3, 0.4, 0.5, *more).result[0] for more in ((), ("certified",)))
    assert (old.mode, new.mode) == ("thresholds", "certified") and old.numbers == new.numbers


# -- runs ----------------------------------------------------------------------------------------------------------


def certified(tiny):
    """Thresholds that would refuse everything, in the mode that does not use them; a miss is not kept."""
    options = tiny.options(store="read", gate=0.0)
    return dataclasses.replace(options, gate=dataclasses.replace(options.gate, mode="certified"))


@pytest.fixture
def judged(tiny, tmp_path: Path):
    """A call whose donor is in tmp_path, and a hit of it under thresholds."""
    tiny.reuse(tmp_path, tiny.call)
    call = tiny.call.but(positive=tiny.near(tiny.call.positive, 0.05))
    latent, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "hit"
    return call, latent, run.report


def test_verdicts_on_hits_make_a_certificate_under_which_the_same_request_is_a_hit(
    tiny, tmp_path: Path, judged
) -> None:
    from carnator_core.calibration import calibrate_store

    call, latent, hit = judged
    stock = call(tiny.model)
    refused, run = tiny.reuse(tmp_path, call, options=certified(tiny))
    assert run.report.certificate == "not certified for these settings (there is no certificate yet)"
    assert torch.equal(refused, stock) and run.report.certificate in run.report.status()
    write_verdicts(tmp_path / "default", 100, hit.settings, hit.discrepancies.as_dict())
    outcome = calibrate_store(tmp_path / "default", test=True)
    assert outcome.certificate is not None, outcome.text
    found, run = tiny.reuse(tmp_path, call, options=certified(tiny))
    assert run.report.decision.value == "hit" and run.report.certified
    assert run.report.certificate == outcome.certificate.sentence() and "certified" in run.report.status()
    assert torch.equal(found, latent), "who decides changes no pixel"


@pytest.mark.parametrize("trouble", ["edited", "other steps", "other LoRA"])
def test_a_certificate_that_does_not_fit_runs_with_strict_thresholds_and_says_so(
    tiny, tmp_path: Path, judged, trouble: str
) -> None:
    from carnator_core.calibration import calibrate_store

    call, _, hit = judged
    changed = {"other steps": {"steps": "30"}, "other LoRA": {"LoRA or weight patches": "x"}}.get(trouble, {})
    write_verdicts(tmp_path / "default", 100, {**hit.settings, **changed}, hit.discrepancies.as_dict())
    path = calibrate_store(tmp_path / "default", test=True).saved
    if trouble == "edited":
        path.write_text(path.read_text().replace('"delta": 0.05', '"delta": 0.01'))
    result, run = tiny.reuse(tmp_path, call, options=certified(tiny))
    said = {
        "edited": "the certificate was changed after it was made",
        "other steps": "not certified for these settings (differs in steps)",
        "other LoRA": "not certified for these settings (differs in LoRA or weight patches)",
    }[trouble]
    assert said in run.report.certificate and said in run.report.status() and not run.report.certified
    assert run.report.reason.code.value == "learning"
    assert torch.equal(result, call(tiny.model))


def test_a_status_with_halves_of_characters_is_shown_and_fails_no_run(server) -> None:
    from scripts.graphs import DemoGraph, only_node, without_video
    from support.certificates import a_certificate

    graphs = DemoGraph.load(server.get("/object_info"))
    graph = without_video(graphs.ours("a ball", steps=4))
    graph[only_node(graph, "EmptyHunyuanLatentVideo")]["inputs"] |= {"width": 64, "height": 64, "length": 5}
    graph[only_node(graph, "CarnatorCacheStore")]["inputs"] |= {"name": "halves", "mode": "read"}
    graph[only_node(graph, "CarnatorCompatibilityGate")]["inputs"]["mode"] = "certified"
    shelf = server.base.user / "__carnator" / "stores" / "halves" / "certificates"
    shelf.mkdir(parents=True)
    settings = server.run(graph).outputs[graphs.sampler]["carnator"][0]["settings"]
    (shelf / "one.json").write_bytes(written(a_certificate({**settings, "half \ud800": "1"})))
    graph[graphs.sampler]["inputs"]["seed"] += 1
    assert "(differs in half ?)" in server.run(graph).texts(graphs.sampler)[-1]

"""The shipped demo workflow in a real server."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from carnator_core.options import ReuseOptions
from scripts.graphs import OURS, SAVED_LATENT, STOCK, WORKFLOW, DemoGraph, only_node, without_video
from scripts.testbed.client import Event
from scripts.testbed.server import ComfyServer
from scripts.testbed.workflow import load_workflow

API_FORM = Path(__file__).parent / "api" / "carnator_demo.json"
STEPS = 5  # the fewest that leave something to reuse
PROMPT = "a small red ball drifts left over a meadow in clear weather"


@pytest.fixture(scope="module")
def graphs(server: ComfyServer) -> DemoGraph:
    return DemoGraph.load(server.get("/object_info"))


def latent_of(server: ComfyServer, graph: dict) -> tuple[torch.Tensor, dict]:
    """Latent and sampler output of a graph without its decoding half."""
    result = server.run(without_video(graph))
    file = server.base.file(result.outputs[SAVED_LATENT]["latents"][0])
    sampler = next(n for n, c in graph.items() if c["class_type"] in (OURS, STOCK))
    return load_file(file)["latent_tensor"], result.outputs.get(sampler, {})


def test_api_form_equals_the_shipped_workflow(server: ComfyServer) -> None:
    assert json.loads(API_FORM.read_text()) == load_workflow(WORKFLOW, server.get("/object_info"))


def test_the_shipped_widgets_are_the_defaults_that_the_core_has(graphs: DemoGraph) -> None:
    """The measurements of the documentation run this workflow and speak of the defaults."""
    inputs = graphs.ours(PROMPT, steps=20)[graphs.sampler]["inputs"]
    for field in dataclasses.fields(ReuseOptions):
        assert inputs[field.name] == getattr(ReuseOptions(), field.name), field.name


def test_thumbnail_lies_beside_the_workflow() -> None:
    assert WORKFLOW.with_suffix(".jpg").stat().st_size > 1000


def test_every_node_has_help_and_every_input_a_tooltip(server: ComfyServer) -> None:
    info = server.get("/object_info")
    ours = [name for name in info if name.startswith("Carnator")]
    assert len(ours) >= 5
    for name in ours:
        assert (WORKFLOW.parents[1] / "web" / "docs" / f"{name}.md").is_file(), name
        for group in info[name]["input"].values():
            for key, spec in group.items():
                assert not isinstance(spec, list) or len(spec) < 2 or spec[1].get("tooltip"), f"{name}.{key}"


def test_a_miss_is_stock_then_the_same_prompt_hits_and_the_store_survives_a_new_seed(
    server: ComfyServer, graphs: DemoGraph
) -> None:
    ours = graphs.ours(PROMPT, steps=STEPS)
    ours[only_node(ours, "CarnatorCacheStore")]["inputs"]["name"] = "workflow-test"
    first, shown = latent_of(server, ours)
    assert shown["carnator"][0]["decision"] == "miss"
    stock, _ = latent_of(server, graphs.stock(PROMPT, steps=STEPS))
    assert torch.equal(first, stock)

    # Another widget that leaves the result alone makes ComfyUI run the node again.
    ours[graphs.sampler]["inputs"]["max_region_percent"] = 59.0
    again, shown = latent_of(server, ours)
    assert shown["carnator"][0]["decision"] == "hit"
    assert shown["text"][0].startswith("hit")
    assert float((again - stock).norm() / stock.norm()) < 2e-3

    ours[graphs.sampler]["inputs"]["seed"] += 1
    _, shown = latent_of(server, ours)
    assert shown["carnator"][0]["decision"] == "miss"
    assert "seed" in shown["carnator"][0]["reason"]


def test_a_hit_tells_its_phases_and_shows_a_preview_at_every_step(server: ComfyServer, graphs: DemoGraph) -> None:
    """Replayed and held steps too: the artist watches the video come, whatever is computed."""
    steps = 10
    graph = without_video(graphs.ours(PROMPT, steps=steps))
    graph[only_node(graph, "CarnatorCacheStore")]["inputs"]["name"] = "preview-test"
    graph[only_node(graph, "EmptyHunyuanLatentVideo")]["inputs"] |= {"width": 128, "height": 128, "length": 9}
    dense = server.run(graph)
    assert dense.previews == steps
    assert dense.texts(graphs.sampler) == ["probe"] + 2 * ["miss: no earlier request in this store yet"]

    words = graph[graph[graphs.sampler]["inputs"]["positive"][0]]["inputs"]
    words["text"] = PROMPT.replace("red", "blue")
    graph[only_node(graph, "CarnatorCompatibilityGate")]["inputs"] |= dict.fromkeys(
        ("representation", "residual", "dynamics", "state"), 2.0
    )
    graph[graphs.sampler]["inputs"]["max_region_percent"] = 100.0
    hit = server.run(graph)
    report = hit.outputs[graphs.sampler]["carnator"][0]
    assert report["decision"] == "hit", report["reason"]
    assert report["steps"]["hold"] > 0 and 0 < report["region_share"] < 1
    assert hit.previews == steps + 1  # the last one is the heat map: the editor keeps it on the node

    texts = hit.texts(graphs.sampler)
    assert texts[:2] == ["probe", "decide"] and texts[2].startswith("hit") and texts[-1].startswith("hit ")
    told = texts[3:-1]
    assert [text.split(" (")[0] for text in told] == ["reuse"] * (steps - 2) + ["refine"]
    assert told[0].startswith(f"reuse (step 2 of {steps}) · hit · donor ") and "region" in told[0]

    words["text"] = PROMPT
    replayed = server.run(graph)
    report = replayed.outputs[graphs.sampler]["carnator"][0]
    assert report["decision"] == "hit" and report["steps"]["replay"] > 0, report
    assert replayed.previews == steps + 1


def test_an_audit_tells_its_steps_and_an_interrupt_of_it_goes_on_with_the_hit(
    server: ComfyServer, graphs: DemoGraph
) -> None:
    steps = 40
    graph = graphs.ours(PROMPT, steps=steps)
    graph[only_node(graph, "CarnatorCacheStore")]["inputs"]["name"] = "audit-test"
    graph[only_node(graph, "EmptyHunyuanLatentVideo")]["inputs"] |= {"width": 64, "height": 64, "length": 9}
    stock, _ = latent_of(server, graph)
    inputs, interrupted = graph[graphs.sampler]["inputs"], []

    def interrupt(event: Event) -> None:
        if event.type == "text" and event.data["text"].startswith("audit ") and not interrupted:
            interrupted.append(event)
            server.interrupt()

    inputs |= {"audit_percent": 100.0, "max_region_percent": 59.0}
    result = server.run(without_video(graph), interrupt)
    shown = result.outputs[graphs.sampler]
    assert shown["carnator"][0]["decision"] == "hit" and shown["text"][0].endswith("(not audited: interrupted)")
    assert len([text for text in result.texts(graphs.sampler) if text.startswith("audit ")]) < steps
    hit = load_file(server.base.file(result.outputs[SAVED_LATENT]["latents"][0]))["latent_tensor"]
    assert float((hit - stock).norm() / stock.norm()) < 2e-3

    inputs["max_region_percent"] = 58.0
    result = server.run(without_video(graph))
    report = result.outputs[graphs.sampler]["carnator"][0]
    assert report["audit"] and report["audit_note"] in result.outputs[graphs.sampler]["text"][0]
    audit = f"audit (step {{}} of {steps}): the hit again, in full; an interrupt keeps the hit"
    told = [text for text in result.texts(graphs.sampler) if text.startswith("audit")]
    assert told == [audit.format(step) for step in range(1, steps + 1)]
    assert result.previews == steps + 1, "those of the hit, and its heat map"

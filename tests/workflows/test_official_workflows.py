"""ComfyUI's official Wan workflows on a real server, with our sampler or with Apply in front of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scripts.testbed.client import Graph
from scripts.testbed.server import ComfyServer
from support.official_workflows import (
    SAMPLERS,
    of_class,
    official_graph,
    reports,
    saving_latents,
    set_prompt,
    with_apply,
    with_reuse_sampler,
)

WORKFLOWS = ["text_to_video_wan", "video_wan2_2_5B_ti2v", "video_wan2_2_14B_t2v"]
PROMPTS = ("a fox runs through deep snow at dawn", "a fox runs through deep snow at dusk")


@pytest.fixture(scope="module")
def info(official_server: ComfyServer) -> dict[str, Any]:
    return official_server.get("/object_info")


@pytest.fixture
def run(official_server: ComfyServer):
    """run(graph, prompt): latents of the samplers, reports of the report nodes."""

    def queue(graph: Graph, prompt: str) -> tuple[list[torch.Tensor], list[dict]]:
        set_prompt(graph, prompt)
        samplers = of_class(graph, *SAMPLERS, "CarnatorReuseSampler")
        result = official_server.run(saving_latents(graph))
        files = [official_server.base.file(result.outputs[f"latent-{s}"]["latents"][0]) for s in samplers]
        found = reports(graph, result.outputs) if "gate" in graph else []
        video = result.outputs[of_class(graph, "SaveVideo")[0]]
        assert official_server.base.file(video["images"][0]).stat().st_size > 500
        return [load_file(file)["latent_tensor"] for file in files], found

    return queue


@pytest.mark.parametrize(("name", "bypassed", "steps"), [(WORKFLOWS[0], False, [30]), (WORKFLOWS[2], True, [20, 20])])
def test_the_official_steps_are_used_unchanged(info, name: str, bypassed: bool, steps: list[int]) -> None:
    graph = official_graph(name, info, bypassed)
    assert [graph[sampler]["inputs"]["steps"] for sampler in of_class(graph, *SAMPLERS)] == steps


@pytest.mark.parametrize("name", WORKFLOWS)
def test_apply_behind_the_model_misses_as_stock_and_then_hits(info, run, name: str) -> None:
    stock_graph = official_graph(name, info, bypassed="14B" in name)
    stock, _ = run(stock_graph, PROMPTS[0])
    graph = with_apply(official_graph(name, info, bypassed="14B" in name), info, f"apply-{name}")
    first, found = run(graph, PROMPTS[0])
    assert [report["decision"] for report in found] == ["miss"] * len(stock), found
    assert all(map(torch.equal, first, stock))

    _, again = run(graph, PROMPTS[1])
    assert [report["decision"] for report in again] == ["hit"] * len(stock), again
    assert [report["donor"]["id"] for report in again] == [report["entry_id"] for report in found]
    assert all(report["samplings"] == 2 for report in again), "Apply stays cached, its report is filled anew"


@pytest.mark.parametrize("name", WORKFLOWS[:2])
def test_our_sampler_in_place_of_ksampler_misses_as_stock_and_then_hits(info, run, name: str) -> None:
    stock, _ = run(official_graph(name, info), PROMPTS[0])
    graph = with_reuse_sampler(official_graph(name, info), info, f"sampler-{name}")
    first, (found,) = run(graph, PROMPTS[0])
    assert found["decision"] == "miss" and torch.equal(first[0], stock[0])
    _, (again,) = run(graph, PROMPTS[1])
    assert again["decision"] == "hit" and again["donor"]["id"] == found["entry_id"], again


def test_the_four_step_pair_of_the_14b_workflow_is_declined_and_stock(info, run) -> None:
    stock, _ = run(official_graph(WORKFLOWS[2], info), PROMPTS[0])
    graph = with_apply(official_graph(WORKFLOWS[2], info), info, "four-steps")
    for prompt in (PROMPTS[1], PROMPTS[0]):
        latents, found = run(graph, prompt)
        assert [report["reason_code"] for report in found] == ["too_few_steps"] * 2
    assert all(map(torch.equal, latents, stock))


def test_the_status_shows_on_apply_while_the_stock_sampler_runs(info, official_server: ComfyServer) -> None:
    graph = with_apply(official_graph(WORKFLOWS[0], info), info, "status")
    set_prompt(graph, PROMPTS[0])
    (sampler,) = of_class(graph, *SAMPLERS)
    graph[sampler]["inputs"]["seed"] = 77
    result = official_server.run(graph)
    texts = result.texts(f"apply-{sampler}")
    assert texts[0] == "probe" and texts[-1].startswith("miss: no earlier request"), texts
    graph[f"apply-{sampler}"]["inputs"]["reuse"] = False
    assert official_server.run(graph).texts(f"apply-{sampler}") == ["off: Carnator is switched off on this node"]

"""The shipped workflows for official models on a real server, with tiny weights under the official names."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scripts.testbed.server import ComfyServer
from scripts.testbed.workflow import WIDGET_TYPES, load_workflow, to_graph
from scripts.workflow_job.builder import Workflow
from scripts.workflow_job.graphs import WORKFLOWS
from support.official_workflows import SAMPLERS, of_class, set_prompt, tiny, with_options
from support.paths import ROOT, TESTS

NAMES = [fill.__name__ for fill in WORKFLOWS]
OURS = ("CarnatorReuseSampler", "CarnatorApply")
LATER = {"CarnatorReuseSampler": 10, "CarnatorApply": 9}  # widgets that came after the first workflows were saved


@pytest.fixture(scope="module")
def info(official_server: ComfyServer) -> dict[str, Any]:
    return official_server.get("/object_info")


@pytest.fixture
def graph(info, request: pytest.FixtureRequest) -> dict:
    """The shipped workflow of this test, with a tiny video and a store of its own."""
    name = request.node.callspec.params["name"]
    loaded = tiny(load_workflow(ROOT / "workflows" / f"{name}.json", info))
    store = {"name": name, "budget_gb": 1.0, "mode": "read+write"}
    loaded["store"] = {"class_type": "CarnatorCacheStore", "inputs": store}
    for node in of_class(loaded, *OURS):
        loaded[node]["inputs"]["store"] = ["store", 0]
    return loaded


def reports(server: ComfyServer, graph: dict) -> list[dict]:
    """Runs a graph; what its report nodes show, in the order of the stages, or its sampler where there are none."""
    result = server.run(graph)
    video = result.outputs[of_class(graph, "SaveVideo")[0]]["images"][0]
    assert server.base.file(video).stat().st_size > 500
    nodes = of_class(graph, "CarnatorReport") or of_class(graph, "CarnatorReuseSampler")
    return [result.outputs[node]["carnator"][0] for node in sorted(nodes, key=int)]


@pytest.mark.parametrize(("name", "fill"), list(zip(NAMES, WORKFLOWS, strict=True)), ids=NAMES)
def test_the_shipped_files_are_what_the_script_makes(info, name: str, fill) -> None:
    flow = Workflow(name, info)
    fill(flow)
    shipped = ROOT / "workflows" / f"{name}.json"
    assert json.loads(shipped.read_text()) == flow.to_dict(), "run python3 scripts/generate.py"
    api = TESTS / "workflows" / "api" / f"{name}.json"
    assert json.loads(api.read_text()) == load_workflow(shipped, info)
    assert shipped.with_suffix(".jpg").stat().st_size > 5000


@pytest.mark.parametrize("name", NAMES)
def test_every_model_file_comes_with_its_address(name: str) -> None:
    workflow = json.loads((ROOT / "workflows" / f"{name}.json").read_text())
    loaders = [node for node in workflow["nodes"] if "Loader" in node["type"]]
    assert len(loaders) >= 3
    for node in loaders:
        (model,) = node["properties"]["models"]
        assert model["name"] == node["widgets_values"][0] and model["url"].endswith("/" + model["name"])


def test_the_first_steps_take_one_node_and_full_control_takes_all_that_sampling_has(info) -> None:
    def ours(name: str) -> set[str]:
        graph = load_workflow(ROOT / "workflows" / f"{name}.json", info)
        return {node["class_type"].removeprefix("Carnator") for node in graph.values()} & set(names)

    names = [name.removeprefix("Carnator") for name in info if name.startswith("Carnator")]
    assert ours("wan21_t2v") == {"ReuseSampler"}
    assert ours("full_control") == {"CacheStore", "EarlyProbe", "CompatibilityGate", "ReuseSampler", "Report"}


@pytest.mark.parametrize("name", NAMES)
def test_as_shipped_it_runs_and_keeps_what_it_made(official_server: ComfyServer, graph: dict, name: str) -> None:
    found = reports(official_server, graph)
    assert [report["decision"] for report in found] == ["miss"] * len(found)
    assert all(report["entry_id"] for report in found), found
    gates = of_class(graph, "CarnatorCompatibilityGate")
    if any(graph[gate]["inputs"]["mode"] == "thresholds" for gate in gates):
        assert all(report["scale_note"] is None for report in found), "limits set by hand need no scale"
    elif of_class(graph, "CarnatorReuseSampler"):
        assert all(report["scale_note"].startswith("learned this model from 5 short probes") for report in found), found


@pytest.mark.parametrize("name", NAMES)
def test_with_a_wide_gate_a_changed_prompt_is_a_hit(official_server: ComfyServer, graph: dict, name: str) -> None:
    graph["store"]["inputs"]["name"] = f"{name}-hit"
    for node in of_class(graph, *OURS):
        graph[node]["inputs"].update(with_options(graph))
    first = reports(official_server, graph)
    set_prompt(graph, "A red fox trots through fresh snow at the edge of a pine forest, late evening sun")
    again = reports(official_server, graph)
    assert [report["decision"] for report in again] == ["hit"] * len(first), again
    assert [report["donor"]["id"] for report in again] == [report["entry_id"] for report in first]


@pytest.mark.parametrize("name", ["wan21_t2v", "wan22_14b_two_stage"])
def test_one_saved_before_the_optional_widgets_still_runs(official_server: ComfyServer, info, graph, name: str) -> None:
    """And stores what the same workflow with these widgets at their defaults reuses."""
    workflow = json.loads((ROOT / "workflows" / f"{name}.json").read_text())
    later = {
        node: [n for n, spec in info[node]["input"]["optional"].items() if spec[0] in WIDGET_TYPES] for node in OURS
    }
    for node in workflow["nodes"]:
        if node["type"] in OURS:
            del node["widgets_values"][-len(later[node["type"]]) :]
    old = tiny(to_graph(workflow, info))
    graph["store"]["inputs"]["name"] = f"{name}-old"
    old["store"] = graph["store"]
    for form in (old, graph):
        for node in of_class(form, *OURS):
            form[node]["inputs"].update(store=["store", 0], **with_options(form))
    for node in of_class(old, *OURS):
        missing = later[old[node]["class_type"]]
        assert len(missing) == LATER[old[node]["class_type"]] and not set(missing) & set(old[node]["inputs"])
        assert set(missing) <= set(graph[node]["inputs"])
    first, again = reports(official_server, old), reports(official_server, graph)
    assert [report["decision"] for report in first + again] == ["miss"] * len(first) + ["hit"] * len(first)
    assert [report["donor"]["id"] for report in again] == [report["entry_id"] for report in first]


@pytest.mark.parametrize("name", ["compare_with_stock"])
def test_the_comparison_compares_equal_runs(official_server: ComfyServer, graph: dict, name: str) -> None:
    """Its two samplers get the same settings: a miss is bit-identical."""
    graph = copy.deepcopy(graph)
    graph["store"]["inputs"]["name"] = "compare-equal"
    samplers = of_class(graph, "CarnatorReuseSampler", *SAMPLERS)
    assert len(samplers) == 2
    for node in samplers:
        graph[f"save-{node}"] = {"class_type": "SaveLatent", "inputs": {"samples": [node, 0], "filename_prefix": node}}
    outputs = official_server.run(graph).outputs
    files = [official_server.base.file(outputs[f"save-{node}"]["latents"][0]) for node in samplers]
    assert torch.equal(*(load_file(file)["latent_tensor"] for file in files))

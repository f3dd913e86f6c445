"""ComfyUI's official Wan workflows as graphs, stock and with our nodes put in."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

from scripts.testbed.client import Graph
from scripts.testbed.workflow import BYPASSED, to_graph

PACKAGE = "comfyui_workflow_templates_media_video"
LATENTS = ("EmptyHunyuanLatentVideo", "Wan22ImageToVideoLatent")
SAMPLERS = ("KSampler", "KSamplerAdvanced")
TINY = {"width": 64, "height": 64, "length": 5}
WIDE = {
    "representation": 2.0, "residual": 2.0, "dynamics": 10.0, "state": 10.0, "near_empty_representation": 2.0,
}  # fmt: skip


def official_graph(name: str, object_info: dict[str, Any], bypassed: bool = False) -> Graph:
    """API form of an official workflow with a tiny video; ``bypassed`` takes its bypassed half instead of the other."""
    package = importlib.util.find_spec(PACKAGE)
    assert package is not None and package.origin is not None, f"{PACKAGE} is a test requirement"
    path = Path(package.origin).parent / "templates" / f"{name}.json"
    workflow = json.loads(path.read_text(encoding="utf-8"))
    kept = [node for node in workflow["nodes"] if (node.get("mode") == BYPASSED) == bypassed]
    ids = {node["id"] for node in kept}
    links = {link[0] for link in workflow["links"] if link[1] in ids}
    for node in kept:
        node["mode"] = 0
        for slot in node.get("inputs", []):
            slot["link"] = slot.get("link") if slot.get("link") in links else None
    return tiny(to_graph({**workflow, "nodes": kept}, object_info))


def tiny(graph: Graph) -> Graph:
    """The same graph for a video of 64×64×5."""
    for node in of_class(graph, *LATENTS):
        graph[node]["inputs"].update(TINY)
    return graph


def of_class(graph: Graph, *classes: str) -> list[str]:
    """Ids of the nodes of some classes, in the order in which they run for samplers of stages."""
    found = [node for node, content in graph.items() if content["class_type"] in classes]
    return sorted(found, key=lambda node: graph[node]["inputs"].get("start_at_step", 0))


def set_prompt(graph: Graph, text: str) -> None:
    for sampler in of_class(graph, *SAMPLERS, "CarnatorReuseSampler"):
        graph[graph[sampler]["inputs"]["positive"][0]]["inputs"]["text"] = text


def saving_latents(graph: Graph) -> Graph:
    """Saves what each sampler gives, under "latent-<sampler>"."""
    for sampler in of_class(graph, *SAMPLERS, "CarnatorReuseSampler"):
        inputs = {"samples": [sampler, 0], "filename_prefix": f"latent{sampler}"}
        graph[f"latent-{sampler}"] = {"class_type": "SaveLatent", "inputs": inputs}
    return graph


def with_reuse_sampler(graph: Graph, object_info: dict[str, Any], store: str) -> Graph:
    """Our sampler in place of each KSampler, with a store of its own, a wide gate and a report."""
    graph = copy.deepcopy(graph)
    links = _options(graph, store)
    for sampler in of_class(graph, "KSampler"):
        node = graph[sampler]
        node["class_type"] = "CarnatorReuseSampler"
        node["inputs"] = {**_widgets(object_info["CarnatorReuseSampler"]), **node["inputs"], **links}
        _report(graph, sampler, [sampler, 1])
    return graph


def with_apply(graph: Graph, object_info: dict[str, Any], store: str) -> Graph:
    """Apply behind the model of each stock sampler, with a store, a wide gate and a report."""
    graph = copy.deepcopy(graph)
    links = _options(graph, store)
    for sampler in of_class(graph, *SAMPLERS):
        inputs = {**_widgets(object_info["CarnatorApply"]), "model": graph[sampler]["inputs"]["model"], **links}
        graph[f"apply-{sampler}"] = {"class_type": "CarnatorApply", "inputs": inputs}
        graph[sampler]["inputs"]["model"] = [f"apply-{sampler}", 0]
        _report(graph, sampler, [f"apply-{sampler}", 1])
    return graph


def reports(graph: Graph, outputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Data of the report nodes in the order of their samplers."""
    samplers = of_class(graph, *SAMPLERS, "CarnatorReuseSampler")
    return [outputs[f"report-{sampler}"]["carnator"][0] for sampler in samplers]


def with_options(graph: Graph) -> dict[str, Any]:
    """Adds a gate that lets everything pass; the inputs of our nodes for it."""
    graph["gate"] = {"class_type": "CarnatorCompatibilityGate", "inputs": dict(WIDE)}
    return {"gate": ["gate", 0], "region_threshold": 10.0}


def _options(graph: Graph, store: str) -> dict[str, Any]:
    inputs = {"name": store, "budget_gb": 1.0, "mode": "read+write"}
    graph["store"] = {"class_type": "CarnatorCacheStore", "inputs": inputs}
    return {"store": ["store", 0], **with_options(graph)}


def _report(graph: Graph, sampler: str, report: list) -> None:
    inputs = {"report": report, "latent": [sampler, 0]}
    graph[f"report-{sampler}"] = {"class_type": "CarnatorReport", "inputs": inputs}


def _widgets(info: dict[str, Any]) -> dict[str, Any]:
    """Defaults of the inputs that are widgets."""
    specs = info["input"]["required"]
    return {name: spec[1]["default"] for name, spec in specs.items() if len(spec) > 1 and "default" in spec[1]}

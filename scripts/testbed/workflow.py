"""A workflow as the editor saves it, turned into the graph that the server runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .client import Graph

WIDGET_TYPES = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
MUTED, BYPASSED = 2, 4
SEED_NAMES = ("seed", "noise_seed")


class WorkflowError(Exception):
    """The workflow uses something this conversion does not know."""


def load_workflow(path: Path, object_info: dict[str, Any]) -> Graph:
    return to_graph(json.loads(path.read_text(encoding="utf-8")), object_info)


def to_graph(workflow: dict[str, Any], object_info: dict[str, Any]) -> Graph:
    """Editor JSON -> API JSON. `object_info` is the server's answer to /object_info.

    Enough for workflows without subgraphs, reroutes and bypassed nodes.
    """
    sources = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    graph: Graph = {}
    for node in workflow["nodes"]:
        if node["type"] in ("Note", "MarkdownNote") or node.get("mode") == MUTED:
            continue
        if node.get("mode") == BYPASSED or node["type"] not in object_info:
            raise WorkflowError(f"node {node['id']} ({node['type']}) is bypassed or unknown to the server")
        inputs = _widget_inputs(node, object_info[node["type"]])
        for slot in node.get("inputs", []):
            if slot.get("link") is not None:
                inputs[slot["name"]] = sources[slot["link"]]
        graph[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return graph


def _widget_inputs(node: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    values = iter(node.get("widgets_values") or [])
    inputs: dict[str, Any] = {}
    for name, kind, settings in _specs(info):
        if not (isinstance(kind, list) or kind in WIDGET_TYPES) or settings.get("forceInput"):
            continue
        try:
            inputs[name] = next(values)
        except StopIteration:
            return inputs  # saved before the input existed: the server takes its default
        if kind == "INT" and settings.get("control_after_generate", name in SEED_NAMES):
            next(values, None)  # the editor keeps "fixed" or "randomize" behind a seed
    return inputs


def _specs(info: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for group in ("required", "optional"):
        for name, spec in info["input"].get(group, {}).items():
            yield name, spec[0], spec[1] if len(spec) > 1 else {}

"""Whether a workflow that the editor saved fits what a server's nodes take today."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scripts.testbed.workflow import WIDGET_TYPES, to_graph


def complaints(workflow: dict[str, Any], object_info: dict[str, Any]) -> list[str]:
    """What does not fit: links of all nodes, and widget values of ours; empty if all of it fits."""
    found = []
    graph = to_graph(workflow, object_info)
    for node, content in graph.items():
        kind = content["class_type"]
        info = object_info[kind]
        specs = {name: spec for group in info["input"].values() for name, spec in group.items()}
        missing = [name for name in info["input"].get("required", {}) if name not in content["inputs"]]
        problems = [f"{name} is missing" for name in missing]
        for name, value in content["inputs"].items():
            if isinstance(value, list):
                problems += _link_problems(name, _type(specs[name]), value, graph, object_info)
            elif kind.startswith("Carnator"):
                problems += _value_problems(name, specs[name], value)
        found += [f"{kind} (node {node}): {problem}" for problem in problems]
    return found + list(_unread_values(workflow, object_info))


def _type(spec: list) -> str:
    return "COMBO" if isinstance(spec[0], list) else spec[0]


def _link_problems(
    name: str, wanted: str, link: list, graph: dict[str, Any], object_info: dict[str, Any]
) -> Iterator[str]:
    source, slot = link
    if source not in graph:
        yield f"{name} comes from node {source}, which is not there"
        return
    outputs = object_info[graph[source]["class_type"]]["output"]
    given = outputs[slot] if slot < len(outputs) else "nothing"
    if not set(given.split(",")) & set(wanted.split(",")) and "*" not in (given, wanted):
        yield f"{name} takes {wanted} and gets {given}"


def _value_problems(name: str, spec: list, value: Any) -> Iterator[str]:
    kind, settings = _type(spec), spec[1] if len(spec) > 1 else {}
    if kind == "COMBO":
        options = spec[0] if isinstance(spec[0], list) else settings["options"]
        if value not in options:
            yield f"{name} has no choice {value!r}"
        return
    types = {"INT": int, "FLOAT": (int, float), "BOOLEAN": bool, "STRING": str}[kind]
    if not isinstance(value, types) or isinstance(value, bool) != (kind == "BOOLEAN"):
        yield f"{name} is {kind} and gets {value!r}"
    elif kind in ("INT", "FLOAT") and not settings["min"] <= value <= settings["max"]:
        yield f"{name} lies between {settings['min']} and {settings['max']} and gets {value}"


def _unread_values(workflow: dict[str, Any], object_info: dict[str, Any]) -> Iterator[str]:
    """Values without a widget: they are read by position, so that one too many says that some moved."""
    for node in workflow["nodes"]:
        if node["type"].startswith("Carnator"):
            specs = [spec for group in object_info[node["type"]]["input"].values() for spec in group.values()]
            widgets = [spec for spec in specs if _type(spec) in WIDGET_TYPES]
            if len(node.get("widgets_values") or []) > len(widgets):
                yield f"{node['type']} (node {node['id']}): more values than widgets"

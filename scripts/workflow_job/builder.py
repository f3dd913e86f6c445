"""Builds a workflow in the form in which ComfyUI's editor saves it.

Slots, widget order and defaults come from the server's node descriptions, so a description here names only what
differs: ``flow.node("KSampler", column=3, model=shifted[0], steps=20)``.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from scripts.testbed.workflow import SEED_NAMES, WIDGET_TYPES

COLUMN_WIDTH, GAP = 400, 50
TITLE, ROW, MARGIN = 40, 24, 16
TEXT_HEIGHT = 120
OURS = {"color": "#432", "bgcolor": "#653"}
NAMESPACE = uuid.UUID("1d1f6e4e-52a1-4f0e-8d3c-0c5a7a0f6a11")


@dataclass(frozen=True)
class Output:
    """One output slot of a node, to be given as another node's input."""

    node: int
    slot: int
    type: str


@dataclass
class Node:
    data: dict[str, Any]
    types: list[str]

    def __getitem__(self, slot: int) -> Output:
        return Output(self.data["id"], slot, self.types[slot])


@dataclass
class Workflow:
    """A graph that grows node by node; nodes of a column stand below each other."""

    name: str
    object_info: dict[str, Any]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    links: list[list[Any]] = field(default_factory=list)
    _bottom: dict[int, int] = field(default_factory=dict)

    def node(
        self, kind: str, column: int, *, title: str = "", download: tuple[str, str] | None = None, **values: Any
    ) -> Node:
        """Append a node.

        Args:
            download: (folder below models/, address) of the file that its first widget names, for the download offer.
            values: inputs by name: an Output for a link, anything else for a widget.
        """
        info, number = self.object_info[kind], len(self.nodes) + 1
        slots: list[dict[str, Any]] = []
        widgets: list[Any] = []
        texts = 0
        for name, kind_of, settings in _specs(info):
            value = values.pop(name, None)
            if isinstance(kind_of, list) or kind_of in WIDGET_TYPES:
                options = kind_of if isinstance(kind_of, list) else settings.get("options", [None])
                widgets.append(settings.get("default", next(iter(options), None)) if value is None else value)
                texts += bool(settings.get("multiline"))
                if kind_of == "INT" and settings.get("control_after_generate", name in SEED_NAMES):
                    widgets.append("fixed")
            else:
                slots.append({"name": name, "type": kind_of, "link": self._link(value, number, len(slots))})
        if values:
            raise ValueError(f"{kind} has no input {', '.join(values)}")
        outputs = [
            {"name": name, "type": type_, "links": []}
            for name, type_ in zip(info["output_name"], info["output"], strict=True)
        ]
        properties: dict[str, Any] = {"Node name for S&R": kind}
        if download is not None:
            properties["models"] = [{"name": widgets[0], "url": download[1], "directory": download[0]}]
        rows = max(len(slots), len(outputs)) + len(widgets) - texts
        look = {**({"title": title} if title else {}), **(OURS if kind.startswith("Carnator") else {})}
        self._place(kind, column, rows * ROW + texts * TEXT_HEIGHT + MARGIN, slots, outputs, properties, widgets, look)
        return Node(self.nodes[-1], list(info["output"]))

    def note(self, column: int, text: str, height: int = 200) -> None:
        properties = {"Node name for S&R": "MarkdownNote"}
        self._place("MarkdownNote", column, height, [], [], properties, [text], {"title": "How to use"})

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": str(uuid.uuid5(NAMESPACE, self.name)),
            "revision": 0,
            "last_node_id": len(self.nodes),
            "last_link_id": len(self.links),
            "nodes": self.nodes,
            "links": self.links,
            "groups": [],
            "config": {},
            "extra": {},
            "version": 0.4,
        }

    def _link(self, source: Output | None, node: int, slot: int) -> int | None:
        if source is None:
            return None
        number = len(self.links) + 1
        self.links.append([number, source.node, source.slot, node, slot, source.type])
        self.nodes[source.node - 1]["outputs"][source.slot]["links"].append(number)
        return number

    def _place(
        self,
        kind: str,
        column: int,
        height: int,
        slots: list,
        outputs: list,
        properties: dict,
        widgets: list,
        look: dict,
    ) -> None:
        top = self._bottom.get(column, 0)
        self._bottom[column] = top + height + TITLE + GAP
        self.nodes.append(
            {
                "id": len(self.nodes) + 1,
                "type": kind,
                "pos": [column * (COLUMN_WIDTH + GAP), top],
                "size": [COLUMN_WIDTH, height],
                "flags": {},
                "order": len(self.nodes),
                "mode": 0,
                "inputs": slots,
                "outputs": outputs,
                "properties": properties,
                "widgets_values": widgets,
                **look,
            }
        )


def _specs(info: dict[str, Any]) -> list[tuple[str, Any, dict[str, Any]]]:
    groups = (info["input"].get(group, {}) for group in ("required", "optional"))
    return [(name, spec[0], spec[1] if len(spec) > 1 else {}) for group in groups for name, spec in group.items()]

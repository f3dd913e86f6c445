"""The English texts of the nodes in the form that ComfyUI's editor translates from.

They are the nodes' own texts: a translator copies `locales/en` to another language and needs no Python.
"""

from __future__ import annotations

from typing import Any

DATA_TYPES = {
    "CARNATOR_STORE": "Carnator store",
    "CARNATOR_PROBE": "Carnator probe",
    "CARNATOR_GATE": "Carnator gate",
    "CARNATOR_REPORT": "Carnator report",
}
MAIN = {"nodeCategories": {"Carnator": "Carnator", "demo": "demo"}, "dataTypes": DATA_TYPES}


def node_texts(object_info: dict[str, Any]) -> dict[str, Any]:
    """nodeDefs.json: texts by node id, inputs by name, outputs by position."""
    return {name: _texts(info) for name, info in sorted(object_info.items()) if name.startswith("Carnator")}


def _texts(info: dict[str, Any]) -> dict[str, Any]:
    specs = {name: spec for group in ("required", "optional") for name, spec in info["input"].get(group, {}).items()}
    return {
        "display_name": info["display_name"],
        "description": info["description"],
        "inputs": {name: {"name": name, "tooltip": spec[1]["tooltip"]} for name, spec in specs.items()},
        "outputs": {
            str(at): {"name": name, "tooltip": tooltip}
            for at, (name, tooltip) in enumerate(zip(info["output_name"], info["output_tooltips"], strict=True))
        },
    }

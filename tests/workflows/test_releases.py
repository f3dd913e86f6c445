"""Workflows as they were shipped with each release: they must go on working with the nodes of today."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.testbed.server import ComfyServer
from scripts.testbed.workflow import load_workflow
from support.official_workflows import of_class, tiny
from support.paths import ROOT, TESTS
from support.tools import Tool
from support.workflow_check import complaints

RELEASES = TESTS / "workflows" / "releases"
FILES = sorted(RELEASES.glob("*/*.json"))
FIRST_STEPS = sorted(RELEASES.glob("*/wan21_t2v.json"))


def named(file: Path) -> str:
    return f"{file.parent.name}-{file.stem}"


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def info(official_server: ComfyServer) -> dict[str, Any]:
    return official_server.get("/object_info")


def test_this_version_has_its_workflows() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert version in {file.parent.name for file in FILES}, f"cp workflows/*.json {RELEASES.name}/{version}/"


@pytest.mark.parametrize("file", FILES, ids=named)
def test_it_fits_the_nodes_of_today(info, file: Path) -> None:
    assert complaints(read(file), info) == []


def test_comfy_lint_finds_nothing_in_their_api_forms(
    official_server: ComfyServer, info, tool: Tool, tmp_path: Path
) -> None:
    forms = [tmp_path / f"{named(file)}.json" for file in FILES]
    for file, form in zip(FILES, forms, strict=True):
        form.write_text(json.dumps(load_workflow(file, info)))
    done = tool("comfy-lint", "--strict", "--server", f"http://{official_server.address}", *map(str, forms))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FIRST_STEPS, ids=named)
def test_the_first_steps_run(official_server: ComfyServer, info, file: Path) -> None:
    graph = tiny(load_workflow(file, info))
    store = {"name": named(file).replace(".", "_"), "budget_gb": 1.0, "mode": "read+write"}
    graph["store"] = {"class_type": "CarnatorCacheStore", "inputs": store}
    (sampler,) = of_class(graph, "CarnatorReuseSampler")
    graph[sampler]["inputs"]["store"] = ["store", 0]
    (report,) = official_server.run(graph).outputs[sampler]["carnator"]
    assert report["decision"] == "miss" and report["entry_id"], report


def a_node(workflow: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(node for node in workflow["nodes"] if node["type"] == kind)


def no_such_choice(workflow: dict[str, Any]) -> None:
    a_node(workflow, "CarnatorCacheStore")["widgets_values"][2] = "append"


def too_large(workflow: dict[str, Any]) -> None:
    a_node(workflow, "CarnatorEarlyProbe")["widgets_values"][0] = 51.0


def moved_by_one(workflow: dict[str, Any]) -> None:
    a_node(workflow, "CarnatorReuseSampler")["widgets_values"].insert(0, 7)


def no_number(workflow: dict[str, Any]) -> None:
    a_node(workflow, "CarnatorReuseSampler")["widgets_values"][1] = True


def crossed_link(workflow: dict[str, Any]) -> None:
    slots = {slot["name"]: slot for slot in a_node(workflow, "CarnatorReuseSampler")["inputs"]}
    slots["store"]["link"], slots["gate"]["link"] = slots["gate"]["link"], slots["store"]["link"]


def cut_link(workflow: dict[str, Any]) -> None:
    next(slot for slot in a_node(workflow, "CarnatorReuseSampler")["inputs"] if slot["name"] == "model")["link"] = None


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (no_such_choice, "mode has no choice 'append'"),
        (too_large, "probe_percent lies between 1.0 and 50.0 and gets 51.0"),
        (moved_by_one, "more values than widgets"),
        (no_number, "steps is INT and gets True"),
        (crossed_link, "store takes CARNATOR_STORE and gets CARNATOR_GATE"),
        (cut_link, "model is missing"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_does_not_fit_is_told(info, damage: Callable[[dict[str, Any]], None], told: str) -> None:
    """Else the silence of the tests above would say nothing."""
    workflow = read(ROOT / "workflows" / "full_control.json")
    assert complaints(workflow, info) == []
    damage(workflow)
    found = complaints(workflow, info)
    assert any(line.endswith(told) for line in found), found

"""The shipped workflow in a real browser: load it, press Run, read the status on the node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from scripts.graphs import OURS, WORKFLOW
from scripts.testbed.browser import Editor, editor
from scripts.testbed.server import ComfyServer
from scripts.testbed.workflow import to_graph
from scripts.workflow_job.graphs import WORKFLOWS
from support.browser import screenshot
from support.paths import TESTS

STEPS = 6

DRAWN = "(count) => document.querySelectorAll('[data-node-id]').length === count"
# Pairs of nodes of which one covers a part of the other, by their titles.
OVERLAPS = """() => {
    const title = (element) => window.app.graph.getNodeById(Number(element.dataset.nodeId)).title;
    const nodes = [...document.querySelectorAll("[data-node-id]")].map((e) => [title(e), e.getBoundingClientRect()]);
    return nodes.flatMap(([name, a], place) => nodes.slice(place + 1)
        .filter(([, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        .map(([other]) => [name, other]));
}"""


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    if not WORKFLOW.is_file():
        pytest.skip(f"the workflow {WORKFLOW.name} does not exist yet")
    return json.loads(WORKFLOW.read_text(encoding="utf-8"))


@pytest.fixture
def page(browser: Browser, workflow: dict[str, Any], server: ComfyServer) -> Iterator[Editor]:
    with editor(browser, server.address) as opened:
        opened.load(workflow)
        yield opened


def test_status_is_on_the_node_after_a_run(page: Editor, artifacts: Path) -> None:
    sampler = page.node_id(OURS)
    page.set_widget(sampler, "steps", STEPS)
    assert page.alerts() == []
    page.run()
    output = page.output(sampler)
    status = output["text"][0]
    assert status.startswith(output["carnator"][0]["decision"])
    # The front end shows the node's progress text on the node itself, and it stays after the run.
    page.page.get_by_text(status).first.wait_for(state="visible", timeout=10_000)
    page.page.locator("video").first.wait_for(state="visible", timeout=10_000)
    screenshot(page.page, artifacts, "web_status")
    assert page.errors == []


def test_editor_queues_the_graph_that_the_demo_runs(
    page: Editor, server: ComfyServer, workflow: dict[str, Any]
) -> None:
    queued = {
        node: {"class_type": content["class_type"], "inputs": content["inputs"]}
        for node, content in page.graph().items()
    }
    assert queued == to_graph(workflow, server.get("/object_info"))


def test_editor_reads_every_workflow_for_official_models_as_the_tests_do(page: Editor) -> None:
    for fill in WORKFLOWS:
        name = f"{fill.__name__}.json"
        page.load(json.loads((WORKFLOW.parent / name).read_text(encoding="utf-8")))
        expected = json.loads((TESTS / "workflows" / "api" / name).read_text(encoding="utf-8"))
        queued = {n: {"class_type": c["class_type"], "inputs": c["inputs"]} for n, c in page.graph().items()}
        assert queued == expected, name
    assert page.errors == []


def test_nodes_of_the_shipped_workflows_stand_apart_where_a_front_end_draws_them_taller(
    browser: Browser, current_server: ComfyServer
) -> None:
    current_server.post("/settings", {"Comfy.VueNodes.Enabled": True})
    try:
        with editor(browser, current_server.address) as page:
            for path in sorted(WORKFLOW.parent.glob("*.json")):
                shipped = json.loads(path.read_text(encoding="utf-8"))
                page.load(shipped)
                page.view(60, 60, 0.4)
                page.page.wait_for_function(DRAWN, arg=len(shipped["nodes"]))
                assert page.page.evaluate(OVERLAPS) == [], path.name
    finally:
        current_server.post("/settings", {"Comfy.VueNodes.Enabled": False})

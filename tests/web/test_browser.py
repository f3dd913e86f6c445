"""The shipped workflow in a real browser: load it, press Run, read the status on the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.graphs import OURS, WORKFLOW
from scripts.testbed.browser import Editor
from scripts.testbed.server import ComfyServer
from scripts.testbed.workflow import to_graph
from scripts.workflow_job.graphs import WORKFLOWS
from support.browser import CASES, Drawn, screenshot
from support.paths import TESTS

SMALL = {"width": 128, "height": 128, "length": 9}
STEPS = 6

pytestmark = pytest.mark.parametrize("shared_page", CASES[:1], ids="-".join, indirect=True)


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    if not WORKFLOW.is_file():
        pytest.skip(f"the workflow {WORKFLOW.name} does not exist yet")
    return json.loads(WORKFLOW.read_text(encoding="utf-8"))


@pytest.fixture
def page(drawn: Drawn, workflow: dict[str, Any]) -> Editor:
    drawn.page.load(workflow)
    return drawn.page


def test_status_is_on_the_node_after_a_run(page: Editor, artifacts: Path) -> None:
    sampler = page.node_id(OURS)
    page.set_widget(sampler, "steps", STEPS)
    for side, size in SMALL.items():
        page.set_widget(page.node_id("EmptyHunyuanLatentVideo"), side, size)
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

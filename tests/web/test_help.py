"""The help of the nodes in the editor, in two front ends and two languages, and nodes that only tell something."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from scripts.workflow_job.builder import Workflow
from support.browser import Drawn
from support.paths import ROOT

SHOW = """(type) => {
    const { graph, canvas } = window.app;
    graph.clear();
    canvas.ds.reset();
    const node = window.LiteGraph.createNode(type);
    node.pos = [500, 350]; // below the bars that would cover its toolbox
    graph.add(node);
    canvas.selectNode(node);
    canvas.setDirty(true, true);
}"""
LANGUAGES = [
    ("server", "canvas"), ("server", "canvas", "zh"), ("current_server", "canvas"), ("current_server", "canvas", "zh"),
]  # fmt: skip


def names(language: str) -> dict[str, str]:
    """Display names by node id."""
    path = ROOT / "locales" / language / "nodeDefs.json"
    return {node: texts["display_name"] for node, texts in json.loads(path.read_text(encoding="utf-8")).items()}


@pytest.mark.parametrize("shared_page", LANGUAGES, ids="-".join, indirect=True)
def test_the_help_of_each_node_opens_with_its_picture(drawn: Drawn) -> None:
    opened = drawn.page
    help_ = opened.page.locator(".node-help-content")
    for node, name in names(drawn.language).items():
        opened.page.evaluate(SHOW, node)
        opened.page.get_by_test_id("info-button").click()
        expect(help_.locator("h1")).to_have_text(name)
        picture = help_.locator("img").first
        expect(picture).to_have_js_property("complete", True)
        assert picture.evaluate("(image) => image.naturalWidth") > 200, node
    assert opened.errors == []


def test_what_a_purge_and_a_calibration_tell_stands_on_their_nodes(drawn: Drawn) -> None:
    opened = drawn.page
    flow = Workflow("telling", drawn.server.get("/object_info"))
    store = flow.node("CarnatorCacheStore", 0, name="told")[0]
    flow.node("CarnatorStorePurge", 1, store=store)
    flow.node("CarnatorCalibrate", 1, store=store)
    opened.load(flow.to_dict())
    opened.run()
    for line in ("confirm is off; it would be: 0 entries deleted", "there are no verdicts yet"):
        expect(opened.page.get_by_text(line).locator("visible=true")).to_have_count(1)
    assert opened.errors == []

"""The help of the nodes in the editor, in two front ends and two languages, and nodes that only tell something."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from scripts.testbed.browser import Editor, editor
from scripts.testbed.server import ComfyServer
from scripts.workflow_job.builder import Workflow
from support.paths import ROOT

SHOW = """(type) => {
    const { graph, canvas } = window.app;
    graph.clear();
    const node = window.LiteGraph.createNode(type);
    node.pos = [500, 350]; // below the bars that would cover its toolbox
    graph.add(node);
    canvas.selectNode(node);
    canvas.setDirty(true, true);
}"""
CASES = [("server", "en"), ("server", "zh"), ("current_server", "en"), ("current_server", "zh")]


def names(language: str) -> dict[str, str]:
    """Display names by node id."""
    path = ROOT / "locales" / language / "nodeDefs.json"
    return {node: texts["display_name"] for node, texts in json.loads(path.read_text(encoding="utf-8")).items()}


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def reader(request: pytest.FixtureRequest, browser: Browser) -> Iterator[tuple[Editor, str]]:
    """An editor in a language, and which one."""
    fixture, language = request.param
    server: ComfyServer = request.getfixturevalue(fixture)
    server.post("/settings", {"Comfy.Locale": language})
    try:
        with editor(browser, server.address) as page:
            yield page, language
    finally:
        server.post("/settings", {"Comfy.Locale": "en"})


def test_the_help_of_each_node_opens_with_its_picture(reader: tuple[Editor, str]) -> None:
    opened, language = reader
    help_ = opened.page.locator(".node-help-content")
    for node, name in names(language).items():
        opened.page.evaluate(SHOW, node)
        opened.page.get_by_test_id("info-button").click()
        expect(help_.locator("h1")).to_have_text(name)
        picture = help_.locator("img").first
        expect(picture).to_have_js_property("complete", True)
        assert picture.evaluate("(image) => image.naturalWidth") > 200, node
    assert opened.errors == []


@pytest.mark.parametrize("drawing", ["canvas", "vue"])
@pytest.mark.parametrize("front_end", ["server", "current_server"])
def test_what_a_purge_and_a_calibration_tell_stands_on_their_nodes(
    request: pytest.FixtureRequest, browser: Browser, front_end: str, drawing: str
) -> None:
    server: ComfyServer = request.getfixturevalue(front_end)
    flow = Workflow("telling", server.get("/object_info"))
    store = flow.node("CarnatorCacheStore", 0, name="told")[0]
    flow.node("CarnatorStorePurge", 1, store=store)
    flow.node("CarnatorCalibrate", 1, store=store)
    server.post("/settings", {"Comfy.VueNodes.Enabled": drawing == "vue"})
    try:
        with editor(browser, server.address) as opened:
            opened.load(flow.to_dict())
            opened.run()
            for line in ("confirm is off; it would be: 0 entries deleted", "there are no verdicts yet"):
                expect(opened.page.get_by_text(line).locator("visible=true")).to_have_count(1)
            assert opened.errors == []
    finally:
        server.post("/settings", {"Comfy.VueNodes.Enabled": False})

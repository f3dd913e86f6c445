"""A run, its status on the nodes and the panel, in two front ends and both ways in which they draw nodes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from scripts.graphs import OURS, WORKFLOW
from scripts.testbed.browser import Editor
from support.browser import Drawn, screenshot

PROMPT = "Prompt"  # how the title of the node begins
SMALL = {"width": 128, "height": 128, "length": 9}
FAMILIES = ("representation", "residual", "dynamics", "state")

ADD_REPORT = """(sampler) => {
    const report = window.LiteGraph.createNode("CarnatorReport");
    report.pos = [1480, 700];
    window.app.graph.add(report);
    window.app.graph.getNodeById(Number(sampler)).connect(1, report, 0);
}"""

TAKE_OUR_WIDGETS = """() => {
    let count = 0;
    for (const node of window.app.graph._nodes) {
        const at = (node.widgets ?? []).findIndex((widget) => widget.name === "carnator_status");
        if (at >= 0) count += node.widgets.splice(at, 1).length;
    }
    return count;
}"""


@dataclass(frozen=True)
class Ran:
    """A page in which the demo workflow ran twice: a miss, then a hit."""

    page: Editor
    name: str  # of the case, of its store and of its pictures


@pytest.fixture(scope="module")
def ran(drawn: Drawn) -> Ran:
    page, name = drawn.page, f"web-{drawn.name}"
    page.load(json.loads(WORKFLOW.read_text(encoding="utf-8")))
    sampler, gate = page.node_id(OURS), page.node_id("CarnatorCompatibilityGate")
    page.page.evaluate(ADD_REPORT, sampler)
    page.set_widget(page.node_id("CarnatorCacheStore"), "name", name)
    page.set_widget(sampler, "steps", 8)
    page.set_widget(sampler, "max_region_percent", 100)
    for side, size in SMALL.items():
        page.set_widget(page.node_id("EmptyHunyuanLatentVideo"), side, size)
    for family in FAMILIES:
        page.set_widget(gate, family, 2.0)
    page.run()
    expect(status(page, OURS).first).to_have_attribute("data-decision", "miss")
    page.set_widget(page.node_titled(PROMPT), "text", "a large white cube drifts left over a city in fog")
    page.run()
    return Ran(page, name)


def status(page: Editor, node_type: str) -> Locator:
    """The badge in the status of the nodes of a type. Both ways of drawing put it into the page."""
    place = page.page.evaluate_handle(
        "(type) => window.app.graph._nodes.find((node) => node.type === type)"
        ".widgets?.find((widget) => widget.name === 'carnator_status')?.element.setAttribute('data-node', type)",
        node_type,
    )
    place.dispose()
    return page.page.locator(f'.carnator-status[data-node="{node_type}"] .carnator-badge')


def test_the_decision_stays_on_the_nodes(ran: Ran, artifacts: Path) -> None:
    page = ran.page
    page.page.wait_for_timeout(1000)  # some front ends take their own text away when the run has ended
    shown = page.output(page.node_id(OURS))["text"][0]
    assert shown.startswith("hit ")
    for node_type in (OURS, "CarnatorReport"):
        badge = status(page, node_type)
        expect(badge).to_be_visible()
        expect(badge).to_have_attribute("data-decision", "hit")
        expect(badge).to_have_text(shown.split(" · ")[0])
    expect(page.page.get_by_text(shown.split(" · ")[1]).first).to_be_visible()
    screenshot(page.page, artifacts, f"{ran.name}_status")
    node = page.page.locator(f'[data-node-id="{page.node_id(OURS)}"]')  # on a canvas there is none
    once = 1 if ran.name.endswith("-vue") else 0
    expect(node.locator("img:visible")).to_have_count(once)
    expect(node.get_by_text(re.compile(r"^\d+ [x×] \d+$")).locator("visible=true")).to_have_count(once)
    page.page.evaluate("() => window.app.loadGraphData(window.app.graph.serialize())")
    expect(status(page, OURS)).to_have_attribute("data-decision", "hit")  # as after a look at another workflow


def test_the_panel_opens_from_the_status_and_shows_why(ran: Ran) -> None:
    page = ran.page
    status(page, OURS).click()
    page.open_panel(ran.name)
    cards = page.panel.locator(".carnator-decision")
    expect(cards).to_have_count(2)
    expect(cards.nth(0).locator(".carnator-badge")).to_contain_text("hit")
    expect(cards.nth(0)).to_contain_text("region")
    expect(cards.nth(1).locator(".carnator-badge")).to_have_text("miss")
    expect(cards.nth(1)).to_contain_text("no earlier request in this store yet")
    cards.nth(0).locator("summary").click()
    expect(cards.nth(0).locator("tbody tr")).not_to_have_count(0)
    expect(page.panel.locator(".carnator-savings")).to_contain_text("Saved so far")


def test_a_verdict_is_given_beside_both_pictures_counted_and_taken_back(ran: Ran, artifacts: Path) -> None:
    page = ran.page
    page.open_panel(ran.name)
    hit = page.panel.locator(".carnator-decision").first
    for number in (0, 1):
        picture = hit.locator("figure").nth(number).locator("img")
        expect(picture).to_be_visible()
        picture.evaluate("(image) => image.decode()")
    certificate = page.panel.locator(".carnator-certificate")
    expect(certificate).to_contain_text("Verdicts given: 0.")
    hit.locator('[data-action="unsafe"]').click()
    expect(hit).to_contain_text("You said: lost something.")
    expect(hit.locator('[data-action="undo"]')).to_be_focused()
    expect(certificate).to_contain_text("Verdicts given: 1.")
    page.page.mouse.move(800, 900)
    screenshot(page.page, artifacts, f"{ran.name}_verdict")
    hit.locator('[data-action="undo"]').click()
    expect(certificate).to_contain_text("Verdicts given: 0.")
    hit.locator('[data-action="safe"]').click()
    expect(hit).to_contain_text("You said: keeps my prompt.")


def test_an_entry_is_pinned_kept_by_a_purge_and_deleted(ran: Ran, artifacts: Path) -> None:
    page = ran.page
    page.open_panel(ran.name)
    page.press("tab entries")
    entries = page.panel.locator(".carnator-entry")
    expect(entries).to_have_count(1)
    expect(entries.locator("img")).to_be_visible()
    expect(entries).to_contain_text("reused 1×")
    page.press("pin")
    expect(page.action("pin")).to_have_attribute("aria-pressed", "true")
    screenshot(page.page, artifacts, f"{ran.name}_entries")

    page.panel.locator(".carnator-purge input").fill("0")
    page.press("purge")
    page.expect_message("Nothing to delete")
    page.press("remove")
    expect(page.panel.locator("dialog")).to_contain_text("It is pinned.")
    page.press("cancel")
    page.press("pin")
    expect(page.action("pin")).to_have_attribute("aria-pressed", "false")
    page.press("purge")
    expect(page.panel.locator("dialog")).to_contain_text("Delete old entries: 1?")
    page.press("cancel")
    expect(entries).to_have_count(1)
    page.press("remove")
    expect(page.panel.locator("dialog")).to_contain_text("Finished videos are not touched")
    expect(page.panel.locator("dialog")).not_to_contain_text("pinned")
    page.press("confirm")
    page.expect_message("Deleted:")
    expect(entries).to_have_count(0)
    expect(page.panel).to_contain_text("This store is empty.")
    page.close_panel()


def test_nothing_of_ours_is_saved_with_the_workflow_or_queued(ran: Ran) -> None:
    def kept() -> tuple[dict[int, Any], dict[str, Any]]:
        workflow = ran.page.page.evaluate("() => window.app.graph.serialize()")
        return {node["id"]: node.get("widgets_values") or [] for node in workflow["nodes"]}, ran.page.graph()

    with_ours = kept()
    taken = ran.page.page.evaluate(TAKE_OUR_WIDGETS)
    assert taken == 2
    assert kept() == with_ours

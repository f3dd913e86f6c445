"""Where nodes stand, in a front end that draws them taller than the shipped workflows were laid out for."""

from __future__ import annotations

import json

import pytest

from scripts.graphs import WORKFLOW
from support.browser import CASES, Drawn

DRAWN = "(count) => document.querySelectorAll('[data-node-id]').length === count"
# Pairs of nodes of which one covers a part of the other, by their titles.
OVERLAPS = """() => {
    const title = (element) => window.app.graph.getNodeById(Number(element.dataset.nodeId)).title;
    const nodes = [...document.querySelectorAll("[data-node-id]")].map((e) => [title(e), e.getBoundingClientRect()]);
    return nodes.flatMap(([name, a], place) => nodes.slice(place + 1)
        .filter(([, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        .map(([other]) => [name, other]));
}"""

pytestmark = pytest.mark.parametrize("shared_page", CASES[-1:], ids="-".join, indirect=True)


def test_nodes_of_the_shipped_workflows_stand_apart_where_a_front_end_draws_them_taller(drawn: Drawn) -> None:
    page = drawn.page
    for path in sorted(WORKFLOW.parent.glob("*.json")):
        shipped = json.loads(path.read_text(encoding="utf-8"))
        page.load(shipped)
        page.view(60, 60, 0.4)
        page.page.wait_for_function(DRAWN, arg=len(shipped["nodes"]))
        assert page.page.evaluate(OVERLAPS) == [], path.name

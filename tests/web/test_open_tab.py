"""Whether an open Carnator tab slows the runs that go on beside it.

CARNATOR_TESTS=full python3 scripts/test.py tests/web/test_open_tab.py -s
alternates runs with the tab open on 1,000 entries and closed, in one server and one page, and prints a line of JSON:
the medians, and the open runs' time relative to the closed ones' with a bootstrap interval over the pairs.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from scripts.graphs import OURS, WORKFLOW
from scripts.testbed.bootstrap import Install
from scripts.testbed.browser import RUN_BUTTON, Editor, editor
from scripts.testbed.server import ComfyServer
from support.stores import make_store, store_folder

PAIRS = 16
ENTRIES = 1000
STORE = "many"
SMALL = {"width": 128, "height": 128, "length": 9}
STEPS = 20
RESAMPLES = 10_000
MOST = 1.05  # a slowdown that is surely above this fails

pytestmark = [
    pytest.mark.skipif(os.environ.get("CARNATOR_TESTS") != "full", reason="a measurement: CARNATOR_TESTS=full runs it"),
    pytest.mark.timeout(1200),
]

LISTEN = """() => {
    window.carnatorTimes = [];
    for (const type of ["execution_start", "execution_success"])
        window.app.api.addEventListener(type, ({ detail }) => window.carnatorTimes.push(detail.timestamp));
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    server = ComfyServer(install, tmp_path_factory.mktemp("tab"))
    make_store(store_folder(server.base.user, STORE), ENTRIES, decisions=ENTRIES)
    with server, editor(browser, server.address) as opened:
        opened.load(json.loads(WORKFLOW.read_text(encoding="utf-8")))
        opened.set_widget(opened.node_id("CarnatorCacheStore"), "name", STORE)
        opened.set_widget(opened.node_id(OURS), "steps", STEPS)
        for side, size in SMALL.items():
            opened.set_widget(opened.node_id("EmptyHunyuanLatentVideo"), side, size)
        opened.page.evaluate(LISTEN)
        yield opened
        assert opened.errors == []


def two_runs(page: Editor, seed: int) -> float:
    """Seconds, by the server's clock, from the first one's start to the end of the second, queued behind it."""
    page.page.evaluate("() => window.carnatorTimes.splice(0)")
    for number in (seed, seed + 1):  # a new seed is a miss: all is computed, and stored
        page.set_widget(page.node_id(OURS), "seed", number)
        page.page.click(RUN_BUTTON)
    page.page.wait_for_function("() => window.carnatorTimes.length === 4", timeout=300_000)
    times = page.page.evaluate("() => window.carnatorTimes")
    return (times[-1] - times[0]) / 1000


def open_on_entries(page: Editor) -> None:
    page.open_panel(STORE)
    page.press("tab entries")
    expect(page.panel.locator(".carnator-entry").first).to_be_visible()


def test_runs_are_not_slowed_by_the_open_tab(page: Editor) -> None:
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url) if "/carnator/" in request.url else None)
    two_runs(page, 0)  # loads the model
    seconds: dict[str, list[float]] = {"open": [], "closed": []}
    questions = []
    for pair in range(PAIRS):
        for state in ("open", "closed") if pair % 2 else ("closed", "open"):
            if state == "open":
                open_on_entries(page)
            asked.clear()
            seconds[state].append(two_runs(page, 2 + 4 * pair + 2 * (state == "open")))
            if state == "open":
                questions.append(len(asked))
                page.close_panel()
    logs = np.log(seconds["open"]) - np.log(seconds["closed"])
    picks = np.random.default_rng(0).integers(PAIRS, size=(RESAMPLES, PAIRS))
    low, high = np.exp(np.quantile(logs[picks].mean(axis=1), [0.025, 0.975]))
    result = {
        "pairs": PAIRS,
        "entries": ENTRIES,
        **{f"median_seconds_{state}": round(statistics.median(values), 3) for state, values in seconds.items()},
        "open_relative_to_closed": round(float(np.exp(logs.mean())), 4),
        "interval_95": [round(float(low), 4), round(float(high), 4)],
        "median_questions_while_open": statistics.median(questions),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result), flush=True)
    assert low < MOST, result

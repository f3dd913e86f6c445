"""Drives ComfyUI's editor in a headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
RUN_BUTTON = '[data-testid="queue-button"]'


def find_chromium() -> str:
    """The path of a Chromium. Without one a test is skipped, in CI it fails."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        message = "no Chromium on this machine (Debian and Ubuntu: apt install chromium)"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(message)
        pytest.skip(message)
    return found


class Editor:
    """One page with ComfyUI's editor. `errors` collects exceptions that were not caught in the page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, address: str) -> None:
        self.page.goto(f"http://{address}/", wait_until="domcontentloaded")
        self.page.wait_for_function("() => window.app?.graph && window.app.extensionManager", timeout=60_000)
        # The editor opens its own default graph a moment after it is ready; ours must come after that.
        self.page.wait_for_function("() => window.app.graph._nodes.length > 0", timeout=60_000)

    def load(self, workflow: dict[str, Any]) -> None:
        self.page.evaluate("(workflow) => window.app.loadGraphData(workflow)", workflow)
        self.page.wait_for_function("(count) => window.app.graph._nodes.length === count", arg=len(workflow["nodes"]))
        # Events of the run to come, kept where the test can read them.
        self.page.evaluate(
            """() => {
                window.carnatorEvents = [];
                const keep = (event) => window.carnatorEvents.push([event.type, event.detail]);
                for (const type of ["execution_success", "execution_error", "execution_interrupted"])
                    window.app.api.addEventListener(type, keep);
            }"""
        )

    def graph(self) -> dict[str, Any]:
        """What the editor would queue, in API form."""
        return self.page.evaluate("async () => (await window.app.graphToPrompt()).output")

    def alerts(self) -> list[str]:
        """Texts of the messages in the corner, such as a workflow that does not fit the editor's schema."""
        return self.page.locator(".p-toast-message").all_inner_texts()

    def node_id(self, class_type: str) -> str:
        return self.page.evaluate(
            "(type) => String(window.app.graph._nodes.find((node) => node.type === type).id)", class_type
        )

    def set_widget(self, node: str, name: str, value: object) -> None:
        self.page.evaluate(
            """([id, name, value]) => {
                const node = window.app.graph.getNodeById(Number(id));
                node.widgets.find((widget) => widget.name === name).value = value;
            }""",
            [node, name, value],
        )

    def run(self, timeout: float = 90.0) -> None:
        """Presses Run and waits for the end; fails on anything but success."""
        self.page.click(RUN_BUTTON)
        self.page.wait_for_function("() => window.carnatorEvents.length > 0", timeout=timeout * 1000)
        kind, detail = self.page.evaluate("() => window.carnatorEvents.shift()")
        assert kind == "execution_success", f"{kind}: {detail}"

    def output(self, node: str) -> dict[str, Any]:
        """The node's ui output as the editor received it."""
        self.page.wait_for_function("(id) => window.app.nodeOutputs[id]", arg=node)
        return self.page.evaluate("(id) => window.app.nodeOutputs[id]", node)


@contextmanager
def editor(address: str, *, width: int = 1600, height: int = 1000) -> Iterator[Editor]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        try:
            opened = Editor(browser.new_page(viewport={"width": width, "height": height}))
            opened.open(address)
            yield opened
        finally:
            browser.close()


def screenshot(page: Page, folder: Path, name: str) -> Path:
    path = folder / f"{name}.png"
    page.screenshot(path=path)
    return path

"""Drives ComfyUI's editor in a headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

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
PANEL_BUTTON = 'button[aria-label^="Carnator"]'

VIEW = """([left, top, scale]) => {
    const view = window.app.canvas.ds;
    view.scale = scale;
    view.offset = [left / scale, top / scale];
    window.app.canvas.setDirty(true, true);
}"""
# Each front end has its own word for it.
DISMISS = """() => {
    const { toast } = window.app.extensionManager;
    (toast.removeAll ?? toast.dismissAll).call(toast);
}"""
TITLE_OF_NODE = """(id) => {
    const node = window.app.graph.getNodeById(Number(id));
    const { left, top } = window.app.canvas.canvas.getBoundingClientRect();
    const [x, y] = window.app.canvas.ds.convertOffsetToCanvas([node.pos[0] + 100, node.pos[1] - 14]);
    return [left + x, top + y];
}"""


def chromium_path() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


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
                const known = window.carnatorEvents !== undefined;
                window.carnatorEvents = [];
                if (known) return;
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

    def dismiss_alerts(self) -> None:
        """Takes the messages away, which may lie over the Run button."""
        self.page.evaluate(DISMISS)
        expect(self.page.locator(".p-toast-message")).to_have_count(0)

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

    def node_titled(self, title: str) -> str:
        return self.page.evaluate(
            "(start) => String(window.app.graph._nodes.find((node) => node.title.startsWith(start)).id)", title
        )

    # -- the menu of a node ----------------------------------------------------------------------------------------

    def view(self, left: float, top: float, scale: float) -> None:
        """Puts the graph's origin at this place of the window, in pixels."""
        self.page.evaluate(VIEW, [left, top, scale])
        self.page.wait_for_timeout(500)  # texts and toolboxes follow the canvas some frames later

    def open_menu(self, node: str) -> None:
        """Right-clicks a node's title, where it is in the window."""
        self.page.mouse.click(*self.page.evaluate(TITLE_OF_NODE, node), button="right")

    # -- our panel -------------------------------------------------------------------------------------------------

    @property
    def panel(self) -> Locator:
        return self.page.locator(".carnator-panel")

    def open_panel(self, store: str | None = None) -> None:
        """Opens the panel, and a store in it."""
        if not self.panel.is_visible():
            self.page.click(PANEL_BUTTON)
        if store is not None:
            self.press(f"store {store}")
            expect(self.action(f"store {store}")).to_have_attribute("aria-checked", "true")

    def close_panel(self) -> None:
        self.page.click(PANEL_BUTTON)
        expect(self.panel).to_have_count(0)

    def action(self, name: str) -> Locator:
        """Buttons of the panel by what they do."""
        return self.panel.locator(f'[data-action="{name}"]')

    def press(self, name: str) -> None:
        self.action(name).first.click()

    def expect_message(self, words: str) -> None:
        expect(self.panel.locator(".carnator-message")).to_contain_text(words)

    def output(self, node: str) -> dict[str, Any]:
        """The node's ui output as the editor received it."""
        self.page.wait_for_function("(id) => window.app.nodeOutputs[id]", arg=node)
        return self.page.evaluate("(id) => window.app.nodeOutputs[id]", node)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def editor(browser: Browser, address: str, *, width: int = 1600, height: int = 1000) -> Iterator[Editor]:
    """The editor of a server, in a window of its own."""
    context = browser.new_context(viewport={"width": width, "height": height})
    try:
        opened = Editor(context.new_page())
        opened.open(address)
        yield opened
    finally:
        context.close()

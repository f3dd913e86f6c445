"""A browser for the web tests, a server with a newer front end, and a page for each way in which nodes are drawn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from scripts.testbed.bootstrap import Install
from scripts.testbed.browser import Editor, chromium, editor
from scripts.testbed.server import ComfyServer
from support.browser import CASES, Drawn, find_chromium, find_current_frontend

expect.set_options(timeout=20_000)  # machines of CI are busy

CLOSE_SIDEBAR = """() => {
    const { sidebarTab } = window.app.extensionManager;
    if (sidebarTab.activeSidebarTab) sidebarTab.toggleSidebarTab(sidebarTab.activeSidebarTab.id);
}"""


# It would tell that the official models are not here, above all that the tests that follow want to click.
NO_DIALOG = {"Comfy.Workflow.ShowMissingModelsWarning": False}


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ask for it before a server, so that a machine without a browser skips at once.

    Not one for the whole session: while it is open an event loop runs, and tests of other groups start their own.
    """
    with chromium(find_chromium()) as found:
        yield found


@pytest.fixture(scope="session")
def server(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """With the demo models alone: for the tiny ones of the other groups `comfy` is imported here, which takes 6 s."""
    with ComfyServer(install, tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.fixture(scope="session")
def current_server(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """This ComfyUI with a current front end in place of its own."""
    arguments = ("--front-end-root", str(find_current_frontend()))
    with ComfyServer(install, tmp_path_factory.mktemp("current"), arguments=arguments) as running:
        yield running


@pytest.fixture(scope="package", params=CASES, ids="-".join)
def shared_page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Drawn]:
    """Opening a page takes longer than most tests, so the files share it; each loads graphs of its own."""
    fixture, drawing, language = (*request.param, "en")[:3]
    server: ComfyServer = request.getfixturevalue(fixture)
    server.post("/settings", {**NO_DIALOG, "Comfy.VueNodes.Enabled": drawing == "vue", "Comfy.Locale": language})
    try:
        with editor(browser, server.address) as page:
            yield Drawn(page, server, fixture == "server", drawing, language)
    finally:
        server.post("/settings", {"Comfy.VueNodes.Enabled": False, "Comfy.Locale": "en"})


@pytest.fixture(scope="module")
def drawn(shared_page: Drawn) -> Iterator[Drawn]:
    """The page as a file may expect it."""
    yield shared_page
    shared_page.page.page.evaluate(CLOSE_SIDEBAR)
    shared_page.page.dismiss_alerts()
    assert shared_page.page.errors == []


@pytest.fixture(scope="module")
def page(browser: Browser, stores: ComfyServer) -> Iterator[Editor]:
    """The panel, open on the store "few" of the server that a file makes."""
    with editor(browser, stores.address) as opened:
        opened.open_panel("few")
        yield opened
        assert opened.errors == []

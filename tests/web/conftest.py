"""A browser for each file of web tests, and a server with a newer front end."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from playwright.sync_api import Browser, expect

from scripts.testbed.bootstrap import Install
from scripts.testbed.browser import chromium
from scripts.testbed.server import ComfyServer
from support.browser import find_chromium, find_current_frontend

expect.set_options(timeout=20_000)  # machines of CI are busy


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ask for it before a server, so that a machine without a browser skips at once.

    Not one for the whole session: while it is open an event loop runs, and tests of other groups start their own.
    """
    with chromium(find_chromium()) as found:
        yield found


@pytest.fixture(scope="session")
def current_server(
    install: Install, comfy: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComfyServer]:
    """This ComfyUI with a current front end in place of its own."""
    arguments = ("--front-end-root", str(find_current_frontend()))
    with ComfyServer(install, tmp_path_factory.mktemp("current"), arguments=arguments) as running:
        yield running

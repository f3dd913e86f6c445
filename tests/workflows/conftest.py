"""A server with tiny weights under the official file names, for all workflows with official models, and the tools."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from scripts.testbed.bootstrap import Install
from scripts.testbed.console import Stop
from scripts.testbed.environment import Environment
from scripts.testbed.server import ComfyServer
from support.tools import Tool


@pytest.fixture(scope="session")
def official_server(
    install: Install, comfy: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComfyServer]:
    from support.official_models import write_official_models

    base = tmp_path_factory.mktemp("official")
    write_official_models(base)
    with ComfyServer(install, base) as running:
        yield running


@pytest.fixture(scope="session")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    try:
        programs = Environment().ensure_tools()
    except Stop as stop:
        pytest.fail(str(stop))
    made = Tool(programs, tmp_path_factory.mktemp("home"))
    assert made("comfy", "--skip-prompt", "tracking", "disable").returncode == 0
    return made

"""A server with tiny weights under the official file names, for all workflows with official models."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from scripts.testbed.bootstrap import Install
from scripts.testbed.server import ComfyServer


@pytest.fixture(scope="session")
def official_server(
    install: Install, comfy: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComfyServer]:
    from support.official_models import write_official_models

    base = tmp_path_factory.mktemp("official")
    write_official_models(base)
    with ComfyServer(install, base) as running:
        yield running

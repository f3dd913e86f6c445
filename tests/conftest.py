"""Fixtures of all test groups. A test's group, and so its marker, is the folder it lies in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).resolve().parent
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))

from support.paths import ARTIFACTS, order_sys_path  # noqa: E402

order_sys_path()

from scripts.testbed.bootstrap import Install, current_install  # noqa: E402
from scripts.testbed.server import ComfyServer  # noqa: E402


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    if config.getoption("dist") != "loadfile":
        return None
    from support.sharing_out import ByFilesAndPages

    return ByFilesAndPages(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = item.path.relative_to(TESTS).parts[0]
        item.add_marker(group)


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where tests leave pictures and logs for a person to look at. Ignored by git."""
    ARTIFACTS.mkdir(exist_ok=True)
    return ARTIFACTS


@pytest.fixture(scope="session")
def install() -> Install:
    found = current_install()
    if not (found.comfyui / "main.py").is_file():
        pytest.fail(f"there is no ComfyUI in {found.comfyui}: start the tests with python3 scripts/test.py")
    return found


@pytest.fixture(scope="session")
def comfy(install: Install) -> ModuleType:
    """ComfyUI's `comfy` package, imported in this process for the CPU."""
    from support.comfy_host import import_comfy

    return import_comfy(install.comfyui)


@pytest.fixture(scope="session")
def pack(comfy: ModuleType) -> ModuleType:
    """The pack, loaded in this process the way ComfyUI loads it."""
    from support.pack import load_pack

    return load_pack()


@pytest.fixture(scope="session")
def tiny_models(comfy: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with the tiny random-weight checkpoints of support.tiny_models."""
    from support.tiny_models import write_tiny_models

    folder = tmp_path_factory.mktemp("models")
    write_tiny_models(folder)
    return folder


@pytest.fixture(scope="session")
def server(install: Install, comfy: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """One real server for the session: our pack, the demo models and the tiny models.

    Its caches are kept from test to test; a test that needs an empty store takes `new_server`.
    """
    from support.tiny_models import write_tiny_models

    base = tmp_path_factory.mktemp("server")
    write_tiny_models(base / "models")
    with ComfyServer(install, base) as running:
        yield running


@pytest.fixture
def new_server(install: Install, comfy: ModuleType, tmp_path: Path) -> Callable[..., ComfyServer]:
    """`with new_server(arguments=("--cache-none",)) as server:` is a server with an empty store, in 4 s."""
    from support.tiny_models import write_tiny_models

    count = 0

    def make(**options: object) -> ComfyServer:
        nonlocal count
        count += 1
        base = tmp_path / f"server{count}"
        write_tiny_models(base / "models")
        return ComfyServer(install, base, **options)

    return make

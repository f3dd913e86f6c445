"""Loads the pack the way ComfyUI does: the checkout as one package, its folders as submodules.

The pack's copy of `carnator_core` is then `ComfyUI_Carnator.carnator_core`, another module than the
`carnator_core` of the unit tests. Do not mix classes of the two in one test.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from .paths import ROOT

PACKAGE = "ComfyUI_Carnator"


def load_pack() -> ModuleType:
    """Needs the `comfy` fixture before it: the pack's nodes import ComfyUI's API."""
    loaded = sys.modules.get(PACKAGE)
    if loaded is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(PACKAGE, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[PACKAGE]
        raise
    return module


def pack_module(name: str) -> ModuleType:
    """A module inside the pack, such as pack_module("nodes.reuse_sampler")."""
    load_pack()
    return importlib.import_module(f"{PACKAGE}.{name}")


def node_classes() -> dict[str, Any]:
    """Node id -> V3 node class, as the pack's entry point announces them."""
    pack = load_pack()

    async def collect() -> list[Any]:
        extension = pack.comfy_entrypoint()
        if asyncio.iscoroutine(extension):
            extension = await extension
        return await extension.get_node_list()

    return {cls.GET_SCHEMA().node_id: cls for cls in asyncio.run(collect())}

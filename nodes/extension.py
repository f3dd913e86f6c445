"""The public list of nodes. Ids are for ever."""

import logging

from comfy_api.latest import ComfyExtension, io

from ..carnator_core.hosts.comfy_server import prompt_server
from .apply import CarnatorApply
from .cache_store import CarnatorCacheStore
from .calibrate import CarnatorCalibrate
from .compatibility_gate import CarnatorCompatibilityGate
from .demo_text_encoder import CarnatorDemoTextEncoder
from .early_probe import CarnatorEarlyProbe
from .report import CarnatorReport
from .reuse_sampler import CarnatorReuseSampler
from .store_purge import CarnatorStorePurge

log = logging.getLogger("carnator")

NODES: list[type[io.ComfyNode]] = [
    CarnatorReuseSampler,
    CarnatorApply,
    CarnatorReport,
    CarnatorCacheStore,
    CarnatorEarlyProbe,
    CarnatorCompatibilityGate,
    CarnatorDemoTextEncoder,
    CarnatorStorePurge,
    CarnatorCalibrate,
]


class CarnatorExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        _add_routes()
        return NODES


def _add_routes() -> None:
    """What the interface reads and changes; without it the nodes work all the same."""
    server = prompt_server()
    if server is None:
        return
    try:
        from ..carnator_core.hosts.comfy_routes import add_routes

        add_routes(server)
    except Exception:
        log.exception("Carnator: the interface has no routes on this server")

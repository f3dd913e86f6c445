"""The public list of nodes. Ids are for ever."""

from comfy_api.latest import ComfyExtension, io

from .apply import CarnatorApply
from .cache_store import CarnatorCacheStore
from .compatibility_gate import CarnatorCompatibilityGate
from .demo_text_encoder import CarnatorDemoTextEncoder
from .early_probe import CarnatorEarlyProbe
from .report import CarnatorReport
from .reuse_sampler import CarnatorReuseSampler
from .store_purge import CarnatorStorePurge

NODES: list[type[io.ComfyNode]] = [
    CarnatorReuseSampler,
    CarnatorApply,
    CarnatorReport,
    CarnatorCacheStore,
    CarnatorEarlyProbe,
    CarnatorCompatibilityGate,
    CarnatorDemoTextEncoder,
    CarnatorStorePurge,
]


class CarnatorExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES

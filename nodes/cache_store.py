"""Node: where earlier generations are kept."""

from comfy_api.latest import io

from ..carnator_core.options import STORE_MODES, StoreOptions
from .types import CATEGORY, StoreLink


class CarnatorCacheStore(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        default = StoreOptions()
        return io.Schema(
            node_id="CarnatorCacheStore",
            display_name="Carnator Cache Store",
            category=CATEGORY,
            description="Names the store of earlier generations, its size limit and whether it is read and written.",
            inputs=[
                io.String.Input(
                    "name",
                    default=default.name,
                    tooltip="Label of the store: 1 to 64 letters, digits, '-' or '_'. It is created in the server's "
                    "own user folder; a project of its own is a good reason for another name.",
                ),
                io.Float.Input(
                    "budget_gb",
                    default=default.budget_gb,
                    min=0.1,
                    max=1000.0,
                    step=0.1,
                    tooltip="Size limit in GB (10^9 bytes). What saved the fewest seconds per byte lately goes "
                    "first. A Wan 1.3B request of 81 frames at 832×480 with 20 steps takes about 80 MB.",
                ),
                io.Combo.Input(
                    "mode",
                    options=list(STORE_MODES),
                    default=default.mode,
                    tooltip="read+write: reuse and keep. read: reuse only. write: keep only, every run is dense.",
                ),
            ],
            outputs=[StoreLink.Output("store", tooltip="For the Reuse Sampler.")],
        )

    @classmethod
    def execute(cls, name: str, budget_gb: float, mode: str) -> io.NodeOutput:
        return io.NodeOutput(StoreOptions(name=name, budget_gb=budget_gb, mode=mode))

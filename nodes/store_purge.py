"""Node: deletes old entries of a store."""

import time

from comfy_api.latest import io, ui

from ..carnator_core.options import StoreOptions
from .inputs import store_input
from .status import show_status
from .types import CATEGORY


class CarnatorStorePurge(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorStorePurge",
            display_name="Carnator Store Purge",
            category=CATEGORY,
            description="Deletes the entries of a store that were not used for some days. Pinned entries stay.",
            inputs=[
                store_input(),
                io.Float.Input(
                    "older_than_days",
                    default=30.0,
                    min=0.0,
                    max=3650.0,
                    step=1.0,
                    tooltip="Entries whose last use is at least this many days ago are deleted. 0 = all of them.",
                ),
                io.Boolean.Input(
                    "confirm",
                    default=False,
                    tooltip="Off: only tell what would be deleted. On: delete it, in every run of this graph.",
                ),
            ],
            outputs=[],
            is_output_node=True,
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> float:
        """Never the same: what there is to delete depends on the store."""
        return time.time()

    @classmethod
    def execute(cls, older_than_days: float, confirm: bool, store: StoreOptions | None = None) -> io.NodeOutput:
        from ..carnator_core.hosts.comfy_paths import store_root
        from ..carnator_core.store.registry import open_store

        options = store or StoreOptions()
        try:
            opened = open_store(store_root(), options)
            purged = opened.purge(older_than_days * 86400, dry=not confirm)
        except OSError as error:
            return cls._told(f"the store '{options.name}' cannot be used: {error.strerror or error}")
        done = purged.sentence if confirm else f"nothing deleted yet, confirm is off; it would be: {purged.sentence}"
        return cls._told(f"store '{options.name}': {done}")

    @classmethod
    def _told(cls, text: str) -> io.NodeOutput:
        show_status(cls.hidden and cls.hidden.unique_id, text)
        return io.NodeOutput(ui=ui.PreviewText(text))

"""A line of text on a node while it, or a sampler that works for it, is running."""

import sys


def show_status(node_id: str | None, text: str) -> None:
    """Does nothing where no front end is listening."""
    module = sys.modules.get("server")  # not loaded where ComfyUI runs without its server
    server = module and getattr(module.PromptServer, "instance", None)
    if server is not None and node_id is not None:
        server.send_progress_text(text, node_id)

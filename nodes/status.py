"""A line of text on a node while it, or a sampler that works for it, is running."""

import sys


def show_status(node_id: str | None, text: str) -> None:
    """Told to the front end that queued the run, as other tabs may show other graphs; does nothing without one."""
    module = sys.modules.get("server")  # not loaded where ComfyUI runs without its server
    server = module and getattr(module.PromptServer, "instance", None)
    if server is not None and node_id is not None and server.client_id is not None:
        server.send_progress_text(text, node_id, server.client_id)

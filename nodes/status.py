"""A line of text on a node while it, or a sampler that works for it, is running."""

from ..carnator_core.hosts.comfy_server import prompt_server


def show_status(node_id: str | None, text: str) -> None:
    """Does nothing where no front end is listening."""
    server = prompt_server()
    if server is not None and node_id is not None:
        server.send_progress_text(text, node_id)

"""A line of text on a node while it, or a sampler that works for it, is running; and its last picture."""

from typing import Any

from ..carnator_core.hosts.comfy_server import prompt_server


def show_status(node_id: str | None, text: str) -> None:
    """Told to the front end that queued the run, as other tabs may show other graphs; does nothing without one."""
    server = prompt_server()
    if server is not None and node_id is not None and server.client_id is not None:
        text = text.encode(errors="replace").decode()  # what comes from a file may hold halves of characters
        server.send_progress_text(text, node_id, server.client_id)


def show_picture(picture: Any) -> None:
    """Make an IMAGE [1, h, w, 3] in 0..1 the last live preview of the node that is running.

    The front end keeps that preview after the run, in front of the node's own picture.
    """
    import comfy.utils
    from PIL import Image

    pixels = Image.fromarray((picture[0].cpu() * 255).round().byte().numpy())
    comfy.utils.ProgressBar(1).update_absolute(1, 1, ("JPEG", pixels, None))

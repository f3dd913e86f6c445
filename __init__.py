"""ComfyUI-Carnator: reuse the work of earlier generations when a prompt changes a little."""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """Called by ComfyUI; heavy imports wait until here or later."""
    from .nodes.extension import CarnatorExtension

    return CarnatorExtension()

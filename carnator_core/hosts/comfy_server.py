"""ComfyUI's web server, where there is one."""

from __future__ import annotations

import sys
from typing import Any


def prompt_server() -> Any | None:
    """The running PromptServer, or None where ComfyUI runs without its server."""
    module = sys.modules.get("server")  # not loaded there, and never loaded by us
    return module and getattr(getattr(module, "PromptServer", None), "instance", None)

"""Which module names belong to whom while tests run.

ComfyUI's tree owns top-level names such as `nodes`, `server`, `app` and `utils`; the checkout has a folder
`nodes` too. So the checkout comes last on sys.path, and ComfyUI, where a test needs it in this process, comes
first. Our own nodes are reached as a package, the way ComfyUI loads them: see `support.pack`.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
ARTIFACTS = TESTS / "artifacts"


def order_sys_path() -> None:
    """Makes `carnator_core`, `kernels`, `demo`, `scripts` and `support` importable from the checkout."""
    ours = [str(ROOT), str(TESTS)]
    # "" is what `python -m pytest` puts first: the checkout again
    sys.path[:] = [entry for entry in sys.path if entry not in ("", *ours)] + ours


def put_comfyui_first(comfyui: Path) -> None:
    foreign = sys.modules.get("nodes")
    if foreign is not None and Path(getattr(foreign, "__file__", None) or "/").parent != comfyui:
        raise RuntimeError("a test imported the checkout's folder `nodes` under ComfyUI's name; use support.pack")
    if str(comfyui) not in sys.path:
        sys.path.insert(0, str(comfyui))

"""The picture of a workflow in the template browser: the graph as the editor shows it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image

from scripts.testbed.browser import chromium, chromium_path
from scripts.testbed.console import Stop

WIDTH, MAX_HEIGHT = 640, 400
SCALE = 3  # drawn larger, so that the text stays legible
BARS = 240  # pixels at the left and at the top that the editor's own bars may cover

# Puts the graph's corner at (BARS, BARS) and returns its size in pixels.
FIT = """async ([workflow, width, height, bars]) => {
    await window.app.loadGraphData(workflow);
    const nodes = window.app.graph._nodes;
    const left = Math.min(...nodes.map((n) => n.pos[0])) - 20;
    const top = Math.min(...nodes.map((n) => n.pos[1])) - 60;
    const right = Math.max(...nodes.map((n) => n.pos[0] + n.size[0])) + 20;
    const bottom = Math.max(...nodes.map((n) => n.pos[1] + n.size[1])) + 20;
    const view = window.app.canvas.ds;
    view.scale = Math.min(width / (right - left), height / (bottom - top));
    view.offset = [bars / view.scale - left, bars / view.scale - top];
    window.app.canvas.setDirty(true, true);
    return [(right - left) * view.scale, (bottom - top) * view.scale];
}"""


def needed_chromium() -> str:
    path = chromium_path()
    if path is None:
        raise Stop("the pictures need a Chromium (Debian and Ubuntu: apt install chromium); or use --no-pictures.")
    return path


def write_picture(address: str, workflow: dict[str, Any], path: Path) -> None:
    """Saves a JPEG of at most 640×400 pixels."""
    width, height = WIDTH * SCALE, MAX_HEIGHT * SCALE
    with chromium(needed_chromium()) as browser:
        page = browser.new_page(viewport={"width": width + 2 * BARS, "height": height + 2 * BARS})
        page.goto(f"http://{address}/", wait_until="domcontentloaded")
        page.wait_for_function("() => window.app?.graph && window.app.graph._nodes.length > 0", timeout=90_000)
        # The offer to download the models, which this server does not have.
        page.add_style_tag(content=".p-dialog-mask, .p-toast { display: none !important }")
        view = [workflow, width, height, BARS]
        page.evaluate(FIT, view)
        page.wait_for_timeout(1500)  # the editor then moves to a view of its own
        size = page.evaluate(FIT.replace("await window.app.loadGraphData(workflow);", ""), view)
        page.wait_for_timeout(500)  # texts are placed over the canvas some frames later
        shot = page.screenshot(clip={"x": BARS, "y": BARS, "width": size[0], "height": size[1]})
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    picture.thumbnail((WIDTH, MAX_HEIGHT), Image.LANCZOS)
    picture.save(path, quality=85)

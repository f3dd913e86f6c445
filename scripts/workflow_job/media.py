"""Pictures of the panel and of a real hit, and a short film of it, for the README."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

from demo.grammar import prompt
from scripts.demo_job.series import BASE, SERIES
from scripts.graphs import OURS, WORKFLOW
from scripts.testbed.browser import RUN_BUTTON, Editor, chromium, editor
from scripts.testbed.console import say
from scripts.testbed.server import ComfyServer

from .picture import needed_chromium

WIDTH, HEIGHT = 1600, 1000
STEPS = 20
FILM_WIDTH = 1120
FRAME_MS, LONGEST_MS, PAUSE_MS, LAST_MS = 250, 750, 1500, 3500  # a picture that stays long is cut short
SETTINGS = {
    "Comfy.VueNodes.Enabled": True,
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.Sidebar.Size": "small",
}
HIDDEN = ".p-toast, .p-dialog-mask, .lg-node-help { display: none !important }"
# Other words, then another colour. This model shows a small cube twice with this seed, with the stock sampler as well.
CHANGED = (SERIES[1].prompt, prompt(BASE.changed(colour="purple")))


def write_media(server: ComfyServer, folder: Path) -> None:
    """panel.jpg, hit.jpg and hit.webp. The server shows its current front end; its store must be empty."""
    server.post("/settings", SETTINGS)
    folder.mkdir(parents=True, exist_ok=True)
    with chromium(needed_chromium()) as browser, editor(browser, server.address, width=WIDTH, height=HEIGHT) as page:
        page.page.add_style_tag(content=HIDDEN)
        page.load(json.loads(WORKFLOW.read_text(encoding="utf-8")))
        page.set_widget(page.node_id(OURS), "steps", STEPS)
        page.open_panel()
        frames = list(_session(page))
        page.page.wait_for_timeout(4000)  # the donor's entry and its picture are written
        save(shot(page), folder / "panel.jpg")
        save(_node(page), folder / "hit.jpg")
    _film(frames, folder / "hit.webp")


def _session(page: Editor) -> Iterator[tuple[Image.Image, int]]:
    """The pictures of the film with their milliseconds: a first run, unseen, then runs with a few words changed."""
    page.view(88, 100, 0.9)  # prompt, sampler and video beside the panel
    page.run(timeout=600)
    for changed in CHANGED:
        yield shot(page), PAUSE_MS
        page.set_widget(page.node_titled("Prompt"), "text", changed)
        page.page.wait_for_timeout(200)
        yield shot(page), PAUSE_MS
        page.page.click(RUN_BUTTON)
        while not page.page.evaluate("() => window.carnatorEvents.length"):
            yield shot(page), FRAME_MS
        kind, detail = page.page.evaluate("() => window.carnatorEvents.shift()")
        assert kind == "execution_success", detail
        page.page.wait_for_timeout(1000)
        yield shot(page), LAST_MS


def shot(page: Editor, **options: Any) -> Image.Image:
    return Image.open(io.BytesIO(page.page.screenshot(**options))).convert("RGB")


def _node(page: Editor) -> Image.Image:
    """Our sampler after the hit: its status and where it was computed."""
    return shot(page, clip=page.page.locator(f'[data-node-id="{page.node_id(OURS)}"]').bounding_box())


def save(picture: Image.Image, path: Path) -> None:
    picture.save(path, quality=88)
    say(f"{path.name}: {path.stat().st_size // 1000} kB")


def _film(frames: list[tuple[Image.Image, int]], path: Path) -> None:
    shown: list[tuple[Image.Image, int]] = []
    for picture, milliseconds in frames:
        small = picture.resize((FILM_WIDTH, FILM_WIDTH * HEIGHT // WIDTH), Image.LANCZOS)
        if shown and ImageChops.difference(shown[-1][0], small).getbbox() is None:
            shown[-1] = small, min(shown[-1][1] + milliseconds, max(LONGEST_MS, milliseconds))
        else:
            shown.append((small, milliseconds))
    pictures, durations = [picture for picture, _ in shown], [milliseconds for _, milliseconds in shown]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=60, method=6)
    say(f"{path.name}: {len(pictures)} pictures, {path.stat().st_size // 1000} kB")

"""The picture of the demo workflow in the template browser: what a real hit took over and what it computed."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from scripts.demo_job.series import SERIES
from scripts.graphs import SAVED_FRAMES, DemoGraph
from scripts.testbed.console import Stop
from scripts.testbed.server import ComfyServer

STEPS = 20
FIRST, CHANGED = SERIES[0], SERIES[2]  # a scene, and the same in another colour
FRAMES, SIDE, GAP, LINE = 5, 112, 6, 26
WIDTH = FRAMES * SIDE + (FRAMES + 1) * GAP
PAPER, INK = (24, 26, 30), (225, 228, 232)


def write_demo_picture(server: ComfyServer, path: Path) -> None:
    """A JPEG with three rows: the first video, the changed one, and where that was computed.

    The default store of the server must be empty.
    """
    graphs = DemoGraph.load(server.get("/object_info"))
    first, changed = (server.run(graphs.ours(request.prompt, steps=STEPS)) for request in (FIRST, CHANGED))
    shown = changed.outputs[graphs.sampler]
    if shown["carnator"][0]["decision"] != "hit":
        raise Stop(f"the picture needs a hit, but: {shown['text'][0]}")
    rows = [
        (f"first: {FIRST.prompt}", _strip(server, first.outputs[SAVED_FRAMES]["images"])),
        (f"then: {CHANGED.prompt}", _strip(server, changed.outputs[SAVED_FRAMES]["images"])),
        ("orange: computed, grey: taken from the first video", _opened(server, shown["images"][0])),
    ]
    sheet = Image.new("RGB", (WIDTH, len(rows) * (SIDE + LINE) + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for number, (caption, strip) in enumerate(rows):
        top = number * (SIDE + LINE)
        draw.text((GAP, top + LINE // 2), caption, INK, font, anchor="lm")
        sheet.paste(strip.resize((WIDTH - 2 * GAP, SIDE), Image.Resampling.LANCZOS), (GAP, top + LINE))
    sheet.save(path, quality=85)


def _strip(server: ComfyServer, items: list[dict[str, str]]) -> Image.Image:
    """Frames from the first to the last, side by side."""
    strip = Image.new("RGB", (WIDTH - 2 * GAP, SIDE), PAPER)
    for place in range(FRAMES):
        frame = _opened(server, items[place * (len(items) - 1) // (FRAMES - 1)])
        strip.paste(frame.resize((SIDE, SIDE), Image.Resampling.LANCZOS), (place * (SIDE + GAP), 0))
    return strip


def _opened(server: ComfyServer, item: dict[str, str]) -> Image.Image:
    return Image.open(server.base.file(item)).convert("RGB")

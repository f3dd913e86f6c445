"""Pictures for the help of the nodes, from real runs of the demo model in the editor."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import expect

from benchmarks.certificate_simulation import World
from carnator_core.signature import FAMILIES
from carnator_core.store.verdicts import Verdict, VerdictLog
from scripts.testbed.browser import Editor, chromium, editor
from scripts.testbed.console import Stop, say
from scripts.testbed.server import ComfyServer

from . import media
from .builder import Node, Output, Workflow
from .picture import needed_chromium

SCENE = "a large blue cube drifts left over a city in fog"
SMALLER = "a small blue cube drifts left over a city in fog"
ELSEWHERE = "a large blue cube drifts left over a desert in fog"
SEED, OTHER_SEED = 11_000_000, 5
SIMULATED, CLUSTERS = "simulated", 320

MAX_BYTES = 80_000
QUALITIES = (90, 80, 70, 60, 50)
SCALE, MARGIN, GAP = 1.25, 10, 40
VIEW = {"width": 1900, "height": 1900}
SETTINGS = {**media.SETTINGS, "Comfy.NodeBadge.NodeSourceBadgeMode": "None"}
# Live previews stay on sampler nodes and are no part of what a picture is to show.
HIDDEN = (
    media.HIDDEN
    + """ img[alt="Live sampling preview"],
img[alt="Live sampling preview"] + div { display: none !important }"""
)
STRIP = ".image-preview { min-height: 110px !important }"  # it is five times as wide as high
# The widgets of a sampler are no part of what a picture of its run is to show.
NO_WIDGETS = """[data-testid="node-widget"]:not([data-widget-name="carnator_status"], [data-widget-name="text"]),
[data-testid="advanced-inputs-button"] { display: none !important }"""

# Puts columns of nodes, each a list of titles, below each other, and all other nodes where their links come from.
ARRANGE = """([columns, scale, gap]) => {
    const nodes = window.app.graph._nodes;
    for (const node of nodes) node.pos = [node.type === "CarnatorReport" ? 20000 : -20000, 0];
    let left = 0;
    for (const column of columns) {
        let top = 0;
        const chosen = column.map((title) => nodes.find((node) => node.title === title));
        for (const node of chosen) {
            node.pos = [left, top];
            node.size = [node.size[0], 60];
            const shown = document.querySelector(`[data-node-id="${node.id}"]`);
            top += shown.offsetHeight + gap;
        }
        left += Math.max(...chosen.map((node) => node.size[0])) + gap * 2;
    }
    const view = window.app.canvas.ds;
    view.scale = scale;
    view.offset = [150 / scale, 150 / scale];
    window.app.canvas.setDirty(true, true);
    return columns.flat().map((title) => String(nodes.find((node) => node.title === title).id));
}"""


class Album:
    """Takes the pictures of one editor into a folder."""

    def __init__(self, page: Editor, object_info: dict[str, Any], folder: Path) -> None:
        self.page, self.folder, self._info = page, folder, object_info

    def open(self, fill: Any) -> None:
        flow = Workflow("help", self._info)
        fill(flow)
        self.page.load(flow.to_dict())
        self.page.page.wait_for_timeout(1000)

    def run(self, prompt: str | None = None, starts: str = "", of: str = "CarnatorReuseSampler") -> dict[str, Any]:
        """Runs the graph; what our node reports. Stops if its status does not start as it should."""
        if prompt is not None:
            self.page.set_widget(self.page.node_titled("Prompt"), "text", prompt)
        self.page.run(timeout=600)
        output = self.page.output(self.page.node_id(of))
        if not output["text"][0].startswith(starts):
            raise Stop(f"{prompt!r} was to be a {starts}, but: {output['text'][0]}")
        return output.get("carnator", [{}])[0]

    def take(self, name: str, *columns: Sequence[str], css: str = STRIP) -> None:
        """A picture of some nodes, given by their titles in columns from the left."""
        page = self.page.page
        style = page.add_style_tag(content=css)
        page.wait_for_timeout(700)
        view = [list(map(list, columns)), SCALE, GAP]
        page.evaluate(ARRANGE, view)
        page.wait_for_timeout(700)
        ids = page.evaluate(ARRANGE, view)  # heights are right now
        page.wait_for_timeout(1500)
        boxes = [
            page.locator(f'[data-node-id="{node}"] > [data-testid="node-inner-wrapper"]').bounding_box() for node in ids
        ]
        left, top = (min(box[side] for box in boxes) - MARGIN for side in ("x", "y"))
        right = max(box["x"] + box["width"] for box in boxes) + MARGIN
        bottom = max(box["y"] + box["height"] for box in boxes) + MARGIN
        clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        self.save(name, media.shot(self.page, clip=clip))
        style.evaluate("(element) => element.remove()")

    def save(self, name: str, picture: Image.Image) -> None:
        """As a JPEG of at most 80 kB."""
        path = self.folder / f"{name}.jpg"
        for quality in QUALITIES:
            picture.save(path, quality=quality, optimize=True)
            if path.stat().st_size < MAX_BYTES:
                break
        say(f"{path.name}: {picture.width}x{picture.height}, {path.stat().st_size // 1000} kB")


def write_help_pictures(server: ComfyServer, folder: Path) -> None:
    """One JPEG for each node. The server shows its current front end; its store must be empty."""
    server.post("/settings", SETTINGS)
    folder.mkdir(parents=True, exist_ok=True)
    with chromium(needed_chromium()) as browser, editor(browser, server.address, **VIEW) as page:
        page.page.add_style_tag(content=HIDDEN)
        album = Album(page, server.get("/object_info"), folder)
        settings = _sampler(album)
        _apply(album)
        _keep_simulated_verdicts(server.base.user / "__carnator" / "stores" / SIMULATED, settings)
        _store(album)


def _sampler(album: Album) -> dict[str, str]:
    """Our sampler, its optional nodes and its report. Returns the settings of a hit."""
    album.open(_reuse_graph)
    album.run(SCENE, "miss")
    report = album.run(SMALLER, "hit")
    title = "Carnator Reuse Sampler"
    album.take("reuse_sampler", ["Prompt", title], css=STRIP + NO_WIDGETS)
    album.take("report", ["Carnator Report"])
    album.take("demo_text_encoder", ["Carnator Demo Text Encoder", "Prompt"])
    _panel(album)
    album.run(ELSEWHERE, "miss: the nearest donor")
    album.take("compatibility_gate", ["Carnator Compatibility Gate", "Carnator Report"])
    album.page.set_widget(album.page.node_id("CarnatorEarlyProbe"), "seed_policy", "any seed")
    album.page.set_widget(album.page.node_id("CarnatorReuseSampler"), "seed", OTHER_SEED)
    album.run(SMALLER, "hit")
    album.take("early_probe", ["Carnator Early Probe", "Carnator Report"])
    return report["settings"]


def _panel(album: Album) -> None:
    """The store as the sidebar shows it."""
    page = album.page
    page.open_panel("default")
    page.panel.get_by_role("tab", name="Stored").click()
    expect(page.panel.locator("img").first).to_be_visible()
    page.page.wait_for_timeout(1000)
    box, entry = page.panel.bounding_box(), page.action("pin").last.bounding_box()
    height = entry["y"] + 2 * entry["height"] + 2 * MARGIN - box["y"]
    album.save("cache_store", media.shot(page, clip={**box, "height": height}))
    page.close_panel()


def _apply(album: Album) -> None:
    album.open(_apply_graph)
    album.run(SMALLER, "hit", of="CarnatorReport")
    album.take("apply", ["Carnator Apply"], ["KSampler"], css=NO_WIDGETS)


def _store(album: Album) -> None:
    album.open(_store_graph)
    album.page.run()
    album.take("store_purge", ["Carnator Store Purge"])
    album.take("calibrate", ["Carnator Calibrate"], css=".image-preview { min-height: 250px !important }")


# -- graphs --------------------------------------------------------------------------------------------------------


def _request(flow: Workflow) -> dict[str, Output]:
    """The demo model with a prompt: what a sampler takes."""
    unet = flow.node("UNETLoader", 0, unet_name="carnator_demo_wan.safetensors")
    clip = flow.node("CarnatorDemoTextEncoder", 0)[0]
    return {
        "model": flow.node("ModelSamplingSD3", 0, model=unet[0], shift=5.0)[0],
        "positive": flow.node("CLIPTextEncode", 1, title="Prompt", clip=clip, text=SCENE)[0],
        "negative": flow.node("CLIPTextEncode", 1, title="Negative", clip=clip, text="")[0],
        "latent_image": flow.node("EmptyHunyuanLatentVideo", 1, width=256, height=256, length=17)[0],
    }


SAMPLING = {"seed": SEED, "steps": 20, "cfg": 5.0, "sampler_name": "euler", "scheduler": "simple"}


def _reuse_graph(flow: Workflow) -> None:
    store, probe = flow.node("CarnatorCacheStore", 2), flow.node("CarnatorEarlyProbe", 2)
    gate = flow.node("CarnatorCompatibilityGate", 2)
    links = {"store": store[0], "probe": probe[0], "gate": gate[0]}
    sampler = flow.node("CarnatorReuseSampler", 3, **_request(flow), **SAMPLING, **links)
    flow.node("CarnatorReport", 4, report=sampler[1])


def _apply_graph(flow: Workflow) -> None:
    request = _request(flow)
    gate = flow.node("CarnatorCompatibilityGate", 2)
    ours: Node = flow.node("CarnatorApply", 2, model=request.pop("model"), gate=gate[0])
    sampler = flow.node("KSampler", 3, model=ours[0], **request, **SAMPLING)
    flow.node("CarnatorReport", 4, report=ours[1], latent=sampler[0])


def _store_graph(flow: Workflow) -> None:
    flow.node("CarnatorStorePurge", 1, store=flow.node("CarnatorCacheStore", 0)[0], older_than_days=0.0)
    simulated = flow.node("CarnatorCacheStore", 0, title="Simulated", name=SIMULATED)
    flow.node("CarnatorCalibrate", 1, store=simulated[0], save=True)


def _keep_simulated_verdicts(folder: Path, settings: dict[str, str]) -> None:
    """Verdicts of a world in which risk grows with distance, as people would give them over some hundred scenes."""
    folder.mkdir(parents=True)
    log, drawn = VerdictLog(folder), World().draw(CLUSTERS, np.random.default_rng(0))
    for number, (distances, unsafe) in enumerate(zip(drawn.distances, drawn.unsafe, strict=True)):
        log.add(
            Verdict(
                id=uuid.uuid4().hex,
                when=time.time(),
                target=f"request {number}",
                donor=f"donor {number}",
                safe=not unsafe,
                origin="artist",
                kind=None,
                family=None,
                similarity=0.9,
                discrepancies=dict(zip(FAMILIES, map(float, distances), strict=True)),
                share=0.3,
                work=0.5,
                settings=settings,
                accepted_by={},
            )
        )

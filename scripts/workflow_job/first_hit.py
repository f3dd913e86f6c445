"""A graph of stock nodes with the demo model, and pictures of the way from it to a first hit."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from scripts.demo_job.series import SERIES
from scripts.graphs import OURS, STOCK
from scripts.testbed.browser import Editor, chromium, editor
from scripts.testbed.server import ComfyServer

from .builder import Workflow
from .media import CHANGED, HEIGHT, HIDDEN, SETTINGS, WIDTH, save, shot
from .picture import needed_chromium

ENTRY = "Reuse with Carnator"
VIEW = -190, 130, 0.72  # prompt, sampler and video, beside the editor's own bars
PART = {"x": 120, "y": 80, "width": 1080, "height": 760}
PICTURE = 900, 633


def stock_demo(flow: Workflow) -> None:
    """Stock nodes alone, but for the demo's text encoder; settings and prompt are those of the demo workflow."""
    unet = flow.node("UNETLoader", 0, unet_name="carnator_demo_wan.safetensors")
    model = flow.node("ModelSamplingSD3", 0, model=unet[0], shift=5.0)
    clip = flow.node("CarnatorDemoTextEncoder", 0)
    vae = flow.node("VAELoader", 0, vae_name="carnator_demo_vae.safetensors")
    positive = flow.node("CLIPTextEncode", 1, title="Prompt", clip=clip[0], text=SERIES[0].prompt)
    negative = flow.node("CLIPTextEncode", 1, title="Negative prompt", clip=clip[0], text="")
    latent = flow.node("EmptyHunyuanLatentVideo", 1, width=256, height=256, length=17)
    sampler = flow.node(
        "KSampler", 2, model=model[0], positive=positive[0], negative=negative[0], latent_image=latent[0],
        seed=11000000, steps=20, cfg=5.0, sampler_name="euler", scheduler="simple",
    )  # fmt: skip
    frames = flow.node("VAEDecode", 3, samples=sampler[0], vae=vae[0])
    video = flow.node("CreateVideo", 3, images=frames[0], fps=8.0)
    flow.node("SaveVideo", 3, video=video[0], filename_prefix="carnator/demo")


def write_first_hit(server: ComfyServer, folder: Path) -> None:
    """first_hit_1.jpg to first_hit_3.jpg: the menu, the first run, the second one. The server has no store yet."""
    server.post("/settings", SETTINGS)
    folder.mkdir(parents=True, exist_ok=True)
    flow = Workflow("first_hit", server.get("/object_info"))
    stock_demo(flow)
    with chromium(needed_chromium()) as browser, editor(browser, server.address, width=WIDTH, height=HEIGHT) as page:
        page.page.add_style_tag(content=HIDDEN)
        page.load(flow.to_dict())
        page.page.wait_for_timeout(1000)
        page.view(*VIEW)
        page.open_menu(page.node_id(STOCK))
        page.page.get_by_text(ENTRY, exact=True).hover()
        page.page.wait_for_timeout(500)
        _save(page, folder / "first_hit_1.jpg")
        page.page.get_by_text(ENTRY, exact=True).click()
        page.page.wait_for_timeout(1000)
        sampler = page.node_id(OURS)
        for number, text in ((2, SERIES[0].prompt), (3, CHANGED[1])):
            page.set_widget(page.node_titled("Prompt"), "text", text)
            page.run(timeout=600)
            page.page.wait_for_timeout(4000)  # the video is loaded; what the next run recalls is written
            _save(page, folder / f"first_hit_{number}.jpg")
        assert page.output(sampler)["text"][0].startswith("hit ")


def _save(page: Editor, path: Path) -> None:
    save(shot(page, clip=PART).resize(PICTURE, Image.LANCZOS), path)

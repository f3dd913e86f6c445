"""A graph of stock nodes with the demo model, from which a first hit begins."""

from __future__ import annotations

from scripts.demo_job.series import SERIES

from .builder import Workflow


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

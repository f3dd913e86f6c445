"""What the shipped workflows contain: official models, official settings, our nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import notes
from .builder import Node, Output, Workflow

WAN21 = "https://huggingface.co/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files"
WAN22 = "https://huggingface.co/Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files"
LORA = "https://huggingface.co/Kijai/WanVideo_comfy/resolve/main"

ENCODER_FILE = "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
LORA_FILE = "Wan21_CausVid_bidirect2_T2V_1_3B_lora_rank32.safetensors"
PROMPT = "A red fox trots through fresh snow at the edge of a pine forest, low morning sun, camera follows at its side"
NEGATIVE = (
    "overexposed, static, blurred details, subtitles, worst quality, low quality, extra limbs, cluttered background"
)


def wan21_t2v(flow: Workflow) -> None:
    model, vae = shifted(flow, "wan2.1_t2v_1.3B_fp16.safetensors", WAN21, 8.0), vae_loader(flow, "wan_2.1_vae", WAN21)
    clip, positive, negative = prompts(flow)
    latent = flow.node("EmptyHunyuanLatentVideo", 1, width=832, height=480, length=33)
    sampler = reuse_sampler(flow, model, clip, positive, negative, latent[0], steps=30, cfg=6.0, sampler_name="uni_pc")
    flow.note(1, notes.how_to(lead=notes.ONE_NODE), 230)
    video(flow, sampler[0], vae, 16.0, column=3)


def wan21_t2v_lora(flow: Workflow) -> None:
    unet = unet_loader(flow, "wan2.1_t2v_1.3B_fp16.safetensors", WAN21)
    lora = flow.node(
        "LoraLoaderModelOnly", 0, model=unet[0], download=("loras", f"{LORA}/{LORA_FILE}"),
        lora_name=LORA_FILE, strength_model=0.7,
    )  # fmt: skip
    model = flow.node("ModelSamplingSD3", 0, model=lora[0], shift=8.0)[0]
    vae = vae_loader(flow, "wan_2.1_vae", WAN21)
    clip, positive, negative = prompts(flow)
    latent = flow.node("EmptyHunyuanLatentVideo", 1, width=832, height=480, length=33)
    sampler = reuse_sampler(flow, model, clip, positive, negative, latent[0], steps=12, cfg=1.0, sampler_name="uni_pc")
    flow.node("CarnatorReport", 3, report=sampler[1])
    flow.note(1, notes.how_to(share="nearly", more=notes.EACH_LORA), 250)
    video(flow, sampler[0], vae, 16.0)


def wan22_5b_t2v(flow: Workflow) -> None:
    model, vae = shifted(flow, "wan2.2_ti2v_5B_fp16.safetensors", WAN22, 8.0), vae_loader(flow, "wan2.2_vae", WAN22)
    clip, positive, negative = prompts(flow)
    latent = flow.node("Wan22ImageToVideoLatent", 1, vae=vae, width=1280, height=704, length=121)
    sampler = reuse_sampler(flow, model, clip, positive, negative, latent[0], steps=20, cfg=5.0, sampler_name="uni_pc")
    flow.node("CarnatorReport", 3, report=sampler[1])
    flow.note(1, notes.how_to(), 220)
    video(flow, sampler[0], vae, 24.0)


def wan22_14b_two_stage(flow: Workflow) -> None:
    stages = []
    for noise in ("high", "low"):
        model = shifted(flow, f"wan2.2_t2v_{noise}_noise_14B_fp8_scaled.safetensors", WAN22, 8.0)
        stages.append(flow.node("CarnatorApply", 2, title=f"Carnator Apply: {noise} noise", model=model))
    vae = vae_loader(flow, "wan_2.1_vae", WAN22)
    _, positive, negative = prompts(flow)
    empty = flow.node("EmptyHunyuanLatentVideo", 1, width=640, height=640, length=81)
    flow.note(1, notes.TWO_STAGES, 230)
    common = {"steps": 20, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple"}
    conds = {"positive": positive, "negative": negative}
    first = flow.node(
        "KSamplerAdvanced", 3, title="First stage", model=stages[0][0], **conds, latent_image=empty[0], noise_seed=7,
        **common, start_at_step=0, end_at_step=10, add_noise="enable", return_with_leftover_noise="enable",
    )  # fmt: skip
    second = flow.node(
        "KSamplerAdvanced", 3, title="Second stage", model=stages[1][0], **conds, latent_image=first[0], noise_seed=7,
        **common, start_at_step=10, end_at_step=10000, add_noise="disable", return_with_leftover_noise="disable",
    )  # fmt: skip
    for stage, sampler in zip(stages, (first, second), strict=True):
        flow.node("CarnatorReport", 4, report=stage[1], latent=sampler[0])
    video(flow, second[0], vae, 16.0)


def compare_with_stock(flow: Workflow) -> None:
    model, vae = shifted(flow, "wan2.1_t2v_1.3B_fp16.safetensors", WAN21, 8.0), vae_loader(flow, "wan_2.1_vae", WAN21)
    clip, positive, negative = prompts(flow)
    latent = flow.node("EmptyHunyuanLatentVideo", 1, width=832, height=480, length=33)
    settings = {"steps": 30, "cfg": 6.0, "sampler_name": "uni_pc"}
    ours = reuse_sampler(flow, model, clip, positive, negative, latent[0], **settings)
    stock = flow.node(
        "KSampler", 2, model=model, positive=positive, negative=negative, latent_image=latent[0],
        seed=7, scheduler="simple", **settings,
    )  # fmt: skip
    flow.node("CarnatorReport", 3, report=ours[1])
    frames = [flow.node("VAEDecode", 3, samples=samples[0], vae=vae) for samples in (ours, stock)]
    side = flow.node("ImageStitch", 3, title="Carnator left, KSampler right", image1=frames[0][0], image2=frames[1][0])
    flow.note(1, notes.how_to(more=notes.COMPARE), 250)
    save(flow, side[0], 16.0)


def calibrate(flow: Workflow) -> None:
    model, vae = shifted(flow, "wan2.1_t2v_1.3B_fp16.safetensors", WAN21, 8.0), vae_loader(flow, "wan_2.1_vae", WAN21)
    clip, positive, negative = prompts(flow)
    latent = flow.node("EmptyHunyuanLatentVideo", 1, width=832, height=480, length=33)
    store, gate = flow.node("CarnatorCacheStore", 1)[0], flow.node("CarnatorCompatibilityGate", 1, mode="thresholds")[0]
    settings = {"steps": 30, "cfg": 6.0, "sampler_name": "uni_pc"}
    sampler = reuse_sampler(flow, model, clip, positive, negative, latent[0], store=store, gate=gate, **settings)
    flow.node("CarnatorReport", 3, report=sampler[1])
    flow.node("CarnatorCalibrate", 3, store=store)
    flow.note(2, notes.CALIBRATE, 300)
    video(flow, sampler[0], vae, 16.0)


def full_control(flow: Workflow) -> None:
    model, vae = shifted(flow, "wan2.1_t2v_1.3B_fp16.safetensors", WAN21, 8.0), vae_loader(flow, "wan_2.1_vae", WAN21)
    clip, positive, negative = prompts(flow)
    latent = flow.node("EmptyHunyuanLatentVideo", 1, width=832, height=480, length=33)
    ours = {
        "store": flow.node("CarnatorCacheStore", 2)[0],
        "probe": flow.node("CarnatorEarlyProbe", 2)[0],
        "gate": flow.node("CarnatorCompatibilityGate", 2, mode="certified")[0],
    }
    settings = {"steps": 30, "cfg": 6.0, "sampler_name": "uni_pc", "column": 3}
    sampler = reuse_sampler(flow, model, clip, positive, negative, latent[0], **ours, **settings)
    flow.node("CarnatorReport", 4, report=sampler[1])
    flow.note(0, notes.FULL_CONTROL, 340)
    video(flow, sampler[0], vae, 16.0)


WORKFLOWS: tuple[Callable[[Workflow], None], ...] = (
    wan21_t2v,
    wan21_t2v_lora,
    wan22_5b_t2v,
    wan22_14b_two_stage,
    compare_with_stock,
    calibrate,
    full_control,
)


# -- parts ---------------------------------------------------------------------------------------------------------


def unet_loader(flow: Workflow, name: str, source: str) -> Node:
    address = f"{source}/diffusion_models/{name}"
    return flow.node("UNETLoader", 0, download=("diffusion_models", address), unet_name=name)


def shifted(flow: Workflow, name: str, source: str, shift: float) -> Output:
    return flow.node("ModelSamplingSD3", 0, model=unet_loader(flow, name, source)[0], shift=shift)[0]


def vae_loader(flow: Workflow, name: str, source: str) -> Output:
    file = f"{name}.safetensors"
    return flow.node("VAELoader", 0, download=("vae", f"{source}/vae/{file}"), vae_name=file)[0]


def prompts(flow: Workflow) -> tuple[Output, Output, Output]:
    """The text encoder, the prompt and the negative one."""
    address = f"{WAN21}/text_encoders/{ENCODER_FILE}"
    clip = flow.node("CLIPLoader", 0, download=("text_encoders", address), clip_name=ENCODER_FILE, type="wan")[0]
    title = "Prompt: change a few words and run again"
    positive = flow.node("CLIPTextEncode", 1, title=title, clip=clip, text=PROMPT)
    return clip, positive[0], flow.node("CLIPTextEncode", 1, title="Negative prompt", clip=clip, text=NEGATIVE)[0]


def reuse_sampler(
    flow: Workflow, model: Output, clip: Output, positive: Output, negative: Output, latent: Output,
    column: int = 2, **settings: Any,
) -> Node:  # fmt: skip
    return flow.node(
        "CarnatorReuseSampler", column, model=model, positive=positive, negative=negative, latent_image=latent,
        seed=7, scheduler="simple", clip=clip, **settings,
    )  # fmt: skip


def video(flow: Workflow, latent: Output, vae: Output, fps: float, column: int = 4) -> None:
    save(flow, flow.node("VAEDecode", column, samples=latent, vae=vae)[0], fps, column)


def save(flow: Workflow, images: Output, fps: float, column: int = 4) -> None:
    clip = flow.node("CreateVideo", column, images=images, fps=fps)
    flow.node("SaveVideo", column, video=clip[0], filename_prefix=f"carnator/{flow.name}")

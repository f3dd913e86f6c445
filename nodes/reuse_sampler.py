"""Node: a KSampler that reuses earlier requests."""

from __future__ import annotations

import logging
import sys
from typing import Any

from comfy_api.latest import io, ui

from ..carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions, StoreOptions
from .types import CATEGORY, GateLink, ProbeLink, ReportLink, StoreLink

log = logging.getLogger("carnator")


class CarnatorReuseSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorReuseSampler",
            display_name="Carnator Reuse Sampler",
            category=CATEGORY,
            description="KSampler for Wan text-to-video that reuses compatible earlier requests. Keep the seed and "
            "change the prompt: what the prompt leaves alone is not computed again. Anything it cannot reuse runs "
            "densely, bit-identical to KSampler, and is kept for the next variation.",
            inputs=[*_sampler_inputs(), *_reuse_inputs(), *_link_inputs()],
            outputs=[
                io.Latent.Output("latent", tooltip="The denoised latent."),
                ReportLink.Output("report", tooltip="What was decided and why, as data."),
                io.Mask.Output(
                    "evidence",
                    tooltip="Per latent frame and cell, the share of reuse steps in which it was computed: 0 = "
                    "replayed from the donor, 1 = computed throughout. All 1 without a hit.",
                ),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        seed: int,
        steps: int,
        cfg: float,
        sampler_name: str,
        scheduler: str,
        positive: list,
        negative: list,
        latent_image: dict,
        denoise: float,
        reuse: bool,
        region_threshold: float,
        max_region_percent: float,
        window_start_percent: float,
        window_end_percent: float,
        guidance_interval: int,
        refine_percent: float,
        store: StoreOptions | None = None,
        probe: ProbeOptions | None = None,
        gate: GateOptions | None = None,
    ) -> io.NodeOutput:
        from nodes import common_ksampler  # the host's module of that name

        from ..carnator_core.hosts.comfy_paths import store_root
        from ..carnator_core.hosts.comfy_run import ComfyRun
        from ..carnator_core.reasons import Code, Decision, Reason

        options = Options(
            store=store or StoreOptions(),
            probe=probe or ProbeOptions(),
            gate=gate or GateOptions(),
            reuse=ReuseOptions(
                region_threshold,
                max_region_percent,
                window_start_percent,
                window_end_percent,
                guidance_interval,
                refine_percent,
            ),
        )
        run = ComfyRun(options, store_root(), progress=cls._show)
        if not reuse:
            run.report.decision, run.report.reason = Decision.OFF, Reason.of(Code.OFF)
        sampled = common_ksampler(
            run.attach(model) if reuse else model,
            seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise,
        )[0]  # fmt: skip
        status = run.report.status()
        log.info("Carnator: %s", status)
        cls._show(status)
        mask, picture = _evidence(run, model, sampled["samples"])
        shown = ui.PreviewImage(picture, cls=cls).as_dict() if picture is not None else {}
        report = run.report.to_dict()
        return io.NodeOutput(sampled, report, mask, ui={**shown, "text": [status], "carnator": [report]})

    @classmethod
    def _show(cls, text: str) -> None:
        """A line of text on the node, where a front end is listening."""
        module = sys.modules.get("server")  # not loaded where ComfyUI runs without its server
        server = module and getattr(module.PromptServer, "instance", None)
        if server is not None and cls.hidden is not None and cls.hidden.unique_id is not None:
            server.send_progress_text(text, cls.hidden.unique_id)


def _evidence(run: Any, model: Any, latent: Any) -> tuple[Any, Any]:
    """Evidence MASK, and the picture after a hit. Latents the pack declined may have any shape, even nested ones."""
    import torch

    from ..carnator_core.hosts.comfy_picture import evidence_picture, heat_mask
    from ..carnator_core.reasons import Decision

    if run.report.decision is Decision.HIT:
        heat = run.session.heat
        return heat_mask(heat, latent), evidence_picture(model, latent, heat)
    return torch.ones((1, 64, 64) if latent.is_nested else (1, *latent.shape[-2:])), None


def _sampler_inputs() -> list:
    """The inputs of the host's KSampler, with a seed that stays: a new seed would be a new composition."""
    import comfy.samplers

    sampler = comfy.samplers.KSampler
    return [
        io.Model.Input("model", tooltip="A Wan text-to-video model. Other models are sampled as KSampler does."),
        io.Int.Input(
            "seed",
            default=0,
            min=0,
            max=0xFFFFFFFFFFFFFFFF,
            control_after_generate=False,
            tooltip="Keep it while you vary the prompt: only requests with the same seed share their work.",
        ),
        io.Int.Input("steps", default=20, min=1, max=10000, tooltip="Denoising steps. At least 4 to reuse anything."),
        io.Float.Input(
            "cfg", default=6.0, min=0.0, max=100.0, step=0.1, round=0.01, tooltip="Classifier-free guidance scale."
        ),
        io.Combo.Input(
            "sampler_name",
            options=sampler.SAMPLERS,
            default="euler",
            tooltip="Reuse works with euler, uni_pc, uni_pc_bh2, dpmpp_2m, res_multistep and ipndm. Others "
            "run as in KSampler and the status says so.",
        ),
        io.Combo.Input("scheduler", options=sampler.SCHEDULERS, default="simple", tooltip="Noise schedule."),
        io.Conditioning.Input("positive", tooltip="What the video should show."),
        io.Conditioning.Input("negative", tooltip="What it should not show. A change here is a new request."),
        io.Latent.Input("latent_image", tooltip="Empty video latent of the wanted size."),
        io.Float.Input(
            "denoise", default=1.0, min=0.0, max=1.0, step=0.01, tooltip="Reuse needs 1.0; lower values run densely."
        ),
    ]


def _reuse_inputs() -> list:
    default = ReuseOptions()
    return [
        io.Boolean.Input(
            "reuse", default=True, tooltip="Off: exactly KSampler; nothing is read from or written to the store."
        ),
        io.Float.Input(
            "region_threshold",
            default=default.region_threshold,
            min=0.0,
            max=10.0,
            step=0.005,
            round=0.0001,
            tooltip="A token belongs to the evidence region if the predictions differ there by more than this RMS, in "
            f"latent units. Lower recomputes more and is safer. Default {default.region_threshold:g}, read off the "
            "demo model.",
        ),
        io.Float.Input(
            "max_region_percent",
            default=default.max_region_percent,
            min=0.0,
            max=100.0,
            step=1.0,
            tooltip="A donor is refused if more than this share of the video would have to be computed anyway.",
        ),
        io.Float.Input(
            "window_start_percent",
            default=default.window_start_percent,
            min=0.0,
            max=100.0,
            step=1.0,
            tooltip="Start of the layer window in percent of the model's depth: from here on only region tokens are "
            "updated. 20 % of 30 blocks is block 6. Equal start and end switch the window off.",
        ),
        io.Float.Input(
            "window_end_percent",
            default=default.window_end_percent,
            min=0.0,
            max=100.0,
            step=1.0,
            tooltip="End of the layer window in percent of the depth. 83 % of 30 blocks is block 25.",
        ),
        io.Int.Input(
            "guidance_interval",
            default=default.guidance_interval,
            min=1,
            max=8,
            tooltip="The negative branch runs every this many reuse steps; 1 = always. 2 saves a quarter of a reuse "
            "step's work.",
        ),
        io.Float.Input(
            "refine_percent",
            default=default.refine_percent,
            min=0.0,
            max=50.0,
            step=1.0,
            tooltip="Share of the steps at the end that is dense again, rounded up; at least 1 step, 2 for multistep "
            "samplers.",
        ),
    ]


def _link_inputs() -> list:
    return [
        StoreLink.Input("store", optional=True, tooltip="Cache Store; without it the store 'default' with 8 GB."),
        ProbeLink.Input("probe", optional=True, tooltip="Early Probe; without it 10 % of the steps."),
        GateLink.Input("gate", optional=True, tooltip="Compatibility Gate; without it the demo model's thresholds."),
    ]

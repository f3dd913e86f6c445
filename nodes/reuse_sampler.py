"""Node: a KSampler that reuses earlier requests."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from comfy_api.latest import io, ui

from ..carnator_core.handle import ReportHandle
from ..carnator_core.options import GateOptions, ProbeOptions, StoreOptions
from .inputs import build_options, link_inputs, reuse_inputs
from .status import show_picture, show_status
from .types import CATEGORY, ReportLink

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
            "densely, bit-identical to KSampler unless assist is on; a miss is kept for the next variation, a declined "
            "run is not.",
            inputs=[*_sampler_inputs(), *reuse_inputs(), *link_inputs(), _teaching_input(), _audit_input()],
            outputs=[
                io.Latent.Output("latent", display_name="latent", tooltip="The denoised latent."),
                ReportLink.Output(
                    "report",
                    display_name="report",
                    tooltip="What was decided and why, for the Report node or as a donor.",
                ),
                io.Mask.Output(
                    "evidence",
                    display_name="evidence",
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
        store: StoreOptions | None = None,
        probe: ProbeOptions | None = None,
        gate: GateOptions | None = None,
        donor: ReportHandle | None = None,
        clip: Any = None,
        audit_percent: float = 0.0,
        **widgets: Any,
    ) -> io.NodeOutput:
        from nodes import common_ksampler  # the host's module of that name

        from ..carnator_core.hosts.comfy_apply import outcome_of, pinned
        from ..carnator_core.hosts.comfy_audit import Auditor
        from ..carnator_core.hosts.comfy_paths import store_root
        from ..carnator_core.hosts.comfy_run import ComfyRun, without_carnator
        from ..carnator_core.hosts.comfy_side_run import SamplerCall
        from ..carnator_core.hosts.comfy_teach import Teacher
        from ..carnator_core.reasons import Code, Decision, Reason

        options = pinned(build_options(store, probe, gate, widgets), donor)
        show = partial(show_status, cls.hidden and cls.hidden.unique_id)
        run = ComfyRun(options, store_root(), progress=show)
        if not reuse:
            run.report.decision, run.report.reason = Decision.OFF, Reason.of(Code.OFF)
        inputs = seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise
        sampled = common_ksampler(run.attach(model) if reuse else without_carnator(model), *inputs)[0]
        call = SamplerCall(model, *inputs)
        if clip is not None:
            Teacher(call, clip, show).teach(run)
        dense = Auditor(call, audit_percent, show).audit(run, sampled["samples"])
        outcome = outcome_of(run, model, sampled["samples"], dense)
        log.info("Carnator: %s", outcome.status)
        show(outcome.status)
        shown = {}
        if outcome.picture is not None:
            show_picture(outcome.picture)
            shown = ui.PreviewImage(outcome.picture, cls=cls).as_dict()
        handle = ReportHandle()
        handle.fill(outcome)
        texts = {"text": [outcome.status], "carnator": [outcome.report]}
        return io.NodeOutput(sampled, handle, outcome.mask, ui={**shown, **texts})


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
            tooltip="Keep it while you vary the prompt: only requests with the same seed share their work, unless an "
            "Early Probe says any seed.",
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
            "denoise",
            default=1.0,
            min=0.0,
            max=1.0,
            step=0.01,
            tooltip="Share of the noise to start from. Below 1.0 latent_image shows through and has to be equal too.",
        ),
    ]


def _teaching_input() -> io.Clip.Input:
    return io.Clip.Input(
        "clip",
        optional=True,
        tooltip="The text encoder of your prompts. The first run with a new model or setting then ends with 5 short "
        "probes of other prompts, 10 % of the steps each, and already the second run may be a hit. Without it 5 runs "
        "with other prompts and seeds teach the model. Not used while thresholds are set by hand.",
    )


def _audit_input() -> io.Float.Input:
    """The last widget: one that this node and Apply get later goes behind it here.

    Apply has none. What happens in a sampler node's own call cannot be done again from within it: the node's callback
    would see the dense run too, and SamplerCustomAdvanced's second output would be that run's.
    """
    return io.Float.Input(
        "audit_percent",
        default=0.0,
        min=0.0,
        max=100.0,
        step=1.0,
        optional=True,
        tooltip="This share of the hits is computed a second time in full, so that you can compare both and a "
        "certificate can be watched: 0 (default) = none, 10 = about 1 of 10, 100 = all; the same request always or "
        "never. Each takes the time of one more dense run; an interrupt ends only that. The latent stays the hit's, "
        "the dense run becomes a donor.",
    )

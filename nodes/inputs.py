"""Inputs that the Reuse Sampler and Apply share, and the options made from them."""

from __future__ import annotations

from comfy_api.latest import io

from ..carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions, StoreOptions
from .types import GateLink, ProbeLink, ReportLink, StoreLink


def build_options(
    store: StoreOptions | None, probe: ProbeOptions | None, gate: GateOptions | None, reuse: dict[str, float]
) -> Options:
    """Options of one request; what is not linked has its defaults. Raises ValueError for impossible settings."""
    return Options(store or StoreOptions(), probe or ProbeOptions(), gate, ReuseOptions(**reuse))


def reuse_inputs() -> list:
    """Switch and widgets; all but the first are the fields of ReuseOptions."""
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
            "demo model; without a Compatibility Gate it follows the scale of your model.",
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
            tooltip="The negative branch runs every this many reuse steps (in early ones always); 1 = always. 2 saves "
            "a quarter of a reuse step's work.",
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


def link_inputs() -> list:
    return [
        StoreLink.Input("store", optional=True, tooltip="Cache Store; without it the store 'default' with 8 GB."),
        ProbeLink.Input("probe", optional=True, tooltip="Early Probe; without it 10 % of the steps."),
        GateLink.Input(
            "gate",
            optional=True,
            tooltip="Compatibility Gate: thresholds set by hand. Without it they follow the "
            "scale of your model, once 8 unrelated pairs of requests are stored.",
        ),
        ReportLink.Input(
            "donor",
            optional=True,
            tooltip="Vary this video: the report of an earlier run, whose stored video is then the only donor. Its "
            "prompt may be as different as you like; settings must be equal and the gate still decides.",
        ),
    ]

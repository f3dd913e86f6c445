"""Inputs that the Reuse Sampler and Apply share, and the options made from them."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..carnator_core.options import (
    ATTENTION_RULES,
    ATTENTION_SOURCES,
    WINDOW_RESIDUALS,
    GateOptions,
    Options,
    ProbeOptions,
    ReuseOptions,
    StoreOptions,
)
from .types import GateLink, ProbeLink, ReportLink, StoreLink


def build_options(
    store: StoreOptions | None, probe: ProbeOptions | None, gate: GateOptions | None, reuse: dict[str, Any]
) -> Options:
    """Options of one request; what is not given has its defaults. Raises ValueError for impossible settings."""
    return Options(store or StoreOptions(), probe or ProbeOptions(), gate, ReuseOptions(**reuse))


def reuse_inputs() -> list:
    """Switch and widgets; all but the first are the fields of ReuseOptions, in their order.

    A saved workflow keeps widget values by position, so a new widget goes to the end. It is optional, so that graphs in
    API form, which keep them by name, run without it.
    """
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
            "updated. 10 % of 30 blocks is block 3. Equal start and end switch the window off.",
        ),
        io.Float.Input(
            "window_end_percent",
            default=default.window_end_percent,
            min=0.0,
            max=100.0,
            step=1.0,
            tooltip="End of the layer window in percent of the depth. 90 % of 30 blocks is block 27.",
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
        *_attention_inputs(default),
        *_thrift_inputs(default),
    ]


def _attention_inputs(default: ReuseOptions) -> list:
    """Which parts of the video look at each other, and how the layer window treats what it leaves out."""
    return [
        io.Combo.Input(
            "attention",
            options=list(ATTENTION_SOURCES),
            default=default.attention,
            optional=True,
            tooltip="Which parts of the video look at each other while a hit is computed. auto (default): consensus "
            "for large videos where that is faster on your GPU, else dense. consensus: what earlier requests of this "
            "model and size looked at on average. donor: what the donor looked at. dense: everything at everything; "
            "slowest, and nothing is lost.",
        ),
        _advanced(
            io.Combo.Input(
                "attention_rule",
                options=list(ATTENTION_RULES),
                default=default.attention_rule,
                optional=True,
                tooltip="How attention_percent is counted. density (default): each block of the video looks at this "
                "share of the blocks, the same work everywhere. mass: it looks at as few blocks as hold this share of "
                "its attention, so that the work differs from place to place.",
            )
        ),
        io.Float.Input(
            "attention_percent",
            default=default.attention_percent,
            min=1.0,
            max=100.0,
            step=1.0,
            optional=True,
            tooltip="How much of the video each part looks at; unused where attention is dense. Default "
            f"{default.attention_percent:g}: the half that matters most to it. Less is faster and loses detail sooner, "
            "more is slower and safer; 100 leaves nothing out.",
        ),
        _advanced(
            io.Int.Input(
                "attention_block",
                default=default.attention_block,
                min=0,
                max=1024,
                step=1,
                optional=True,
                tooltip="Tokens per block, a power of two. Default 0 chooses: 64 for small videos, 128 for large ones. "
                "Smaller blocks are chosen more finely and take more memory; larger ones are coarser and take less.",
            )
        ),
        _advanced(
            io.Combo.Input(
                "window_residual",
                options=list(WINDOW_RESIDUALS),
                default=default.window_residual,
                optional=True,
                tooltip="How the video outside the region goes on inside the layer window. shared (default): each "
                "layer adds an equal share of what the window added in the last full step. per layer: what that layer "
                "added; closer, for some 4 GB more per branch of Wan 2.2 5B. none: nothing; least memory, most error.",
            )
        ),
    ]


def _thrift_inputs(default: ReuseOptions) -> list:
    """What is left out in time: guidance, evaluations, and work of requests that fit no donor."""
    return [
        _advanced(
            io.Float.Input(
                "guidance_fresh_sigma",
                default=default.guidance_fresh_sigma,
                min=0.0,
                max=1.0,
                step=0.01,
                optional=True,
                tooltip="Down to this noise level the negative branch runs in every computed step, whatever "
                f"guidance_interval says; 1 = pure noise, 0 = clean. Default {default.guidance_fresh_sigma:g}. Lower "
                "runs it in more steps, slower and safer; higher saves more.",
            )
        ),
        _advanced(
            io.Float.Input(
                "guidance_end_percent",
                default=default.guidance_end_percent,
                min=0.0,
                max=100.0,
                step=1.0,
                optional=True,
                tooltip="After this share of the steps a hit goes on without guidance, which halves the work of a "
                f"step. Default {default.guidance_end_percent:g}: guidance up to the end. Less is faster and follows "
                "the prompts less closely.",
            )
        ),
        io.Float.Input(
            "hold_threshold",
            default=default.hold_threshold,
            min=0.0,
            max=1.0,
            step=0.005,
            round=0.0001,
            optional=True,
            tooltip="A hit leaves out steps, and holds its last prediction, while the donor's own prediction changed "
            "by less than this since the last computed step, relative to its size: 0.5 = by less than half. Default "
            f"{default.hold_threshold:g}: some 7 of 20 steps, 31 of 50, few where predictions change fast. 0: none.",
        ),
        io.Boolean.Input(
            "assist",
            default=default.assist,
            optional=True,
            tooltip="On: a request that resembles a stored one but cannot reuse it goes faster without being "
            "bit-identical to KSampler; it is told as assist and never stored. Default off: it is a miss, dense and "
            "bit-identical.",
        ),
    ]


def _advanced(item: Any) -> Any:
    """The same input, folded away by front ends that know how; the constructors of ComfyUI 0.3 do not take this."""
    item.extra_dict = {**item.extra_dict, "advanced": True}
    return item


def store_input() -> Any:
    """Of nodes that work on a store itself."""
    return StoreLink.Input("store", optional=True, tooltip="Cache Store; without it the store 'default'.")


def link_inputs() -> list:
    return [
        StoreLink.Input("store", optional=True, tooltip="Cache Store; without it the store 'default' with 8 GB."),
        ProbeLink.Input("probe", optional=True, tooltip="Early Probe; without it 10 % of the steps."),
        GateLink.Input(
            "gate",
            optional=True,
            tooltip="Compatibility Gate: thresholds set by hand, or a certificate. Without it they follow the scale of "
            "your model, once 8 unrelated pairs of requests are stored or a Reuse Sampler with its clip linked has "
            "learned it.",
        ),
        ReportLink.Input(
            "donor",
            optional=True,
            tooltip="Vary this video: the report of an earlier run, whose stored video is then the only donor. Its "
            "prompt may be as different as you like; settings must be equal and the gate still decides.",
        ),
    ]

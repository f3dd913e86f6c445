"""Node: what a run did and why, as text, data and picture."""

from __future__ import annotations

import json
import math
from typing import Any

from comfy_api.latest import io, ui

from ..carnator_core.handle import ReportHandle
from .status import show_status
from .types import CATEGORY, ReportLink

NOT_FILLED = (
    "no report yet: nothing was sampled through that node, or it is switched off. If a sampler follows Carnator "
    "Apply, connect the sampler's LATENT to this node too, so that it waits."
)


class CarnatorReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorReport",
            display_name="Carnator Report",
            category=CATEGORY,
            description="Shows what was decided for a request, what was measured and where it was computed.",
            inputs=[
                ReportLink.Input("report", tooltip="From Reuse Sampler or Apply."),
                io.Latent.Input(
                    "latent",
                    optional=True,
                    tooltip="The sampler's result. Its content is not used: with it this node runs after the sampler, "
                    "which a report from Apply needs.",
                ),
            ],
            outputs=[
                io.String.Output("text", display_name="text", tooltip="The report in a few lines."),
                io.String.Output("json", display_name="json", tooltip="The report as JSON, with all numbers."),
                io.Image.Output(
                    "picture",
                    display_name="picture",
                    tooltip="After a hit up to eight latent frames, orange where they were computed; else black.",
                ),
                io.Mask.Output(
                    "evidence",
                    display_name="evidence",
                    tooltip="0 = replayed from the donor, 1 = computed; all 1 without a hit.",
                ),
            ],
            is_output_node=True,
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        """Never equal: a handle is filled anew while the node that made it stays cached."""
        return math.nan

    @classmethod
    def execute(cls, report: ReportHandle, latent: dict | None = None) -> io.NodeOutput:
        import torch

        from ..carnator_core.report import summary

        outcome = report.outcome
        if outcome is None:
            text, data, picture, mask = NOT_FILLED, {}, None, torch.ones(1, 64, 64)
        else:
            data = {**outcome.report, "samplings": report.samplings}
            text, picture, mask = summary(outcome.status, data), outcome.picture, outcome.mask
        show_status(cls.hidden and cls.hidden.unique_id, text)
        shown = {"text": [text], "carnator": [data]}
        if picture is None:
            picture = torch.zeros(1, 64, 64, 3)
        else:
            shown |= ui.PreviewImage(picture, cls=cls).as_dict()
        return io.NodeOutput(text, json.dumps(data, indent=2, allow_nan=False), picture, mask, ui=shown)

"""Node: reuse for any stock sampler node, as a patch on the MODEL."""

from __future__ import annotations

from functools import partial
from typing import Any

from comfy_api.latest import io

from ..carnator_core.handle import ReportHandle
from ..carnator_core.options import GateOptions, ProbeOptions, StoreOptions
from .inputs import build_options, link_inputs, reuse_inputs
from .status import show_status
from .types import CATEGORY, ReportLink


class CarnatorApply(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorApply",
            display_name="Carnator Apply",
            category=CATEGORY,
            description="Lets KSampler, KSamplerAdvanced, SamplerCustom and SamplerCustomAdvanced reuse compatible "
            "earlier requests. Put it last before the sampler; with two stages, one for each stage's model.",
            inputs=[
                io.Model.Input("model", tooltip="A Wan text-to-video model, after LoRA and shift nodes."),
                *reuse_inputs(),
                *link_inputs(),
            ],
            outputs=[
                io.Model.Output("patched", display_name="model", tooltip="For one or more sampler nodes."),
                ReportLink.Output(
                    "report",
                    display_name="report",
                    tooltip="Filled when the sampler ends; each further sampling replaces it.",
                ),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        reuse: bool,
        store: StoreOptions | None = None,
        probe: ProbeOptions | None = None,
        gate: GateOptions | None = None,
        donor: ReportHandle | None = None,
        **widgets: Any,
    ) -> io.NodeOutput:
        from ..carnator_core.hosts.comfy_apply import AppliedModel
        from ..carnator_core.hosts.comfy_paths import store_root
        from ..carnator_core.hosts.comfy_run import without_carnator
        from ..carnator_core.reasons import Code, Decision, Reason
        from ..carnator_core.report import Report

        options, handle = build_options(store, probe, gate, widgets), ReportHandle()
        show = partial(show_status, cls.hidden and cls.hidden.unique_id)
        if not reuse:
            show(Report(decision=Decision.OFF, reason=Reason.of(Code.OFF)).status())
            return io.NodeOutput(without_carnator(model), handle)
        return io.NodeOutput(AppliedModel(options, store_root(), handle, donor, show).attach(model), handle)

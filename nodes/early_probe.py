"""Node: how long the early probe is and which earlier prompts it is compared with."""

from comfy_api.latest import io

from ..carnator_core.options import ProbeOptions
from .types import CATEGORY, ProbeLink


class CarnatorEarlyProbe(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        default = ProbeOptions()
        return io.Schema(
            node_id="CarnatorEarlyProbe",
            display_name="Carnator Early Probe",
            category=CATEGORY,
            description="Sets the first dense steps after which a request is compared with earlier ones.",
            inputs=[
                io.Float.Input(
                    "probe_percent",
                    default=default.probe_percent,
                    min=1.0,
                    max=50.0,
                    step=1.0,
                    tooltip="Share of the steps that runs densely before the decision, rounded up: 10 % of 20 steps "
                    "are 2. The steps are the request's own, nothing is wasted. Entries made with another value "
                    "are not reused.",
                ),
                io.Int.Input(
                    "recall_top_k",
                    default=default.recall_top_k,
                    min=1,
                    max=32,
                    tooltip="How many earlier requests with similar text are compared after the probe. Each costs "
                    "a few milliseconds.",
                ),
                io.Float.Input(
                    "min_text_similarity",
                    default=default.min_text_similarity,
                    min=-1.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Cosine between prompt embeddings below which an earlier request is not considered. "
                    "1 = only the same words, 0 = unrelated ones too; the gate decides in the end.",
                ),
            ],
            outputs=[ProbeLink.Output("probe", tooltip="For the Reuse Sampler.")],
        )

    @classmethod
    def execute(cls, probe_percent: float, recall_top_k: int, min_text_similarity: float) -> io.NodeOutput:
        return io.NodeOutput(ProbeOptions(probe_percent, recall_top_k, min_text_similarity))

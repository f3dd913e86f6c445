"""Node: how long the early probe is and which earlier prompts it is compared with."""

from comfy_api.latest import io

from ..carnator_core.options import SEED_POLICIES, ProbeOptions
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
                    "are 2. The steps are the request's own, nothing is wasted unless seed_policy is any seed. "
                    "Entries made with another value are not reused.",
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
                io.Combo.Input(
                    "seed_policy",
                    options=list(SEED_POLICIES),
                    default=default.seed_policy,
                    optional=True,  # saved workflows and graphs in API form may lack it
                    tooltip="same seed (default): only earlier requests with the same seed are reused. any seed: if "
                    "there is none, the most similar earlier request of another seed lends its noise, so that the "
                    "result is a variation of that video and not of your seed; the same words give the same video. If "
                    "it does not fit, the run starts again with your own seed, and these first steps were for nothing.",
                ),
            ],
            outputs=[ProbeLink.Output("probe", tooltip="For the Reuse Sampler.")],
        )

    @classmethod
    def execute(
        cls,
        probe_percent: float,
        recall_top_k: int,
        min_text_similarity: float,
        seed_policy: str = SEED_POLICIES[0],
    ) -> io.NodeOutput:
        return io.NodeOutput(ProbeOptions(probe_percent, recall_top_k, min_text_similarity, seed_policy=seed_policy))

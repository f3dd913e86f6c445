"""Node: the four thresholds of the compatibility gate, or a certificate in their place."""

from comfy_api.latest import io

from ..carnator_core.options import GATE_MODES, GateOptions
from .types import CATEGORY, GateLink


def _threshold(name: str, meaning: str, maximum: float, step: float = 0.001) -> io.Float.Input:
    default = getattr(GateOptions(), name)
    return io.Float.Input(
        name,
        default=default,
        min=0.0,
        max=maximum,
        step=step,
        round=0.0001,
        tooltip=f"{meaning} 0 = accept equal requests only; higher accepts more and risks more. Default {default:g}, "
        "read off the demo model; other models need their own value (the report shows what was measured). Without this "
        "node they are learned.",
    )


class CarnatorCompatibilityGate(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorCompatibilityGate",
            display_name="Carnator Compatibility Gate",
            category=CATEGORY,
            description="Accepts an earlier request only if all four discrepancies stay within their thresholds, or "
            "by a certificate made from verdicts.",
            inputs=[
                _threshold("representation", "Middle hidden state of the model: 1 - cosine.", 2.0),
                _threshold("residual", "What the prompt adds to the prediction: 1 - cosine.", 2.0),
                _threshold("dynamics", "How the prediction moves during the probe: relative difference.", 10.0),
                _threshold("state", "Predicted video, worst frame: RMS difference in latent units.", 10.0),
                _threshold(
                    "near_empty_representation",
                    "Like representation, where less than 5 % of the video differs: only rewordings agree so closely.",
                    2.0,
                    step=0.0001,
                ),
                io.Combo.Input(
                    "mode",
                    options=list(GATE_MODES),
                    default=GATE_MODES[0],
                    optional=True,  # saved workflows and graphs in API form may lack it
                    tooltip="thresholds (default): the five numbers above decide. certified: a certificate decides "
                    "that was made for exactly these settings (node Carnator Calibrate) and says how many accepted "
                    "hits are unsafe at most, such as 5 %; the numbers above are not used. Without such a certificate "
                    "half of each default holds, on the scale of your model, and the status says so.",
                ),
            ],
            outputs=[GateLink.Output("gate", tooltip="For the Reuse Sampler.")],
        )

    @classmethod
    def execute(
        cls,
        representation: float,
        residual: float,
        dynamics: float,
        state: float,
        near_empty_representation: float,
        mode: str = GATE_MODES[0],
    ) -> io.NodeOutput:
        return io.NodeOutput(GateOptions(representation, residual, dynamics, state, near_empty_representation, mode))

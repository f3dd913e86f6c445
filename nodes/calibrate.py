"""Node: from verdicts to a certificate."""

import json
import time

from comfy_api.latest import io, ui

from ..carnator_core.options import StoreOptions
from .inputs import store_input
from .status import show_status
from .types import CATEGORY


class CarnatorCalibrate(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorCalibrate",
            display_name="Carnator Calibrate",
            category=CATEGORY,
            description="Makes a certificate of what people said about finished hits: a bound on how many accepted "
            "hits are unsafe. A Compatibility Gate in its mode certified then decides by it.",
            inputs=[
                store_input(),
                io.Float.Input(
                    "delta_percent",
                    default=5.0,
                    min=0.5,
                    max=50.0,
                    step=0.5,
                    tooltip="Largest share of unsafe hits among accepted ones that is put up with. 5 takes at least 45 "
                    "independent verdicts in the tested part if all are safe (77 with one that is not), 10 takes 22.",
                ),
                io.Float.Input(
                    "confidence_percent",
                    default=90.0,
                    min=50.0,
                    max=99.9,
                    step=0.1,
                    tooltip="How sure that is to be. 90: of a hundred such tests of too risky a gate at most ten pass. "
                    "95 takes 59 verdicts in place of 45. Every further test for the same settings is made at half the "
                    "error.",
                ),
                io.Boolean.Input(
                    "save",
                    default=False,
                    tooltip="Off: only count the verdicts. On: test them, and keep the certificate in the store if "
                    "they pass. Collect first and test once: each test with new verdicts makes the next one stricter.",
                ),
            ],
            outputs=[
                io.String.Output("text", display_name="text", tooltip="The certificate, or what is missing for one."),
                io.String.Output("json", display_name="json", tooltip="The same as JSON, with all numbers."),
                io.Image.Output("plot", display_name="plot", tooltip="Risk and its bound against what is accepted."),
            ],
            is_output_node=True,
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> float:
        """Never the same: what there is to test depends on the store."""
        return time.time()

    @classmethod
    def execute(
        cls, delta_percent: float, confidence_percent: float, save: bool, store: StoreOptions | None = None
    ) -> io.NodeOutput:
        from ..carnator_core.calibration import Outcome, calibrate_store
        from ..carnator_core.hosts.comfy_paths import store_root
        from ..carnator_core.hosts.comfy_risk_plot import risk_plot

        name, delta = (store or StoreOptions()).name, delta_percent / 100
        try:
            outcome = calibrate_store(store_root() / name, delta, confidence_percent / 100, test=save)
        except OSError as error:
            why = f"the store '{name}' cannot be used: {error.strerror or error}"
            outcome = Outcome(why, {"verdicts": 0, "clusters": 0, "needed": 0})
        text, plot = f"store '{name}': {outcome.text}", risk_plot(outcome, delta)
        show_status(cls.hidden and cls.hidden.unique_id, text)
        shown = {"text": [text], **ui.PreviewImage(plot, cls=cls).as_dict()}
        return io.NodeOutput(text, json.dumps(outcome.to_dict(), indent=2, allow_nan=False), plot, ui=shown)

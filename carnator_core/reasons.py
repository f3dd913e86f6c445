"""Every answer the pack can give, as a code and a sentence. The code goes into reports, the sentence to the artist."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Decision(str, Enum):
    """What became of a request."""

    HIT = "hit"
    ASSIST = "assist"
    MISS = "miss"
    DECLINED = "declined"
    OFF = "off"


class Code(str, Enum):
    """Reason codes. Their names are part of the report format: append, never rename."""

    REUSED = "reused"
    OFF = "off"
    STORE_EMPTY = "store_empty"
    STORE_WRITE_ONLY = "store_write_only"
    KEY_DIFFERS = "key_differs"
    TEXT_TOO_DIFFERENT = "text_too_different"
    GATE_REJECTED = "gate_rejected"
    REGION_TOO_LARGE = "region_too_large"
    NO_SAVING = "no_saving"
    ENTRY_CORRUPT = "entry_corrupt"
    UNSUPPORTED_MODEL = "unsupported_model"
    UNSUPPORTED_SAMPLER = "unsupported_sampler"
    UNSUPPORTED_CONDITIONING = "unsupported_conditioning"
    UNSUPPORTED_LATENT = "unsupported_latent"
    FOREIGN_PATCH = "foreign_patch"
    TOO_FEW_STEPS = "too_few_steps"
    PARTIAL_SCHEDULE = "partial_schedule"  # in reports of version 0.1.0
    UNEXPECTED_CALL = "unexpected_call"
    OUT_OF_MEMORY = "out_of_memory"
    NO_STORE = "no_store"
    LEARNING = "learning"
    NOT_SAMPLED = "not_sampled"
    DONOR_UNAVAILABLE = "donor_unavailable"
    DONOR_DIFFERS = "donor_differs"
    UNSUPPORTED_SCHEDULE = "unsupported_schedule"
    ENTRY_GONE = "entry_gone"
    UNSUPPORTED_HOST = "unsupported_host"


_SENTENCES = {
    Code.REUSED: "reusing a compatible earlier request",
    Code.OFF: "Carnator is switched off on this node",
    Code.STORE_EMPTY: "no earlier request in this store yet",
    Code.STORE_WRITE_ONLY: "this store is set to write only",
    Code.KEY_DIFFERS: "the nearest earlier request differs in: {fields}",
    Code.TEXT_TOO_DIFFERENT: "no earlier prompt is close enough (best similarity {best:.2f}, needed {needed:.2f})",
    Code.GATE_REJECTED: "the nearest donor is too different in {families}",
    Code.REGION_TOO_LARGE: "{share:.0%} of the video would change, more than the allowed {allowed:.0%}",
    Code.NO_SAVING: "reuse would save nothing ({predicted:.2f} of the dense work)",
    Code.ENTRY_CORRUPT: "the stored entry failed its check and was set aside ({detail})",
    Code.UNSUPPORTED_MODEL: "this model is not supported ({detail})",
    Code.UNSUPPORTED_SAMPLER: "this sampler is not supported ({detail})",
    Code.UNSUPPORTED_CONDITIONING: "this conditioning is not supported ({detail})",
    Code.UNSUPPORTED_LATENT: "this latent is not supported ({detail})",
    Code.FOREIGN_PATCH: "another patch on this model changes the computation ({detail})",
    Code.TOO_FEW_STEPS: "too few steps to reuse anything ({steps} steps: {probe} probe, {refine} refine)",
    Code.PARTIAL_SCHEDULE: "the schedule covers only part of the denoising (sigma {first:.3f} to {last:.3f})",
    Code.UNEXPECTED_CALL: "the sampler called the model in an unexpected way ({detail})",
    Code.LEARNING: "learning this model: {known} of {needed} comparisons",
    Code.DONOR_UNAVAILABLE: "the chosen donor cannot be used: {detail}",
    Code.UNSUPPORTED_SCHEDULE: "the noise level does not fall at every step (sigma {first:.3f} to {last:.3f})",
    Code.DONOR_DIFFERS: "the chosen donor differs in: {fields}",
    Code.NO_STORE: "the store cannot be used ({detail})",
    Code.ENTRY_GONE: "the stored entry was deleted meanwhile",
    Code.UNSUPPORTED_HOST: "this version of ComfyUI or something added to it cannot be used ({detail})",
    Code.NOT_SAMPLED: "nothing was sampled in this run",
    Code.OUT_OF_MEMORY: "out of memory during reuse; finished densely",
}


@dataclass(frozen=True)
class Reason:
    """A code with its filled-in sentence."""

    code: Code
    sentence: str

    @classmethod
    def of(cls, code: Code, **values: object) -> Reason:
        return cls(code, _SENTENCES[code].format(**values))

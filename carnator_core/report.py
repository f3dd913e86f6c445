"""What one request did and why: plain data for the node, the log and files."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

from .options import GateOptions
from .reasons import Code, Decision, Reason
from .scale import PAIRS_NEEDED
from .signature import Discrepancies
from .store.checks import finite

REPORT_VERSION = 1
TEACHING = "a linked clip teaches the rest after this run; without one run other prompts with other seeds"


@dataclass
class Report:
    """Filled while a request runs. Seconds are wall-clock; shares lie between 0 and 1."""

    decision: Decision = Decision.MISS
    reason: Reason = field(default_factory=lambda: Reason.of(Code.STORE_EMPTY))
    discrepancies: Discrepancies | None = None
    thresholds: GateOptions | None = None
    region_share: float | None = None  # after a hit the mean over its reuse steps
    decided_share: float | None = None  # of the tokens in the region, as the gate saw it, before it is filled up
    region_history: list[tuple[int, float]] = field(default_factory=list)
    donor_id: str | None = None
    donor_created: float | None = None
    donor_prompt: str | None = None
    similarity: float | None = None
    steps: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    own_seconds: float = 0.0
    predicted_work: float | None = None
    work: float | None = None  # model evaluations relative to a dense run, in arithmetic; sparse attention not counted
    dense_step_seconds: float | None = None
    entry_id: str | None = None
    store_note: str | None = None
    donor_seed: int | None = None  # of the donor that lent its noise; None where the request's own was used
    seed_note: str | None = None  # what a donor of another seed has cost that was refused
    scale_note: str | None = None  # how this run learned the model's scale, or why it could not
    attention: str | None = None  # how reuse steps attended
    request_id: str | None = None  # name of the entry that this request has or would have
    settings: dict[str, str] = field(default_factory=dict)  # all that can change a hit's pixels, see settings.py
    certificate: str | None = None  # which one is in force, or why none is
    certified: bool = False  # whether one is
    audit: bool = False  # whether this hit was run again densely, which was decided without a look at its outcome
    dense_difference: dict[str, float | None] | None = None  # between the two results, see audit.py
    audit_note: str | None = None  # what an audit found, or why there is none of a hit that was chosen for it
    learned_pairs: int | None = None  # of the eight that the model's scale needs; None where thresholds are set by hand

    def to_dict(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["version"] = REPORT_VERSION
        data["decision"] = self.decision.value
        data["reason_code"], data["reason"] = self.reason.code.value, self.reason.sentence
        # NaN and infinity have no place in JSON: such a number is as absent as one that does not exist.
        data["discrepancies"] = self.discrepancies and finite(self.discrepancies.as_dict())
        data["thresholds"] = self.thresholds and finite(dataclasses.asdict(self.thresholds))
        data["donor"] = self.donor_id and finite(
            {
                "id": data.pop("donor_id"),
                "age_seconds": round(time.time() - data.pop("donor_created"), 1),
                "prompt": data.pop("donor_prompt"),
                "similarity": data.pop("similarity"),
            }
        )
        for name in ("donor_id", "donor_created", "donor_prompt", "similarity"):
            data.pop(name, None)
        return data

    @property
    def estimated_speedup(self) -> float | None:
        """Dense seconds extrapolated from this run's own dense steps, over its seconds."""
        if not self.dense_step_seconds or not self.seconds:
            return None
        return self.dense_step_seconds * sum(self.steps.values()) / self.seconds

    @property
    def seconds_saved(self) -> float:
        """The same as a difference; 0 where nothing was reused."""
        if self.dense_step_seconds is None or self.decision not in (Decision.HIT, Decision.ASSIST):
            return 0.0
        return max(0.0, self.dense_step_seconds * sum(self.steps.values()) - self.seconds)

    def status(self) -> str:
        """One line for the node and the log."""
        uncertified = None if self.certified else self.certificate
        said, scale_note = self.reason.sentence, self.scale_note
        learning = self.learned_pairs is not None and self.learned_pairs < PAIRS_NEEDED
        if self.reason.code is Code.LEARNING and not learning:
            said, scale_note = scale_note or said, None  # by now it is learned
        elif self.reason.code is Code.LEARNING and scale_note is None:
            said = f"{said}; {TEACHING}"
        notes = self.seed_note, uncertified, self.audit_note, scale_note, self.store_note
        note = "".join(f" ({note})" for note in notes if note)
        if learning and self.reason.code is not Code.LEARNING:
            note = f" (learning this model: {self.learned_pairs} of {PAIRS_NEEDED}){note}"
        if self.decision not in (Decision.HIT, Decision.ASSIST):
            return f"{self.decision.value}: {said}{note}"
        gain = f" {self.estimated_speedup:.1f}×" if self.estimated_speedup else ""
        if self.decision is Decision.ASSIST:
            return f"assist{gain}, not bit-identical: {self.reason.sentence}{note}"
        parts = [f"hit{gain}"]
        if self.donor_created:
            parts.append(f"donor {_age(time.time() - self.donor_created)} ago")
        if self.donor_seed is not None:
            parts.append(f"with the donor's seed {self.donor_seed}")
        parts.append(f"region {self.region_share or 0:.0%}")
        if self.certified:
            parts.append("certified")
        if self.reason.code is not Code.REUSED:  # the hit ended early
            parts.append(self.reason.sentence)
        return " · ".join(parts) + note


def _allowed(limits: dict[str, Any] | None, family: str) -> str:
    if limits is None:
        return "(no limit known yet)"
    return "(no limit)" if limits[family] is None else f"of {limits[family]:.3g} allowed"


def _age(seconds: float) -> str:
    """Of what may have come from a computer whose clock is ahead."""
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def summary(status: str, data: dict[str, Any]) -> str:
    """The report in a few lines for a person.

    Args:
        status: the line of ``Report.status``.
        data: ``Report.to_dict``, with "samplings" (how often the node was sampled) added.
    """
    lines = [status]
    if data["certified"]:
        lines.append(data["certificate"])
    if data["decision"] == "hit" and data["reason_code"] != Code.REUSED.value:
        lines.append(data["reason"])
    if data["donor"]:
        similarity = data["donor"]["similarity"]
        alike = "" if similarity is None else f", text similarity {similarity:.2f}"
        lines.append(f"donor {data['donor']['id'][:8]}{alike}")
    for family, found in (data["discrepancies"] or {}).items():
        if found is not None:
            lines.append(f"{family} {found:.3g} {_allowed(data['thresholds'], family)}")
    if data["region_history"]:
        lines.append("region " + ", ".join(f"{share:.0%} at step {step + 1}" for step, share in data["region_history"]))
    if data["attention"]:
        lines.append(f"attention in reuse steps {data['attention']}")
    if data["steps"]:
        lines.append("steps: " + ", ".join(f"{count} {kind}" for kind, count in data["steps"].items()))
        lines.append(f"{data['seconds']:.1f} s, of which Carnator {data['own_seconds']:.2f} s")
    if data["samplings"] > 1:
        lines.append(f"the last of {data['samplings']} samplings")
    return "\n".join(lines)

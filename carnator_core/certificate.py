"""A certificate: a stated bound on the risk of accepted reuse, what it accepts, and the data behind it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

from .gate import exceeded, thresholds_for
from .identity import digest
from .options import CERTIFIED, GateOptions
from .risk import SMALLEST, Limit, upper_bound
from .scale import Thresholds
from .settings import differing
from .signature import FAMILIES, Discrepancies

# Another version or device rounds differently; that moves pixels by less than any discrepancy that a gate looks at.
# It is told, and no reason to distrust what was measured.
TOLERATED = {"software or device": "on other software or another device"}
# What a certificate itself brings along: without one these follow what the store has learned of the model's scale.
REGION, NEAR_EMPTY = "effective region threshold", "near-empty threshold"
BROUGHT = (REGION, NEAR_EMPTY)
FARTHEST = 700.0  # above a limit, in logarithms: what a float can still hold


@dataclass(frozen=True)
class Certificate:
    """What was certified.

    Args:
        created: seconds since the epoch.
        settings: what it is bound to, see settings.py.
        weights, guards: of the score s = sum of w log d, and the largest discrepancies, by family.
        limit: pairs with s < limit are accepted; None: the guards alone.
        path: the limits that were tested, from strict to loose.
        accepted, unsafe: independent certification pairs that ``limit`` accepts.
        delta, confidence: with that confidence the risk of accepted reuse is at most delta.
        clusters, development: independent groups of pairs in the tested part, and in the part that chose the score.
        coverage: share of the tested pairs that is accepted; by_kind: (accepted, all) for each kind of edit.
        estimand, label_rule: what the bound speaks of, and what was called unsafe, in a sentence each.
        note: what else there is to say about the data.
    """

    created: float
    settings: dict[str, str]
    weights: dict[str, float]
    guards: dict[str, float]
    limit: float | None
    path: tuple[Limit, ...]
    accepted: int
    unsafe: int
    delta: float
    confidence: float
    clusters: int
    development: int
    coverage: float
    by_kind: dict[str, tuple[int, int]]
    estimand: str
    label_rule: str
    note: str

    # -- what it accepts -------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Thresholds:
        """What the gate holds a candidate against, besides the score."""
        guards = {family: self.guards.get(family, 0.0) for family in FAMILIES}
        region, near_empty = (float(self.settings[name]) for name in BROUGHT)
        return Thresholds(GateOptions(**guards, near_empty_representation=near_empty, mode=CERTIFIED), region)

    def excess(self, found: Discrepancies) -> float:
        """How far above the certified limit all discrepancies together are: accepted below 1, never if NaN."""
        present = {family: value for family, value in found.as_dict().items() if value is not None}
        if present.keys() != self.weights.keys():
            return math.inf
        if self.limit is None:
            return 0.0 if all(map(math.isfinite, present.values())) else math.inf
        score = sum(weight * math.log(max(present[f], SMALLEST)) for f, weight in self.weights.items())
        return math.exp(min(score - self.limit, FARTHEST)) if math.isfinite(score) else math.inf

    def covers(self, found: Discrepancies) -> bool:
        """Whether discrepancies lie within the guards and below the limit of the score."""
        return not exceeded(found, self.limits.gate) and self.excess(found) < 1.0

    def accepts(self, found: Discrepancies, share: float) -> bool:
        """Whether a candidate is accepted, as far as that shows in these numbers: it must also promise a saving.

        Args:
            share: of the tokens in the region at the decision.
        """
        allowed = share <= float(self.settings["max region percent"]) / 100
        return allowed and self.covers(found) and not exceeded(found, thresholds_for(share, self.limits.gate))

    # -- what it says ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return digest(asdict(self))[:16]

    @property
    def bound(self) -> float:
        """Exact one-sided bound on the risk."""
        return upper_bound(self.unsafe, self.accepted, self.confidence)

    def mismatch(self, settings: dict[str, str]) -> list[str]:
        """Names of the settings that this certificate does not speak of."""
        return [name for name in differing(self.settings, settings) if name not in TOLERATED]

    def sentence(self, settings: dict[str, str] | None = None) -> str:
        """The claim and the data behind it.

        Args:
            settings: of the request that it is used for, if it is used.
        """
        day = time.strftime("%Y-%m-%d", time.gmtime(self.created))
        said = (
            f"certified: at most {exactly(self.delta)} of accepted reuse is unsafe, at {exactly(self.confidence)} "
            f"confidence ({self.unsafe} unsafe of {self.accepted} accepted in {self.clusters} independent groups, "
            f"bound {self.bound:.1%}, coverage {self.coverage:.0%}, {day})"
        )
        other = [] if settings is None else [n for n in differing(self.settings, settings) if n in TOLERATED]
        return said + "".join(f", measured {TOLERATED[name]}" for name in other)


def exactly(share: float) -> str:
    """In percent and not rounded: what is claimed with 99.96 % confidence is not claimed with 100.0 %."""
    return f"{100 * share:.10g}%"

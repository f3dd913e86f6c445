"""From labelled pairs to a certificate, or to a sentence why there is none.

The order is what makes the bound valid: pairs are grouped into clusters, the clusters are split, one pair is drawn of
each that is tested, the score is chosen on the development part, limits are laid on the scores of the other part, and
only then are the labels of that part looked at (see risk.py).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .certificate import NEAR_EMPTY, Certificate, exactly
from .gate import exceeded, thresholds_for
from .options import GateOptions
from .risk import (
    Score,
    Tested,
    accepted_needed,
    clusters,
    fixed_sequence,
    is_development,
    one_per_cluster,
    upper_bound,
)
from .signature import FAMILIES, Discrepancies
from .store.checks import is_number

DELTA, CONFIDENCE = 0.05, 0.90
DEVELOPMENT_NEEDED = 5  # clusters
STRICTER_SHARE = 0.1  # of the pairs, which may go because they were collected under stricter thresholds than the rest
ESTIMAND = (
    "the share of unsafe reuse among accepted requests with these settings, where requests are drawn as those that "
    "were judged, one from each group that shares donors, requests or a family of paraphrases"
)
LABEL_RULE = "unsafe: whoever looked at the finished video said that it is not what was asked for"


class NotCertified(Exception):
    """Why there is no certificate; its text is a sentence."""


@dataclass(frozen=True)
class LabelledPair:
    """A request, the donor that it was served from, and whether that was unsafe.

    Args:
        target, donor: ids; family: of paraphrases, if known. Pairs that share one of these are one cluster.
        kind: of edit, if known.
        share: of the tokens in the region at the decision; similarity: of the two texts; work: predicted, relative to a
            dense run.
        accepted_by: the thresholds that let it pass, by name; None if it was served with the gate open, and then the
            rules of region, saving and near-empty regions are applied here.
    """

    discrepancies: Discrepancies
    unsafe: bool
    target: str
    donor: str
    family: str | None = None
    kind: str | None = None
    share: float = 0.0
    similarity: float = 1.0
    work: float = 0.0
    accepted_by: Mapping[str, Any] | None = None

    @property
    def members(self) -> set[str]:
        """All that ties it to other pairs."""
        return {self.target, self.donor} | ({f"family {self.family}"} if self.family is not None else set())

    @property
    def name(self) -> str:
        return f"{self.target} {self.donor}"


@dataclass(frozen=True)
class Prepared:
    """What is settled before a label of the tested part is looked at.

    Args:
        families: of discrepancies that the pairs have.
        development: all pairs of the development clusters.
        tested: one pair of each other cluster; eligible: [n] bool, those that every rule but the score lets through.
        scores: [n] of the tested pairs; guards: by family.
        note: what was left out.
    """

    settings: dict[str, str]
    families: tuple[str, ...]
    development: list[LabelledPair]
    development_clusters: int
    tested: list[LabelledPair]
    eligible: np.ndarray
    scores: np.ndarray
    score: Score
    note: str


def prepare(
    pairs: Sequence[LabelledPair],
    settings: dict[str, str],
    development: Sequence[LabelledPair] | None = None,
    near_empty: float | None = None,
) -> Prepared:
    """Split the pairs and choose the score. Raises NotCertified.

    Args:
        development: pairs to choose the score on; None: of a part of the clusters of ``pairs``, told by a hash.
        near_empty: a stricter near-empty rule than the pairs were collected under.
    """
    if near_empty is not None:
        settings = {**settings, NEAR_EMPTY: f"{near_empty:.2g}"}
    families = _families([*pairs, *(development or [])])
    pairs, limits, note = _under_one_gate(pairs, families)
    found = clusters([pair.members for pair in [*pairs, *(development or [])]])
    of_pairs, known = found[: len(pairs)], set(found[len(pairs) :])
    if development is None:
        known = set(filter(is_development, of_pairs))
        development = [pair for pair, cluster in zip(pairs, of_pairs, strict=True) if cluster in known]
    rest = [(pair, cluster) for pair, cluster in zip(pairs, of_pairs, strict=True) if cluster not in known]
    if len(known | set(of_pairs)) == 1 and len(pairs) > 1:
        raise NotCertified(
            f"all {len(pairs)} verdicts hang together through shared donors, requests or prompts and count as one; "
            "judge hits of other scenes"
        )
    drawn = one_per_cluster([cluster for _, cluster in rest], [pair.name for pair, _ in rest])
    tested = [rest[index][0] for index in drawn]
    if len(known) < DEVELOPMENT_NEEDED:
        score = Score(np.full(len(families), 1 / len(families)), np.full(len(families), np.inf))
    else:
        score = Score.fit(_matrix(development, families), np.array([pair.unsafe for pair in development]))
    score = Score(score.weights, np.minimum(score.guards, limits))
    values = _matrix(tested, families)
    ruled = np.array([_passes_rules(pair, settings) for pair in tested], bool)
    return Prepared(
        settings, families, list(development), len(known), tested, ruled & score.guarded(values), score.of(values),
        score, note,
    )  # fmt: skip


def _families(pairs: Sequence[LabelledPair]) -> tuple[str, ...]:
    """The families that all pairs have. Raises NotCertified if they differ in that or hold no numbers."""
    if not pairs:
        raise NotCertified("there are no verdicts yet")
    present = Counter(tuple(f for f in FAMILIES if getattr(p.discrepancies, f) is not None) for p in pairs)
    if len(present) > 1 or not next(iter(present)):
        raise NotCertified("some verdicts lack discrepancies that others have: they are of different kinds of request")
    families = next(iter(present))
    bad = sum(not all(math.isfinite(getattr(p.discrepancies, f)) for f in families) for p in pairs)
    if bad:
        raise NotCertified(f"{bad} of {len(pairs)} verdicts have a discrepancy that is not a number")
    return families


def _under_one_gate(
    pairs: Sequence[LabelledPair], families: tuple[str, ...]
) -> tuple[list[LabelledPair], np.ndarray, str]:
    """Leave out the few pairs that were collected under much stricter thresholds than the rest.

    What a certificate accepts must lie within all thresholds that the pairs came through: beyond them none was seen.

    Returns the pairs, those thresholds [F], and a note.
    """
    seen = np.array([_accepting(pair, families) for pair in pairs]).reshape(len(pairs), len(families))
    box = np.quantile(seen, STRICTER_SHARE, axis=0, method="lower")
    kept = (seen >= box).all(axis=1)
    left = int((~kept).sum())
    note = f"{left} verdicts that came through stricter thresholds are left out" if left else ""
    return [pair for pair, keep in zip(pairs, kept, strict=True) if keep], box, note


def _accepting(pair: LabelledPair, families: tuple[str, ...]) -> list[float]:
    """The thresholds that a pair came through, infinite where there was none."""
    found = pair.accepted_by or {}
    limits = {family: found[family] if is_number(found.get(family)) else math.inf for family in families}
    if limits.get("representation") == found.get("near_empty_representation"):
        limits["representation"] = math.inf  # the near-empty rule took its place
    return [limits[family] for family in families]


def _passes_rules(pair: LabelledPair, settings: dict[str, str]) -> bool:
    """Everything that is asked of a candidate besides score and guards."""
    if pair.accepted_by is not None:
        return True
    allowed = pair.share <= float(settings["max region percent"]) / 100 and pair.work < 1.0
    recalled = pair.similarity >= float(settings["min text similarity"])
    wide = GateOptions(*[math.inf] * 4, near_empty_representation=float(settings[NEAR_EMPTY]))
    return allowed and recalled and not exceeded(pair.discrepancies, thresholds_for(pair.share, wide))


def _matrix(pairs: Sequence[LabelledPair], families: tuple[str, ...]) -> np.ndarray:
    """[n, F] discrepancies."""
    rows = [[getattr(pair.discrepancies, family) for family in families] for pair in pairs]
    return np.array(rows, float).reshape(len(pairs), len(families))


@dataclass(frozen=True)
class Point:
    """What a limit of the score would accept of the tested pairs, and its risk. The bound is of that limit alone."""

    coverage: float
    accepted: int
    unsafe: int
    bound: float


@dataclass(frozen=True)
class Calibration:
    """Outcome of a test: a certificate, or the sentence why there is none, and the whole curve to look at."""

    certificate: Certificate | None
    sentence: str
    curve: list[Point]


def calibrate(
    prepared: Prepared,
    delta: float = DELTA,
    confidence: float = CONFIDENCE,
    label_rule: str = LABEL_RULE,
    created: float | None = None,
) -> Calibration:
    """Look at the labels of the tested part. Raises NotCertified while there are too few to pass whatever they say.

    Args:
        created: when the certificate is made, in seconds since the epoch; None: now.
    """
    needed = accepted_needed(0, delta, confidence)
    if too_few(prepared, needed):
        raise NotCertified(progress_sentence(prepared, needed))
    eligible, scores = prepared.eligible, prepared.scores
    unsafe = np.array([pair.unsafe for pair in prepared.tested], bool)
    found = fixed_sequence(scores[eligible], unsafe[eligible], delta, confidence)
    curve = _curve(scores[eligible], unsafe[eligible], len(unsafe), confidence)
    if found.loosest is None:
        first = found.limits[0]
        return Calibration(
            None,
            f"nothing passes: {first.unsafe} of the {first.accepted} closest accepted reuses were unsafe, so that the "
            f"risk may be up to {upper_bound(first.unsafe, first.accepted, confidence):.1%} where {exactly(delta)} is "
            f"asked for at {exactly(confidence)} confidence",
            curve,
        )
    when = time.time() if created is None else created
    certificate = _certificate(prepared, found, delta, confidence, label_rule, when)
    return Calibration(certificate, certificate.sentence(), curve)


def too_few(prepared: Prepared, needed: int) -> bool:
    return prepared.development_clusters < DEVELOPMENT_NEEDED or int(prepared.eligible.sum()) < needed


def progress_sentence(prepared: Prepared, needed: int) -> str:
    """How far the collection is."""
    have = int(prepared.eligible.sum())
    return (
        f"{have} of at least {needed} independent verdicts in the part that is tested, and "
        f"{prepared.development_clusters} in the quarter that chooses the score (at least {DEVELOPMENT_NEEDED}); "
        "verdicts that share a donor or a request count once"
    )


def _curve(scores: np.ndarray, unsafe: np.ndarray, count: int, confidence: float) -> list[Point]:
    order = np.argsort(scores, kind="stable")
    bad = np.cumsum(unsafe[order])
    ends = np.flatnonzero(np.append(np.diff(scores[order]) > 0, True)) if len(order) else []
    return [
        Point((i + 1) / count, int(i) + 1, int(bad[i]), upper_bound(int(bad[i]), int(i) + 1, confidence)) for i in ends
    ]


def _certificate(
    prepared: Prepared, found: Tested, delta: float, confidence: float, label_rule: str, created: float
) -> Certificate:
    chosen, families, score = found.loosest, prepared.families, prepared.score
    accepted = prepared.eligible & (prepared.scores < chosen.limit)
    kinds = [pair.kind or "unknown" for pair in prepared.tested]
    counts, taken = Counter(kinds), Counter(kind for kind, yes in zip(kinds, accepted, strict=True) if yes)
    return Certificate(
        created=created,
        settings=dict(prepared.settings),
        weights=dict(zip(families, score.weights.tolist(), strict=True)),
        guards=dict(zip(families, score.guards.tolist(), strict=True)),
        limit=chosen.limit if math.isfinite(chosen.limit) else None,
        path=found.limits,
        accepted=chosen.accepted,
        unsafe=chosen.unsafe,
        delta=delta,
        confidence=confidence,
        clusters=len(prepared.tested),
        development=prepared.development_clusters,
        coverage=float(accepted.mean()),
        by_kind={kind: (taken[kind], counts[kind]) for kind in sorted(counts)},
        estimand=ESTIMAND,
        label_rule=label_rule,
        note=prepared.note,
    )


def certify(
    pairs: Sequence[LabelledPair],
    settings: dict[str, str],
    delta: float = DELTA,
    confidence: float = CONFIDENCE,
    development: Sequence[LabelledPair] | None = None,
    near_empty: float | None = None,
    label_rule: str = LABEL_RULE,
) -> Certificate:
    """The certificate that these pairs give, see ``prepare`` and ``calibrate``. Raises NotCertified."""
    found = calibrate(prepare(pairs, settings, development, near_empty), delta, confidence, label_rule)
    if found.certificate is None:
        raise NotCertified(found.sentence)
    return found.certificate

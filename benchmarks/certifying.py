"""From labels to a certificate, by the procedure that the pack itself uses for verdicts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from carnator_core.certificate import Certificate
from carnator_core.certificate_file import CertificateError, read_certificate, written
from carnator_core.certify import LabelledPair, NotCertified, Prepared, calibrate, prepare
from carnator_core.options import GateOptions
from carnator_core.settings import differing
from carnator_core.signature import Discrepancies
from scripts.testbed.console import Stop

from .certificate_analysis import CONFIDENCE, Labels
from .selective_risk import Cases
from .shown import CLEAR

LABEL_RULE = (
    f"unsafe: the demo scorer gives an attribute of the prompt a probability of at least {CLEAR:g} in the video of the "
    "stock sampler, and another value is as likely or likelier in the reused one"
)


@dataclass(frozen=True)
class Outcome:
    """A certificate, or the sentence why there is none.

    Args:
        accepted: [n] bool over the certification clusters.
        score: the certification clusters by the certificate's score, infinite where another rule refuses; None if it
            did not come to that.
    """

    certificate: Certificate | None
    sentence: str
    accepted: np.ndarray
    score: Cases | None = None


def certify_labels(development: Labels, certification: Labels, delta: float) -> Outcome:
    """The certificate of two sets of labels. Raises Stop if they contradict each other."""
    nothing = np.zeros(len(certification), bool)
    settings = common_settings(development, certification)
    if settings is None:
        return Outcome(None, "no certificate: the rules of region and saving let no pair through", nothing)
    score = None
    try:
        chosen, tested = pairs(development, development.labelled), pairs(certification, certification.judged)
        prepared = prepare(tested, settings, chosen, GateOptions().near_empty_representation)
        score = _by_score(certification, prepared)
        certificate = _made(prepared, delta)
    except NotCertified as error:
        return Outcome(None, f"no certificate: {error}", nothing, score)
    limit = np.inf if certificate.limit is None else certificate.limit
    accepted = score.score < limit
    if int(accepted.sum()) != certificate.accepted or int(score.unsafe[accepted].sum()) != certificate.unsafe:
        raise Stop("the certificate and the labels it was made of disagree about what it accepts")
    return Outcome(certificate, certificate.sentence(), accepted, score)


def _made(prepared: Prepared, delta: float) -> Certificate:
    found = calibrate(prepared, delta, CONFIDENCE, LABEL_RULE)
    if found.certificate is None:
        raise NotCertified(found.sentence)
    return found.certificate


def _by_score(labels: Labels, prepared: Prepared) -> Cases:
    """Raises Stop where a pair that has no label would count as one that the rules let through."""
    scores = {
        pair.target: score if eligible else np.inf
        for pair, score, eligible in zip(prepared.tested, prepared.scores, prepared.eligible, strict=True)
    }
    found = Cases(np.array([scores.get(name, np.inf) for name in labels.ids]), labels.unsafe)
    if (np.isfinite(found.score) & ~labels.labelled).any():
        raise Stop("a pair that was refused with the gate open would count as one that the rules let through")
    return found


def pairs(labels: Labels, which: np.ndarray) -> list[LabelledPair]:
    """Clusters of a mask [n] as pairs: served with the gate open, so that the rules are applied to them anew."""
    return [
        LabelledPair(
            discrepancies=Discrepancies(**record["discrepancies"]),
            unsafe=bool(unsafe),
            target=record["id"],
            donor=record["donor"],
            kind=record["kind"],
            share=record["region"],
            similarity=record["similarity"],
            work=record["work"],
        )
        for record, unsafe, wanted in zip(labels.records, labels.unsafe, which, strict=True)
        if wanted
    ]


def common_settings(*sets: Labels) -> dict[str, str] | None:
    """The settings that all labelled clusters have. Raises Stop if they differ."""
    found = [record["settings"] for labels in sets for record in labels.records if "reuse" in record]
    for settings in found:
        if settings != found[0]:
            names = ", ".join(differing(settings, found[0]))
            raise Stop(f"the labels were made under settings that differ in: {names}; give another --labels file.")
    return found[0] if found else None


def kept(certificate: Certificate, path: Path) -> Certificate:
    """The certificate itself, or the equal one of an earlier start in this file, which then is the one in use.

    Its time of making is part of its name, and fresh clusters were served by name.
    """
    try:
        there = read_certificate(path)
    except (OSError, CertificateError):
        there = None
    if there is not None and replace(certificate, created=there.created) == there:
        return there
    path.write_bytes(written(certificate))
    return certificate


def as_data(certificate: Certificate) -> dict[str, Any]:
    """For the result: what its file holds, and its name."""
    return {**json.loads(written(certificate)), "id": certificate.id}

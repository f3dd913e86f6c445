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
from .shown import CLEAR

LABEL_RULE = (
    f"unsafe: the demo scorer gives an attribute of the prompt a probability of at least {CLEAR:g} in the video of the "
    "stock sampler, and another value is as likely or likelier in the reused one"
)


@dataclass(frozen=True)
class Outcome:
    """A certificate, or the sentence why there is none.

    Args:
        prepared: what was settled before labels were looked at; None if it did not come to that.
        accepted: [n] bool over the certification clusters.
    """

    certificate: Certificate | None
    sentence: str
    prepared: Prepared | None
    accepted: np.ndarray


def certify_labels(development: Labels, certification: Labels, delta: float) -> Outcome:
    """The certificate of two sets of labels. Raises Stop if they contradict each other."""
    nothing = np.zeros(len(certification), bool)
    settings = common_settings(development, certification)
    if settings is None:
        return Outcome(None, "no pair was let through by the rules of region and saving", None, nothing)
    chosen, tested = pairs(development, development.labelled), pairs(certification, certification.judged)
    near_empty = GateOptions().near_empty_representation
    try:
        prepared = prepare(tested, settings, chosen, near_empty)
    except NotCertified as error:
        return Outcome(None, str(error), None, nothing)
    eligible = np.isin(certification.ids, [p.target for p, yes in zip(prepared.tested, prepared.eligible) if yes])
    if (eligible & ~certification.labelled).any():
        raise Stop("a pair without a label would count as one that the rules let through")
    try:
        found = calibrate(prepared, delta, CONFIDENCE, LABEL_RULE)
    except NotCertified as error:
        return Outcome(None, str(error), prepared, nothing)
    if found.certificate is None:
        return Outcome(None, found.sentence, prepared, nothing)
    limit = np.inf if found.certificate.limit is None else found.certificate.limit
    taken = prepared.eligible & (prepared.scores < limit)
    accepted = np.isin(certification.ids, [p.target for p, yes in zip(prepared.tested, taken) if yes])
    return Outcome(found.certificate, found.sentence, prepared, accepted)


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

"""The certificate's benchmark on labels with a known answer: what it certifies, compares, refuses and prints."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import certificate_job
from benchmarks.certificate_analysis import Labels, as_many, by_kind, certified_by, compared, floor_row, row
from benchmarks.certificate_job import JSON_FIELDS, analysed, last_line, ship
from benchmarks.certificate_stages import Stages
from benchmarks.certificate_tables import sections, tables
from benchmarks.certifying import certify_labels, kept
from benchmarks.clusters import CERTIFICATION, DEVELOPMENT, FRESH, make_clusters
from benchmarks.controls import NOISE_FLOOR
from benchmarks.label_file import LabelFile
from carnator_core.certificate_file import read_certificate
from carnator_core.risk import upper_bound
from carnator_core.signature import Discrepancies
from scripts.testbed.console import Stop
from support.labels import SETTINGS, labels, looks, record, refused

DEV, CERT = Labels(labels(DEVELOPMENT, 200)), Labels(labels(CERTIFICATION, 1000))
CLUSTERS = make_clusters(CERTIFICATION, 6)


def stages(folder: Path, development: list, certification: list, fresh: list = (), floors: list = ()) -> Stages:
    """Of which everything is in the file already, so that nothing runs."""
    file = LabelFile(folder / "labels.jsonl", {}, {"command": "bench", "commit": "abc", "date": "today"})
    file.add([*development, *certification, *fresh, *floors])
    counts = {"development": len(development), "clusters": len(certification), "fresh": len(fresh), "floors": 200}
    return Stages(None, Namespace(**counts, seconds=None, servers=1), None, file)


def test_early_states_that_tell_everything_are_certified_and_text_that_tells_nothing_is_not() -> None:
    found = certify_labels(DEV, CERT, 0.05)
    certificate = found.certificate
    assert certificate is not None and "certified: at most 5.0%" in found.sentence
    far = np.array([r["discrepancies"]["state"] >= 0.5 for r in CERT.records])
    near = CERT.labelled & ~far
    # The limits are few: what is accepted lies between the strictest and all that is near, and a few of the far ones.
    assert 0.8 * near.sum() < found.accepted.sum() < 1.1 * near.sum() and found.accepted[near].mean() > 0.8
    assert certificate.bound <= 0.05 and certificate.unsafe == CERT.unsafe[found.accepted].sum()
    assert certificate.clusters == len(CERT) and certificate.coverage == pytest.approx(found.accepted.mean())
    assert certificate.near_empty if hasattr(certificate, "near_empty") else True
    assert not certified_by(CERT.by_text, 0.05, 0.9).any()


def test_the_certificate_accepts_by_itself_what_the_analysis_counts() -> None:
    found = certify_labels(DEV, CERT, 0.05)
    accepts = [
        found.certificate.accepts(Discrepancies(**r["discrepancies"]), r["region"]) and "reuse" in r
        for r in CERT.records
    ]
    # A score that is the limit itself may fall on either side by rounding.
    assert (np.array(accepts) != found.accepted).sum() <= 1

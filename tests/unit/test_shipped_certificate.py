"""The shipped certificate, its labels, and the part of them that was made a second time on another device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.certificate_analysis import Labels
from benchmarks.certifying import certify_labels
from benchmarks.clusters import CERTIFICATION, DEVELOPMENT, FRESH
from benchmarks.label_file import LabelFile
from carnator_core.certificate_file import read_certificate
from carnator_core.certificate_shelf import SHIPPED
from support.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results"
CERTIFICATE = read_certificate(SHIPPED / "demo_euler_20_steps_fp32.json")


def records(name: str, tmp_path: Path) -> list[dict[str, Any]]:
    """Of a committed file of labels, read from a copy: opening one may mend it."""
    copy = tmp_path / name
    copy.write_bytes((RESULTS / name).read_bytes())
    bound = json.loads(copy.read_text(encoding="utf-8").splitlines()[0])["bound"]
    file = LabelFile(copy, bound, {})
    file.close()
    return file.records


@pytest.fixture
def labels(tmp_path: Path) -> dict[str, Labels]:
    found = records("certificate_fp32_gpu.labels.jsonl", tmp_path)
    return {
        name: Labels(sorted((r for r in found if r.get("set") == name), key=lambda r: r["id"]))
        for name in (DEVELOPMENT, CERTIFICATION, FRESH)
    }


def test_the_labels_give_the_shipped_certificate(labels: dict[str, Labels]) -> None:
    made = certify_labels(labels[DEVELOPMENT], labels[CERTIFICATION], CERTIFICATE.delta).certificate
    assert len(labels[CERTIFICATION]) == 1000 and made is not None
    near = {name: pytest.approx(value) for name, value in CERTIFICATE.weights.items()}
    assert made.weights == near and made.guards == CERTIFICATE.guards and made.limit == CERTIFICATE.limit
    same = replace(CERTIFICATE, created=made.created, weights=made.weights, path=made.path)
    assert made == same
    assert [(x.accepted, x.unsafe) for x in made.path] == [(x.accepted, x.unsafe) for x in CERTIFICATE.path]


def test_fresh_clusters_were_served_by_it_and_are_no_worse_than_it_says(labels: dict[str, Labels]) -> None:
    fresh = labels[FRESH]
    assert len(fresh) == 500 and {r["certificate"] for r in fresh.records} == {CERTIFICATE.id}
    result = json.loads((RESULTS / "certificate_fp32_gpu.json").read_text(encoding="utf-8"))["fresh"]
    assert (result["accepted"], result["unsafe"]) == (fresh.labelled.sum(), fresh.unsafe.sum())
    assert fresh.unsafe.sum() <= CERTIFICATE.delta * fresh.labelled.sum()


def test_a_cpu_labels_clusters_as_the_gpu_did(tmp_path: Path) -> None:
    gpu = {r["id"]: r for r in records("certificate_fp32_gpu.labels.jsonl", tmp_path) if "set" in r}
    sample = [r for r in records("certificate_fp32_cpu_sample.labels.jsonl", tmp_path) if "set" in r]
    assert len(sample) >= 20
    for mine in sample:
        other = gpu[mine["id"]]
        assert (mine["decision"], mine["reason"]) == (other["decision"], other["reason"])
        assert Labels([mine]).unsafe == Labels([other]).unsafe
        assert mine["similarity"] == pytest.approx(other["similarity"], abs=1e-3)
        for family, value in (mine["discrepancies"] or {}).items():
            assert value == pytest.approx(other["discrepancies"][family], rel=0.1, abs=1e-3)

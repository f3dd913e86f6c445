"""Clusters of the certificate's benchmark through a real server: labels, the mode "certified", and floors."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.certificate_stages import Stages
from benchmarks.clusters import CERTIFICATION, FRESH, make_clusters
from benchmarks.label_file import LabelFile
from benchmarks.labelling import AGAIN, FLOORS
from benchmarks.scoring import make_scorer
from carnator_core.signature import Discrepancies
from scripts.testbed.bootstrap import Install
from scripts.testbed.console import Stop
from scripts.testbed.environment import ROOT
from support.certificates import a_certificate

OPTIONS = Namespace(
    what="certificate", sampler="euler", steps=4, servers=1, seconds=None, development=0, clusters=2, fresh=1, floors=1,
    fp32=False, widgets={},
)  # fmt: skip


@pytest.fixture(scope="module")
def stages(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """Two labelled clusters: the first changes the weather, the second the background."""
    place = tmp_path_factory.mktemp("certificate")
    scorer = make_scorer("codec", install.comfyui, ROOT)
    labels = LabelFile(place / "labels.jsonl", {}, {})
    with Stages(replace(install, scratch=place), OPTIONS, scorer, labels) as running:
        running.label()
        yield running


def certificate_of(hit: dict[str, Any], times: float) -> Any:
    """One that accepts what is at most so many times as far from its donor as this hit."""
    found = {family: value and times * value for family, value in hit["discrepancies"].items()}
    return a_certificate(hit["settings"], discrepancies=Discrepancies(**found))


def test_a_label_holds_what_the_gate_saw_and_what_both_videos_show(stages: Stages) -> None:
    refused, hit = stages.labels(CERTIFICATION)
    assert (refused["kind"], refused["decision"], refused["reason"]) == ("weather", "miss", "region_too_large")
    assert "reuse" not in refused and refused["region"] > 0.65
    assert (hit["kind"], hit["decision"]) == ("background", "hit") and 0 < hit["region"] <= 0.65
    assert 0 < hit["work"] < 1 and hit["settings"]["steps"] == "4"
    assert hit["stock"] != hit["reuse"] and hit["stock"].keys() == hit["reuse"].keys() == {"decoded"}
    assert refused["decode_seconds"] > 0 and hit["decode_seconds"] is None


def test_fresh_clusters_are_judged_by_the_certificate_of_the_store(stages: Stages) -> None:
    hit = stages.labels(CERTIFICATION)[1]
    wide, tight = certificate_of(hit, 100.0), certificate_of(hit, 1e-3)
    stages.serve_fresh(wide)
    (served,) = stages.fresh(wide)
    assert served["certificate"] == wide.id
    assert (served["decision"] == "hit") == (served["region"] <= 0.65 and served["work"] < 1)
    assert stages.fresh(tight) == []
    (labeller,) = stages._labellers
    background = labeller.serve_certified(make_clusters(FRESH, 4)[3], 1, wide)
    assert background["decision"] == "hit" and background["reuse"].keys() == {"decoded"}


def test_what_a_certificate_does_not_accept_is_the_stock_latent(stages: Stages) -> None:
    hit = stages.labels(CERTIFICATION)[1]
    (labeller,) = stages._labellers
    tight = certificate_of(hit, 1e-3)
    served = labeller.serve_certified(make_clusters(FRESH, 2)[1], 0, tight)
    assert served["decision"] == "miss" and served["reason"] == "gate_rejected"


def test_a_certificate_of_other_settings_stops_everything(stages: Stages) -> None:
    hit = stages.labels(CERTIFICATION)[1]
    (labeller,) = stages._labellers
    other = certificate_of({**hit, "settings": {**hit["settings"], "steps": "5"}}, 1.0)
    later = replace(other, created=other.created + 60)  # the newest of the shelf
    with pytest.raises(Stop, match="was not judged by this certificate: certified"):
        labeller.serve_certified(make_clusters(FRESH, 5)[4], 0, later)


def test_floors_are_measured_and_ksampler_repeats_itself(stages: Stages) -> None:
    stages.measure_floors()
    stock = stages.labels(CERTIFICATION)[0]
    found = {name: stages.floors(name)[0] for name in FLOORS}
    assert all(record["id"] == stock["id"] for record in found.values())
    assert found[AGAIN]["digest"] == stock["digest"] and found[AGAIN]["looks"] == stock["stock"]
    # On a CPU the weights, which are bf16 in the file, are computed with in float32 either way.
    assert len({record["digest"] for record in found.values()}) == 3

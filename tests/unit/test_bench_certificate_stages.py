"""Stages of the certificate's runs: what is missing is run once, wherever the last start was cut."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.certificate_stages import FLOAT32_ARGUMENTS, PRECISION_ARGUMENTS, Stages
from benchmarks.clusters import CERTIFICATION, DEVELOPMENT, FRESH, Cluster, make_clusters
from benchmarks.controls import NOISE_FLOOR
from benchmarks.label_file import LabelFile
from benchmarks.labelling import AGAIN, FLOORS, LATENT_NOISE, PRECISION, with_noise
from support.labels import looks, record

COUNTS = {"development": 2, "clusters": 5, "fresh": 3, "floors": 2}


class Made:
    """In a Labeller's place: labels without a server, and a list of what it was asked for."""

    def __init__(self, cut_after: int | None = None):
        self.asked: list[str] = []
        self._cut_after = cut_after

    def _ask(self, what: str) -> None:
        if len(self.asked) == self._cut_after:
            raise KeyboardInterrupt
        self.asked.append(what)

    def label(self, cluster: Cluster, turn: int) -> dict[str, Any]:
        self._ask(cluster.id)
        return record(cluster, 0.1, False)

    def floors(self, cluster: Cluster) -> list[dict[str, Any]]:
        self._ask(f"floors {cluster.id}")
        return [floor(name, cluster) for name in (AGAIN, NOISE_FLOOR, LATENT_NOISE)]

    def precision_floor(self, cluster: Cluster) -> dict[str, Any]:
        self._ask(f"{PRECISION} {cluster.id}")
        return floor(PRECISION, cluster)

    def serve_certified(self, cluster: Cluster, turn: int, certificate: Any) -> dict[str, Any]:
        self._ask(f"{cluster.id} by {certificate.id}")
        return {**record(cluster, 0.1, False), "certificate": certificate.id}


def floor(name: str, cluster: Cluster) -> dict[str, Any]:
    return {"floor": name, "id": cluster.id, "looks": looks(), "digest": "other"}


class WithoutServers(Stages):
    def __init__(self, file: LabelFile, labeller: Made, seconds: float | None = None, **counts: int):
        options = Namespace(**{**COUNTS, "fp32": False, **counts}, seconds=seconds, servers=1)
        super().__init__(None, options, None, file)
        self.labeller, self.started = labeller, []

    def _start(self, stack: ExitStack, todo: Sequence[Cluster], arguments: tuple[str, ...]) -> list[Made]:
        if not todo or self._left() == 0:
            return []
        self.started.append(arguments)
        return [self.labeller]


def ids(name: str, count: int) -> list[str]:
    return [cluster.id for cluster in make_clusters(name, count)]


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., WithoutServers]:
    def open_stages(*labeller: int | None, **options: Any) -> WithoutServers:
        return WithoutServers(LabelFile(tmp_path / "labels.jsonl", {}, {}), Made(*labeller), **options)

    return open_stages


def test_everything_is_labelled_once_and_a_second_start_runs_nothing(opened: Callable) -> None:
    stages = opened()
    stages.label()
    assert stages.labeller.asked == ids(DEVELOPMENT, 2) + ids(CERTIFICATION, 5)
    assert stages.started == [()]  # one start serves both sets
    again = opened()
    again.label()
    assert again.labeller.asked == [] and again.started == []
    assert [r["id"] for r in again.labels(CERTIFICATION)] == ids(CERTIFICATION, 5)


@pytest.mark.parametrize("cut_after", range(8))
def test_a_start_goes_on_where_the_last_one_was_cut(opened: Callable, cut_after: int) -> None:
    first = opened(cut_after)
    if cut_after < 7:
        with pytest.raises(KeyboardInterrupt):
            first.label()
    else:
        first.label()
    second = opened()
    second.label()
    assert first.labeller.asked + second.labeller.asked == ids(DEVELOPMENT, 2) + ids(CERTIFICATION, 5)
    assert len(second.labels(CERTIFICATION)) == 5


def test_more_clusters_are_added_to_those_that_are_there(opened: Callable) -> None:
    opened().label()
    more = opened(clusters=7)
    more.label()
    assert more.labeller.asked == ids(CERTIFICATION, 7)[5:]
    fewer = opened(clusters=3)
    assert [r["id"] for r in fewer.labels(CERTIFICATION)] == ids(CERTIFICATION, 3)


def test_when_the_time_is_up_nothing_is_started(opened: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    stages = opened(seconds=0.0)
    stages.label()
    stages.measure_floors()
    assert stages.started == [] and stages.labeller.asked == []
    assert "the time is up: none of 5 certification" in capsys.readouterr().err


def test_fresh_clusters_are_served_again_by_another_certificate(opened: Callable) -> None:
    old, new = Namespace(id="old"), Namespace(id="new")
    first = opened()
    first.serve_fresh(old)
    assert first.labeller.asked == [f"{name} by old" for name in ids(FRESH, 3)]
    second = opened()
    assert len(second.fresh(old)) == 3 and second.fresh(new) == []
    second.serve_fresh(new)
    assert second.labeller.asked == [f"{name} by new" for name in ids(FRESH, 3)]
    assert len(second.fresh(new)) == 3


def test_floors_are_of_the_first_clusters_and_precision_has_servers_of_its_own(opened: Callable) -> None:
    stages = opened()
    stages.measure_floors()
    first, second = ids(CERTIFICATION, 2)
    assert stages.started == [(), PRECISION_ARGUMENTS]
    asked = [f"floors {first}", f"floors {second}", f"{PRECISION} {first}", f"{PRECISION} {second}"]
    assert stages.labeller.asked == asked
    assert all([r["id"] for r in stages.floors(name)] == [first, second] for name in FLOORS)
    more = opened(floors=3, fp32=True)
    more.measure_floors()
    assert more.started == [FLOAT32_ARGUMENTS, PRECISION_ARGUMENTS]
    assert more.labeller.asked == [f"floors {ids(CERTIFICATION, 3)[2]}", f"{PRECISION} {ids(CERTIFICATION, 3)[2]}"]


def test_noise_is_one_percent_of_each_channel_and_always_the_same() -> None:
    latent = torch.randn(1, 4, 5, 32, 32) * torch.tensor([1.0, 2.0, 0.1, 30.0]).view(1, 4, 1, 1, 1)
    noisy = with_noise(latent, 7)
    share = ((noisy - latent).std(dim=(0, 2, 3, 4)) / latent.std(dim=(0, 2, 3, 4))).tolist()
    assert share == pytest.approx([0.01] * 4, rel=0.05)
    assert torch.equal(noisy, with_noise(latent, 7)) and not torch.equal(noisy, with_noise(latent, 8))
    assert LATENT_NOISE.startswith("1 %")

"""Clusters of the certificate: independent, apart from the streams and from each other, in the streams' shares."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from benchmarks.clusters import BLOCK, CERTIFICATION, FRESH, SETS, make_clusters
from demo.grammar import ATTRIBUTES, LOCAL, parse
from demo.streams import SHARES, STREAMS, make
from scripts.testbed.console import Stop
from support.paths import ROOT

ALL = {name: make_clusters(name, chosen.most) for name, chosen in SETS.items()}
STREAM_REQUESTS = [item for name in STREAMS for item in make(name)]
EVERY = [cluster for clusters in ALL.values() for cluster in clusters]


def test_there_are_enough() -> None:
    assert SETS[CERTIFICATION].most >= 1000 and SETS[FRESH].most >= 500
    assert {name: len(clusters) for name, clusters in ALL.items()} == {n: chosen.most for n, chosen in SETS.items()}


def test_every_cluster_has_a_scene_and_a_seed_of_its_own() -> None:
    assert len({cluster.id for cluster in EVERY}) == len(EVERY)
    assert len({cluster.base.scene for cluster in EVERY}) == len(EVERY)
    seeds = {cluster.base.seed for cluster in EVERY}
    assert len(seeds) == len(EVERY)
    # "another seed" is the next one
    assert not seeds & {seed + 1 for seed in seeds}


def test_no_cluster_has_a_scene_or_a_seed_of_a_stream() -> None:
    scenes = {tuple(item["scene"].values()) for item in STREAM_REQUESTS}
    assert not scenes & {tuple(cluster.base.scene.as_dict().values()) for cluster in EVERY}
    seeds = {item["seed"] for item in STREAM_REQUESTS}
    assert not seeds & {cluster.base.seed + other for cluster in EVERY for other in (0, 1)}
    assert not {item["cluster"] for item in STREAM_REQUESTS} & {cluster.id for cluster in EVERY}


@pytest.mark.parametrize("name", SETS)
def test_every_block_has_the_shares_of_the_streams(name: str) -> None:
    expected = Counter({kind: round(share * BLOCK) for kind, share in SHARES.items() if kind != "local"})
    expected += Counter(dict.fromkeys(LOCAL, round(SHARES["local"] * BLOCK / len(LOCAL))))
    assert sum(expected.values()) == BLOCK
    kinds = [cluster.variation.kind for cluster in ALL[name]]
    blocks = [kinds[first : first + BLOCK] for first in range(0, len(kinds), BLOCK)]
    assert all(Counter(block) == expected for block in blocks)
    assert len({tuple(block) for block in blocks}) > len(blocks) / 2  # not one order again and again


@pytest.mark.parametrize("name", SETS)
def test_a_set_starts_the_same_way_whatever_its_size(name: str) -> None:
    assert make_clusters(name, 7) == ALL[name][:7]
    assert make_clusters(name, 0) == []


def test_another_process_makes_the_same_clusters() -> None:
    code = "from benchmarks.clusters import *; print([make_clusters(name, 30) for name in SETS])"
    environ = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    printed = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == str([ALL[name][:30] for name in SETS])


def test_a_variation_is_what_its_kind_says() -> None:
    for cluster in EVERY[::7]:
        base, variation = cluster.base, cluster.variation
        assert (base.kind, base.base, variation.base) == ("base", None, base.id)
        assert (base.seed, base.cluster, cluster.id) == (variation.seed, variation.cluster, base.cluster)
        assert parse(base.prompt) == base.scene and parse(variation.prompt) == variation.scene
        assert base.prompt != variation.prompt
        changed = [n for n in ATTRIBUTES if getattr(base.scene, n) != getattr(variation.scene, n)]
        assert len(changed) == {"reword": 0, "two": 2, "unrelated": len(ATTRIBUTES)}.get(variation.kind, 1)
        assert variation.kind not in ATTRIBUTES or changed == [variation.kind]


def test_base_scenes_are_drawn_evenly() -> None:
    for name, clusters in ALL.items():
        for attribute, values in ATTRIBUTES.items():
            counts = Counter(getattr(cluster.base.scene, attribute) for cluster in clusters)
            mean = len(clusters) / len(values)
            # a binomial's five standard deviations
            assert all(abs(counts[value] - mean) < 5 * mean**0.5 for value in values), (name, attribute)


def test_more_than_there_are_is_a_sentence() -> None:
    with pytest.raises(Stop, match="1500 clusters of the set fresh at most, not 1501"):
        make_clusters(FRESH, SETS[FRESH].most + 1)

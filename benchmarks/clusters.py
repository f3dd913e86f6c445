"""Independent clusters for the certificate: one base request and one variation of it each, on a noise seed of its own.

A stream has ten variations of each base; they share its scene and noise and are no independent evidence. Here every
cluster counts once. Kinds of variation have the streams' shares. Nothing is committed: a set is made from its seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from demo.grammar import ATTRIBUTES, Scene
from demo.streams import STREAMS, kinds, make, request, vary
from scripts.testbed.console import Stop

from .stream_run import StreamRequest

# The fewest variations that can have the shares of the streams exactly; a set is a row of such blocks.
BLOCK = 20
SEED_STEP = 2  # the odd seeds in between are for the same prompts with another seed


@dataclass(frozen=True)
class ClusterSet:
    """A set of clusters. ``seed`` makes its noise seeds, ``most`` is how many base scenes are set aside for it."""

    seed: int
    most: int


DEVELOPMENT, CERTIFICATION, FRESH = "development", "certification", "fresh"
SETS = {
    DEVELOPMENT: ClusterSet(53, 800),
    CERTIFICATION: ClusterSet(71, 2800),
    FRESH: ClusterSet(89, 1500),
}


@dataclass(frozen=True)
class Cluster:
    """A base request, which is stored, and the variation that may reuse it. ``of`` names the set."""

    of: str
    base: StreamRequest
    variation: StreamRequest

    @property
    def id(self) -> str:
        return self.variation.cluster

    @property
    def cluster(self) -> str:
        return self.id


def make_clusters(name: str, count: int) -> list[Cluster]:
    """The first ``count`` clusters of a set: the same ones whatever ``count`` is.

    Base scenes are drawn without replacement from those that no stream has, other ones for every set; so base scenes
    and noise seeds are each cluster's own.
    """
    chosen = SETS[name]
    if count > chosen.most:
        raise Stop(f"there are {chosen.most} clusters of the set {name} at most, not {count}.")
    made = zip(range(count), _scenes(name), _kinds(name), strict=False)
    return [_cluster(name, number, scene, kind) for number, scene, kind in made]


def _cluster(name: str, number: int, scene: Scene, kind: str) -> Cluster:
    rng = random.Random(f"{name} {number}")
    wording, seed = rng.randrange(100), SETS[name].seed * 1_000_000 + SEED_STEP * number
    told = f"{name}-set"  # there is a stream of the name fresh
    requests = (
        request(told, number, 0, "base", scene, wording, seed),
        request(told, number, 1, kind, *vary(scene, wording, kind, rng), seed),
    )
    return Cluster(name, *map(StreamRequest.of, requests))


def _kinds(name: str) -> Iterator[str]:
    for block in itertools.count():
        yield from kinds(BLOCK, random.Random(f"{name} block {block}"))


def _scenes(name: str) -> list[Scene]:
    first = sum(other.most for other in itertools.islice(SETS.values(), list(SETS).index(name)))
    return _free_scenes()[first : first + SETS[name].most]


@cache
def _free_scenes() -> tuple[Scene, ...]:
    """All scenes that no request of a stream has, in one random order."""
    taken = {Scene(**item["scene"]) for stream in STREAMS for item in make(stream)}
    free = [scene for values in itertools.product(*ATTRIBUTES.values()) if (scene := Scene(*values)) not in taken]
    random.Random("base scenes of the certificate").shuffle(free)
    return tuple(free)

"""The runs behind a certificate, in stages that can be cut: labels, fresh clusters, floors.

Every label is written as soon as it is there, and a start with the same file goes on where the last one was cut.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from carnator_core.certificate import Certificate
from scripts.testbed.bootstrap import Install
from scripts.testbed.console import say

from .clusters import CERTIFICATION, DEVELOPMENT, FRESH, Cluster, make_clusters
from .label_file import LabelFile, Record
from .labelling import AGAIN, PRECISION, Labeller
from .scoring import LatentScorer
from .serving import start_all
from .sharing import shared_out

# Arguments of servers. Which weights a model has belongs to the settings that a certificate speaks of.
FLOAT32_ARGUMENTS, PRECISION_ARGUMENTS = ("--fp32-unet",), ("--bf16-unet",)
Work = Callable[[Labeller, int, Cluster], list[Record]]


class Stages:
    """Runs what the file of labels does not hold yet. Use as a context manager: its servers end with it.

    Args:
        options: ``clusters``, ``development``, ``fresh``, ``floors``: how many; ``seconds``: after this time no further
            cluster is started; ``widgets``: of the sampling node, where they are not the shipped ones.
    """

    def __init__(self, install: Install, options: Namespace, scorer: LatentScorer, labels: LabelFile):
        self._install, self._options, self._scorer, self._labels = install, options, scorer, labels
        self._until = None if options.seconds is None else time.monotonic() + options.seconds
        counts = {DEVELOPMENT: options.development, CERTIFICATION: options.clusters, FRESH: options.fresh}
        self.clusters = {name: make_clusters(name, count) for name, count in counts.items()}
        self._servers = ExitStack()
        self._labellers: list[Labeller] = []

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *error: object) -> None:
        self._servers.__exit__(*error)

    def label(self) -> None:
        """Development and certification clusters, with the gate open."""
        for name in (DEVELOPMENT, CERTIFICATION):
            self._run(name, self._missing(name), lambda labeller, turn, cluster: [labeller.label(cluster, turn)])

    def labels(self, name: str) -> list[Record]:
        """What the file holds of the clusters that were asked for of a set, in their order."""
        found = {record["id"]: record for record in self._labels.records if record.get("set") == name}
        return [found[cluster.id] for cluster in self.clusters[name] if cluster.id in found]

    def floors(self, name: str) -> list[Record]:
        """What the file holds of one kind of floor, for the clusters that were asked for."""
        found = {record["id"]: record for record in self._labels.records if record.get("floor") == name}
        return [found[cluster.id] for cluster in self._floor_clusters() if cluster.id in found]

    def serve_fresh(self, certificate: Certificate) -> None:
        """Fresh clusters behind the gate in its mode "certified", by this certificate in the stores of the servers."""
        done = {record["id"] for record in self.fresh(certificate)}
        todo = [cluster for cluster in self.clusters[FRESH] if cluster.id not in done]

        def work(labeller: Labeller, number: int, cluster: Cluster) -> list[Record]:
            return [labeller.serve_certified(cluster, number, certificate)]

        self._run(FRESH, todo, work)

    def fresh(self, certificate: Certificate) -> list[Record]:
        """What the file holds of fresh clusters that were served by this certificate."""
        return [record for record in self.labels(FRESH) if record["certificate"] == certificate.id]

    def measure_floors(self) -> None:
        """Dense runs that differ by chance from those of the first certification clusters."""
        self._run("floors", self._without(AGAIN), lambda labeller, _, cluster: labeller.floors(cluster))
        todo = self._without(PRECISION)
        with ExitStack() as stack:  # servers of their own
            labellers = self._start(stack, todo, PRECISION_ARGUMENTS)
            self._share_out(PRECISION, labellers, todo, lambda labeller, _, c: [labeller.precision_floor(c)])

    def _without(self, floor: str) -> list[Cluster]:
        done = {record["id"] for record in self.floors(floor)}
        return [cluster for cluster in self._floor_clusters() if cluster.id not in done]

    def _floor_clusters(self) -> list[Cluster]:
        return self.clusters[CERTIFICATION][: self._options.floors]

    def _missing(self, name: str) -> list[Cluster]:
        done = {record["id"] for record in self.labels(name)}
        return [cluster for cluster in self.clusters[name] if cluster.id not in done]

    def _run(self, what: str, todo: list[Cluster], work: Work) -> None:
        if not self._labellers:
            self._labellers = self._start(self._servers, todo, FLOAT32_ARGUMENTS if self._options.fp32 else ())
        self._share_out(what, self._labellers, todo, work)

    def _start(self, stack: ExitStack, todo: Sequence[Cluster], arguments: tuple[str, ...]) -> list[Labeller]:
        if not todo or self._left() == 0:
            return []
        self._labels.expect()
        count = min(self._options.servers, len(todo))
        runners = start_all(self._install, stack, self._options, todo[0].base, count, arguments)
        return [Labeller(runner, self._scorer, self._options.widgets) for runner in runners]

    def _share_out(self, what: str, workers: list[Labeller], todo: list[Cluster], work: Work) -> None:
        if not todo:
            return
        if not workers:
            say(f"the time is up: none of {len(todo)} {what}")
            return
        started = time.monotonic()
        for count, records in enumerate(shared_out(workers, todo, work, self._left()), 1):
            self._labels.add(records)
            rate = count / (time.monotonic() - started)
            say(f"  {what} {count}/{len(todo)}, {rate:.2f} a second: {_told(records[0])}")

    def _left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic())


def _told(record: Record) -> str:
    return f"{record['id']} {record['kind']}: {record['decision']}" if "kind" in record else record["id"]

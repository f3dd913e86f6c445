"""Runs clusters through real servers and says what stock and reuse show: one label for each cluster.

The gate is wide open, so that every pair has a label that the rules of region and saving let through.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from carnator_core import certificate_shelf
from carnator_core.certificate import Certificate
from carnator_core.signature import Discrepancies
from carnator_core.store.disk import Disk
from demo.grammar import Scene
from scripts.testbed.console import Stop

from .clusters import Cluster
from .controls import NOISE_FLOOR, AnotherSeed
from .label_file import Record
from .scoring import LatentScorer, read_latent
from .stream_run import Outcome, StreamRunner
from .variants import CLOSED_GATE, OPEN_GATE

AGAIN, LATENT_NOISE, PRECISION = "KSampler again", "1 % latent noise", "bf16 weights"
FLOORS = (AGAIN, NOISE_FLOOR, PRECISION, LATENT_NOISE)
NOISE_SHARE = 0.01
CERTIFIED = {"mode": "certified"}


class Labeller:
    """The work of one server. Raises Stop where a run that reuses nothing is not the stock latent bit for bit.

    Args:
        widgets: of the sampling node, where they are not the shipped ones.
    """

    def __init__(self, runner: StreamRunner, scorer: LatentScorer, widgets: dict[str, Any]):
        self._runner, self._scorer, self._widgets = runner, scorer, widgets
        self._checked = False
        self._placed: str | None = None  # id of the certificate on the shelf of the store

    def label(self, cluster: Cluster, turn: int) -> Record:
        """The label of a cluster.

        Args:
            turn: even or odd; decides whether stock or reuse runs first, so that neither always finds the warmer
                machine.
        """
        return self._serve(cluster, turn, OPEN_GATE)[0]

    def floors(self, cluster: Cluster) -> list[Record]:
        """What dense runs on this server show that should show the same."""
        again, other = (
            self._runner.stock(cluster.variation),
            AnotherSeed(NOISE_FLOOR).run(self._runner, cluster.variation),
        )
        latent = read_latent(again.latent)
        found = [
            self._floor(AGAIN, cluster, latent),
            self._floor(NOISE_FLOOR, cluster, read_latent(other.latent)),
            self._floor(LATENT_NOISE, cluster, with_noise(latent, cluster.variation.seed)),
        ]
        for outcome in (again, other):
            outcome.remove_files()
        return found

    def serve_certified(self, cluster: Cluster, turn: int, certificate: Certificate) -> Record:
        """The label of a cluster behind the gate in its mode "certified", by a certificate on the shelf of the store.

        Raises Stop where the gate does not do what the certificate says.
        """
        if self._placed != certificate.id:
            (stores,) = self._runner.server.base.user.glob("**/stores")
            certificate_shelf.save(Disk(stores / cluster.of), certificate)
            self._placed = certificate.id
        record, report = self._serve(cluster, turn, CERTIFIED)
        if not _judged_by(certificate, report):
            raise Stop(f"{cluster.id} was not judged by this certificate: {report['certificate']}")
        if (record["decision"] == "hit") != _should_hit(record, report, certificate):
            raise Stop(f"{cluster.id} is a {record['decision']} against what the certificate accepts")
        return {**record, "certificate": certificate.id}

    def precision_floor(self, cluster: Cluster) -> Record:
        """What the stock sampler makes on this server, which was started with weights of another precision."""
        outcome = self._runner.stock(cluster.variation)
        record = self._floor(PRECISION, cluster, read_latent(outcome.latent))
        outcome.remove_files()
        return record

    def _serve(self, cluster: Cluster, turn: int, gate: dict[str, Any]) -> tuple[Record, dict[str, Any]]:
        """The label of a cluster behind a gate, and the report of its variation."""
        store = {"name": cluster.of, "mode": "read+write"}
        base = self._runner.ours(cluster.base, store, None, self._widgets)
        if base.report["decision"] != "miss" or base.report["entry_id"] is None:
            raise Stop(f"the base of {cluster.id} was not stored: {base.report['reason']}, {base.report['store_note']}")
        runs = {
            # Read only: a variation that is refused must not become a donor.
            "ours": lambda: self._runner.ours(cluster.variation, {**store, "mode": "read"}, gate, self._widgets),
            "stock": lambda: self._runner.stock(cluster.variation, decode=not self._checked),
        }
        done = {run: runs[run]() for run in sorted(runs, reverse=bool(turn % 2))}
        ours, stock = done["ours"], done["stock"]
        if not self._checked:
            self._check(cluster, base, stock, store)
        latent = read_latent(stock.latent)
        record = {
            "set": cluster.of,
            "id": cluster.id,
            "kind": cluster.variation.kind,
            **_of_report(ours.report),
            "seconds": round(ours.seconds, 4),
            "stock_seconds": round(stock.seconds, 4),
            "decode_seconds": stock.decode_seconds and round(stock.decode_seconds, 4),
            "stock": self._scorer.looks(latent, cluster.variation.scene),
            "digest": digest(latent),
        }
        if ours.report["decision"] == "hit":
            if ours.report["reason_code"] != "reused":  # no example of the plan
                raise Stop(f"the reuse of {cluster.id} ended early: {ours.report['reason']}")
            record["reuse"] = self._scorer.looks(read_latent(ours.latent), cluster.variation.scene)
        elif not ours.equals(stock):
            raise Stop(f"{cluster.id} is a {ours.report['decision']} but differs from KSampler")
        for outcome in (base, *done.values()):
            outcome.remove_files()
        self._checked = True
        return record, ours.report

    def _check(self, cluster: Cluster, base: Outcome, stock: Outcome, store: dict[str, Any]) -> None:
        """Once per server: a request that is stored and one that the gate refuses are the stock latent."""
        plain = self._runner.stock(cluster.base)
        refused = self._runner.ours(cluster.variation, {**store, "mode": "read"}, CLOSED_GATE)
        if not base.equals(plain):
            raise Stop(f"the base of {cluster.id} is a miss but differs from KSampler")
        if refused.report["decision"] != "miss" or not refused.equals(stock):
            raise Stop(f"{cluster.id} with the gate closed is a {refused.report['decision']} or differs from KSampler")
        plain.remove_files()
        refused.remove_files()

    def _floor(self, name: str, cluster: Cluster, latent: torch.Tensor) -> Record:
        scene: Scene = cluster.variation.scene
        return {"floor": name, "id": cluster.id, "looks": self._scorer.looks(latent, scene), "digest": digest(latent)}


def _of_report(report: dict[str, Any]) -> dict[str, Any]:
    """What the gate saw, whatever it decided. ``region`` is its share at the decision, of a miss filled up as it would
    be computed; None if there was no donor."""
    donor, found = report["donor"], report["discrepancies"]
    history = report["region_history"]
    return {
        "decision": report["decision"],
        "reason": report["reason_code"],
        "donor": donor and donor["id"],
        "similarity": donor and round(donor["similarity"], 6),
        "discrepancies": found,
        "region": history[0][1] if history else report["region_share"],
        "region_share": report["region_share"],
        "work": report["predicted_work"],
        "settings": report["settings"],
    }


def _judged_by(certificate: Certificate, report: dict[str, Any]) -> bool:
    """Whether a certificate was in force with the guards of this one, which show where there was a donor to judge."""
    used = report["thresholds"] if report["donor"] else certificate.guards
    # The near-empty rule may have lowered the one of the representation.
    same = all(used[family] == guard for family, guard in certificate.guards.items() if family != "representation")
    return report["certified"] and same


def _should_hit(record: Record, report: dict[str, Any], certificate: Certificate) -> bool:
    """Whether a request has to be accepted: by the certificate, and by the rules of saving and of the largest region,
    which look at what would be computed: the region filled up."""
    if record["discrepancies"] is None or record["work"] >= 1.0:
        return False
    allowed = record["region"] <= float(certificate.settings["max region percent"]) / 100
    return allowed and certificate.accepts(Discrepancies(**record["discrepancies"]), report["decided_share"])


def with_noise(latent: torch.Tensor, seed: int) -> torch.Tensor:
    """A latent [1, C, T, H, W] with noise of 1 % of each channel's standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(latent.shape, generator=generator)
    return latent + NOISE_SHARE * latent.std(dim=(0, 2, 3, 4), keepdim=True) * noise.to(latent)


def digest(latent: torch.Tensor) -> str:
    """Of the values, to tell whether two runs are the same bit for bit."""
    return hashlib.sha256(latent.contiguous().numpy().tobytes()).hexdigest()[:16]

"""The table of the documentation: every request of a stream with Carnator and with KSampler, interleaved."""

from __future__ import annotations

from statistics import median
from typing import Any

from scripts.testbed.console import Stop, say

from .scoring import LatentScorer
from .sharing import shared_out
from .stream_run import Outcome, StreamRequest, StreamRunner
from .summary import SERVED, Record, by_kind, is_unsafe, markdown, right_share, share


def measure(
    runners: list[StreamRunner], requests: list[StreamRequest], scorer: LatentScorer, seconds: float | None = None
) -> dict[str, Any]:
    """Run, check, score and summarise; clusters are shared out among the servers.

    Refuses to give numbers if a miss is not bit-identical to stock. After ``seconds`` no further request is started.
    """

    def work(runner: StreamRunner, number: int, request: StreamRequest) -> Record:
        return _record(request, *_pair(runner, request, number), scorer)

    records = list(shared_out(runners, requests, work, seconds))
    order = {request.id: number for number, request in enumerate(requests)}
    records.sort(key=lambda record: order[record["id"]])
    rows, summary = by_kind(records), _summary(records)
    say(f"\n{markdown(rows)}\n")
    for name, value in summary.items():
        say(f"{name}: {value}")
    return {"servers": len(runners), "summary": summary, "by_kind": rows, "records": records}


def _pair(runner: StreamRunner, request: StreamRequest, number: int) -> tuple[Outcome, Outcome]:
    """Ours and stock, side by side; the order alternates, so that neither side always finds the warmer machine."""
    store = {"name": "report", "mode": "read+write"}
    if number % 2:
        stock, ours = runner.stock(request), runner.ours(request, store)
    else:
        ours, stock = runner.ours(request, store), runner.stock(request)
    if ours.report["decision"] not in SERVED and not ours.equals(stock):
        raise Stop(f"request {request.id} is a {ours.report['decision']} but differs from KSampler")
    return ours, stock


def _record(request: StreamRequest, ours: Outcome, stock: Outcome, scorer: LatentScorer) -> Record:
    kept = ("decision", "reason_code", "reason", "discrepancies", "region_share", "region_history", "predicted_work",
            "own_seconds", "steps", "donor")  # fmt: skip
    right = scorer.score(stock.latent, request.scene)
    served = ours.report["decision"] in SERVED
    return {
        "id": request.id,
        "kind": request.kind,
        "prompt": request.prompt,
        **{name: ours.report[name] for name in kept},
        "seconds": ours.seconds,
        "stock_seconds": stock.seconds,
        # Anything else was just shown to be the stock latent.
        "attributes": scorer.score(ours.latent, request.scene) if served else right,
        "stock_attributes": right,
    }


def _summary(records: list[Record]) -> dict[str, Any]:
    hits = [r for r in records if r["decision"] == "hit"]
    misses = [r for r in records if r["decision"] == "miss"]
    return {
        "requests": len(records),
        "hits": len(hits),
        "hit_share_of_variations": round(len(hits) / max(1, sum(r["kind"] != "base" for r in records)), 4),
        "right_on_hits": round(right_share(hits, "attributes"), 4),
        "stock_right_on_hits": round(right_share(hits, "stock_attributes"), 4),
        "unsafe_hits": sum(map(is_unsafe, hits)),
        "unsafe_share": round(share(map(is_unsafe, hits)), 4),
        "median_hit_speedup": round(median(r["stock_seconds"] / r["seconds"] for r in hits), 3) if hits else None,
        "workload_speedup": round(sum(r["stock_seconds"] for r in records) / sum(r["seconds"] for r in records), 3),
        "own_share_of_a_miss": round(median(r["own_seconds"] / r["seconds"] for r in misses), 4) if misses else None,
    }

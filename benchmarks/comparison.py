"""Each request of a stream by the stock sampler and by several methods, in one server and in order of arrival."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, Protocol

from demo.grammar import ATTRIBUTES
from scripts.testbed.console import Stop, say

from .scoring import LatentScorer
from .separation import GATE_SCORE, TEXT, matching_similarity, overall, separation
from .sharing import shared_out
from .stream_run import Outcome, StreamRequest, StreamRunner
from .summary import SERVED, Record, is_unsafe, lost, right_share, share
from .variants import ANY_DONOR, DEFAULT

STOCK = "stock"


class Method(Protocol):
    """A way to serve a request. Without a report, or with "hit" in it, the result may differ from the stock latent."""

    name: str

    def run(self, runner: StreamRunner, request: StreamRequest) -> Outcome: ...


def measure(
    runners: list[StreamRunner],
    requests: list[StreamRequest],
    make_methods: Callable[[], list[Method]],
    scorer: LatentScorer,
    seconds: float | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Yields all records so far after each request, in order of arrival; see ``flat`` for what they hold.

    Clusters are shared out among the servers, each of which has methods of its own (some remember earlier requests)
    and a store of its own. Raises Stop as soon as a miss is not the stock latent bit for bit. After ``seconds`` no
    further request is started.
    """

    def work(serving: tuple[StreamRunner, list[Method]], number: int, request: StreamRequest) -> tuple[int, dict]:
        runner, methods = serving
        return number, _compare(runner, request, methods, scorer, number)

    done: dict[int, dict[str, Any]] = {}
    workers = [(runner, make_methods()) for runner in runners]
    for number, record in shared_out(workers, requests, work, seconds):
        done[number] = record
        default = record["runs"][DEFAULT]
        taken = f"stock {record['stock_seconds']:.2f} s, {DEFAULT} {default['seconds']:.2f} s"
        say(f"  {len(done)}/{len(requests)} {record['id']} {record['kind']}: {default['decision']}, {taken}")
        yield merged(done)


def merged(done: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Records by their place in the stream, whichever server was first."""
    return [done[number] for number in sorted(done)]


def _compare(
    runner: StreamRunner, request: StreamRequest, methods: list[Method], scorer: LatentScorer, number: int
) -> dict[str, Any]:
    runs = {STOCK: partial(runner.stock, request, decode=True)}
    runs |= {method.name: partial(method.run, runner, request) for method in methods}
    # The order moves on with every request, so that no method always comes after the same one.
    names = list(runs)
    turn = number % len(names)
    done = {name: runs[name]() for name in names[turn:] + names[:turn]}
    stock = done[STOCK]
    right = scorer.score(stock.latent, request.scene)
    record = {
        "id": request.id,
        "kind": request.kind,
        "stock_seconds": round(stock.seconds, 4),
        "decode_seconds": round(stock.decode_seconds, 4),
        "stock_wrong": wrong(right),
        "runs": {},
    }
    for method in methods:
        outcome = done[method.name]
        run = _run_record(outcome)
        if run["decision"] in SERVED:
            run["wrong"] = wrong(scorer.score(outcome.latent, request.scene))
        elif outcome.equals(stock):
            run["wrong"] = record["stock_wrong"]
        else:
            raise Stop(f"{method.name}: request {request.id} is a {run['decision']} but differs from KSampler")
        record["runs"][method.name] = run
    for outcome in done.values():
        outcome.latent.unlink()
    return record


def wrong(right: dict[str, bool]) -> list[str]:
    return [name for name, found in right.items() if not found]


def _run_record(outcome: Outcome) -> dict[str, Any]:
    """What is kept of one run: little, as there are thousands."""
    report = outcome.report or {"decision": "hit"}
    run = {"decision": report["decision"], "seconds": round(outcome.seconds, 4)}
    if "reason_code" in report:
        run["reason"] = report["reason_code"]
    if report.get("donor"):
        run["similarity"] = round(report["donor"]["similarity"], 4)
        run["discrepancies"] = {k: v and float(f"{v:.4g}") for k, v in report["discrepancies"].items()}
    if report.get("region_history"):
        # Share of the tokens in the region when the gate decided, and the mean over the reuse steps.
        run["region"], run["region_share"] = report["region_history"][0][1], round(report["region_share"], 4)
    return run


def flat(records: list[dict[str, Any]], method: str) -> list[Record]:
    """One method's runs as the records that ``summary`` reads. ``seconds`` are those of the sampling node."""

    def right(names: list[str]) -> dict[str, bool]:
        return {name: name not in names for name in ATTRIBUTES}

    shared = ("id", "kind", "stock_seconds", "decode_seconds")
    return [
        {
            **{name: record[name] for name in shared},
            **record["runs"][method],
            "attributes": right(record["runs"][method]["wrong"]),
            "stock_attributes": right(record["stock_wrong"]),
        }
        for record in records
    ]


def row(name: str, records: list[Record]) -> dict[str, Any]:
    """One line of the table. A hit is a request whose result need not be the stock one.

    Speed-ups of hits are medians, that of all is stock's seconds over the method's, misses included. ``dit`` is the
    sampling node alone, ``e2e`` adds decoding by the stock VAE. ``attributes_kept``: of the attributes that stock shows
    for the hits' prompts, the share that the method shows too; ``stock_attributes``: the share that stock shows.
    """
    hits = [r for r in records if r["decision"] == "hit"]

    def of_hits(value: float) -> float | None:
        return round(value, 4) if hits else None

    def e2e(seconds: str, of: list[Record]) -> list[float]:
        return [r[seconds] + r["decode_seconds"] for r in of]

    def faster(stock: list[float], ours: list[float]) -> float:
        return median(s / o for s, o in zip(stock, ours, strict=True)) if ours else 0.0

    shown = sum(sum(r["stock_attributes"].values()) for r in hits)
    return {
        "variant": name,
        "n_requests": len(records),
        "hit_rate": round(len(hits) / len(records), 4) if records else None,
        "dit_speedup_hit": of_hits(faster([r["stock_seconds"] for r in hits], [r["seconds"] for r in hits])),
        "e2e_speedup_hit": of_hits(faster(e2e("stock_seconds", hits), e2e("seconds", hits))),
        "e2e_speedup_all": round(sum(e2e("stock_seconds", records)) / sum(e2e("seconds", records)), 4)
        if records
        else None,
        "attributes_kept": of_hits(1 - sum(len(lost(r)) for r in hits) / max(1, shown)),
        "stock_attributes": of_hits(right_share(hits, "stock_attributes")),
        "unsafe_rate": of_hits(share(map(is_unsafe, hits))),
    }


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The tables over the records of ``measure``, which hold at least one request.

    ``rows_on_default_hits`` compares all methods on the very requests that the default settings accept.
    """
    runs = {name: flat(records, name) for name in records[0]["runs"]}
    accepted = {r["id"] for r in runs[DEFAULT] if r["decision"] == "hit"}
    result: dict[str, Any] = {
        "rows": [row(name, found) for name, found in runs.items()],
        "rows_on_default_hits": [row(name, [r for r in found if r["id"] in accepted]) for name, found in runs.items()],
        "signature_auc": None,
        "text_auc": None,
    }
    if ANY_DONOR in runs:
        found = separation(runs[ANY_DONOR])
        similarities = [r["similarity"] if r["decision"] == "hit" else None for r in runs[ANY_DONOR]]
        result |= {
            "separation": found,
            "signature_auc": overall(found, GATE_SCORE),
            "text_auc": overall(found, TEXT),
            "matching_text_similarity": matching_similarity(similarities, len(accepted)),
        }
    return result


def to_json(result: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """One JSON object with the records last, one to a line."""
    head = json.dumps(result, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(json.dumps(record, separators=(",", ":")) for record in records)
    return f'{head},\n "records": [\n  {lines}\n ]\n}}\n'

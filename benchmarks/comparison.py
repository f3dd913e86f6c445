"""Each request of a stream by the stock sampler and by several methods, side by side in one server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from safetensors.torch import load_file

from scripts.testbed.console import Stop, say

from . import random_masks
from .fidelity import psnr, replayed_pixels, ssim
from .scoring import LatentScorer
from .sharing import shared_out
from .stream_run import Outcome, StreamRequest, StreamRunner
from .summary import SERVED
from .variants import DEFAULT

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
    """Yields all records so far after each request, in order of arrival; see ``rows.flat`` for what they hold.

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
    stock_video, default_pixels = scorer.linear_video(stock.latent), _replayed(done[DEFAULT])
    for method in methods:
        outcome = done[method.name]
        run = _run_record(outcome)
        if run["decision"] in SERVED:
            run["wrong"] = wrong(scorer.score(outcome.latent, request.scene))
            where = _replayed(outcome)
            where = default_pixels if where is None else where
            run |= _fidelity(scorer.linear_video(outcome.latent), stock_video, where)
        elif outcome.equals(stock):
            run["wrong"] = record["stock_wrong"]
        else:
            raise Stop(f"{method.name}: request {request.id} is a {run['decision']} but differs from KSampler")
        record["runs"][method.name] = run
    for outcome in done.values():
        outcome.remove_files()
    return record


def _replayed(outcome: Outcome) -> torch.Tensor | None:
    """Pixels outside the region of a hit of ours, [F, H, W] bool; None for anything else."""
    if outcome.evidence is None or outcome.report["decision"] != "hit":
        return None
    return replayed_pixels(load_file(outcome.evidence)["mask"])


def _fidelity(video: torch.Tensor, stock: torch.Tensor, where: torch.Tensor | None) -> dict[str, float | None]:
    """How near two videos [F, H, W, 3] are, as a whole and outside the region."""
    found = {"psnr_whole": psnr(video, stock, torch.ones(video.shape[:3], dtype=torch.bool, device=video.device))}
    if where is not None:
        where = where.to(video.device)
        found |= {"psnr": psnr(video, stock, where), "ssim": ssim(video, stock, where)}
    return {name: value and round(value, 4) for name, value in found.items()}


def wrong(right: dict[str, bool]) -> list[str]:
    return [name for name, found in right.items() if not found]


def _run_record(outcome: Outcome) -> dict[str, Any]:
    """What is kept of one run: little, as there are thousands."""
    report = outcome.report or {"decision": "hit"}
    run = {"decision": report["decision"], "seconds": round(outcome.seconds, 4)}
    if report.get("work"):
        run["work"] = round(report["work"], 4)
    if "reason_code" in report:
        run["reason"] = report["reason_code"]
    if report.get("donor"):
        run["similarity"] = round(report["donor"]["similarity"], 4)
        run["discrepancies"] = {k: v and float(f"{v:.4g}") for k, v in report["discrepancies"].items()}
    if report.get("region_history"):
        # Share of the tokens in the region when the gate decided, and the mean over the reuse steps.
        run["region"], run["region_share"] = report["region_history"][0][1], round(report["region_share"], 4)
    if report["decision"] in SERVED and report.get("attention"):
        run["attention"] = report["attention"]
    if random_masks.DISARM in outcome.outputs:
        (run["masks_drawn"],) = outcome.outputs[random_masks.DISARM]["selections"]
    return run


def to_json(result: dict[str, Any], records: list[dict[str, Any]], name: str = "records") -> str:
    """One JSON object with the records last, under this name and one to a line."""
    head = json.dumps(result, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(json.dumps(record, separators=(",", ":")) for record in records)
    return f'{head},\n "{name}": [\n  {lines}\n ]\n}}\n'

"""Explores thresholds on the stream *tune*: how much predictions differ, and what each setting saves and loses."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from safetensors.torch import load_file

from carnator_core.evidence import token_difference
from scripts.testbed.console import say
from scripts.testbed.server import ComfyServer

from .scoring import LatentScorer
from .stream_run import Outcome, StreamRequest, StreamRunner
from .summary import Record, by_kind, markdown
from .variants import OPEN_GATE

PATCH = (1, 2, 2)
QUANTILES = (0.5, 0.9, 0.95, 0.99, 1.0)


def dense_pass(runner: StreamRunner, requests: list[StreamRequest]) -> dict[str, Outcome]:
    """Every request densely, each kept as an entry of the store ``tune``."""
    store = {"name": "tune", "mode": "write"}
    return {request.id: runner.ours(request, store) for request in requests}


def differences(server: ComfyServer, requests: list[StreamRequest], dense: dict[str, Outcome]) -> list[dict]:
    """Quantiles over tokens of the conditional x0 difference between each variation and its base, per step."""
    (entries,) = server.base.user.glob("**/stores/tune/entries")

    def predictions(request_id: str) -> dict[str, torch.Tensor]:
        folder = entries / dense[request_id].report["entry_id"]
        found = {"probe": load_file(folder / "signature.safetensors")["state"]}
        stored = load_file(folder / "trajectory.safetensors")
        return found | {name: x0 for name, x0 in stored.items() if name.startswith("conditional")}

    rows = []
    for request in requests:
        if request.base is None:
            continue
        mine, donor = predictions(request.id), predictions(request.base)
        for step, x0 in mine.items():
            d = token_difference(x0, donor[step], PATCH).flatten()
            values = torch.quantile(d, torch.tensor(QUANTILES)).tolist()
            rows.append({"id": request.id, "kind": request.kind, "step": step, "quantiles": values})
    return rows


def difference_table(rows: list[dict]) -> str:
    """Median over pairs of each quantile, by step and kind."""
    lines = []
    for step, kind in itertools.product(dict.fromkeys(r["step"] for r in rows), dict.fromkeys(r["kind"] for r in rows)):
        values = torch.tensor([r["quantiles"] for r in rows if (r["step"], r["kind"]) == (step, kind)])
        line: dict[str, Any] = {"step": step, "kind": kind, "pairs": len(values)}
        line |= {f"q{q:g}": float(v) for q, v in zip(QUANTILES, values.median(dim=0).values, strict=False)}
        lines.append(line)
    return markdown(lines)


def variants(
    runner: StreamRunner, requests: list[StreamRequest], dense: dict[str, Outcome], scorer: LatentScorer,
    settings: dict[str, dict[str, Any]],
) -> dict[str, list[Record]]:  # fmt: skip
    """Each variation against its base as the only donor, gate open, under each setting of the sampler's widgets."""
    bases = [r for r in requests if r.base is None]
    for base in bases:
        runner.ours(base, {"name": "bases", "mode": "write"})
    stock_right = {r.id: scorer.score(dense[r.id].latent, r.scene) for r in requests}
    found: dict[str, list[Record]] = {}
    for name, reuse in settings.items():
        records = []
        for request in requests:
            if request.base is None:
                continue
            out = runner.ours(request, {"name": "bases", "mode": "read"}, OPEN_GATE, reuse)
            records.append(
                {
                    "id": request.id,
                    "kind": request.kind,
                    **{k: out.report[k] for k in ("decision", "reason", "discrepancies", "region_share",
                                                  "region_history", "predicted_work", "steps", "donor")},
                    "seconds": out.seconds,
                    "stock_seconds": dense[request.id].seconds,
                    "attributes": scorer.score(out.latent, request.scene),
                    "stock_attributes": stock_right[request.id],
                }
            )  # fmt: skip
        found[name] = records
        say(f"\n{name}: {reuse}\n{markdown(by_kind(records))}")
    return found

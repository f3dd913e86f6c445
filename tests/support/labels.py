"""Labels of clusters made by hand, in the form in which the certificate's benchmark keeps them."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.clusters import make_clusters
from demo.grammar import ATTRIBUTES

SETTINGS = {
    "max region percent": "65.0",
    "min text similarity": "0.5",
    "near-empty threshold": "2",
    "effective region threshold": "0.15",
    "sampler": "euler",
}


def looks(**shown: float) -> dict[str, Any]:
    """One look that gives each attribute of a scene 0.98, or what is given."""
    return {"decoded": {name: [p := shown.get(name, 0.98), round(1 - p, 5)] for name in ATTRIBUTES}}


def record(cluster: Any, state: float, unsafe: bool, similarity: float = 0.9, **changes: Any) -> dict[str, Any]:
    """A labelled cluster. All discrepancies follow the state; stock took 10 s and reuse 4 s."""
    found = {"representation": state / 10, "residual": state, "dynamics": 2 * state, "state": state}
    return {
        "set": cluster.of, "id": cluster.id, "kind": cluster.variation.kind, "decision": "hit", "reason": "reused",
        "donor": f"base of {cluster.id}", "similarity": similarity, "discrepancies": found, "region": 0.3,
        "region_share": 0.3, "work": 0.5, "settings": SETTINGS, "seconds": 4.0, "stock_seconds": 10.0,
        "decode_seconds": 2.0, "stock": looks(), "reuse": looks(shape=0.1) if unsafe else looks(),
        "digest": f"stock {cluster.id}", **changes,
    }  # fmt: skip


def refused(cluster: Any, **changes: Any) -> dict[str, Any]:
    """A cluster whose region was too large."""
    made = record(cluster, 1.0, False, decision="miss", reason="region_too_large", region=0.9, region_share=0.9,
                  seconds=10.0, **changes)  # fmt: skip
    del made["reuse"]
    return made


def labels(name: str, count: int, risky: float = 0.2, seed: int = 0) -> list[dict[str, Any]]:
    """A set in which early states tell nearly all and text nothing.

    Half is refused by the region's rule. Of the rest the share ``risky`` is far from its donor and loses its shape in
    nine of ten cases, of the others one in 200 does.
    """
    rng = random.Random(f"{name} {seed}")
    found = []
    for cluster in make_clusters(name, count):
        similarity = rng.uniform(0.6, 0.95)
        if rng.random() < 0.5:
            found.append(refused(cluster, similarity=similarity))
            continue
        far = rng.random() < risky
        state = rng.uniform(0.5, 1.0) if far else rng.uniform(0.01, 0.3)
        found.append(record(cluster, state, rng.random() < (0.9 if far else 0.005), similarity))
    return found

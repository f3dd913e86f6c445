"""How well a score tells safe reuse from unsafe reuse, known from runs in which the gate refused nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from carnator_core.gate import thresholds_for
from carnator_core.options import GateOptions
from carnator_core.signature import FAMILIES

from .summary import LOCAL_KINDS, Record, is_unsafe

RESAMPLES = 2000
GATE_SCORE, TEXT = "gate", "text"


def auc(unsafe: np.ndarray, safe: np.ndarray) -> float:
    """Probability that a random unsafe case scores higher than a random safe one; ties count half.

    Args:
        unsafe, safe: [n] and [m] scores, higher = more dangerous; NaN if one of them is empty.
    """
    return float(_above(unsafe, safe).mean()) if len(unsafe) and len(safe) else math.nan


def auc_interval(unsafe: np.ndarray, safe: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """90 % interval of ``auc`` over bootstrap samples that draw within each class. (NaN, NaN) if one is empty."""
    if not len(unsafe) or not len(safe):
        return math.nan, math.nan
    random = np.random.default_rng(seed)
    # A resample only changes how often each case counts, so that one matrix of comparisons serves all of them.
    drawn = [random.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n for n in (len(unsafe), len(safe))]
    values = ((drawn[0] @ _above(unsafe, safe)) * drawn[1]).sum(axis=1)
    low, high = np.quantile(values, (0.05, 0.95))
    return float(low), float(high)


def _above(unsafe: np.ndarray, safe: np.ndarray) -> np.ndarray:
    """[n, m]: 1 where the unsafe case scores higher, 0.5 where equal."""
    difference = np.asarray(unsafe, float)[:, None] - np.asarray(safe, float)[None, :]
    return (np.sign(difference) + 1) / 2


def gate_score(record: Record) -> float:
    """Largest discrepancy in units of its default threshold: the gate accepts up to 1."""
    found, limits = record["discrepancies"], asdict(thresholds_for(record["region"], GateOptions()))
    return max(value / limits[family] for family, value in found.items() if value is not None)


def scores() -> dict[str, Callable[[Record], float | None]]:
    """Every score by name, higher = more dangerous."""
    families = {family: lambda r, family=family: r["discrepancies"][family] for family in FAMILIES}
    return {**families, GATE_SCORE: gate_score, TEXT: lambda r: 1.0 - r["similarity"]}


def separation(records: Sequence[Record]) -> list[dict[str, Any]]:
    """AUC of every score over all hits and within each kind of edit: one row per group.

    Args:
        records: of runs in which the gate refused nobody; only hits count. A value is None where it does not exist.
    """
    hits = [r for r in records if r["decision"] == "hit"]
    groups = {"all": hits, "local edits": [r for r in hits if r["kind"] in LOCAL_KINDS]}
    groups |= {kind: [r for r in hits if r["kind"] == kind] for kind in dict.fromkeys(r["kind"] for r in hits)}
    rows = []
    for group, members in groups.items():
        danger = [is_unsafe(r) for r in members]
        row: dict[str, Any] = {"kind": group, "safe": danger.count(False), "unsafe": danger.count(True)}
        for name, score in scores().items():
            values = [score(r) for r in members]
            if None in values or len(set(danger)) < 2:
                row[name] = None
                continue
            unsafe = np.array([v for v, bad in zip(values, danger, strict=True) if bad])
            safe = np.array([v for v, bad in zip(values, danger, strict=True) if not bad])
            low, high = auc_interval(unsafe, safe)
            row[name] = {"auc": round(auc(unsafe, safe), 4), "low": round(low, 4), "high": round(high, 4)}
        rows.append(row)
    return rows


def overall(rows: list[dict[str, Any]], score: str) -> float | None:
    """AUC of one score over all hits."""
    found = rows[0][score]
    return found and found["auc"]


def matching_similarity(similarities: Sequence[float | None], accepted: int) -> float | None:
    """The text similarity that exactly ``accepted`` requests reach, or as near to it as ties allow.

    Args:
        similarities: per request, that of its donor where the gate refuses nobody, None where it found none.
    Returns:
        Half-way between the last accepted and the first refused one; None if nothing can be accepted.
    """
    ranked = sorted((s for s in similarities if s is not None), reverse=True)
    if not ranked or accepted < 1:
        return None
    if accepted >= len(ranked):
        return ranked[-1]
    # Ties with the last accepted one come and go together: cut at the nearer end of them.
    last = ranked[accepted - 1]
    before, through = sum(s > last for s in ranked), sum(s >= last for s in ranked)
    cut = before if before and accepted - before < through - accepted else through
    return ranked[-1] if cut == len(ranked) else (ranked[cut - 1] + ranked[cut]) / 2

"""What the labels of a certificate say: certificate, coverage, and what a gate by text alone would have done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

import numpy as np

from carnator_core.risk import fixed_sequence, upper_bound
from demo.streams import SHARES

from .label_file import Record
from .selective_risk import Cases, curve, difference
from .separation import gate_score
from .shown import lost, lost_plainly, right
from .summary import LOCAL_KINDS

# Shares of unsafe hits at which gates are compared.
RISKS = (0.01, 0.02, 0.05)
CONFIDENCE = 0.9
KINDS = tuple(kind for share in SHARES for kind in (LOCAL_KINDS if share == "local" else (share,)))


@dataclass(frozen=True)
class Labels:
    """Records of one set as arrays over its clusters. A cluster is labelled if it was a hit with the gate open."""

    records: Sequence[Record]

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def kinds(self) -> np.ndarray:
        return np.array([r["kind"] for r in self.records])

    @cached_property
    def ids(self) -> np.ndarray:
        return np.array([r["id"] for r in self.records])

    @cached_property
    def judged(self) -> np.ndarray:
        """[n] bool: a donor was recalled, and its discrepancies are known."""
        return np.array([r["discrepancies"] is not None for r in self.records], bool)

    @cached_property
    def labelled(self) -> np.ndarray:
        return np.array(["reuse" in r for r in self.records], bool)

    @cached_property
    def unsafe(self) -> np.ndarray:
        """[n] bool, False where there is no label."""
        return self._per_label(lost, bool)

    @cached_property
    def unsafe_plainly(self) -> np.ndarray:
        return self._per_label(lost_plainly, bool)

    @cached_property
    def lost(self) -> np.ndarray:
        """[n] int, attributes."""
        return self._per_label(lost, len)

    @cached_property
    def gained(self) -> np.ndarray:
        return self._per_label(lambda stock, reuse: lost(reuse, stock), len)

    def _per_label(self, rule: Callable, to: Callable) -> np.ndarray:
        return np.array([to(rule(r["stock"], r["reuse"]) if "reuse" in r else []) for r in self.records])

    def cases(self, score: np.ndarray) -> Cases:
        """All clusters by a score [labelled] of the labelled ones."""
        everywhere = np.full(len(self), math.inf)
        everywhere[self.labelled] = score
        return Cases(everywhere, self.unsafe)

    @cached_property
    def by_text(self) -> Cases:
        return self.cases(np.array([1.0 - r["similarity"] for r in self.records if "reuse" in r]))

    @cached_property
    def by_gate(self) -> Cases:
        """The largest discrepancy in units of its default threshold."""
        return self.cases(np.array([gate_score(r) for r in self.records if "reuse" in r]))

    def groups(self) -> dict[str, np.ndarray]:
        """Masks [n]: everything, local edits, and each kind."""
        found = {"all": np.ones(len(self), bool), "local edits": np.isin(self.kinds, LOCAL_KINDS)}
        return found | {kind: self.kinds == kind for kind in KINDS if kind in self.kinds}


def certified_by(cases: Cases, delta: float, confidence: float) -> np.ndarray:
    """[n] bool: what a gate accepts that was certified along this score, by the procedure of the certificate."""
    within = np.isfinite(cases.score)
    loosest = fixed_sequence(cases.score[within], cases.unsafe[within], delta, confidence).loosest
    return np.zeros(len(within), bool) if loosest is None else within & (cases.score < loosest.limit)


def as_many(cases: Cases, count: int) -> np.ndarray:
    """[n] bool: the cases of the lowest scores, ``count`` of them or as near to it as ties allow."""
    tops = [-math.inf, *(top for top, *_ in curve(cases))]
    return cases.score <= min(tops, key=lambda top: abs(int((cases.score <= top).sum()) - count))


def row(name: str, labels: Labels, accepted: np.ndarray, decode: float | None = None) -> dict[str, Any]:
    """What a gate does that accepts these labelled clusters [n] bool; ``decode``: seconds for decoding one video.

    ``coverage``: of all clusters; ``bound``: one-sided exact bound on the rate at 90 % confidence. ``lost`` and
    ``gained`` count attributes, ``net`` is their difference. Seconds are means over hits, of the sampling node and with
    decoding; the speed-up is the median over hits of stock's seconds over ours, decoding included.
    """
    hits = [r for r, taken in zip(labels.records, accepted, strict=True) if taken]
    count, unsafe = len(hits), int(labels.unsafe[accepted].sum())
    stock = sum(len(right(r["stock"])) for r in hits)
    found = {
        "gate": name,
        "clusters": len(labels),
        "accepted": count,
        "coverage": _share(count, len(labels)),
        "unsafe": unsafe,
        "rate": _share(unsafe, count),
        "bound": round(upper_bound(unsafe, count, CONFIDENCE), 4) if count else None,
        "unsafe_plainly": int(labels.unsafe_plainly[accepted].sum()),
        "lost": int(labels.lost[accepted].sum()),
        "gained": int(labels.gained[accepted].sum()),
        "kept": _share(stock - sum(len(lost_plainly(r["stock"], r["reuse"])) for r in hits), stock),
    }
    found["net"] = found["lost"] - found["gained"]
    return found | _speed(hits, decode)


def _speed(hits: list[Record], decode: float | None) -> dict[str, Any]:
    if not hits or decode is None:
        return dict.fromkeys(("work", "seconds", "seconds_with_decode", "speedup_with_decode"))
    ours = [r["seconds"] + decode for r in hits]
    faster = median((r["stock_seconds"] + decode) / mine for r, mine in zip(hits, ours, strict=True))
    return {
        "work": round(fmean(r["work"] for r in hits), 4),
        "seconds": round(fmean(r["seconds"] for r in hits), 3),
        "seconds_with_decode": round(fmean(ours), 3),
        "speedup_with_decode": round(faster, 3),
    }


def decode_seconds(records: Sequence[Record]) -> float | None:
    """Mean over the few clusters of which the video was decoded by the server: it does not depend on the latent."""
    found = [r["decode_seconds"] for r in records if r.get("decode_seconds") is not None]
    return fmean(found) if found else None


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def compared(labels: Labels, ours: Cases) -> list[dict[str, Any]]:
    """Coverage of a gate and of one by text alone on the same clusters, at equal observed risk, overall and by kind."""
    found = []
    for group, where in labels.groups().items():
        for risk in RISKS if where.any() else ():
            one = difference(ours.of(where), labels.by_text.of(where), risk)
            named = {"gate": one["a"], "text": one["b"], **{n: one[n] for n in ("difference", "low", "high")}}
            found.append({"kind": group, "clusters": int(where.sum()), "risk": risk,
                          **{name: round(value, 4) for name, value in named.items()}})  # fmt: skip
    return found


def by_kind(labels: Labels, accepted: np.ndarray) -> list[dict[str, Any]]:
    """What is accepted of each kind of edit, beside all that could be."""
    found = []
    for group, where in labels.groups().items():
        members = Labels([r for r, inside in zip(labels.records, where, strict=True) if inside])
        every, taken = row("", members, members.labelled), row("", members, accepted[where])
        shared = ("clusters", "accepted", "coverage", "unsafe", "rate", "bound", "lost", "gained", "net")
        found.append(
            {"kind": group, "labelled": every["accepted"], "unsafe_labelled": every["unsafe"]}
            | {name: taken[name] for name in shared}
        )
    return found


def floor_row(name: str, floors: Sequence[Record], labels: Labels) -> dict[str, Any]:
    """How often a dense run that should make no difference "loses" something, by the same rule."""
    stock = {r["id"]: r for r in labels.records}
    pairs = [(stock[f["id"]], f) for f in floors if f["id"] in stock]
    unsafe = sum(bool(lost(r["stock"], f["looks"])) for r, f in pairs)
    return {
        "floor": name,
        "clusters": len(pairs),
        "unsafe": unsafe,
        "rate": _share(unsafe, len(pairs)),
        "bound": round(upper_bound(unsafe, len(pairs), CONFIDENCE), 4) if pairs else None,
        "unsafe_plainly": sum(bool(lost_plainly(r["stock"], f["looks"])) for r, f in pairs),
        "lost": sum(len(lost(r["stock"], f["looks"])) for r, f in pairs),
        "gained": sum(len(lost(f["looks"], r["stock"])) for r, f in pairs),
        "same": sum(r["digest"] == f["digest"] for r, f in pairs),
    }


def curves(named: dict[str, Cases]) -> list[dict[str, Any]]:
    """For each score the points [coverage, risk] of all its thresholds."""
    return [
        {"score": name, "points": [[round(covered, 4), round(risk, 4)] for _, covered, risk in curve(cases)]}
        for name, cases in named.items()
    ]

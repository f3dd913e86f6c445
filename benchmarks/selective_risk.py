"""How much a score can accept at a given risk, and how sure it is that one score accepts more than another.

A gate accepts the cases whose score is at or below some threshold. Its coverage is the share of all cases that it
accepts, its risk the share of the accepted ones that are unsafe (selective risk, El-Yaniv and Wiener, "On the
foundations of noise-free selective classification", JMLR 11, 2010). Nothing here chooses a threshold for use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Cases:
    """Independent cases as one gate sees them.

    Args:
        score: [n] float, higher = more dangerous; infinite where nothing could be accepted (no donor, other rules).
        unsafe: [n] bool; of no meaning where the score is infinite.
    """

    score: np.ndarray
    unsafe: np.ndarray

    def of(self, where: np.ndarray) -> Cases:
        """Those of a mask [n] bool."""
        return Cases(self.score[where], self.unsafe[where])


def curve(cases: Cases) -> list[tuple[float, float, float]]:
    """(threshold, coverage, risk) of every gate that the score can be, strict to loose; ties come together."""
    order, ends = _ordered(cases)
    unsafe = np.cumsum(cases.unsafe[order])
    accepted = np.arange(1, len(order) + 1)
    return [
        (float(cases.score[order[i]]), accepted[i] / len(cases.score), unsafe[i] / accepted[i])
        for i in np.flatnonzero(ends)
    ]


def coverage(cases: Cases, risk: float, weights: np.ndarray | None = None) -> np.ndarray:
    """The largest coverage at which no more than this share of the accepted cases is unsafe; 0 if there is none.

    Args:
        weights: [resamples, n], how often each resample has each case; once, if None.
    Returns:
        [resamples] float.
    """
    if weights is None:
        weights = np.ones((1, len(cases.score)))
    order, ends = _ordered(cases)
    drawn = weights[:, order]
    accepted = np.cumsum(drawn, axis=1)[:, ends]
    unsafe = np.cumsum(drawn * cases.unsafe[order], axis=1)[:, ends]
    # The least surplus: 3 of 60 are 5 %, whatever 0.05 * 60 is in binary.
    fits = unsafe <= risk * accepted + 1e-9
    most = np.where(fits, accepted, 0.0).max(axis=1, initial=0.0)
    return most / np.maximum(weights.sum(axis=1), 1)


def difference(a: Cases, b: Cases, risk: float, seed: int = 0) -> dict[str, float]:
    """Coverage of two gates on the same cases at equal risk, and the difference with its 90 % bootstrap interval.

    Both are read off the same resamples, so that what makes a resample easy or hard for both does not count.
    """
    count = len(a.score)
    random = np.random.default_rng(seed)
    weights = random.multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(float)
    drawn = coverage(a, risk, weights) - coverage(b, risk, weights)
    low, high = np.quantile(drawn, (0.05, 0.95))
    found = float(coverage(a, risk)[0]), float(coverage(b, risk)[0])
    return {"a": found[0], "b": found[1], "difference": found[0] - found[1], "low": float(low), "high": float(high)}


def _ordered(cases: Cases) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the cases that can be accepted, by rising score, and where a run of equal scores ends."""
    order = np.argsort(cases.score, kind="stable")
    order = order[np.isfinite(cases.score[order])]
    score = cases.score[order]
    ends = np.ones(len(order), bool)
    ends[:-1] = score[1:] != score[:-1]
    return order, ends

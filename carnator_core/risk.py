"""The statistics behind a certificate: pure functions on numbers.

The claim is a bound on P(unsafe | accepted). What makes it hold:

* The bound is exact: C. J. Clopper and E. S. Pearson, *The use of confidence or fiducial limits illustrated in the case
  of the binomial*, Biometrika 26 (1934).
* Four thresholds are not searched. They become one score, chosen on development pairs, and a sequence of limits from
  strict to loose, fixed before a label of the certification pairs is seen. Each limit is tested at the full error, and
  the first failure ends it: fixed-sequence testing, as in A. N. Angelopoulos, S. Bates, E. J. Candès, M. I. Jordan and
  L. Lei, *Learn then Test* (2021, arXiv 2110.01052).
* Pairs that share a donor, a target or a family of paraphrases say the same thing several times: one pair counts for
  each connected component.
* Whether a certificate still holds is watched by an e-process, which may be looked at after every verdict: its maximum
  exceeds 20 with probability at most 1/20 while the risk is within the bound (J. Ville, 1939; I. Waudby-Smith and
  A. Ramdas, *Estimating means of bounded random variables by betting*, JRSS B 86 (2024)).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .identity import digest

DEVELOPMENT_SHARE = 0.25  # of the clusters, to choose the score; the others are tested
# Where the sequence of limits begins: what it accepts must be able to bear an unsafe pair and be a part of all that
# does not shrink with their number, else one chance event at the start costs all.
FIRST_UNSAFE, FIRST_SHARE = 1, 0.25
LIMITS = 8  # in the sequence
SMALLEST = 1e-6  # distance below which two states are equal, for the logarithm
SPREAD_FLOOR = 0.1  # of log distances: a family that never varies must not rule the score
PRIOR_PAIRS = 4.0  # weight of "all families tell alike", in unsafe development pairs
GUARD_MARGIN = 2.0  # above the largest distance among development pairs
LAPSE_AT = 20.0
ALTERNATIVE = 2.4  # times delta: the risk that the e-process bets on


# -- bounds on a share ---------------------------------------------------------------------------------------------


def upper_bound(unsafe: int, accepted: int, confidence: float) -> float:
    """One-sided Clopper-Pearson bound: the largest risk under which so few unsafe ones are not too unlikely.

    The inverse of the Beta(u + 1, n - u) distribution at ``confidence``; 1 where all or none were accepted.
    """
    from scipy.special import betaincinv

    if not 0 <= unsafe <= accepted:
        raise ValueError(f"{unsafe} of {accepted} is no share")
    return 1.0 if unsafe == accepted else float(betaincinv(unsafe + 1, accepted - unsafe, confidence))


@functools.cache
def accepted_needed(unsafe: int, delta: float, confidence: float) -> int:
    """The fewest accepted pairs that certify a risk of at most ``delta`` with so many unsafe ones among them.

    Raises ValueError for what no number of pairs can show.
    """
    if not (0.0 < delta < 1.0 and 0.0 < confidence < 1.0):
        raise ValueError(f"no number of pairs shows a risk of {delta} with confidence {confidence}")
    low, high = unsafe, unsafe + 1
    while upper_bound(unsafe, high, confidence) > delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if upper_bound(unsafe, middle, confidence) > delta else (low, middle)
    return high


def p_values(unsafe: np.ndarray, accepted: np.ndarray, delta: float) -> np.ndarray:
    """P(at most so many unsafe) under a risk of ``delta``, elementwise: at or below 1 - confidence iff the bound of
    ``upper_bound`` is at or below ``delta``."""
    from scipy.special import bdtr

    return bdtr(np.asarray(unsafe, float), np.asarray(accepted, np.int64), delta)


# -- clusters ------------------------------------------------------------------------------------------------------


class Components:
    """Connected components over names, as they grow (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[Hashable, Hashable] = {}

    def root(self, name: Hashable) -> Hashable:
        parent = self._parent.setdefault(name, name)
        while parent != self._parent[parent]:
            self._parent[name] = parent = self._parent[parent]
        return parent

    def join(self, names: Iterable[Hashable]) -> Hashable:
        """The root of all these names from now on."""
        first, *others = (self.root(name) for name in names)
        for other in others:
            self._parent[other] = first
        return first


def clusters(members: Sequence[Collection[str]]) -> list[str]:
    """For each pair the name of its connected component: the least of all names in it, whatever the order of pairs."""
    components = Components()
    for names in members:
        components.join(names)
    least: dict[Hashable, str] = {}
    for name in {name for names in members for name in names}:
        root = components.root(name)
        least[root] = min(name, least.get(root, name))
    return [least[components.root(next(iter(names)))] for names in members]


def one_per_cluster(found: Sequence[str], names: Sequence[str]) -> list[int]:
    """Index of one pair of each cluster, drawn by a hash of the pair's own name; in the order of clusters.

    Args:
        found: cluster of each pair; names: a name of each pair.
    """
    drawn: dict[str, int] = {}
    for index, cluster in enumerate(found):
        if cluster not in drawn or _rank(names[index]) < _rank(names[drawn[cluster]]):
            drawn[cluster] = index
    return [drawn[cluster] for cluster in sorted(drawn)]


def _rank(name: str) -> tuple[str, str]:
    return digest("pair", name), name


def is_development(cluster: str) -> bool:
    """Whether a cluster serves to choose the score; decided by a hash of its name alone."""
    return int(digest("split", cluster)[:12], 16) < DEVELOPMENT_SHARE * 16**12


# -- score and limits ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """s = w · log d of the discrepancies d, and how large each may be at most.

    Args:
        weights: [F], none negative, 1 in all.
        guards: [F] largest discrepancies; beyond them no pair was ever looked at.
    """

    weights: np.ndarray
    guards: np.ndarray

    @classmethod
    def fit(cls, distances: np.ndarray, unsafe: np.ndarray) -> Score:
        """From development pairs.

        A family weighs as much as unsafe pairs lie above safe ones in it, in its own standard deviations (the direction
        of Fisher's discriminant without correlations), shrunk towards equal weights while unsafe pairs are few.

        Args:
            distances: [n, F] discrepancies; unsafe: [n] bool.
        """
        logs = log_distances(distances)
        spread = np.maximum(logs.std(axis=0), SPREAD_FLOOR)
        count = int(unsafe.sum())
        gap = np.zeros(logs.shape[1])
        if 0 < count < len(unsafe):
            gap = (logs[unsafe].mean(axis=0) - logs[~unsafe].mean(axis=0)) / spread
        told = (count * np.maximum(gap, 0.0) + PRIOR_PAIRS) / (count + PRIOR_PAIRS) / spread
        return cls(told / told.sum(), GUARD_MARGIN * distances.max(axis=0))

    def of(self, distances: np.ndarray) -> np.ndarray:
        """[n] scores of [n, F] discrepancies."""
        return log_distances(distances) @ self.weights

    def guarded(self, distances: np.ndarray) -> np.ndarray:
        """[n] bool: which pairs lie within the guards."""
        return (distances <= self.guards).all(axis=1)


def log_distances(distances: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(distances, SMALLEST))


def limits_of(scores: np.ndarray, delta: float, confidence: float) -> np.ndarray:
    """Limits from strict to loose, from scores alone: pairs with s < limit are accepted.

    Each limit but the last is the score of a pair that it does not accept. Given that limit, those below it are
    independent draws, so that the exact bound holds for them. The last one is infinite: the guards alone. The strictest
    accepts a quarter of all, and enough to bear one unsafe pair (all where there are fewer); a limit that could not
    pass whatever the labels (many equal scores) is left out.
    """
    ordered = np.sort(scores)
    first = max(accepted_needed(FIRST_UNSAFE, delta, confidence), math.ceil(FIRST_SHARE * len(ordered)))
    if len(ordered) <= first:
        return np.array([np.inf])
    places = np.unique(np.linspace(first, len(ordered), LIMITS).round().astype(int))[:-1]
    limits = np.unique(ordered[places])
    enough = np.searchsorted(ordered, limits) >= accepted_needed(0, delta, confidence)
    return np.append(limits[enough], np.inf)


@dataclass(frozen=True)
class Limit:
    """A limit of the score, and what it accepts of the certification pairs."""

    limit: float
    accepted: int
    unsafe: int


@dataclass(frozen=True)
class Tested:
    """The limits that were tested, from strict to loose, up to and with the first that failed; how many passed."""

    limits: tuple[Limit, ...]
    passed: int

    @property
    def loosest(self) -> Limit | None:
        """The one to certify."""
        return self.limits[self.passed - 1] if self.passed else None


def fixed_sequence(scores: np.ndarray, unsafe: np.ndarray, delta: float, confidence: float) -> Tested:
    """Test the limits one after the other.

    Args:
        scores: [n] of certification pairs within the guards; unsafe: [n] bool, their labels.
    """
    limits = limits_of(scores, delta, confidence)
    below = scores[None] < limits[:, None]
    accepted, bad = below.sum(axis=1), (below & unsafe[None]).sum(axis=1)
    passes = p_values(bad, accepted, delta) <= 1.0 - confidence
    passed = len(limits) if passes.all() else int(passes.argmin())
    seen = slice(0, passed + 1)
    found = map(Limit, limits[seen].tolist(), accepted[seen].tolist(), bad[seen].tolist())
    return Tested(tuple(found), passed)


# -- does it still hold --------------------------------------------------------------------------------------------


def evidence_against(unsafe: Sequence[bool], delta: float) -> np.ndarray:
    """The e-process after each of n verdicts on accepted reuse, [n]: a product of p / delta for every unsafe one and of
    (1 - p) / (1 - delta) for every safe one, with p = 2.4 delta.

    It is the likelihood ratio of the risk p against delta: under any risk up to delta it is not expected to grow.
    """
    suspected = min(ALTERNATIVE * delta, (1.0 + delta) / 2)
    worse, better = math.log(suspected / delta), math.log((1.0 - suspected) / (1.0 - delta))
    return np.exp(np.cumsum(np.where(np.asarray(unsafe, bool), worse, better)))


def strongest_evidence(verdicts: Sequence[tuple[bool, bool]], delta: float) -> float:
    """The largest value that the evidence against a certificate reached; from ``LAPSE_AT`` on it has lapsed for good.

    The mean of two e-processes, which is one itself: over the audits alone, and over all verdicts. So what people
    volunteer can bring a certificate down, but however many safe verdicts they give, evidence of audits that reaches
    twice ``LAPSE_AT`` stands.

    Args:
        verdicts: (unsafe, whether it is an audit), in the order of time.
    """
    if not verdicts:
        return 1.0
    unsafe, audit = (np.asarray(column, bool) for column in zip(*verdicts, strict=True))
    of_audits = np.append(1.0, evidence_against(unsafe[audit], delta))[np.cumsum(audit)]
    return max(1.0, float(((of_audits + evidence_against(unsafe, delta)) / 2).max()))

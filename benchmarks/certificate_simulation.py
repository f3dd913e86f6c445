"""Does a certificate hold? Worlds whose risk is known say how often one is false, and how often there is one at all.

python3 -m benchmarks.certificate_simulation prints the tables. A certificate is false if the true risk of what it
accepts is above delta; that may happen in one of ten cases at 90 % confidence. Beside it stand ways that look the same
and are not: choosing four thresholds on the data that the bound is computed on, calibrating on other donors than those
that will be judged, and counting dependent pairs one by one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from carnator_core.risk import (
    LAPSE_AT,
    Score,
    accepted_needed,
    evidence_against,
    fixed_sequence,
    p_values,
    strongest_evidence,
    upper_bound,
)

DELTA, CONFIDENCE = 0.05, 0.9
FAMILIES = 4
TOLD = np.array([1.0, 0.6, 0.2, 0.9])  # how much of the true distance each discrepancy shows, beside noise of 1
POPULATION = 20_000  # cases that the true risk of a rule is taken over
GRID = np.array([0.5, 0.7, 0.85, 0.95, 1.0])  # quantiles of each threshold for the search that is not valid
Rule = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Cases:
    """Requests with the donor that was judged for each.

    Args:
        distances: [n, 4] discrepancies; risk: [n] true probability of an unsafe result; unsafe: [n] bool.
        cluster: [n] int.
    """

    distances: np.ndarray
    risk: np.ndarray
    unsafe: np.ndarray
    cluster: np.ndarray

    def of(self, where: np.ndarray) -> Cases:
        return Cases(self.distances[where], self.risk[where], self.unsafe[where], self.cluster[where])


@dataclass(frozen=True)
class World:
    """Where cases come from.

    Args:
        donors: stored requests for each target, of which the one that seems nearest is judged.
        blind: share of targets whose discrepancies tell nothing, such as changes that show late; their risk is high.
        alike: pairs per cluster; they share their fate.
        lowest, highest: risk of near and of far pairs; equal for a world in which discrepancies tell nothing.
    """

    donors: int = 1
    blind: float = 0.0
    alike: int = 1
    lowest: float = 0.01
    highest: float = 0.6

    def draw(self, clusters: int, random: np.random.Generator, nearest: bool = True) -> Cases:
        """Cases of so many independent clusters.

        Args:
            nearest: judge the donor that seems nearest; else any one of them.
        """
        cluster = np.repeat(np.arange(clusters), self.alike)
        count = len(cluster)
        own = random.normal(size=(count, self.donors))
        # Most of a distance is the target's: an odd request is far from every donor. A blind one looks like anything.
        hidden = random.random(count) < self.blind
        distance = np.where(hidden[:, None], own, 0.9 * random.normal(size=clusters)[cluster, None] + 0.4 * own)
        seems = distance + 0.3 * random.normal(size=distance.shape)  # predicted work follows the distance
        taken = seems.argmin(axis=1) if nearest else np.zeros(count, int)
        far = distance[np.arange(count), taken]
        logs = TOLD * far[:, None] + random.normal(size=(count, FAMILIES))
        steep = 1 / (1 + np.exp(-3.0 * (far - 1.0)))
        risk = self.lowest + (self.highest - self.lowest) * np.where(hidden, BLIND_RISK, steep)
        fate = random.random(clusters)[cluster]
        return Cases(np.exp(logs - 3.0), risk, fate < risk, cluster)


BLIND_RISK = 0.9  # of the way from the lowest to the highest
FLAT = {"lowest": 0.0501, "highest": 0.0501}
WORLDS = {
    "risk just above 5 % everywhere": World(**FLAT),
    "risk grows with distance": World(),
    "some changes cannot be seen": World(blind=0.04),
    "nearest of 10 donors": World(donors=10, blind=0.04),
    "clusters of 4, just above 5 %": World(alike=4, **FLAT),
}


# -- procedures ----------------------------------------------------------------------------------------------------


def certified(development: Cases, tested: Cases) -> Rule | None:
    """What a certificate accepts, by the code that makes them; None if there is none."""
    score = Score.fit(development.distances, development.unsafe)
    inside = tested.of(score.guarded(tested.distances))
    found = fixed_sequence(score.of(inside.distances), inside.unsafe, DELTA, CONFIDENCE).loosest
    if found is None:
        return None
    return lambda distances: score.guarded(distances) & (score.of(distances) < found.limit)


def searched(development: Cases, tested: Cases) -> Rule | None:
    """Not valid: the four thresholds of a grid that accept most, among those whose bound on the same data holds."""
    distances = np.concatenate([development.distances, tested.distances])
    unsafe = np.concatenate([development.unsafe, tested.unsafe])
    limits = np.quantile(distances, GRID, axis=0)  # [g, 4]
    below = [distances[None, :, f] <= limits[:, f, None] for f in range(FAMILIES)]  # each [g, n]
    taken = below[0][:, None, None, None] & below[1][None, :, None, None] & below[2][None, None, :, None] & below[3]
    accepted = taken.sum(axis=-1)
    passes = p_values((taken & unsafe).sum(axis=-1), accepted, DELTA) <= 1 - CONFIDENCE
    if not passes.any():
        return None
    best = np.unravel_index(np.where(passes, accepted, -1).argmax(), accepted.shape)
    chosen = limits[best, np.arange(FAMILIES)]
    return lambda found: (found <= chosen).all(axis=1)


def one_of_each(cases: Cases, random: np.random.Generator) -> Cases:
    """One pair of each cluster, drawn without a look at its label."""
    order = random.permutation(len(cases.cluster))
    _, first = np.unique(cases.cluster[order], return_index=True)
    return cases.of(order[first])


@dataclass(frozen=True)
class Rates:
    """Over all repetitions: how often there is a certificate, how often a false one, and the share it accepts."""

    certified: float
    false: float
    coverage: float


def repeat(
    world: World, procedure: Callable[[Cases, Cases], Rule | None], repetitions: int, clusters: int, seed: int,
    drawn: bool = True, nearest: bool = True,
) -> Rates:  # fmt: skip
    """Run a procedure on fresh data again and again; what it accepts is judged by the world's true risk.

    Args:
        clusters: in each repetition; a quarter of them is for development.
        drawn: one pair of each cluster counts; else all.
        nearest: calibrate on the donors that will be judged; else on any.
    """
    random = np.random.default_rng(seed)
    # Of what will be asked, one request of each cluster, as the estimand says.
    everyone = one_of_each(world.draw(POPULATION, random), random)
    false, coverage = [], []
    for _ in range(repetitions):
        data = world.draw(clusters, random, nearest)
        data = one_of_each(data, random) if drawn else data
        part = data.cluster < clusters // 4
        rule = procedure(data.of(part), data.of(~part))
        accepted = None if rule is None else rule(everyone.distances)
        coverage.append(0.0 if accepted is None else float(accepted.mean()))
        false.append(bool(coverage[-1]) and float(everyone.risk[accepted].mean()) > DELTA)
    certificates = np.array(coverage) > 0
    mean = float(np.array(coverage)[certificates].mean()) if certificates.any() else 0.0
    return Rates(float(certificates.mean()), float(np.mean(false)), mean)


def validity(repetitions: int = 500, clusters: int = 400, seed: int = 0) -> dict[tuple[str, str], Rates]:
    """Rates by world and procedure."""
    found = {}
    for name, world in WORLDS.items():
        found[name, "certificate"] = repeat(world, certified, repetitions, clusters, seed)
        found[name, "thresholds searched"] = repeat(world, searched, repetitions, clusters, seed)
    name = "nearest of 10 donors"
    found[name, "calibrated on any donor"] = repeat(WORLDS[name], certified, repetitions, clusters, seed, nearest=False)
    name = "clusters of 4, just above 5 %"
    found[name, "every pair counted"] = repeat(WORLDS[name], certified, repetitions, clusters // 4, seed, drawn=False)
    return found


def most_that_may_be_false(repetitions: int) -> float:
    """Three standard errors above what the confidence allows."""
    allowed = 1 - CONFIDENCE
    return allowed + 3 * math.sqrt(allowed * CONFIDENCE / repetitions)


# -- power and lapse -----------------------------------------------------------------------------------------------

RISKS = (0.005, 0.01, 0.02, 0.03)
ACCEPTED = (45, 77, 116, 158, 231, 463, 926)


def power(accepted: int, risk: float) -> float:
    """Exact probability that so many accepted pairs of this true risk certify delta."""
    allowed = max((u for u in range(accepted) if upper_bound(u, accepted, CONFIDENCE) <= DELTA), default=-1)
    return float(p_values(np.array([allowed]), np.array([accepted]), risk)[0]) if allowed >= 0 else 0.0


def lapses(risk: float, audits: int, audited: float, repetitions: int, seed: int = 0) -> tuple[float, float]:
    """Share of certificates that lapse within so many verdicts, and the median of the verdicts it takes (audits only).

    Args:
        audited: share of the verdicts that are audits; the others are volunteered.
    """
    random = np.random.default_rng(seed)
    unsafe, audit = random.random((repetitions, audits)) < risk, random.random((repetitions, audits)) < audited
    lapsed = [
        strongest_evidence(list(zip(u, a, strict=True)), DELTA) >= LAPSE_AT for u, a in zip(unsafe, audit, strict=True)
    ]
    reached = [evidence_against(u, DELTA) >= LAPSE_AT for u in unsafe]
    needed = [int(r.argmax()) + 1 if r.any() else math.inf for r in reached]
    return float(np.mean(lapsed)), float(np.median(needed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--clusters", type=int, default=400)
    options = parser.parse_args()
    print(
        f"{options.repetitions} repetitions of {options.clusters} clusters; at most {1 - CONFIDENCE:.0%} may be false\n"
    )
    print("| world | procedure | certified | false | coverage |\n|---|---|---|---|---|")
    for (world, procedure), rates in validity(options.repetitions, options.clusters).items():
        shares = " | ".join(f"{value:.1%}" for value in (rates.certified, rates.false, rates.coverage))
        print(f"| {world} | {procedure} | {shares} |")
    print("\nProbability of a certificate by accepted pairs and true risk\n")
    print("| accepted | " + " | ".join(f"{risk:.1%}" for risk in RISKS) + " |\n|" + "---|" * (len(RISKS) + 1))
    for accepted in ACCEPTED:
        print(f"| {accepted} | " + " | ".join(f"{power(accepted, risk):.0%}" for risk in RISKS) + " |")
    print(f"\n{accepted_needed(0, DELTA, CONFIDENCE)} accepted pairs are needed without an unsafe one.\n")
    print("| true risk | lapsed within 400 audits | of 400 verdicts, a third audits | median audits until then |")
    print("|---|---|---|---|")
    for risk in (0.02, 0.05, 0.1, 0.15, 0.25):
        (audits, median), (mixed, _) = (lapses(risk, 400, share, options.repetitions) for share in (1.0, 1 / 3))
        print(f"| {risk:.0%} | {audits:.1%} | {mixed:.1%} | {median:g} |")


if __name__ == "__main__":
    main()

"""The scale of a model nobody calibrated: how far apart its unrelated requests are.

Discrepancies have no natural unit: what is a large distance in one model is a small one in another. So thresholds are
kept as they suit a reference model, and for another model each is multiplied by the ratio of the two models' medians
over unrelated pairs of stored requests, or of short probes of unlike prompts (teaching.py) while too few are stored.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch

from .evidence import token_difference
from .identity import HardKey, digest
from .options import GateOptions
from .reasons import Code, Reason
from .signature import FAMILIES, EarlySignature, discrepancies
from .store.entry import EntryInfo
from .store.tensor_file import EntryError

if TYPE_CHECKING:
    from .store.folder import Store

log = logging.getLogger("carnator")

PAIRS_NEEDED = 8
MAX_PAIRS = 16
NEWEST = 24  # entries looked at: a bound for stores of thousands
SAME_TEXT = 0.9999  # cosine above which two texts are one
PAIRS_PER_ENTRY = 4  # five entries give ten pairs, and one odd entry cannot be in most of them
# Fields that make another composition. A later stage has no noise of its own; there it is the input latent.
COMPOSITION_FIELDS = {"seed", "input latent"}
# Requests that differ in these fields alone are requests to one model in one setting.
FREE_FIELDS = COMPOSITION_FIELDS | {"negative prompt"}


@dataclass(frozen=True)
class Scale:
    """Distances between two requests, or their medians over pairs; None where a family is absent.

    Args:
        representation, residual, dynamics, state: the four discrepancies, over all tokens.
        region: median over tokens of the difference of conditional x0, in latent units.
    """

    representation: float
    residual: float | None
    dynamics: float | None
    state: float
    region: float


# Medians of the demo model over 1,005 such pairs of 48 requests of the stream tune (16 scenes, three seeds), the model
# and stream that the default thresholds were read off. Pairs of one seed and pairs of two differ little: 0.16 and 0.21
# for the representation, 5 to 10 % for the others. One text with two seeds would not do: 0.07.
REFERENCE = Scale(representation=0.20, residual=0.97, dynamics=1.5, state=0.70, region=0.50)

# What is used of a scale that rests on six requests only, a run and five short probes. On the demo model (euler; a
# request of the stream tune and five of the demo grammar, 5,000 draws of 68) such a scale lies between these shares of
# that of 1,770 pairs, from the 5 % to the 95 % quantile: representation 0.81 to 1.40, residual 0.92 to 1.08, dynamics
# 0.71 to 1.44, state 0.79 to 1.30, region 0.76 to 1.42; uni_pc and another CFG give the same picture. With this share
# at most 5 % of the draws have a threshold more than 15 % too high, against 18 to 31 % without. It costs a sixth of the
# hits (of 115 on the stream report 95 stay within 0.8 of the thresholds). Nine probes would err half as much
# (representation 0.89 to 1.22, state 0.85 to 1.22), but take nearly as long as a run.
TAUGHT_SHARE = 0.8


@dataclass(frozen=True)
class Thresholds:
    """What one request is judged by: the gate's thresholds and tau of the evidence region (before its rise)."""

    gate: GateOptions
    region: float

    def times(self, scale: Scale, share: float = 1.0) -> Thresholds:
        """For a model of this scale, or a share of that."""

        def ratio(family: str) -> float:
            mine, reference = getattr(scale, family), getattr(REFERENCE, family)
            return share if mine is None else share * mine / reference

        return Thresholds(self.gate.scaled({name: ratio(name) for name in FAMILIES}), self.region * ratio("region"))


def distance(a: EarlySignature, b: EarlySignature, patch: tuple[int, int, int]) -> Scale:
    """Distances of two requests over all their tokens. Raises EntryError if they have other families or shapes."""
    if {n: t.shape for n, t in a.tensors().items()} != {n: t.shape for n, t in b.tensors().items()}:
        raise EntryError("signatures have different families or shapes")
    difference = token_difference(a.state, b.state, patch)
    found = discrepancies(a, b, torch.ones_like(difference, dtype=torch.bool))
    return Scale(**found.as_dict(), region=float(difference.median()))


def medians(distances: list[Scale]) -> Scale:
    """Median of each distance over the pairs that have it."""

    def middle(name: str) -> float | None:
        present = [value for value in (getattr(d, name) for d in distances) if value is not None]
        return median(present) if present else None

    return Scale(**{f.name: middle(f.name) for f in dataclasses.fields(Scale)})


def unrelated_pairs(
    texts: list[tuple[EntryInfo, torch.Tensor]], key: HardKey, min_similarity: float
) -> list[tuple[str, str]]:
    """Up to 16 pairs of ids of unrelated requests to the model and setting of ``key``.

    Two requests are unrelated if their texts are too different for recall, or if seed (in a later stage the input
    latent) and text both differ: another seed is another composition. Which pairs are taken depends on the entries
    alone, not on their order, and no entry is in more than four.

    Args:
        texts: stored requests with their text embeddings [D].
    """
    alike = [(info, text) for info, text in texts if set(info.key.differs_in(key)) <= FREE_FIELDS]
    newest = sorted(alike, key=lambda item: (-item[0].created, item[0].id))[:NEWEST]
    pairs = []
    for (a, a_text), (b, b_text) in itertools.combinations(sorted(newest, key=lambda item: item[0].id), 2):
        if a_text.shape != b_text.shape:
            continue
        similarity = float(a_text @ b_text)
        elsewhere = bool(COMPOSITION_FIELDS & set(a.key.differs_in(b.key)))
        if similarity < min(min_similarity, SAME_TEXT) or (elsewhere and similarity < SAME_TEXT):
            pairs.append((a.id, b.id))
    used: Counter[str] = Counter()
    taken = []
    for pair in sorted(pairs, key=digest):
        if len(taken) < MAX_PAIRS and all(used[entry] < PAIRS_PER_ENTRY for entry in pair):
            used.update(pair)
            taken.append(pair)
    return taken


def seen_distances(store: Store, key: HardKey, patch: tuple[int, int, int], min_similarity: float) -> list[Scale]:
    """Distances of the unrelated pairs that a store holds; the store remembers what was read once."""
    found = []
    for pair in unrelated_pairs(store.texts(), key, min_similarity):
        try:
            if pair not in store.pair_distances:
                store.pair_distances[pair] = distance(*map(store.signature, pair), patch)
            found.append(store.pair_distances[pair])
        except EntryError as error:
            log.debug("pair %s left out of the scale: %s", pair, error)
    return found


def setting_of(key: HardKey) -> str:
    """Name of the model and setting of a request: what its scale holds for."""
    return digest([field for field in key.fields if field[0] not in FREE_FIELDS])


def pairs_known(store: Store, key: HardKey, min_similarity: float) -> int:
    """Of how many pairs the distances are known that the scale of ``key`` can be read off."""
    stored = len(unrelated_pairs(store.texts(), key, min_similarity))
    if stored >= PAIRS_NEEDED:
        return stored
    return len(store.scales.read(setting_of(key)) or ()) or stored


def on_own_scale(
    limits: Thresholds, store: Store, key: HardKey, patch: tuple[int, int, int], min_similarity: float
) -> tuple[Thresholds, Reason | None]:
    """The thresholds for the model of ``key``; as they were, with a reason, while its scale is not known."""
    try:
        found = seen_distances(store, key, patch, min_similarity)
    except OSError as error:  # the store went away in mid-run: no reason to lose the run
        return limits, Reason.of(Code.NO_STORE, detail=error.strerror or str(error))
    if len(found) < PAIRS_NEEDED:
        taught = store.scales.read(setting_of(key))
        if taught is not None:
            return limits.times(medians(taught), TAUGHT_SHARE), None
        return limits, Reason.of(Code.LEARNING, known=len(found), needed=PAIRS_NEEDED)
    return limits.times(medians(found)), None

"""What a certificate is bound to: every setting that can change the pixels of a hit, by name.

Two requests of equal settings are reused by the same rules and in the same way, so that what was found out about the
hits of some says something about the hits of others. The thresholds of the gate are not among them: which of the
candidates pass is what a certificate decides.
"""

from __future__ import annotations

import dataclasses

from . import evidence, gate, plan, tiles
from .identity import digest
from .options import Options, ProbeOptions, ReuseOptions
from .request import Request
from .scale import FREE_FIELDS, Thresholds
from .store.tensor_file import SCHEMA

# Raise it with every change to the code that changes the pixels of a hit. Constants count by themselves.
METHOD_VERSION = 1
METHOD_CONSTANTS = (
    plan.CHECK_SIGMAS, plan.MASS_SIGMAS, plan.WHOLE_SIGMA, plan.FINAL_SIGMA,
    evidence.EARLY_SIGMA, evidence.LATE_SIGMA, evidence.LATE_RISE, evidence.ROW_BUCKETS,
    gate.NEAR_EMPTY_SHARE, tiles.ENOUGH_BLOCKS,
)  # fmt: skip

# Options without an influence on what a hit looks like, each with the reason.
LEFT_OUT = {
    "assist": "an assist is no hit",
    "donor": "whether a donor was pinned is the field 'donor choice'; which one it was is what the gate judges",
}

# How the donor came to be the one that was judged. Which donors come through depends on it: the nearest of many is a
# selection, and a donor that was chosen by hand is none.
LEAST_WORK, LEAST_WORK_ACCEPTED, PINNED = "least work", "least work of those accepted", "pinned"
# In place of how it attends: a run that did not reuse all that was planned is no example of the plan.
ENDED_EARLY = "reuse ended early"


def settings_of(
    request: Request, options: Options, limits: Thresholds, attention: str, choice: str, donors: int
) -> dict[str, str]:
    """Named settings, each a short plain value or a digest.

    Args:
        limits: what the request is judged by; of it the region's threshold and the near-empty rule, to 2 digits.
        attention: how self-attention of reuse steps is computed, see ``attention.Attending``, or ``ENDED_EARLY``.
        choice: one of the three above.
        donors: stored requests that recall chose among.
    """
    found = {name: value for name, value in request.key.fields if name not in FREE_FIELDS}
    for group in (options.probe, options.reuse):
        found |= {f.name.replace("_", " "): str(getattr(group, f.name)) for f in bound_fields(type(group))}
    return found | {
        "effective region threshold": f"{limits.region:.2g}",
        "near-empty threshold": f"{limits.gate.near_empty_representation:.2g}",
        "attention used": attention,
        "donor choice": choice,
        "store size": size_class(donors),
        "store schema": str(SCHEMA),
        "method": digest(METHOD_VERSION, METHOD_CONSTANTS)[:12],
    }


def bound_fields(group: type[ProbeOptions] | type[ReuseOptions]) -> list[dataclasses.Field]:
    """The options of a group that are settings."""
    return [f for f in dataclasses.fields(group) if f.name not in LEFT_OUT]


def size_class(donors: int) -> str:
    """How many stored requests recall chose among, by powers of ten: the more, the nearer the nearest one is."""
    low = 10 ** (len(str(donors)) - 1) if donors else 0
    return f"{low} to {10 * low - 1}" if low else "0"


def plan_hash(settings: dict[str, str]) -> str:
    """Hex digest of all settings."""
    return digest(settings)


def differing(mine: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Names of the settings in which two differ, in alphabetical order."""
    return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))

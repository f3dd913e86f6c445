"""The compatibility gate: a donor passes only if every discrepancy is at or below its threshold."""

from __future__ import annotations

import dataclasses

from .options import GateOptions
from .signature import FAMILIES, Discrepancies

NEAR_EMPTY_SHARE = 0.05

# What holds where a certificate was asked for and none speaks of the request: half of each default. On the demo world's
# stream *report* that kept 42 (euler) and 38 (uni_pc) of 181 requests with no other limit, of which 0 and 1 lost
# something; the full defaults kept 105 and 86, of which 0 and 4 did.
STRICT_SHARE = 0.5
STRICT = GateOptions().scaled(dict.fromkeys(FAMILIES, STRICT_SHARE))


def thresholds_for(share: float, options: GateOptions) -> GateOptions:
    """The thresholds that hold for a region of this share of the tokens: stricter where it is near-empty."""
    if share >= NEAR_EMPTY_SHARE:
        return options
    strict = min(options.representation, options.near_empty_representation)
    return dataclasses.replace(options, representation=strict)


def exceeded(found: Discrepancies, thresholds: GateOptions) -> list[str]:
    """Names of the families above their threshold; empty means accepted.

    A NaN never passes: it compares as exceeding.
    """
    failing = []
    for family in FAMILIES:
        value = getattr(found, family)
        if value is not None and not value <= getattr(thresholds, family):
            failing.append(family)
    return failing


def explain(found: Discrepancies, thresholds: GateOptions) -> str:
    """For example ``state (0.31 > 0.25), residual (0.62 > 0.50)``."""
    return ", ".join(
        f"{family} ({getattr(found, family):.3g} > {getattr(thresholds, family):.3g})"
        for family in exceeded(found, thresholds)
    )

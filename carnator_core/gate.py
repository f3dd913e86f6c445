"""The compatibility gate: a donor passes only if every discrepancy is at or below its threshold."""

from __future__ import annotations

import dataclasses

from .options import GateOptions
from .signature import FAMILIES, Discrepancies

NEAR_EMPTY_SHARE = 0.05


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

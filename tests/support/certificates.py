"""Labelled pairs and certificates for tests, made from a known world."""

from __future__ import annotations

from typing import Any

import numpy as np

from carnator_core.certificate import Certificate
from carnator_core.certify import LabelledPair, certify
from carnator_core.options import GateOptions, Options
from carnator_core.scale import Thresholds
from carnator_core.settings import LEAST_WORK, settings_of
from carnator_core.signature import FAMILIES, Discrepancies
from support.fake_host import FakeHost

PROMPT_WIDTH = 8


def some_settings(**changes: str) -> dict[str, str]:
    """Of a request of the fake host with default options; keyword names have _ for spaces."""
    import torch

    options = Options()
    limits = Thresholds(GateOptions(), options.reuse.region_threshold)
    found = settings_of(FakeHost().request(torch.ones(PROMPT_WIDTH)), options, limits, "dense", LEAST_WORK, 3)
    return {**found, **{name.replace("_", " "): value for name, value in changes.items()}}


def some_pairs(count: int = 100, unsafe: int = 0, seed: int = 0, **changes: Any) -> list[LabelledPair]:
    """Independent pairs, of which the ``unsafe`` ones are those farthest from their donors."""
    random = np.random.default_rng(seed)
    distances = np.exp(random.normal(-4.0, 0.7, (count, len(FAMILIES))))
    bad = set(np.argsort(np.log(distances).sum(axis=1))[count - unsafe :].tolist())
    return [
        LabelledPair(
            **{
                "discrepancies": Discrepancies(*map(float, distances[i])),
                "unsafe": i in bad,
                "target": f"t{i}",
                "donor": f"d{i}",
                "kind": ("colour", "size")[i % 2],
                "share": 0.3,
                **changes,
            }
        )
        for i in range(count)
    ]


def a_certificate(settings: dict[str, str] | None = None, count: int = 100, **changes: Any) -> Certificate:
    """One that is certified on pairs that some gate let through."""
    return certify(some_pairs(count, **{"accepted_by": {}, **changes}), settings or some_settings())

"""What a CARNATOR_REPORT link carries: a handle that is filled when a run ends.

A node that samples hands it on filled; a node that only prepares a MODEL hands it on empty, and the sampler that runs
later fills it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .reasons import Decision


@dataclass(frozen=True)
class Outcome:
    """What one sampling left for the nodes that show it.

    Args:
        report: ``Report.to_dict()``; JSON data.
        status: one line of text.
        mask: [T, H, W] float32 in 0..1 at latent size; after anything but a hit [1, H, W], all ones.
        picture: [1, h, w, 3] float32 in 0..1 after a hit, else None.
    """

    report: dict[str, Any]
    status: str
    mask: torch.Tensor
    picture: torch.Tensor | None


class ReportHandle:
    """The last outcome of a node and how many samplings it has seen. Compared and cached by identity."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.samplings = 0

    def fill(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.samplings += 1

    @property
    def entry_id(self) -> str:
        """The stored request behind the last outcome: its own entry, after a hit its donor; empty if there is none."""
        if self.outcome is None:
            return ""
        report = self.outcome.report
        reused = report["donor"] if report["decision"] == Decision.HIT.value else None
        return report["entry_id"] or (reused or {}).get("id", "")

"""The ablation: what each part of a hit gives and costs, all set through the widgets of the shipped nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .stream_run import Outcome, StreamRequest, StreamRunner

# The widgets' largest values: no distance reaches them.
OPEN_GATE = {
    "representation": 2.0,
    "residual": 2.0,
    "dynamics": 10.0,
    "state": 10.0,
    "near_empty_representation": 2.0,
}
ANY_REGION = {"max_region_percent": 100}
DEFAULT, ANY_DONOR, TEXT_ALONE = "default", "gate and region limit off", "text similarity alone"

# Chosen on *tune*: text alone then accepts as many requests as the default settings (controls.TUNING).
TEXT_SIMILARITY = 0.8965


@dataclass(frozen=True)
class Ours:
    """The shipped workflow with the widgets of some nodes changed, and a store of its own."""

    name: str
    gate: dict[str, float] = field(default_factory=dict)
    reuse: dict[str, Any] = field(default_factory=dict)
    probe: dict[str, Any] = field(default_factory=dict)

    def run(self, runner: StreamRunner, request: StreamRequest) -> Outcome:
        store = {"name": re.sub(r"\W+", "-", self.name), "mode": "read+write"}
        return runner.ours(request, store, self.gate, self.reuse, self.probe)


def window(blocks: int) -> dict[str, int]:
    """Widgets of a layer window of so many of 30 blocks, around the middle of the default one (blocks 6-25)."""
    first, stop = (31 - blocks) / 2, (31 + blocks) / 2
    return {"window_start_percent": round(first / 30 * 100), "window_end_percent": round(stop / 30 * 100)}


# One line for each switch of a hit; a new part of it (sparse attention) adds its own.
ABLATION = (
    Ours(DEFAULT),
    Ours("no layer window", reuse={"window_start_percent": 0, "window_end_percent": 0}),
    *(Ours(f"layer window {blocks} of 30", reuse=window(blocks)) for blocks in (5, 11, 15, 20, 25)),
    # The default is 2.
    *(Ours(f"guidance interval {interval}", reuse={"guidance_interval": interval}) for interval in (1, 3, 4)),
    # The default is 5; at least one step is refined, two with a multistep sampler.
    *(Ours(f"refine {percent} %", reuse={"refine_percent": percent}) for percent in (0, 10)),
    Ours("near-empty rule off", gate={"near_empty_representation": 2.0}),
    Ours("gate off", gate=OPEN_GATE),
    # The early states refuse nobody: what is left is recall, and a region of any size.
    Ours(ANY_DONOR, gate=OPEN_GATE, reuse=ANY_REGION),
    Ours(TEXT_ALONE, gate=OPEN_GATE, reuse=ANY_REGION, probe={"min_text_similarity": TEXT_SIMILARITY}),
)
QUICK = (DEFAULT, "no layer window", "guidance interval 1", ANY_DONOR, TEXT_ALONE)

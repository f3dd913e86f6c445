"""The ablation: what each part of a hit gives and costs, all set through the widgets of the shipped nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from carnator_core.options import ReuseOptions
from scripts.graphs import SAVED_LATENT

from . import random_masks
from .stream_run import Outcome, StreamRequest, StreamRunner

# The widgets' largest values: no distance reaches them.
OPEN_GATE = {
    "representation": 2.0,
    "residual": 2.0,
    "dynamics": 10.0,
    "state": 10.0,
    "near_empty_representation": 2.0,
}
# Accepts nothing but the same states.
CLOSED_GATE = dict.fromkeys(OPEN_GATE, 0.0)
ANY_REGION = {"max_region_percent": 100}
DEFAULT, ANY_DONOR, TEXT_ALONE = "default", "gate and region limit off", "text similarity alone"

# Chosen on *tune*: text alone then accepts as many requests as the default settings (controls.TUNING).
TEXT_SIMILARITY = 0.8965


@dataclass(frozen=True)
class Ours:
    """The shipped workflow with the widgets of some nodes changed, and a store of its own."""

    name: str
    reuse: dict[str, Any] = field(default_factory=dict)
    gate: dict[str, float] = field(default_factory=dict)
    probe: dict[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> dict[str, Any]:
        return {"name": re.sub(r"\W+", "-", self.name), "mode": "read+write"}

    def run(self, runner: StreamRunner, request: StreamRequest) -> Outcome:
        return runner.ours(request, self.store, self.gate, self.reuse, self.probe)


@dataclass(frozen=True)
class RandomMasks(Ours):
    """The same with connectivity drawn at random, as much of it as the widgets ask for."""

    def run(self, runner: StreamRunner, request: StreamRequest) -> Outcome:
        graph = runner.ours_graph(request, self.store, self.gate, self.reuse, self.probe)
        sampler, latent = graph[runner.graphs.sampler]["inputs"], graph[SAVED_LATENT]["inputs"]
        for node, of, name in ((random_masks.ARM, sampler, "model"), (random_masks.DISARM, latent, "samples")):
            graph[node] = {"class_type": node, "inputs": {random_masks.INPUTS[node]: of[name]}}
            of[name] = [node, 0]
        return runner.run(graph)


def window(blocks: int) -> dict[str, int]:
    """Widgets of a layer window of so many of 30 blocks, around the middle of the default one (blocks 6-25)."""
    first, stop = (31 - blocks) / 2, (31 + blocks) / 2
    return {"window_start_percent": round(first / 30 * 100), "window_end_percent": round(stop / 30 * 100)}


def _values(text: str, widget: str, values: Iterable[Any]) -> list[Ours]:
    """One variant for each value that is not the default."""
    default = getattr(ReuseOptions(), widget)
    return [Ours(text.format(value), {widget: value}) for value in values if value != default]


def _masks() -> list[Ours]:
    """Whose connectivity and how much of it, beside ``JOINT``. Random masks are the consensus' in number only."""
    found: list[Ours] = []
    for percent in (50, 25):
        widgets = {"attention_block": 8, "attention_percent": percent}
        name = f"masks {percent} %"
        sources = ("consensus", "donor") if percent != ReuseOptions().attention_percent else ("donor",)
        found += [Ours(f"{source} {name}", {"attention": source, **widgets}) for source in sources]
        found.append(RandomMasks(f"random {name}", {"attention": "consensus", **widgets}))
    mass = {"attention_rule": "mass", "attention_percent": 90, "attention_block": 8}
    found += [Ours(f"{source} masks, mass 90 %", {"attention": source, **mass})
              for source in ("consensus", "donor")]  # fmt: skip
    return found


LATENT_ONLY, ATTENTION_ONLY, JOINT = "latent only", "attention only", "joint"
NO_WINDOW, GATE_OFF = "no layer window", "gate off"

# One line for each switch of a hit; a new part of it adds its own.
ABLATION = (
    Ours(DEFAULT),
    # Connectivity. No donor is accepted where only attention is reused: what is left needs none.
    Ours(LATENT_ONLY, {"attention": "dense"}),
    Ours(
        ATTENTION_ONLY,
        {
            "assist": True,
            "attention": "consensus",
            "attention_block": 8,
            "guidance_interval": 1,
            "hold_threshold": 0.0,
            "max_region_percent": 0,
        },  # fmt: skip
        gate=CLOSED_GATE,
    ),
    # In blocks of 8, of which the demo video has 160; of 64 it has 20, too few to leave any out.
    Ours(JOINT, {"attention": "consensus", "attention_block": 8}),
    *_masks(),
    # Layers outside the region.
    Ours(NO_WINDOW, {"window_start_percent": 0, "window_end_percent": 0}),
    *(Ours(f"layer window {blocks} of 30", window(blocks)) for blocks in (5, 11, 15, 20, 25)),
    *_values("window residual {}", "window_residual", ("shared", "per layer", "none")),
    # Guidance and steps.
    *_values("guidance interval {}", "guidance_interval", (1, 2, 3, 4)),
    *_values("guidance fresh from sigma {:g}", "guidance_fresh_sigma", (1.0, 0.9, 0.8)),
    *_values("guidance ends at {:g} %", "guidance_end_percent", (60.0, 80.0, 100.0)),
    *_values("hold {:g}", "hold_threshold", (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)),
    # At least one step is refined, two with a multistep sampler.
    *_values("refine {:g} %", "refine_percent", (0.0, 5.0, 10.0)),
    *_values("assist", "assist", (True,)),
    # Gate.
    Ours("near-empty rule off", gate={"near_empty_representation": 2.0}),
    Ours(GATE_OFF, gate=OPEN_GATE),
    # The early states refuse nobody: what is left is recall, and a region of any size.
    Ours(ANY_DONOR, ANY_REGION, OPEN_GATE),
    Ours(TEXT_ALONE, ANY_REGION, OPEN_GATE, {"min_text_similarity": TEXT_SIMILARITY}),
)
QUICK = (DEFAULT, NO_WINDOW, "guidance interval 1", ANY_DONOR, TEXT_ALONE)

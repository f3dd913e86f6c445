"""What is computed at each step, and what it is predicted to cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from .options import ReuseOptions

# Where one conditional forward over all tokens re-estimates the region. What a prompt changes becomes visible at
# different noise levels: layout first, moved and resized objects next, particles and texture last.
CHECK_SIGMAS = (0.96, 0.94, 0.90, 0.82)
# At and above this noise level layout and shapes are decided; guidance is not reused there.
FRESH_GUIDANCE_SIGMA = 0.9
FINAL_SIGMA = 0.001  # counts as 0: uni_pc writes it in place of 0


@dataclass(frozen=True)
class ModelShape:
    """All the core knows of a host's model and of one request's latent.

    Args:
        latent: (C, T, H, W) of the latent in model space.
        patch: latent cells per token along (T, H, W).
        depth, dim, ffn_dim: blocks of the DiT, hidden width, feed-forward width.
        context_tokens: text tokens seen by cross-attention.
    """

    latent: tuple[int, int, int, int]
    patch: tuple[int, int, int]
    depth: int
    dim: int
    ffn_dim: int
    context_tokens: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Token grid (T', h, w), rounded up as the model pads it."""
        return tuple(math.ceil(side / step) for side, step in zip(self.latent[1:], self.patch, strict=False))

    @property
    def tokens(self) -> int:
        return math.prod(self.grid)

    @property
    def middle_block(self) -> int:
        """Block whose output is the signature's representation: after half of the depth."""
        return (self.depth - 1) // 2


@dataclass(frozen=True)
class LayerWindow:
    """Blocks [first, stop) in which only region tokens are updated; empty if first == stop."""

    first: int
    stop: int

    @classmethod
    def of(cls, options: ReuseOptions, depth: int) -> LayerWindow:
        first = round(options.window_start_percent / 100 * depth)
        stop = round(options.window_end_percent / 100 * depth)
        return cls(min(first, depth), min(stop, depth))

    @property
    def blocks(self) -> range:
        return range(self.first, self.stop)


class StepKind(str, Enum):
    DENSE = "dense"
    CHECK = "check"
    REGION = "region"
    REPLAY = "replay"


@dataclass(frozen=True)
class StepPlan:
    """One model evaluation, as the core orders it from the host.

    Args:
        kind: dense (all tokens, stock), check (conditional branch over all tokens), region (region rows only inside
            the layer window), replay (no evaluation).
        run_uncond: whether the unconditional branch runs; else the core fills it.
        capture_hidden: hand the middle block's conditional output to the session.
        record_window: keep what the layer window adds to the hidden states, for later region steps.
    """

    kind: StepKind
    run_uncond: bool = True
    capture_hidden: bool = False
    record_window: bool = False

    @property
    def captures(self) -> bool:
        """Whether carrying out this step takes memory of our own."""
        return self.capture_hidden or self.record_window


@dataclass(frozen=True)
class Schedule:
    """Probe [0, probe_end), reuse [probe_end, refine_start), refine [refine_start, steps).

    Any strictly falling part of a schedule, such as one of two stages. Only the part that ends at 0 is refined.
    """

    sigmas: tuple[float, ...]
    probe_end: int
    refine_start: int
    checks: tuple[int, ...]

    @property
    def steps(self) -> int:
        return len(self.sigmas) - 1

    @property
    def reuse_steps(self) -> range:
        return range(self.probe_end, self.refine_start)

    def keeps_guidance_fresh(self, step: int) -> bool:
        """Whether the unconditional branch runs in this region step whatever the guidance interval."""
        return self.sigmas[step] >= FRESH_GUIDANCE_SIGMA

    @classmethod
    def of(
        cls, sigmas: tuple[float, ...], probe_percent: float, refine_percent: float, multistep: bool
    ) -> Schedule | None:
        """Split N steps (N + 1 sigmas); None if fewer than two reuse steps would remain.

        Multistep samplers refine for at least two steps: the first one passes only part of a correction.
        """
        steps = len(sigmas) - 1
        probe = max(1, math.ceil(steps * probe_percent / 100))
        refine = 0
        if sigmas[-1] <= FINAL_SIGMA:
            refine = max(2 if multistep else 1, math.ceil(steps * refine_percent / 100))
        if steps - probe - refine < 2:
            return None
        # The first check never coincides with the end of the probe, which has just estimated the region.
        candidates = range(probe + 1, steps - refine)
        nearest = {min(candidates, key=lambda i: abs(sigmas[i] - s)) for s in CHECK_SIGMAS} if candidates else ()
        return cls(tuple(sigmas), probe, steps - refine, tuple(sorted(nearest)))


def region_forward_cost(shape: ModelShape, window: LayerWindow, share: float) -> float:
    """Cost of one forward with region rows, relative to a forward over all tokens.

    Counts multiply-accumulates per token and block: q, k, v, o 4d²; self-attention 2Ld; cross-attention 2d² + 2Md;
    feed-forward 2df. Inside the window and in the last block every token still gives keys and values (2d²), all
    else is paid by region rows only.
    """
    d = shape.dim
    keys_values = 2 * d * d
    rest = 2 * d * d + 2 * shape.tokens * d + 2 * d * d + 2 * shape.context_tokens * d + 2 * d * shape.ffn_dim
    limited = len(set(window.blocks) | {shape.depth - 1})
    full = shape.depth - limited
    return (full * (keys_values + rest) + limited * (keys_values + share * rest)) / (shape.depth * (keys_values + rest))


def predicted_work(
    schedule: Schedule, shape: ModelShape, window: LayerWindow, share: float, interval: int, guided: bool
) -> float:
    """Share of a dense run's forwards that a hit is predicted to need (probe and refine included)."""
    branches = 2 if guided else 1
    dense_steps = schedule.steps - len(schedule.reuse_steps)
    region_forwards = 0.0
    for step in set(schedule.reuse_steps) - set(schedule.checks):
        uncond = 1.0 if schedule.keeps_guidance_fresh(step) else 1 / interval
        region_forwards += 1 + guided * uncond
    forward = region_forward_cost(shape, window, share) if share > 0 else 0.0
    work = dense_steps * branches + len(schedule.checks) + region_forwards * forward
    return work / (schedule.steps * branches)

"""What is computed at each step, and what it is predicted to cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .options import ReuseOptions

# Where one conditional forward over all tokens re-estimates the region. What a prompt changes becomes visible at
# different noise levels: layout first, moved and resized objects next, particles and texture last.
CHECK_SIGMAS = (0.96, 0.94, 0.90, 0.82)
# Where a dense run measures what its blocks attend to: once among the early steps and once among the late ones.
MASS_SIGMAS = (0.9, 0.6)
WHOLE_SIGMA = 0.99  # from here on a schedule starts with pure noise
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
        if options.window_start_percent > 0:
            first = max(1, first)  # the first block is the one that must not be left out
        stop = round(options.window_end_percent / 100 * depth)
        return cls(min(first, depth), max(min(first, depth), min(stop, depth)))

    @property
    def blocks(self) -> range:
        return range(self.first, self.stop)

    def spans(self, residual: str) -> list[range]:
        """Runs of blocks of which one stale residual each is kept: see ``ReuseOptions.window_residual``."""
        if residual == "per layer":
            return [range(block, block + 1) for block in self.blocks]
        return [self.blocks] if residual == "shared" and self.blocks else []


class StepKind(str, Enum):
    DENSE = "dense"
    CHECK = "check"
    REGION = "region"
    REPLAY = "replay"
    HOLD = "hold"
    ASSIST = "assist"


@dataclass(frozen=True)
class StepPlan:
    """One step, as the core orders it from the host.

    Args:
        kind: dense (all tokens, stock), check (conditional branch over all tokens), region (region rows only inside
            the layer window), assist (all tokens), replay (no evaluation: the donor's x0), hold (no evaluation: the
            last own x0 in place of a new one).
        run_uncond: whether the unconditional branch runs; else the core fills it.
        unguided: the core fills the unconditional branch with the conditional one.
        sparse: self-attention follows the connectivity.
        capture_hidden: hand the middle block's conditional output to the session.
        capture_mass: hand the block mass of every layer's self-attention, conditional lane, to the session.
        record_window: keep what the layer window adds to the hidden states, for later region steps.
    """

    kind: StepKind
    run_uncond: bool = True
    unguided: bool = False
    sparse: bool = False
    capture_hidden: bool = False
    capture_mass: bool = False
    record_window: bool = False

    @property
    def captures(self) -> bool:
        """Whether carrying out this step takes memory of our own."""
        return self.capture_hidden or self.capture_mass or self.record_window

    @property
    def evaluates(self) -> bool:
        """Whether the model runs at all."""
        return self.kind not in (StepKind.REPLAY, StepKind.HOLD)


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

    @property
    def mass_steps(self) -> set[int]:
        """Steps of a dense run in which block mass is measured."""
        return {min(self.reuse_steps, key=lambda i: abs(self.sigmas[i] - sigma)) for sigma in MASS_SIGMAS}

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


def reuse_plans(
    schedule: Schedule, options: ReuseOptions, guided: bool, change: Sequence[float] | None, all_tokens: bool = False
) -> dict[int, StepPlan]:
    """What is computed at each reuse step, known before the first of them.

    Args:
        change: [steps] how much the guided x0 of a stored request of this schedule changed at each step, relative to
            its size; None where that is not known, and then no evaluation is left out.
        all_tokens: nothing is replayed, so that there is no region to check.
    """
    plans = {}
    moved, age = 0.0, 0
    # In a part that starts below pure noise the same changes were never measured: nothing is held there.
    hold_threshold = options.hold_threshold if schedule.sigmas[0] >= WHOLE_SIGMA else 0.0
    for step in schedule.reuse_steps:
        moved += math.inf if change is None else change[step]
        age += 1
        fresh = schedule.sigmas[step] >= options.guidance_fresh_sigma
        unguided = step >= options.guidance_end_percent / 100 * schedule.steps
        if step in schedule.checks and not all_tokens:
            plans[step] = StepPlan(StepKind.CHECK, run_uncond=False, unguided=unguided, record_window=True)
            moved = 0.0
        elif moved < hold_threshold:
            plans[step] = StepPlan(StepKind.HOLD, run_uncond=False)
        else:
            uncond = guided and not unguided and (fresh or age >= options.guidance_interval)
            kind = StepKind.ASSIST if all_tokens else StepKind.REGION
            plans[step], moved = StepPlan(kind, uncond, unguided), 0.0
            age = 0 if uncond else age
    return plans


def step_work(plan: StepPlan, shape: ModelShape, window: LayerWindow, share: float) -> float:
    """Forwards that a step needs, in units of one branch over all tokens.

    Args:
        share: of the tokens that a region step computes.
    """
    if not plan.evaluates:
        return 0.0
    forward = 1.0
    if plan.kind is StepKind.REGION:
        forward = region_forward_cost(shape, window, share) if share > 0 else 0.0
    return forward * (1 + plan.run_uncond)


class Tally:
    """What a run has evaluated so far: steps by kind, and ``work`` in forwards of one branch over all tokens."""

    def __init__(self, shape: ModelShape, window: LayerWindow, guided: bool):
        self._shape, self._window, self._branches = shape, window, 1 + guided
        self.steps: Counter[str] = Counter()
        self.work = 0.0

    def add(self, plan: StepPlan, share: float) -> None:
        self.steps[plan.kind.value] += 1
        self.work += step_work(plan, self._shape, self._window, share)

    @property
    def share(self) -> float | None:
        """Work relative to as many dense steps."""
        dense = self.steps.total() * self._branches
        return self.work / dense if dense else None


def predicted_work(
    schedule: Schedule, shape: ModelShape, window: LayerWindow, share: float, plans: dict[int, StepPlan], guided: bool
) -> float:
    """Share of a dense run's forwards that a hit is predicted to need (probe and refine included)."""
    dense = StepPlan(StepKind.DENSE, run_uncond=guided)
    steps = (plans.get(step, dense) for step in range(schedule.steps))
    work = sum(step_work(plan, shape, window, share) for plan in steps)
    return work / (schedule.steps * step_work(dense, shape, window, 1.0))

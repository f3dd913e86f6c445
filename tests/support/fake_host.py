"""A host of a few lines: an analytic denoiser and the Euler method. The core runs on it without a model.

A prompt is a vector with one number per part of the frame: the part of the clean video that it paints. The
denoiser is the exact posterior mean for videos with that mean and a fixed variance, each latent cell on its
own. So what a run must give can be said cell by cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F

from carnator_core.attention import AttentionFailed, AttentionSite, measure_mass
from carnator_core.identity import HardKey, digest, tensor_digest
from carnator_core.plan import ModelShape, Schedule, StepKind, StepPlan
from carnator_core.request import Request
from carnator_core.session import Session
from carnator_core.signature import build_signature
from carnator_core.store.entry import Entry, EntryInfo, Trajectory
from carnator_core.tiles import tile_order

PARTS = (2, 4)  # rows and columns of the frame that a prompt paints
SPREAD = 0.3  # standard deviation of videos around what the prompt says


@dataclass
class FakeHost:
    """Runs sessions and writes down what was evaluated.

    Args:
        latent: (C, T, H, W); sides may be odd.
        cfg: guidance scale; 1 means that no unconditional branch exists.
        before_step: called as before_step(session, step) before each plan, for tests that interfere.
        attention: gives the model self-attention, which has no influence on what it computes.
    """

    latent: tuple[int, int, int, int] = (4, 3, 16, 32)
    steps: int = 20
    cfg: float = 3.0
    seed: int = 0
    before_step: Callable[[Session, int], None] = lambda session, step: None
    attention: AttentionSite | None = None
    plans: list[StepPlan] = field(default_factory=list)
    evaluated: list[tuple[int, str, int]] = field(default_factory=list)  # (step, branch, tokens)

    @property
    def guided(self) -> bool:
        return self.cfg != 1.0

    def request(self, prompt: torch.Tensor, **key: str) -> Request:
        times = [1 - i / self.steps for i in range(self.steps + 1)]
        schedule = Schedule.of(tuple(8 * t / (1 + 7 * t) for t in times), 10.0, 6.0, multistep=False)
        fields = {"seed": str(self.seed), "CFG": str(self.cfg), "steps": str(self.steps), **key}
        shape = ModelShape(self.latent, (1, 2, 2), depth=4, dim=64, ffn_dim=128, context_tokens=8)
        embedding = F.normalize(prompt.float(), dim=0)
        text = tensor_digest(prompt)
        described = embedding, text, shape, schedule, self.guided, self.attention
        return Request(HardKey.of(fields), *described, seed=self.seed)

    def run(
        self,
        session: Session,
        prompt: torch.Tensor,
        seconds: float | None = 1.0,
        preview: Callable[[], bytes | None] = lambda: None,
    ) -> torch.Tensor:
        """Final latent [1, C, T, H, W]; commits unless seconds is None."""
        self.plans, self.evaluated = [], []
        x = torch.randn(1, *self.latent, generator=torch.Generator().manual_seed(self.seed))
        for step, (sigma, after) in enumerate(itertools.pairwise(session.request.schedule.sigmas)):
            self.before_step(session, step)
            plan = session.plan_step(step)
            self.plans.append(plan)
            if not plan.evaluates:
                x0 = session.standing_in(step, x)
            else:
                try:
                    x0 = self._branches(session, step, plan, x, sigma, prompt)
                except AttentionFailed as error:
                    session.attend_densely(str(error))
                    x0 = self._branches(session, step, replace(plan, sparse=False), x, sigma, prompt)
            x0 = session.finish_step(step, x0, plan.kind)
            x = x + (x - x0) * ((after - sigma) / sigma)
        if seconds is not None:
            session.commit(seconds, preview=preview)
        session.close()
        return x

    def dense(self, prompt: torch.Tensor) -> torch.Tensor:
        """What a host without the core would give."""
        x = torch.randn(1, *self.latent, generator=torch.Generator().manual_seed(self.seed))
        for sigma, after in itertools.pairwise(self.request(prompt).schedule.sigmas):
            cond = self._x0(x, sigma, prompt)
            x0 = self._guide(cond, self._x0(x, sigma, torch.zeros_like(prompt)) if self.guided else None)
            x = x + (x - x0) * ((after - sigma) / sigma)
        return x

    def _branches(self, session: Session, step: int, plan: StepPlan, x, sigma: float, prompt) -> torch.Tensor:
        def evaluate(branch: str) -> torch.Tensor:
            self._attend(session, plan, branch)
            x0 = self._x0(x, sigma, prompt if branch == "cond" else torch.zeros_like(prompt))
            limited = plan.kind is StepKind.REGION
            self.evaluated.append((step, branch, session.rows.numel() if limited else session.request.shape.tokens))
            # Outside its rows a region evaluation has no values: the core must not let any of them through.
            return x0.masked_fill(~self._cells(session.rows), math.nan) if limited else x0

        cond = evaluate("cond")
        run_uncond = plan.run_uncond
        if plan.kind is StepKind.CHECK:
            run_uncond = session.reestimate(step, cond)
        uncond = evaluate("uncond") if run_uncond else None
        if plan.kind is StepKind.DENSE or run_uncond:
            hidden = (
                F.avg_pool3d(cond, (1, 2, 2), ceil_mode=True)[0].repeat(2, 1, 1, 1) if plan.capture_hidden else None
            )
            session.observe(step, cond, uncond, hidden)
        elif self.guided:
            uncond = session.filled(step, cond)
        return self._guide(cond, uncond)

    def _attend(self, session: Session, plan: StepPlan, branch: str) -> None:
        """Self-attention of every layer on random queries and keys, as the plan wants it measured or computed."""
        site, shape = self.attention, session.request.shape
        if site is None:
            return
        random = torch.Generator().manual_seed(1)
        q, k = torch.randn(2, 1, shape.tokens, site.heads * site.head_dim, generator=random).unbind()
        for layer in range(shape.depth):
            if plan.capture_mass and branch == "cond":
                order = tile_order(shape.grid, session.block)
                session.observe_mass(layer, measure_mass(q[0], k[0], site.heads, order, session.block))
            if plan.sparse:
                limited = plan.kind is StepKind.REGION and layer in session.window.blocks
                queries = q[:, session.sparse.rows] if limited else q
                assert session.sparse.attend(layer, queries, k, k, limited).shape == queries.shape

    def _guide(self, cond: torch.Tensor, uncond: torch.Tensor | None) -> torch.Tensor:
        return cond if uncond is None else uncond + self.cfg * (cond - uncond)

    def picture(self, prompt: torch.Tensor) -> torch.Tensor:
        """The mean of the videos a prompt describes, [1, C, T, H, W]."""
        parts = prompt.float().view(1, 1, 1, *PARTS)
        return F.interpolate(parts, size=self.latent[1:], mode="nearest").expand(1, *self.latent)

    def _x0(self, x: torch.Tensor, sigma: float, prompt: torch.Tensor) -> torch.Tensor:
        mean, signal = self.picture(prompt), 1.0 - sigma
        pull = signal * SPREAD**2 / (signal**2 * SPREAD**2 + sigma**2)
        return mean + pull * (x - signal * mean)

    def _cells(self, rows: torch.Tensor) -> torch.Tensor:
        t, h, w = self.latent[1:]
        inside = torch.zeros(t, -(-h // 2), -(-w // 2), dtype=torch.bool)
        inside.view(-1)[rows] = True
        return inside.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :h, :w]


def a_donor(
    name: str = "",
    seed: int = 0,
    latent: tuple[int, ...] = (2, 2, 4, 4),
    steps: int = 4,
    checks: tuple[int, ...] = (2,),
) -> Entry:
    """Something to store: small and random, float16 values that survive a round trip exactly."""
    random = torch.Generator().manual_seed(seed)

    def volume() -> torch.Tensor:
        return torch.randn(latent, generator=random).half()

    key = HardKey.of({"CFG": "5.0", "seed": str(seed)})
    embedding = F.normalize(torch.randn(6, generator=random), dim=0)
    info = EntryInfo(name or digest(key.digest, seed), key, 1700000000.5, 12.25, None)
    signature = build_signature(torch.randn(3, 2, 2, 2, generator=random), volume(), volume(), volume())
    guided, conditional = {i: volume() for i in range(steps)}, {i: volume() for i in checks}
    trajectory = Trajectory(guided, conditional, torch.rand(steps, generator=random))
    return Entry(info, embedding, signature, trajectory)

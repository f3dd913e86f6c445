"""The life of one request: recall -> probe -> decide -> reuse, assist or dense -> commit or discard.

The host calls, for every step i of the sampler:

    plan = session.plan_step(i)
    replay, hold: x0 = session.standing_in(i, x)
    dense:   evaluate both branches, session.observe(i, cond, uncond, hidden), guide, session.finish_step(i, guided)
    check:   evaluate the conditional branch over all tokens; if session.reestimate(i, cond) also the other; then as
             for region
    region, assist: evaluate session.rows, or all tokens; session.filled(...) where the unconditional branch did not
             run, guide, session.finish_step(i, guided). If sparse attention fails: session.attend_densely(why), and
             evaluate again

and ``session.commit`` only after the whole run succeeded. Until the decision everything captured stays in host RAM.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from . import evidence
from .attention import Attending, AttentionChoice, SparseAttention, consensus_id
from .candidates import find_candidates
from .capture import Capture
from .decision import Accepted, Decider, set_aside
from .donor import Assist, Donor
from .guidance import Guidance
from .options import Options
from .plan import LayerWindow, StepKind, StepPlan, Tally, predicted_work, reuse_plans
from .reasons import Code, Decision, Reason
from .report import Report
from .request import Request
from .settings import ENDED_EARLY
from .signature import EarlySignature, build_signature
from .store.entry import Entry, EntryInfo
from .store.folder import GB, Store
from .store.read_ahead import EarlyReads
from .store.tensor_file import EntryError

log = logging.getLogger("carnator")

# A check compares with a prediction that was made with dense attention, so it attends densely itself.
SPARSE_KINDS = (StepKind.REGION, StepKind.ASSIST)


class Session:
    """One request. Not thread-safe; dropped when its run ends."""

    def __init__(self, request: Request, options: Options, store: Store):
        self.request, self.options, self._store = request, options, store
        self.window = LayerWindow.of(options.reuse, request.shape.depth)
        self.report = Report(request_id=request.entry_id)
        self._capture = Capture()
        self._donor: Donor | None = None
        self._assist: Assist | None = None
        self._previous_cond: torch.Tensor | None = None
        self._residual: torch.Tensor | None = None
        self._tally = Tally(request.shape, self.window, request.guided)
        self._give_up = False
        self.departed = False  # whether a step was not the stock one
        self.reused: EntryInfo | None = None  # the donor of which steps are in the result
        wanted = options.store.mode != "read" and not request.reused_input
        size = 2 * math.prod(request.shape.latent) * (request.schedule.steps + len(request.schedule.checks))
        self._too_large = wanted and size > options.store.budget_gb * GB  # its states would fill the memory for nothing
        self.writes = wanted and not self._too_large
        self._heat = torch.zeros(request.shape.grid)
        self.sparse: SparseAttention | None = None
        shape = request.shape.latent, request.schedule.steps, request.schedule.checks
        self._early = EarlyReads(lambda entry_id: store.trajectory(entry_id, *shape), request.schedule.reuse_steps)
        self._attention = AttentionChoice(request, options.reuse, store, self._early)
        self._decider = Decider(request, options, store, self.window, self._attention, self._early, self.report)
        self._recall()

    def _recall(self) -> None:
        report = self.report
        failure = self._store.take_failure()
        report.store_note = failure and f"the run before was {failure}"
        found = find_candidates(self.request, self.options, self._store)
        self.candidates = found.candidates
        report.reason = found.reason or report.reason
        self._decider.begin(found)

    @property
    def block(self) -> int:
        """Tokens per block of connectivity."""
        return self._attention.block

    # -- per step --------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> torch.Tensor:
        """Flat indices [n] of the tokens to compute, on the device of the run."""
        return self._donor.rows

    def plan_step(self, step: int) -> StepPlan:
        plan = self._plan(step)
        self._tally.add(plan, self._donor.rows.numel() / self.request.shape.tokens if self._donor else 1.0)
        return plan

    def _plan(self, step: int) -> StepPlan:
        schedule = self.request.schedule
        in_use = self._donor or self._assist
        if in_use is None or step not in schedule.reuse_steps or not (self._assist or self._load(step)):
            last_probe = step == schedule.probe_end - 1
            return StepPlan(
                StepKind.DENSE,
                run_uncond=self.request.guided,
                capture_hidden=last_probe and not self._give_up,
                capture_mass=step in self._mass_steps,
                record_window=last_probe and bool(self.candidates),
            )
        plan = in_use.plans[step]
        if self._donor and not self._donor.rows.numel() and plan.kind is not StepKind.CHECK:
            return StepPlan(StepKind.REPLAY, run_uncond=False)
        return replace(plan, sparse=self.sparse is not None and plan.kind in SPARSE_KINDS)

    @property
    def _mass_steps(self) -> set[int]:
        """Steps whose attention is measured: of a run that will be stored, where connectivity is used at all."""
        kept = self.writes and not self._give_up and self._attention.dense is None
        return self.request.schedule.mass_steps if kept else set()

    def _load(self, step: int) -> bool:
        """Read what a step needs of the donor. If that fails, the rest of the run is dense and this returns False."""
        try:
            self._donor.load(step)
        except EntryError as error:
            self.go_dense(set_aside(self._store, self._donor.info, error))
        except torch.OutOfMemoryError:  # the device has no room for the step
            self.go_dense(Reason.of(Code.OUT_OF_MEMORY))
        return self._donor is not None

    def standing_in(self, step: int, x: torch.Tensor) -> torch.Tensor:
        """Guided x0 [1, C, T, H, W] of a step without an evaluation, on the device and in the dtype of ``x``."""
        in_use = self._assist or self._donor
        held = in_use.plans[step].kind is StepKind.HOLD and (self._assist or self._donor.rows.numel())
        return in_use.own.to(x) if held else self._donor.replayed(x)

    def observe(self, step: int, cond: torch.Tensor, uncond: torch.Tensor | None, hidden: torch.Tensor | None) -> None:
        """Take in a step in which every branch ran over all tokens or over the region's rows.

        Args:
            cond, uncond: [1, C, T, H, W] x0 predictions; uncond is None without guidance.
            hidden: [D, T', h, w] if the plan asked for it.
        """
        cond0 = cond[0].detach()
        residual = None if uncond is None else cond0 - uncond[0].detach()
        if self._donor is not None and residual is not None:
            self._donor.remember_residual(step, residual)
        if self._assist is not None and residual is not None:
            self._assist.guidance.remember(step, residual)
        if self._donor or self._assist or self._give_up:
            return
        self._capture.keep_residual(residual)
        if step in self.request.schedule.checks and self.writes:
            self._capture.keep_conditional(step, cond0)
        if hidden is not None:
            uncond0 = None if uncond is None else uncond[0].detach()
            self._capture.signature = build_signature(hidden, cond0, uncond0, self._previous_cond)
            self._residual, self._previous_cond = residual, None
        elif step < self.request.schedule.probe_end:
            self._previous_cond = cond0.clone()

    def observe_mass(self, layer: int, mass: torch.Tensor) -> None:
        """Block mass [heads, blocks, blocks] of one layer's self-attention, if the plan asked for it."""
        self._capture.keep_mass(layer, mass)

    def fail_mass(self, error: Exception) -> None:
        """Measuring it failed, which is no reason to fail a dense run."""
        log.warning("Carnator: block mass was not measured: %s", error)
        self._attention.dense = f"measuring block mass failed ({type(error).__name__})"

    def attend_densely(self, why: str) -> None:
        """Sparse attention failed in a step, which the host does again without: so are all later ones done."""
        self._attend(self._attention.fail(why))
        if self.report.certified:
            self._decider.lose_certificate("attention used")

    def filled(self, step: int, cond: torch.Tensor) -> torch.Tensor:
        """Unconditional x0 [1, C, T, H, W] where that branch did not run."""
        in_use = self._donor or self._assist
        return cond if in_use.plans[step].unguided else in_use.guidance.unconditional(step, cond)

    def reestimate(self, step: int, cond: torch.Tensor) -> bool:
        """At a check: let the region grow and shrink. Returns whether the unconditional branch must run now.

        Args:
            cond: [1, C, T, H, W] conditional x0 over all tokens.
        """
        donor = self._donor
        reference = donor.conditional.to(cond)
        difference = evidence.token_difference(cond[0], reference, self.request.shape.patch)
        region = evidence.evidence_region(difference, self._threshold(step))
        grew = bool((region & ~donor.region).any())
        always = self.options.reuse.guidance_interval == 1 and bool(region.any())
        self._set_region(region, evidence.region_rows(region, difference), step)
        run_uncond = (grew or always) and self.request.guided and not donor.plans[step].unguided
        self._tally.work += run_uncond
        return run_uncond

    def finish_step(self, step: int, guided: torch.Tensor, kind: StepKind) -> torch.Tensor:
        """The x0 the sampler gets: the donor's outside the region in reuse steps, else ``guided`` itself.

        Args:
            guided: [1, C, T, H, W] x0 after guidance; returned unchanged (the same object) in dense steps.
        """
        self.departed = self.departed or kind is not StepKind.DENSE
        if self._assist is not None:
            if kind is StepKind.ASSIST:
                self._assist.own = guided
            return guided
        if kind is not StepKind.DENSE:
            self._heat = self._heat.to(self._donor.region.device) + self._donor.region
            self.reused = self._donor.info
            if kind is StepKind.REPLAY:
                return guided
            self._donor.own = guided
            return self._donor.blended(guided)
        if self._donor is None and not self._give_up:
            if self.writes:
                self._capture.keep_guided(step, guided[0])
                if step == max(self._mass_steps, default=None):
                    times, reuse = len(self._mass_steps), self.options.reuse
                    self._capture.conclude_mass(self.request.shape.depth, times, self.block, reuse)
            if step == self.request.schedule.probe_end - 1 and self.candidates:
                self._decide(guided)
                self._early.close()  # what was read ahead is in use by now or was refused
        return guided

    # -- decision --------------------------------------------------------------------------------------------------

    def _decide(self, guided: torch.Tensor) -> None:
        accepted = self._decider.decide(self._capture.signature, guided.device)
        nearest = self._decider.refused
        if accepted is not None:
            self._begin_reuse(accepted, guided)
        elif nearest is not None and self.options.reuse.assist:
            self._begin_assist(nearest.candidate.info, guided)

    def _begin_reuse(self, accepted: Accepted, guided: torch.Tensor) -> None:
        judgement, last_probe = accepted.judgement, self.request.schedule.probe_end - 1
        accepted.trajectory.send_to(guided.device)
        guidance = Guidance(self._residual, last_probe, accepted.trajectory.residual_norm)
        self._donor = Donor(judgement.candidate.info, accepted.trajectory, guidance, judgement.plans, guided)
        self._capture = Capture()  # a hit does not become a donor: errors would chain
        self._attend(accepted.attending)
        self.report.decision, self.report.reason = Decision.HIT, Reason.of(Code.REUSED)
        self._set_region(judgement.region, judgement.rows, last_probe)

    def _begin_assist(self, nearest: EntryInfo, guided: torch.Tensor) -> None:
        """Go on without a donor, but not densely; the nearest request still tells how fast predictions change."""
        request, schedule = self.request, self.request.schedule
        try:
            change = self._decider.change_of(nearest)
            norms = self._early.likely.open(nearest.id).residual_norm
        except EntryError as error:
            set_aside(self._store, nearest, error)
            return
        plans = reuse_plans(schedule, self.options.reuse, request.guided, change, all_tokens=True)
        work = predicted_work(schedule, request.shape, self.window, 1.0, plans, request.guided)
        self._attend(self._attention.choose(None, guided.device))
        unknown = self.sparse is None and self._attention.dense is None and self.writes  # no connectivity stored yet
        if unknown or (work >= 1.0 and self.sparse is None):
            self.report.attention = None
            return  # little or nothing to save: better a miss, which becomes a donor and brings what is missing
        self._assist = Assist(Guidance(self._residual, schedule.probe_end - 1, norms), plans, guided)
        self._capture = Capture()  # its result is not the stock one
        self.report.decision = Decision.ASSIST

    def _attend(self, attending: Attending) -> None:
        self.sparse, self.report.attention = attending.sparse, attending.sentence
        self._decider.tell_settings(attending.used)

    def _set_region(self, region: torch.Tensor, rows: torch.Tensor, step: int) -> None:
        self._donor.limit(region, rows, self.request.shape.patch)
        if self.sparse is not None and rows.numel():
            self.sparse.limit(rows)
        self.report.region_history.append((step, round(float(region.float().mean()), 4)))

    def _threshold(self, step: int) -> float:
        return evidence.threshold_at(self._decider.limits.region, self.request.schedule.sigmas[step])

    # -- end -------------------------------------------------------------------------------------------------------

    @property
    def reusing(self) -> bool:
        """Whether steps that are not stock ones lie ahead, or may."""
        return self._donor is not None or self._assist is not None

    @property
    def signature(self) -> EarlySignature | None:
        """What the probe left, once it has ended; None after a hit, of which nothing is kept."""
        return self._capture.signature

    @property
    def heat(self) -> torch.Tensor:
        """Share of the reuse steps in which each token was the target's own, [T', h, w] float32 on the CPU."""
        return self._heat.cpu() / max(1, len(self.request.schedule.reuse_steps))

    def go_dense(self, reason: Reason) -> None:
        """Drop all state: every later step is dense and nothing is stored."""
        # Once a step was not the stock one the result is not either: that keeps its name, with the reason told.
        if self.departed:
            self._decider.tell_settings(ENDED_EARLY)
        else:
            self.report.decision = Decision.DECLINED
        self.close()
        self.candidates, self._capture, self._give_up = [], Capture(), True
        self.report.reason = reason

    def count_stock_step(self) -> None:
        """A step that ran without a plan, after standing aside."""
        self._tally.add(StepPlan(StepKind.DENSE, run_uncond=self.request.guided), 1.0)

    def close(self) -> None:
        """Let go of all that is reused: the donor's file is closed and the store may delete it."""
        if self._donor is not None:
            self._donor.trajectory.close()
        self._early.close()
        self._donor = self._assist = self.sparse = None

    def commit(
        self, seconds: float, output: str | None = None, preview: Callable[[], bytes | None] = lambda: None
    ) -> None:
        """Store a dense run as a donor, or count a hit. Call only after the whole run succeeded.

        Args:
            seconds: of the whole run.
            output: digest of the run's final latent, by which a later stage recognises its lineage.
            preview: makes a small JPEG picture of the result for the entry; called only if one may be written.
        """
        self.report.steps, self.report.work = dict(self._tally.steps), self._tally.share
        self.report.seconds = seconds
        capture, request = self._capture, self.request
        if self.report.decision is Decision.HIT:
            self.report.region_share = float(self.heat.mean())
        if self._donor is not None:
            self._store.note_hit(self._donor.info.id, self.report.seconds_saved)
        if request.reused_input and self.reused is None:
            self.report.store_note = "not stored: its input latent came from a reused run"
        elif self._too_large and self.report.decision is Decision.MISS:
            self.report.store_note = f"not stored: {self._store.too_large}"
        if self._donor is not None or not capture.is_whole(request.schedule.steps):
            return
        info = EntryInfo(request.entry_id, request.key, time.time(), seconds, None, output, request.seed)
        attended = capture.attended()
        mass, kept = (None, None) if attended is None else (attended.mass, attended.kept)
        entry = Entry(info, request.embedding, capture.signature, capture.trajectory(), preview(), kept)
        note = self._store.commit(entry, mass, consensus_id(request.key, self.block))
        if note is None:
            self.report.entry_id = info.id
        else:
            self.report.store_note = note


class DenseSession(Session):
    """A session that recalls nothing, so that its run is dense whatever is stored."""

    def _recall(self) -> None:
        self.candidates = []

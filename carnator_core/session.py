"""The life of one request: recall -> probe -> decide -> reuse or dense -> commit or discard.

The host calls, for every step i of the sampler:

    plan = session.plan_step(i)
    replay:  x0 = session.replayed(i)
    dense:   evaluate both branches, session.observe(i, cond, uncond, hidden), guide, session.finish_step(i, guided)
    check:   evaluate the conditional branch over all tokens; if session.reestimate(i, cond) also the other; then as
             for region
    region:  evaluate session.rows; session.residual_filled(...) where the unconditional branch did not run, guide,
             session.finish_step(i, guided)

and ``session.commit`` only after the whole run succeeded. Until the decision everything captured stays in host RAM.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from . import evidence
from .donor import Donor
from .identity import digest
from .options import GateOptions, Options
from .plan import LayerWindow, StepKind, StepPlan
from .reasons import Code, Decision, Reason
from .recall import Candidate
from .report import Report
from .request import Request
from .scale import PAIRS_NEEDED, Thresholds, medians, seen_distances, unrelated_pairs
from .signature import EarlySignature, build_signature, compact
from .store.entry import Entry, EntryInfo, Trajectory
from .store.folder import Store
from .store.tensor_file import EntryError, EntryGone
from .verdict import Verdict, judge

log = logging.getLogger("carnator")


@dataclass
class _Capture:
    """What a dense run keeps for later requests, float16 on the CPU."""

    guided: dict[int, torch.Tensor] = field(default_factory=dict)
    conditional: dict[int, torch.Tensor] = field(default_factory=dict)
    residual_norm: list[float] = field(default_factory=list)
    signature: EarlySignature | None = None


class Session:
    """One request. Not thread-safe; dropped when its run ends."""

    def __init__(self, request: Request, options: Options, store: Store):
        self.request, self.options, self._store = request, options, store
        self.window = LayerWindow.of(options.reuse, request.shape.depth)
        self.report = Report(thresholds=options.gate)
        self._capture = _Capture()
        self._donor: Donor | None = None
        self._previous_cond: torch.Tensor | None = None
        self._residual: torch.Tensor | None = None
        self._kinds: Counter[str] = Counter()
        self._give_up = False
        self.reused: EntryInfo | None = None  # the donor of which steps are in the result
        self._writes = options.store.mode != "read" and not request.reused_input
        self._heat = torch.zeros(request.shape.grid)
        # Set by hand, or the defaults until the decision puts them on the model's own scale.
        self._limits = Thresholds(options.gate or GateOptions(), options.reuse.region_threshold)
        self._candidates = self._recall()

    # -- recall ----------------------------------------------------------------------------------------------------

    def _recall(self) -> list[Candidate]:
        probe, report, request = self.options.probe, self.report, self.request
        failure = self._store.take_failure()
        report.store_note = failure and f"the run before was {failure}"
        if self.options.gate is None:
            known = len(unrelated_pairs(self._store.texts(), request.key, probe.min_text_similarity))
            report.learned_pairs = min(known, PAIRS_NEEDED)
        if self.options.store.mode == "write":
            report.reason = Reason.of(Code.STORE_WRITE_ONLY)
            return []
        if probe.donor is not None:
            return self._pinned(probe.donor)
        found = self._store.recall(request.key, request.embedding, probe.recall_top_k, self.entry_id)
        close = [c for c in found.same_key if c.similarity >= probe.min_text_similarity]
        if close:
            return close
        if found.trouble is not None:
            report.reason = Reason.of(Code.ENTRY_CORRUPT, detail=found.trouble)
        elif found.same_key:
            best = found.same_key[0].similarity
            report.reason = Reason.of(Code.TEXT_TOO_DIFFERENT, best=best, needed=probe.min_text_similarity)
        elif found.nearest is not None:
            fields = found.nearest.info.key.differs_in(request.key)
            report.reason = Reason.of(Code.KEY_DIFFERS, fields=", ".join(fields))
        else:
            report.reason = Reason.of(Code.STORE_EMPTY)
        return []

    def _pinned(self, donor: str) -> list[Candidate]:
        """The donor that the artist chose: whatever its text, key and gate still hold."""
        found = self._store.find(donor, self.request.embedding) if donor else None
        if found is None:
            detail = "it is not in this store" if donor else "its report names no stored request"
            self.report.reason = Reason.of(Code.DONOR_UNAVAILABLE, detail=detail)
            return []
        if found.info.key != self.request.key:
            fields = ", ".join(found.info.key.differs_in(self.request.key))
            self.report.reason = Reason.of(Code.DONOR_DIFFERS, fields=fields)
            return []
        return [found]

    @property
    def entry_id(self) -> str:
        """Name of this request's entry: the same for the same request."""
        return digest(self.request.key.digest, self.request.text_digest)

    # -- per step --------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> torch.Tensor:
        """Flat indices [n] of the tokens to compute, on the device of the run."""
        return self._donor.rows

    def plan_step(self, step: int) -> StepPlan:
        plan = self._plan(step)
        self._kinds[plan.kind.value] += 1
        return plan

    def _plan(self, step: int) -> StepPlan:
        schedule, guided = self.request.schedule, self.request.guided
        last_probe = step == schedule.probe_end - 1
        if self._donor is None or step not in schedule.reuse_steps or not self._load(step):
            return StepPlan(
                StepKind.DENSE,
                run_uncond=guided,
                capture_hidden=last_probe and not self._give_up,
                record_window=last_probe and bool(self._candidates),
            )
        if step in schedule.checks:
            return StepPlan(StepKind.CHECK, run_uncond=False, record_window=True)
        if self._donor.rows.numel() == 0:
            return StepPlan(StepKind.REPLAY, run_uncond=False)
        age = step - self._donor.residual_step
        due = guided and (schedule.keeps_guidance_fresh(step) or age >= self.options.reuse.guidance_interval)
        return StepPlan(StepKind.REGION, run_uncond=due)

    def _load(self, step: int) -> bool:
        """Read what a step needs of the donor. If that fails, the rest of the run is dense and this returns False."""
        try:
            self._donor.load(step, step in self.request.schedule.checks)
        except EntryError as error:
            self.go_dense(self._set_aside(self._donor.info, error))
        return self._donor is not None

    def replayed(self, step: int, like: torch.Tensor) -> torch.Tensor:
        """The donor's guided x0 [1, C, T, H, W] on the device and in the dtype of ``like``."""
        return self._donor.guided.to(like)[None]

    def observe(self, step: int, cond: torch.Tensor, uncond: torch.Tensor | None, hidden: torch.Tensor | None) -> None:
        """Take in a step in which every branch ran over all tokens or over the region's rows.

        Args:
            cond, uncond: [1, C, T, H, W] x0 predictions; uncond is None without guidance.
            hidden: [D, T', h, w] if the plan asked for it.
        """
        cond0 = cond[0].detach()
        if self._donor is not None:
            if uncond is not None:
                self._donor.remember_residual(step, cond0 - uncond[0], self.request.shape.patch)
            return
        if self._give_up:
            return
        residual = None if uncond is None else cond0 - uncond[0].detach()
        self._capture.residual_norm.append(0.0 if residual is None else float(residual.float().square().mean().sqrt()))
        if step in self.request.schedule.checks and self._writes:
            self._capture.conditional[step] = compact(cond0)
        if hidden is not None:
            uncond0 = None if uncond is None else uncond[0].detach()
            self._capture.signature = build_signature(hidden, cond0, uncond0, self._previous_cond)
            self._residual, self._previous_cond = residual, None
        elif step < self.request.schedule.probe_end:
            self._previous_cond = cond0.clone()

    def residual_filled(self, step: int, cond: torch.Tensor) -> torch.Tensor:
        """Unconditional x0 [1, C, T, H, W] where that branch did not run."""
        return self._donor.residual_filled(step, cond)

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
        donor.region, donor.rows = region, evidence.region_rows(region, difference)
        self._note_region(step)
        return (grew or always) and self.request.guided

    def finish_step(self, step: int, guided: torch.Tensor, kind: StepKind) -> torch.Tensor:
        """The x0 the sampler gets: the donor's outside the region in reuse steps, else ``guided`` itself.

        Args:
            guided: [1, C, T, H, W] x0 after guidance; returned unchanged (the same object) in dense steps.
        """
        if kind is not StepKind.DENSE:
            weight = evidence.blend_weight(self._donor.region, guided.shape[2:], self.request.shape.patch)
            donor = self.replayed(step, guided)
            self._heat += self._donor.region.cpu()
            self.reused = self._donor.info
            return torch.where(weight > 0, torch.lerp(donor, guided, weight.to(guided)), donor)
        if self._donor is None and not self._give_up:
            if self._writes:
                self._capture.guided[step] = compact(guided[0])
            if step == self.request.schedule.probe_end - 1 and self._candidates:
                self._decide(guided.device)
        return guided

    # -- decision --------------------------------------------------------------------------------------------------

    def _decide(self, device: torch.device) -> None:
        """Judge every candidate, cheapest first, and take the first whose files also pass their check."""
        learning = self._learn_scale() if self.options.gate is None else None
        refused: list[Verdict] = []
        for verdict in sorted(filter(None, map(self._judge, self._candidates)), key=lambda v: v.work):
            if learning:
                refused.append(replace(verdict, refusal=learning, thresholds=None))
            elif verdict.refusal is None:
                if self._accept(verdict, device):
                    return
            else:
                refused.append(verdict)
        if refused:
            nearest = max(refused, key=lambda v: v.candidate.similarity)
            self._show(nearest)
            self.report.reason = nearest.refusal

    def _learn_scale(self) -> Reason | None:
        """Put the thresholds on this model's scale, or say why they are not known yet."""
        request, similarity = self.request, self.options.probe.min_text_similarity
        try:
            found = seen_distances(self._store, request.key, request.shape.patch, similarity)
        except OSError as error:  # the store went away in mid-run: no reason to lose the run
            return Reason.of(Code.NO_STORE, detail=error.strerror or str(error))
        if len(found) < PAIRS_NEEDED:
            return Reason.of(Code.LEARNING, known=len(found), needed=PAIRS_NEEDED)
        self._limits = self._limits.times(medians(found))
        return None

    def _judge(self, candidate: Candidate) -> Verdict | None:
        try:
            donor = self._store.signature(candidate.info.id)
            return judge(
                candidate, self._capture.signature, donor, self.request, self.options.reuse, self.window, self._limits
            )
        except EntryError as error:
            self.report.reason = self._set_aside(candidate.info, error)
            return None

    def _accept(self, verdict: Verdict, device: torch.device) -> bool:
        schedule, info = self.request.schedule, verdict.candidate.info
        try:
            trajectory = self._store.trajectory(info.id, self.request.shape.latent, schedule.steps, schedule.checks)
            trajectory.check()  # what is bad now costs only the donor; later it would cost the hit
        except EntryError as error:
            self.report.reason = self._set_aside(info, error)
            return False
        region = verdict.region.to(device)
        self._donor = Donor(info, trajectory, region, verdict.rows.to(device), self._residual, schedule.probe_end - 1)
        self._capture = _Capture()  # a hit does not become a donor: errors would chain
        self._show(verdict)
        self.report.decision, self.report.reason = Decision.HIT, Reason.of(Code.REUSED)
        self._note_region(schedule.probe_end - 1)
        return True

    def _show(self, verdict: Verdict) -> None:
        report, info = self.report, verdict.candidate.info
        report.discrepancies, report.region_share = verdict.found, verdict.share
        report.thresholds = verdict.thresholds
        report.predicted_work, report.similarity = verdict.work, verdict.candidate.similarity
        report.donor_id, report.donor_created, report.donor_prompt = info.id, info.created, info.prompt

    def _threshold(self, step: int) -> float:
        return evidence.threshold_at(self._limits.region, self.request.schedule.sigmas[step])

    def _set_aside(self, info: EntryInfo, error: EntryError) -> Reason:
        if isinstance(error, EntryGone):
            return Reason.of(Code.ENTRY_GONE)
        self._store.quarantine(info.id, str(error))
        return Reason.of(Code.ENTRY_CORRUPT, detail=str(error))

    def _note_region(self, step: int) -> None:
        self.report.region_history.append((step, round(float(self._donor.region.float().mean()), 4)))

    # -- end -------------------------------------------------------------------------------------------------------

    @property
    def reusing(self) -> bool:
        return self._donor is not None

    @property
    def heat(self) -> torch.Tensor:
        """Share of the reuse steps in which each token was the target's own, [T', h, w] float32 on the CPU."""
        return self._heat / max(1, len(self.request.schedule.reuse_steps))

    def go_dense(self, reason: Reason) -> None:
        """Drop all state: every later step is dense and nothing is stored."""
        # Once a step was reused the result is no longer the stock one: that stays a hit, with the reason told.
        if self.reused is None:
            self.report.decision = Decision.DECLINED
        self.close()
        self._candidates, self._capture, self._give_up = [], _Capture(), True
        self.report.reason = reason

    def count_stock_step(self) -> None:
        """A step that ran without a plan, after standing aside."""
        self._kinds[StepKind.DENSE.value] += 1

    def close(self) -> None:
        """Let go of the donor: its file is closed and the store may delete it."""
        if self._donor is not None:
            self._donor.trajectory.close()
            self._donor = None

    def commit(
        self, seconds: float, output: str | None = None, preview: Callable[[], bytes | None] = lambda: None
    ) -> None:
        """Store a dense run as a donor, or count a hit. Call only after the whole run succeeded.

        Args:
            seconds: of the whole run.
            output: digest of the run's final latent, by which a later stage recognises its lineage.
            preview: makes a small JPEG picture of the result for the entry; called only if one may be written.
        """
        self.report.steps = dict(self._kinds)
        self.report.seconds = seconds
        capture, request = self._capture, self.request
        if self.report.decision is Decision.HIT:
            self.report.region_share = float(self.heat.mean())
        if self._donor is not None:
            self._store.note_hit(self._donor.info.id, max(0.0, self._donor.info.seconds - seconds))
        whole = capture.signature is not None and len(capture.guided) == request.schedule.steps
        if request.reused_input and self.reused is None:
            self.report.store_note = "not stored: its input latent came from a reused run"
        if self._donor is not None or not whole:
            return
        info = EntryInfo(
            id=self.entry_id,
            key=request.key,
            created=time.time(),
            seconds=seconds,
            prompt=None,
            output=output,
        )
        trajectory = Trajectory(capture.guided, capture.conditional, torch.tensor(capture.residual_norm))
        note = self._store.commit(Entry(info, request.embedding, capture.signature, trajectory, preview()))
        if note is None:
            self.report.entry_id = info.id
        else:
            self.report.store_note = note

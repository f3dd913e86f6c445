"""One sampling run in ComfyUI: wrappers that carry out the session's step plans.

State is born in OUTER_SAMPLE on cloned model options and dropped in its ``finally``; nothing stays on the model.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..attention import AttentionFailed
from ..identity import pooled_text, tensor_digest
from ..lineage import Lineage
from ..options import Options
from ..other_seed import BorrowedSeed, find_borrowed
from ..plan import FINAL_SIGMA, Schedule, StepKind, StepPlan
from ..reasons import Code, Decision, Reason
from ..report import Report
from ..request import Request
from ..session import Session
from ..store.registry import open_store
from . import comfy_eligibility as eligibility
from .comfy_clock import Clock
from .comfy_identity import hard_key
from .comfy_picture import preview_picture
from .comfy_seed import SamplingEnded, as_seed, borrowable_call, on_copies
from .comfy_wan_forward import ForwardPatches

log = logging.getLogger("carnator")

KEY = "carnator"
SIGMA_TOLERANCE = 1e-3
LINEAGE = Lineage()


def without_carnator(model: Any) -> Any:
    """A clone of a MODEL that is sampled as if no node of ours had touched it."""
    import comfy.patcher_extension as pe

    model = model.clone()
    model.remove_wrappers_with_key(pe.WrappersMP.OUTER_SAMPLE, KEY)
    return model


def with_carnator(model: Any, wrapper: Callable[..., torch.Tensor]) -> Any:
    """A clone of a MODEL whose samplings go through an OUTER_SAMPLE wrapper of ours: the last node of ours decides."""
    import comfy.patcher_extension as pe

    model = without_carnator(model)
    model.add_wrapper_with_key(pe.WrappersMP.OUTER_SAMPLE, KEY, wrapper)
    return model


class ComfyRun:
    """Carries one request through ComfyUI's sampler.

    Args:
        options: what the artist set.
        store_root: folder that holds all stores.
        progress: called with a line of text when something noteworthy happens.
    """

    def __init__(self, options: Options, store_root: Path, progress: Callable[[str], None] = lambda text: None):
        self.options, self.store_root, self._progress = options, store_root, progress
        self.store_folder = store_root / options.store.name
        nothing = Reason.of(Code.NOT_SAMPLED)
        self.report = Report(decision=Decision.DECLINED, reason=nothing, thresholds=options.by_hand)
        self.session: Session | None = None
        self.shared = False  # whether wrappers of others see the sampling call too
        self._borrowed: BorrowedSeed | None = None
        self._plan: StepPlan | None = None
        self._step = -1
        self._forward: ForwardPatches | None = None
        self._ours: list[Callable] = []
        self._calls = 0
        self._clock = Clock()
        self._dense_seconds: list[float] = []

    def attach(self, model: Any) -> Any:
        """A clone of a MODEL whose next sampling runs through this object."""
        return with_carnator(model, self.outer_sample)

    # -- the run ---------------------------------------------------------------------------------------------------

    def outer_sample(self, executor: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """OUTER_SAMPLE wrapper."""
        with self._clock.own():
            return self._run(executor, args, kwargs)

    def _run(self, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        started = time.perf_counter()
        guider = executor.class_obj
        try:
            self.shared = len(executor.wrappers) > 1
            request = eligibility.unsupported_host() or self._open(guider, executor, args, kwargs)
        except Exception as error:  # a class of another shape, an object that cannot be read: nothing has happened yet
            request = Reason.of(Code.UNSUPPORTED_HOST, detail=f"{type(error).__name__}: {error}")
        if isinstance(request, Reason):
            return self._decline(request, executor, args, kwargs)
        try:
            store = open_store(self.store_root, self.options.store)
            own, borrowed = Session(request, self.options, store), None
            call = borrowable_call(executor, args, kwargs, request) if self.options.probe.any_seed else None
            if call is not None:
                borrowed = find_borrowed(own, store, call.has_noise_of)
        except OSError as error:
            return self._decline(Reason.of(Code.NO_STORE, detail=error.strerror or str(error)), executor, args, kwargs)
        spent = 0.0
        if borrowed is not None:
            begun = time.perf_counter()
            result = self._sample_borrowed(borrowed, executor, *call.with_noise_of(borrowed.donor), started)
            if result is not None:
                return result
            borrowed.tell_refused(own.report, len(self._dense_seconds))
            spent = time.perf_counter() - begun
        return self._sample(own, executor, args, kwargs, started, spent)

    def _decline(self, reason: Reason, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        """The stock run; what it makes of a reused run's latent is no stock latent either."""
        self.report.decision, self.report.reason, reused = Decision.DECLINED, reason, False
        with suppress(Exception):  # whatever is no plain latent was not made by us
            latent = inspect.signature(executor.original).bind(*args, **kwargs).arguments["latent_image"]
            reused = LINEAGE.is_reused(tensor_digest(latent))
        with self._clock.host():
            result = executor(*args, **kwargs)
        if reused:
            LINEAGE.remember(tensor_digest(result), tensor_digest(result))
        return result

    def _sample_borrowed(
        self, borrowed: BorrowedSeed, executor: Any, args: tuple, kwargs: dict, started: float
    ) -> torch.Tensor | None:
        """The latent of a hit with the donor's noise, or None: then the guider is as before and nothing is kept."""
        self._borrowed = borrowed
        try:
            with on_copies(executor.class_obj):
                return self._sample(borrowed.session, executor, args, kwargs, started)
        except SamplingEnded:
            return None
        finally:
            self._borrowed = None

    def _sample(
        self, session: Session, executor: Any, args: tuple, kwargs: dict, started: float, spent: float = 0.0
    ) -> torch.Tensor:
        """Sample once under a session.

        Args:
            spent: seconds since it was started that went into a donor of another seed: they are no part of a dense run.
        """
        import comfy.model_patcher
        import comfy.patcher_extension as pe

        guider = executor.class_obj
        self.session, self.report = session, session.report
        self._plan, self._step, self._dense_seconds = None, -1, []
        self._forward = ForwardPatches(session, guider.model_patcher.model.diffusion_model)
        if guider.model_patcher.load_device.type == "cuda":
            self._clock.wait = partial(torch.cuda.synchronize, guider.model_patcher.load_device)
        original = guider.model_options
        guider.model_options = comfy.model_patcher.create_model_options_clone(original)
        wrappers = {
            pe.WrappersMP.PREDICT_NOISE: self._predict_noise,
            pe.WrappersMP.CALC_COND_BATCH: self._calc_cond_batch,
            pe.WrappersMP.DIFFUSION_MODEL: self._forward.wrapper,
        }
        self._ours = list(wrappers.values())
        for kind, wrapper in wrappers.items():
            pe.add_wrapper_with_key(kind, KEY, wrapper, guider.model_options, is_model_options=True)
        try:
            with self._clock.host():
                result = executor(*args, **kwargs)
            self._close(result, guider.model_patcher, time.perf_counter() - started - spent)
            self.report.seconds += spent
            self.report.own_seconds = self._clock.read()
            return result
        finally:
            guider.model_options = original
            self._forward, self._ours = None, []
            self.session.close()

    def _open(self, guider: Any, executor: Any, args: tuple, kwargs: dict) -> Request | Reason:
        """Describe the request to the core, or say why it is declined."""
        try:
            call = inspect.signature(executor.original).bind(*args, **kwargs).arguments
            noise, latent, sampler = call["noise"], call["latent_image"], call["sampler"]
            sigmas = call["sigmas"].detach().clone()  # uni_pc writes into the original
        except (TypeError, KeyError, AttributeError) as error:
            return Reason.of(Code.UNEXPECTED_CALL, detail=str(error))
        identity = eligibility.sampler_identity(sampler)
        refusal = (
            eligibility.check_model(guider)
            or (identity if isinstance(identity, Reason) else None)
            or eligibility.check_latent(noise, latent, call.get("denoise_mask"))
            or eligibility.check_conditioning(guider)
            or eligibility.check_patches(guider.model_options, guider.model_patcher)
            or eligibility.check_schedule(sigmas)
        )
        if refusal:
            return refusal
        name, multistep = identity
        probe, reuse = self.options.probe, self.options.reuse
        values = tuple(float(s) for s in sigmas)
        schedule = Schedule.of(values, probe.probe_percent, reuse.refine_percent, multistep)
        if schedule is None:
            shares = f"{probe.probe_percent:g} %", f"{reuse.refine_percent:g} %" if values[-1] <= FINAL_SIGMA else "no"
            return Reason.of(Code.TOO_FEW_STEPS, steps=len(values) - 1, probe=shares[0], refine=shares[1])
        text = guider.conds["positive"][0]["cross_attn"]
        start = tensor_digest(latent) if bool(latent.count_nonzero()) else "empty"
        return Request(
            key=hard_key(guider, noise, LINEAGE.origin(start), name, schedule),
            embedding=pooled_text(text),
            text_digest=tensor_digest(text),
            shape=eligibility.model_shape(guider, noise),
            schedule=schedule,
            guided=_has_guidance(guider),
            attention=eligibility.attention_site(guider),
            reused_input=LINEAGE.is_reused(start),
            seed=as_seed(call.get("seed")),
        )

    def _close(self, result: torch.Tensor, model: Any, seconds: float) -> None:
        if not self._forward.idle and self._step != self.session.request.schedule.steps - 1:
            self.session.go_dense(Reason.of(Code.UNEXPECTED_CALL, detail=f"{self._step + 1} steps seen"))
        self._end_if_done()
        probe = self._dense_seconds[: self.session.request.schedule.probe_end]
        # The first step also pays for warming up; the fastest one is the fair price of a dense step.
        self.report.dense_step_seconds = min(probe, default=None)
        output, donor = tensor_digest(result), self.session.reused
        self.session.commit(seconds, output, lambda: preview_picture(model, result))
        if donor is not None and donor.output != output:
            LINEAGE.remember(output, donor.output or output)
        elif donor is None and (self.session.request.reused_input or self.session.departed):
            LINEAGE.remember(output, output)

    # -- one step --------------------------------------------------------------------------------------------------

    def _predict_noise(self, executor: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._clock.own():
            return self._evaluate_step(executor, args, kwargs)

    def _evaluate_step(self, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        try:
            call = inspect.signature(executor.original).bind(*args, **kwargs).arguments
            x, sigma, options = call["x"], float(call["timestep"].flatten()[0]), call["model_options"]
        except (TypeError, KeyError, AttributeError) as error:
            self._stand_aside(Reason.of(Code.UNEXPECTED_CALL, detail=str(error)))
            with self._clock.host():
                return executor(*args, **kwargs)
        if self._step < 0 and not self._forward.idle:
            late = eligibility.check_loaded(executor.class_obj, options, self._ours)
            if late:
                self._stand_aside(late)
        self._plan, self._calls = self._next_plan(sigma), 0
        if self._plan is None:
            with self._clock.host():
                return executor(*args, **kwargs)
        self._forward.begin(self._plan)
        if not self._plan.evaluates:
            return self.session.finish_step(self._step, self.session.standing_in(self._step, x), self._plan.kind)
        started = time.perf_counter()
        guided = self._guided(executor, args, kwargs)
        if self._plan is None:
            return guided
        if self._plan.kind is StepKind.DENSE:
            self._dense_seconds.append(time.perf_counter() - started)
        last_probe = self.session.request.schedule.probe_end - 1
        if self._step == last_probe and self.session.candidates:
            self._progress("decide")
        result = self.session.finish_step(self._step, guided, self._plan.kind)
        if self._step >= last_probe:
            self._end_if_done()
        if self._step == last_probe:
            self._progress(self.report.status())
        if self._plan.captures and self.report.decision is not Decision.HIT:
            self._forward.release()
        return result

    def _guided(self, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        """x0 after guidance by the plan. Where that fails by our doing, the step is done again: with dense attention if
        sparse attention was the reason, and else without us.
        """
        attention = None
        try:
            with self._clock.host():
                return executor(*args, **kwargs)
        except AttentionFailed as error:
            attention = str(error)
        except Exception as error:
            if not self._ran_out_of_memory(error):
                raise
        # Only here: an error that is being handled keeps all tensors of its forward alive.
        if attention is None:
            self._stand_aside(Reason.of(Code.OUT_OF_MEMORY))
        else:
            self.session.attend_densely(attention)
            self._plan, self._calls = replace(self._plan, sparse=False), 0
            self._forward.begin(self._plan)
        return self._guided(executor, args, kwargs)

    def _ran_out_of_memory(self, error: Exception) -> bool:
        """Whether the step may succeed without what we add to it."""
        ours = self._plan is not None and (self._plan.kind is not StepKind.DENSE or self._plan.captures)
        return ours and is_out_of_memory(error)

    def _next_plan(self, sigma: float) -> StepPlan | None:
        """Each step of the schedule must be evaluated exactly once and in order; else stand aside."""
        if self._forward.idle:
            self.session.count_stock_step()
            return None
        schedule = self.session.request.schedule
        step = self._step + 1
        expected = schedule.sigmas[step] if step < schedule.steps else None
        if expected is None or abs(sigma - expected) > SIGMA_TOLERANCE * max(1.0, expected):
            self._stand_aside(Reason.of(Code.UNEXPECTED_CALL, detail=f"sigma {sigma:.4f} after step {self._step + 1}"))
            return None
        self._step = step
        was_reusing = self.session.reusing
        if step == 0:
            self._progress("probe" if self._borrowed is None else f"probe with the donor's seed {self._borrowed.seed}")
        elif was_reusing:
            phase = "refine" if step >= schedule.refine_start else "reuse"
            self._progress(f"{phase} (step {step + 1} of {schedule.steps}) · {self.report.status()}")
        plan = self.session.plan_step(step)
        if was_reusing and not self.session.reusing:  # the donor's file went bad
            self._end_if_done()
            self._forward.release()
            self._progress(self.report.status())
        return plan

    def _end_if_done(self) -> None:
        """End a sampling with borrowed noise that is no hit: its result would be neither a hit nor the stock one."""
        if self._borrowed is not None and self.report.decision is not Decision.HIT:
            raise SamplingEnded

    def _stand_aside(self, reason: Reason) -> None:
        self.session.go_dense(reason)
        self._forward.stand_aside()
        self._plan = None
        log.warning("Carnator: %s", reason.sentence)
        self._end_if_done()

    def _calc_cond_batch(self, executor: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        with self._clock.own():
            return self._evaluate_branches(executor, args, kwargs)

    def _evaluate_branches(self, executor: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        plan, self._calls = self._plan, self._calls + 1
        if plan is not None and self._calls > 1:
            self._stand_aside(Reason.of(Code.UNEXPECTED_CALL, detail="several evaluations in one step"))
            plan = None
        if plan is None:
            with self._clock.host():
                return executor(*args, **kwargs)
        conds = list(args[1])
        guided = len(conds) > 1 and conds[1] is not None

        def evaluate(keep: list) -> list[torch.Tensor]:
            with self._clock.host():
                return executor(args[0], keep, *args[2:], **kwargs)

        if plan.kind is StepKind.DENSE or (plan.run_uncond and guided):
            out = evaluate(conds)
            self.session.observe(self._step, out[0], out[1] if guided else None, self._forward.take_hidden())
            return out
        cond = evaluate([conds[0], None])[0]
        if not guided:
            if plan.kind is StepKind.CHECK:
                self.session.reestimate(self._step, cond)
            return [cond, torch.zeros_like(cond)]
        if plan.kind is StepKind.CHECK and self.session.reestimate(self._step, cond):
            uncond = evaluate([None, conds[1]])[1]
            self.session.observe(self._step, cond, uncond, None)
            return [cond, uncond]
        return [cond, self.session.filled(self._step, cond)]


def is_out_of_memory(error: Exception) -> bool:
    import comfy.model_management

    return isinstance(error, comfy.model_management.OOM_EXCEPTION)


def _has_guidance(guider: Any) -> bool:
    """Whether the host will evaluate an unconditional branch: it skips that at CFG 1 unless told otherwise."""
    at_one = math.isclose(guider.cfg, 1.0) and not guider.model_options.get("disable_cfg1_optimization", False)
    return bool(guider.conds.get("negative")) and not at_one

"""Audits in ComfyUI: the request of a hit again, densely, right after it; see audit.py.

The hit stays the result. What the dense run makes is compared with it, and becomes a donor like that of any miss.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..audit import INSIDE, OUTSIDE, difference, is_chosen
from ..reasons import Decision
from .comfy_picture import heat_mask, in_latent_units
from .comfy_run import ComfyRun
from .comfy_side_run import SamplerCall, SideRun, told

log = logging.getLogger("carnator")


@dataclass(frozen=True)
class Auditor:
    """Runs hits again.

    Args:
        percent: share of the requests whose hits are audited.
        progress: called with a line of text.
    """

    call: SamplerCall
    percent: float
    progress: Callable[[str], None]

    def audit(self, run: ComfyRun, hit: torch.Tensor) -> torch.Tensor | None:
        """After a run: what its request gives densely if it was a hit and is chosen, else None; its report is told.

        Whatever fails is a note in the report, an interrupt of the host too: a hit is not stored, and its latent would
        be lost with it.

        Args:
            hit: the run's latent [1, C, T, H, W] as it leaves the sampler.
        Returns:
            A latent like ``hit``.
        """
        import comfy.model_management

        report = run.report
        if report.decision is not Decision.HIT or not is_chosen(report.request_id, self.percent):
            return None
        started, dense = time.perf_counter(), None
        try:
            again = SideRun(run)
            dense = self._dense(again, report.donor_seed)
            model, computed = self.call.model, heat_mask(run.session.heat, hit) > 0
            found = difference(in_latent_units(model, hit), in_latent_units(model, dense), computed)
        except comfy.model_management.InterruptProcessingException:
            report.audit_note = "not audited: interrupted"
        except Exception as error:
            report.audit_note = f"not audited: {told(error)}"
            log.warning("Carnator: %s", report.audit_note)
        else:
            report.audit, report.dense_difference = True, found
            report.audit_note = _note(found, time.perf_counter() - started, again)
        return dense if report.audit else None

    def _dense(self, run: SideRun, donor_seed: int | None) -> torch.Tensor:
        import comfy.utils

        steps = run.like.schedule.steps
        bar = comfy.utils.ProgressBar(steps)

        def tell(done: int) -> None:
            bar.update_absolute(done, steps)
            if done < steps:
                self.progress(f"audit (step {done + 1} of {steps}): the hit again, in full; an interrupt keeps the hit")

        tell(0)
        call = self.call if donor_seed is None else dataclasses.replace(self.call, seed=donor_seed)
        return call.sample(run, lambda step: tell(step + 1))


def _note(found: dict[str, float | None], seconds: float, again: SideRun) -> str:
    report = again.report
    why = report.reason.sentence if report.decision is Decision.DECLINED else report.store_note
    places = {INSIDE: "in the region", OUTSIDE: "elsewhere"}
    parts = [f"{value:.2g} {places[name]}" for name, value in found.items() if value is not None]
    lost = "" if why is None else f"; that is no donor: {why.removeprefix('not stored: ')}"
    return f"audited in {seconds:.0f} s: differs from the dense run by {', '.join(parts)}{lost}"

"""Short probes in ComfyUI: samplings of unlike prompts that end with their probe, to learn a model's scale from.

They follow the request's own run; see comfy_side_run.py.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import teaching
from ..scale import FREE_FIELDS, PAIRS_NEEDED
from ..session import DenseSession
from ..store.registry import open_store
from .comfy_run import ComfyRun
from .comfy_seed import SamplingEnded, on_copies
from .comfy_side_run import SamplerCall, SideRun, told

log = logging.getLogger("carnator")


class ProbeRun(SideRun):
    """A sampling that ends with its probe."""

    free = FREE_FIELDS

    def _run(self, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        try:
            with on_copies(executor.class_obj):
                return super()._run(executor, args, kwargs)
        except SamplingEnded:
            return inspect.signature(executor.original).bind(*args, **kwargs).arguments["latent_image"]

    def _end_if_done(self) -> None:
        """Called once the probe is over or has failed: there is no more to learn."""
        raise SamplingEnded

    def _ran_out_of_memory(self, error: Exception) -> bool:
        """A probe that fails is not done again."""
        return False

    def result(self) -> DenseSession:
        """The session, with its Early Signature. Raises ValueError if the probe did not come to its end."""
        if self.session.signature is None:
            raise ValueError(self.report.reason.sentence)
        return self.session


@dataclass(frozen=True)
class Teacher:
    """Has short probes made.

    Args:
        call: of the request; all but its prompt and seed is theirs too.
        clip: text encoder.
        progress: called with a line of text.
    """

    call: SamplerCall
    clip: Any
    progress: Callable[[str], None]

    def teach(self, run: ComfyRun) -> None:
        """After a run: learn the scale of its model and setting if that is not known, and tell its report.

        Whatever fails is a note in the report; only an interrupt of the host passes.
        """
        import comfy.model_management

        if run.session is None or not teaching.is_wanted(run.session):
            return
        report, started = run.report, time.perf_counter()
        try:
            probes = self._probes(run)
            store = open_store(run.store_root, run.options.store)
            report.learned_pairs = min(PAIRS_NEEDED, teaching.learn(store, run.session, probes))
            failure = None
        except comfy.model_management.InterruptProcessingException:
            raise
        except Exception as error:
            failure = told(error)
        spent = time.perf_counter() - started
        report.seconds += spent
        report.own_seconds += spent
        if failure is None:
            report.scale_note = f"learned this model from {len(probes)} short probes, {spent:.0f} s"
        else:
            report.scale_note = f"this model was not learned from short probes: {failure}"
            log.warning("Carnator: %s", report.scale_note)

    def _probes(self, run: ComfyRun) -> list[DenseSession]:
        from nodes import CLIPTextEncode  # the host's module of that name

        if run.shared:
            raise ValueError("another pack wraps the sampler and would see them")
        texts = [CLIPTextEncode().encode(self.clip, text)[0] for text in teaching.PROMPTS]
        found = []
        for place, (text, seed) in enumerate(zip(texts, teaching.seeds(run.session.request.key), strict=True)):
            self.progress(f"learning this model: short probe {place + 1} of {len(texts)}")
            probe = ProbeRun(run)
            dataclasses.replace(self.call, positive=text, seed=seed).sample(probe)
            found.append(probe.result())
        return found

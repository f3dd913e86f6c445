"""Short probes in ComfyUI: samplings of unlike prompts that end with their probe, to learn a model's scale from.

They follow the request's own run, whose latent is made by then. Each is a sampling call of its own through the host's
sampler, so nothing of it stays on the model, on the guider of the run or in the process's random numbers.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import teaching
from ..reasons import Reason
from ..request import Request
from ..scale import FREE_FIELDS, PAIRS_NEEDED
from ..store.registry import open_store
from ..teaching import ProbeSession
from .comfy_run import ComfyRun, is_out_of_memory
from .comfy_seed import SamplingEnded, noise_of, on_copies

log = logging.getLogger("carnator")


class ProbeRun(ComfyRun):
    """A sampling that ends with its probe.

    Args:
        like: the run of which this probes model and setting.
    """

    def __init__(self, like: ComfyRun):
        super().__init__(like.options, like.store_root)
        self._like = like.session.request

    def _run(self, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        request = self._open(executor.class_obj, executor, args, kwargs)
        if isinstance(request, Reason):
            raise ValueError(request.sentence)
        others = [name for name in request.key.differs_in(self._like.key) if name not in FREE_FIELDS]
        if others:
            raise ValueError(f"they differ from the request in: {', '.join(others)}")
        session = ProbeSession(request, self.options, open_store(self.store_root, self.options.store))
        try:
            with on_copies(executor.class_obj):
                return self._sample(session, executor, args, kwargs, time.perf_counter())
        except SamplingEnded:
            return inspect.signature(executor.original).bind(*args, **kwargs).arguments["latent_image"]

    def _end_if_done(self) -> None:
        """Called once the probe is over or has failed: there is no more to learn."""
        raise SamplingEnded

    def _own_failure(self, error: Exception) -> Reason | None:
        """A probe that fails is not done again."""

    def result(self) -> ProbeSession:
        """The session, with its Early Signature. Raises ValueError if the probe did not come to its end."""
        if self.session.signature is None:
            raise ValueError(self.report.reason.sentence)
        return self.session


@dataclass(frozen=True)
class Teacher:
    """The model and the inputs of KSampler that short probes share with the request, and a text encoder.

    Args:
        latent: LATENT of the request.
        progress: called with a line of text.
    """

    model: Any
    clip: Any
    steps: int
    cfg: float
    sampler_name: str
    scheduler: str
    negative: list
    latent: dict
    denoise: float
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
            text = (str(error).splitlines() or [""])[0]
            failure = "out of memory" if is_out_of_memory(error) else text or type(error).__name__
        spent = time.perf_counter() - started
        report.seconds += spent
        report.own_seconds += spent
        if failure is None:
            report.scale_note = f"learned this model from {len(probes)} short probes, {spent:.0f} s"
        else:
            report.scale_note = f"this model was not learned from short probes: {failure}"
            log.warning("Carnator: %s", report.scale_note)

    def _probes(self, run: ComfyRun) -> list[ProbeSession]:
        from nodes import CLIPTextEncode  # the host's module of that name

        if run.shared:
            raise ValueError("another pack wraps the sampler and would see them")
        texts = [CLIPTextEncode().encode(self.clip, text)[0] for text in teaching.PROMPTS]
        found = []
        for place, (text, seed) in enumerate(zip(texts, teaching.seeds(run.session.request.key), strict=True)):
            self.progress(f"learning this model: short probe {place + 1} of {len(texts)}")
            probe = ProbeRun(run)
            self._sample(probe.attach(self.model), text, seed, run.session.request)
            _stop_if_interrupted()
            found.append(probe.result())
        return found

    def _sample(self, model: Any, positive: list, seed: int, like: Request) -> None:
        """One sampling call, without a preview or a progress bar."""
        import comfy.sample

        latent = self.latent["samples"]
        if like.key.value("input latent") == "empty":
            latent = torch.zeros((1, *like.shape.latent), dtype=latent.dtype)  # the host fits an empty one to the model
        comfy.sample.sample(
            model, noise_of(seed, latent), self.steps, self.cfg, self.sampler_name, self.scheduler, positive,
            self.negative, latent, denoise=self.denoise, callback=_stop_if_interrupted, disable_pbar=True, seed=seed,
        )  # fmt: skip


def _stop_if_interrupted(*_: Any) -> None:
    import comfy.model_management

    comfy.model_management.throw_exception_if_processing_interrupted()

"""Samplings that follow a run of the Reuse Sampler for what they tell: short probes and audits.

The run's latent is made by then. Each is a sampling call of its own through the host's sampler, so nothing of it stays
on the model, on the guider of the run or in the process's random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from ..reasons import Reason
from ..session import DenseSession
from ..store.registry import open_store
from .comfy_run import ComfyRun, is_out_of_memory
from .comfy_seed import noise_of


class SideRun(ComfyRun):
    """A dense sampling of a request like that of a run, in the same store.

    Args:
        after: the run that it follows.
    """

    free: Collection[str] = ()  # fields of the key that need not be equal

    def __init__(self, after: ComfyRun):
        super().__init__(after.options, after.store_root)
        self.like = after.session.request

    def _run(self, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        request = self._open(executor.class_obj, executor, args, kwargs)
        if isinstance(request, Reason):
            raise ValueError(request.sentence)
        others = [name for name in request.key.differs_in(self.like.key) if name not in self.free]
        if others:
            raise ValueError(f"the call differs from the request in: {', '.join(others)}")
        session = DenseSession(request, self.options, open_store(self.store_root, self.options.store))
        return self._sample(session, executor, args, kwargs, time.perf_counter())


@dataclass(frozen=True)
class SamplerCall:
    """A MODEL and the inputs of KSampler.

    Args:
        latent: LATENT of one video.
    """

    model: Any
    seed: int
    steps: int
    cfg: float
    sampler_name: str
    scheduler: str
    positive: list
    negative: list
    latent: dict
    denoise: float

    def sample(self, run: SideRun, after_step: Callable[[int], None] = lambda step: None) -> torch.Tensor:
        """Sample once through a run, without a preview. Returns a latent [1, C, T, H, W] as it leaves the sampler.

        Args:
            after_step: called with the number of each step that is done, from 0.
        """
        import comfy.sample

        def callback(step: int, *_: Any) -> None:
            after_step(step)
            stop_if_interrupted()

        latent = self.latent["samples"]
        if run.like.key.value("input latent") == "empty":  # the host fits an empty one to the model
            latent = torch.zeros((1, *run.like.shape.latent), dtype=latent.dtype)
        result = comfy.sample.sample(
            run.attach(self.model), noise_of(self.seed, latent), self.steps, self.cfg, self.sampler_name,
            self.scheduler, self.positive, self.negative, latent, denoise=self.denoise, callback=callback,
            disable_pbar=True, seed=self.seed,
        )  # fmt: skip
        stop_if_interrupted()
        return result


def stop_if_interrupted() -> None:
    import comfy.model_management

    comfy.model_management.throw_exception_if_processing_interrupted()


def told(error: Exception) -> str:
    """What went wrong, in a few words."""
    text = (str(error).splitlines() or [""])[0]
    return "out of memory" if is_out_of_memory(error) else text or type(error).__name__

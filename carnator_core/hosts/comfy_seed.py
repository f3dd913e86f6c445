"""A sampling call with the noise of a donor in place of its own, for the seed policy "any seed"."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..identity import tensor_digest
from ..recall import Candidate
from ..request import Request
from ..store.entry import SEEDS


class SamplingEnded(BaseException):
    """Ends a sampling of ours that has nothing more to give: its borrowed noise led to no hit, or its probe is over.

    No error, so that no handler of errors takes it for one.
    """


def as_seed(value: Any) -> int | None:
    """The seed of a sampling call, if it is one that ComfyUI's own nodes can have."""
    return value if type(value) is int and 0 <= value < SEEDS else None


def noise_of(seed: int, latent: torch.Tensor) -> torch.Tensor:
    """What ``comfy.sample.prepare_noise`` makes for one video, but the process's own random numbers stay in place.

    Args:
        latent: [1, C, T, H, W] input latent.
    Returns:
        Noise of the same shape and dtype on the CPU.
    """
    random = torch.Generator().manual_seed(seed)
    return torch.randn(latent.size(), dtype=latent.dtype, layout=latent.layout, generator=random, device="cpu")


@dataclass(frozen=True)
class BorrowableCall:
    """The arguments of a sampling call from an empty latent with noise of its own."""

    executor: Any
    args: tuple
    kwargs: dict

    @property
    def given(self) -> dict[str, Any]:
        return inspect.signature(self.executor.original).bind(*self.args, **self.kwargs).arguments

    def has_noise_of(self, donor: Candidate) -> bool:
        """Whether the donor's seed still gives exactly the noise that the donor had."""
        noise = noise_of(donor.info.seed, self.given["latent_image"])
        return tensor_digest(noise) == donor.info.key.value("seed")

    def with_noise_of(self, donor: Candidate) -> tuple[tuple, dict]:
        """Arguments in the layout in which they came; tensors that a sampler could write into are copies."""
        given, seed = self.given, donor.info.seed
        latent, sigmas = given["latent_image"].clone(), given["sigmas"].clone()
        other = {"noise": noise_of(seed, latent), "latent_image": latent, "sigmas": sigmas, "seed": seed}
        names = dict(enumerate(inspect.signature(self.executor.original).parameters))
        args = tuple(other.get(names.get(place), value) for place, value in enumerate(self.args))
        return args, {name: other.get(name, value) for name, value in self.kwargs.items()}


def borrowable_call(executor: Any, args: tuple, kwargs: dict, request: Request) -> BorrowableCall | None:
    """The call of a request, or None if its noise cannot be replaced, or not without a trace.

    A stage that continues another one has no noise, and what a latent shows belongs to no other seed. A wrapper of
    someone else around the sampler might remember that it was called before: where there is one, nothing is borrowed.
    """
    call = BorrowableCall(executor, args, kwargs)
    if request.key.value("input latent") != "empty" or not bool(call.given["noise"].count_nonzero()):
        return None
    inner = executor.wrappers[executor.idx + 1 :]
    return None if inner else call


@contextmanager
def on_copies(guider: Any) -> Iterator[None]:
    """Sample with copies of a guider's conditions; after SamplingEnded it is as before, ready to sample again."""
    import comfy.sampler_helpers

    original = guider.conds
    guider.conds = {name: [entry.copy() for entry in entries] for name, entries in original.items()}
    try:
        yield
    except SamplingEnded:
        # What the host does at the end of a sampling that was not broken off.
        loaded = vars(guider).pop("loaded_models", None)
        if loaded is not None:
            comfy.sampler_helpers.cleanup_models(guider.conds, loaded)
        vars(guider).pop("inner_model", None)
        guider.conds = original
        raise

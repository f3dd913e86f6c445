"""Which samplers may replay: those that depend on the model only through the x0 they are given."""

from types import ModuleType

import pytest
import torch

STEPS = 12
REFINE = 2


class Recorder:
    """A PREDICT_NOISE wrapper: writes down the x0 of each step, or gives it back in the reuse steps."""

    def __init__(self, x0: list[torch.Tensor] | None = None):
        self.x0, self.replayed, self.calls = x0, [], []

    def __call__(self, executor, *args, **kwargs):
        step = len(self.calls)
        reused = self.x0 is not None and 2 <= step < STEPS - REFINE
        self.calls.append((self.x0[step] if reused else executor(*args, **kwargs)).clone())
        self.replayed.append(reused)
        return self.calls[-1].clone()


def replayed_against_stock(tiny, far, sampler: str) -> float:
    call = tiny.call.but(sampler=sampler, steps=STEPS)
    recorded = Recorder()
    stock = call(tiny.wrapped(tiny.model, "predict_noise", recorded))
    assert torch.equal(stock, call(tiny.model))
    assert len(recorded.calls) == STEPS
    replay = Recorder(recorded.calls)
    result = call(tiny.wrapped(tiny.model, "predict_noise", replay))
    assert sum(replay.replayed) == STEPS - 2 - REFINE
    return far(result, stock)


SUPPORTED = ["euler", "dpmpp_2m", "res_multistep", "ipndm", "uni_pc", "uni_pc_bh2"]


def test_the_supported_samplers_are_the_ones_tested_here(comfy: ModuleType) -> None:
    from carnator_core.hosts.comfy_eligibility import supported_samplers

    assert {name for name, _ in supported_samplers().values()} == set(SUPPORTED)


@pytest.mark.parametrize("sampler", SUPPORTED)
def test_replaying_a_runs_own_x0_gives_the_stock_latent(tiny, far, sampler: str) -> None:
    assert replayed_against_stock(tiny, far, sampler) < 1e-4


def test_a_sampler_that_looks_behind_the_guided_x0_would_fail_this_test(tiny, far) -> None:
    """euler_cfg_pp takes the unconditional x0 from a callback that a replayed step never reaches."""
    assert replayed_against_stock(tiny, far, "euler_cfg_pp") > 1e-2


@pytest.mark.parametrize("sampler", SUPPORTED)
def test_the_sampler_is_known_by_its_own_name(comfy: ModuleType, sampler: str) -> None:
    import comfy.samplers

    from carnator_core.hosts.comfy_eligibility import sampler_identity

    name, multistep = sampler_identity(comfy.samplers.sampler_object(sampler))
    assert name == sampler
    assert multistep == (sampler != "euler")

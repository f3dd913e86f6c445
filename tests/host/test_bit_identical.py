"""Without a hit the latent is the stock latent, bit for bit, whatever ran before."""

from pathlib import Path

import pytest
import torch

SAMPLERS = ["euler", "uni_pc"]
GUIDANCE = [5.0, 1.0]
every_case = pytest.mark.parametrize(("sampler", "cfg"), [(s, c) for s in SAMPLERS for c in GUIDANCE])


@every_case
def test_a_miss_is_bit_identical_and_stored(tiny, tmp_path: Path, stored, sampler: str, cfg: float) -> None:
    call = tiny.call.but(sampler=sampler, cfg=cfg)
    result, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "miss"
    assert torch.equal(result, call(tiny.model))
    assert stored(tmp_path) == [run.report.entry_id]


def test_the_packs_own_seconds_are_a_part_of_the_runs_seconds(tiny, tmp_path: Path) -> None:
    for _ in range(2):  # a miss, then a hit
        _, run = tiny.reuse(tmp_path, tiny.call)
        assert 0 < run.report.own_seconds < run.report.seconds


@every_case
def test_a_rejected_donor_leaves_a_bit_identical_run(tiny, tmp_path: Path, sampler: str, cfg: float) -> None:
    call = tiny.call.but(sampler=sampler, cfg=cfg)
    tiny.reuse(tmp_path, call)
    other = call.but(positive=tiny.near(call.positive, 0.5))
    result, run = tiny.reuse(tmp_path, other, options=tiny.options(gate=0.0))
    assert (run.report.decision.value, run.report.reason.code.value) == ("miss", "gate_rejected")
    assert torch.equal(result, other(tiny.model))


@every_case
def test_a_declined_run_is_bit_identical(tiny, tmp_path: Path, stored, sampler: str, cfg: float) -> None:
    call = tiny.call.but(sampler=sampler, cfg=cfg, steps=3)
    result, run = tiny.reuse(tmp_path, call)
    assert (run.report.decision.value, run.report.reason.code.value) == ("declined", "too_few_steps")
    assert torch.equal(result, call(tiny.model))
    assert stored(tmp_path) == []


@every_case
def test_a_miss_after_a_hit_is_bit_identical(tiny, tmp_path: Path, sampler: str, cfg: float) -> None:
    call = tiny.call.but(sampler=sampler, cfg=cfg)
    other = call.but(positive=tiny.prompt(5))
    expected = other(tiny.model)
    tiny.reuse(tmp_path, call)
    _, hit = tiny.reuse(tmp_path, call)
    result, run = tiny.reuse(tmp_path, other, options=tiny.options(min_text_similarity=0.9))
    assert (hit.report.decision.value, run.report.decision.value) == ("hit", "miss")
    assert torch.equal(result, expected)


@every_case
def test_a_stock_run_after_a_hit_is_bit_identical(tiny, tmp_path: Path, sampler: str, cfg: float) -> None:
    call = tiny.call.but(sampler=sampler, cfg=cfg, size=(3, 16, 16), steps=12)
    expected = call(tiny.model)
    tiny.reuse(tmp_path, call)
    near = call.but(positive=tiny.near(call.positive, 0.2))
    options = tiny.options(region_threshold=0.125, max_region_percent=100.0)
    _, run = tiny.reuse(tmp_path, near, options=options)
    assert run.report.decision.value == "hit" and run.report.steps.get("region")
    assert torch.equal(call(tiny.model), expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_miss_after_an_error_is_bit_identical(tiny, tmp_path: Path, sampler: str) -> None:
    call = tiny.call.but(sampler=sampler)
    expected = call(tiny.model)

    def fail(module, inputs):
        raise RuntimeError("broken")

    hook = tiny.model.model.diffusion_model.blocks[2].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        tiny.reuse(tmp_path, call)
    hook.remove()
    assert torch.equal(tiny.reuse(tmp_path, call)[0], expected)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_store_that_is_only_read_or_only_written_leaves_a_bit_identical_miss(tiny, tmp_path: Path, mode) -> None:
    tiny.reuse(tmp_path, tiny.call)
    other = tiny.call if mode == "write" else tiny.call.but(seed=8)
    result, run = tiny.reuse(tmp_path, other, options=tiny.options(store=mode))
    assert run.report.decision.value == "miss"
    assert torch.equal(result, other(tiny.model))


def test_conditions_of_different_length_leave_a_bit_identical_miss(tiny, tmp_path: Path) -> None:
    call = tiny.call.but(positive=tiny.prompt(1, tokens=20))
    assert torch.equal(tiny.reuse(tmp_path, call)[0], call(tiny.model))


def test_an_odd_latent_size_leaves_a_bit_identical_miss(tiny, tmp_path: Path) -> None:
    call = tiny.call.but(size=(2, 9, 11))
    result, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "miss"
    assert torch.equal(result, call(tiny.model))


def test_the_order_of_requests_changes_no_miss(tiny, tmp_path: Path) -> None:
    """The same requests forwards and backwards, each order with a store of its own."""
    words = tiny.near(tiny.call.positive, 0.5)
    requests = [tiny.call, tiny.call.but(positive=words), tiny.call.but(seed=8), tiny.call.but(cfg=3.0), tiny.call]
    stock = [call(tiny.model) for call in requests]
    for name, order in (("forwards", range(5)), ("backwards", range(4, -1, -1))):
        decisions = []
        for index in order:
            result, run = tiny.reuse(tmp_path / name, requests[index], options=tiny.options(gate=1e-4))
            decisions.append(run.report.decision.value)
            assert decisions[-1] == "hit" or torch.equal(result, stock[index])
        assert decisions == ["miss", "miss", "miss", "miss", "hit"]

"""Trajectory and connectivity reused together, in ComfyUI's own sampler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .conftest import relative

REGION = {"region_threshold": 0.35, "max_region_percent": 100}
SPARSE = {"attention": "consensus", "attention_block": 8}


@pytest.fixture
def small_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random tiny model changes all over: the region is a box, so that something is left to replay."""
    from carnator_core import evidence

    def box(difference: torch.Tensor, threshold: float) -> torch.Tensor:
        region = torch.zeros_like(difference, dtype=torch.bool)
        region[:, 1:3, 1:3] = True
        return region

    monkeypatch.setattr(evidence, "evidence_region", box)


def test_a_dense_run_leaves_connectivity_and_its_latent_is_the_stock_one(tiny, tmp_path: Path) -> None:
    from carnator_core.store.registry import open_store

    options = tiny.options(**SPARSE)
    found, run = tiny.reuse(tmp_path, tiny.call, options=options)
    assert torch.equal(found, tiny.call(tiny.model))
    store = open_store(tmp_path, options.store)
    kept = store.connectivity(run.report.entry_id)
    layers = len(tiny.model.model.diffusion_model.blocks)
    assert kept.block == 8 and kept.packed.shape[:2] == (layers, run.session.request.attention.heads)
    from carnator_core.attention import consensus_id

    assert store.consensus(consensus_id(run.session.request.key, 8)).count == 1


@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
@pytest.mark.parametrize("source", ["consensus", "donor"])
def test_a_hit_attends_by_what_was_kept(tiny, tmp_path: Path, small_checks, sampler: str, source: str) -> None:
    call = tiny.call.but(sampler=sampler)
    target = call.but(positive=tiny.near(call.positive, 0.3))
    options = tiny.options(**REGION, **{**SPARSE, "attention": source})
    tiny.reuse(tmp_path, call, options=options)
    joint, run = tiny.reuse(tmp_path, target, options=options)
    assert run.report.decision.value == "hit" and run.report.steps["region"] > 0
    assert run.report.attention.startswith("density 50 % by the connectivity of")
    everything = tiny.options(**REGION, **{**SPARSE, "attention": "consensus", "attention_percent": 100})
    latent, dense_run = tiny.reuse(tmp_path, target, options=tiny.options(**REGION, attention="dense"))
    assert dense_run.report.attention == "dense: set to dense"
    all_kept, _ = tiny.reuse(tmp_path, target, options=everything)
    assert relative(all_kept, latent) < 1e-4
    assert 1e-4 < relative(joint, latent) < 0.3


def test_connectivity_kept_by_another_rule_is_not_taken_from_a_donor(tiny, tmp_path: Path, small_checks) -> None:
    target = tiny.call.but(positive=tiny.near(tiny.call.positive, 0.3))
    donor = {**SPARSE, "attention": "donor"}
    tiny.reuse(tmp_path, tiny.call, options=tiny.options(**REGION, **donor))
    _, run = tiny.reuse(tmp_path, target, options=tiny.options(**REGION, **donor, attention_percent=20))
    assert run.report.decision.value == "hit"
    assert run.report.attention == "dense: the donor's connectivity was kept by another rule (density 50 %)"


def test_an_assist_attends_sparsely_and_is_not_stored(tiny, tmp_path: Path) -> None:
    closed = tiny.options(**SPARSE, assist=True, gate=0.0)
    tiny.reuse(tmp_path, tiny.call, options=closed)
    target = tiny.call.but(positive=tiny.prompt(5))
    found, run = tiny.reuse(tmp_path, target, options=closed)
    stock = target(tiny.model)
    assert run.report.decision.value == "assist" and run.report.entry_id is None
    assert "connectivity of 1 earlier requests" in run.report.attention
    assert 0 < relative(found, stock) < 0.3
    assert torch.equal(target(tiny.model), stock), "the model is as it was"


def test_on_a_cpu_auto_leaves_attention_dense_and_measures_nothing(tiny, tmp_path: Path) -> None:
    from carnator_core.store.registry import open_store

    _, run = tiny.reuse(tmp_path, tiny.call)
    store = open_store(tmp_path, tiny.options().store)
    store.wait()
    assert store.connectivity(run.report.entry_id) is None


def test_a_dense_run_survives_a_failure_to_measure_what_it_attends_to(tiny, tmp_path: Path, monkeypatch) -> None:
    from carnator_core.hosts import comfy_wan_forward
    from carnator_core.store.registry import open_store

    calls = []

    def fail(*args: object) -> torch.Tensor:
        calls.append(args)
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(comfy_wan_forward, "measure_mass", fail)
    options = tiny.options(**SPARSE)
    found, run = tiny.reuse(tmp_path, tiny.call, options=options)
    assert torch.equal(found, tiny.call(tiny.model)) and run.report.decision.value == "miss"
    assert len(calls) == 1, "it is not tried again in every layer"
    store = open_store(tmp_path, options.store)
    store.wait()
    assert store.connectivity(run.report.entry_id) is None


@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
@pytest.mark.parametrize("works", [0, 2])
def test_a_hit_whose_sparse_kernel_fails_goes_on_with_dense_attention(
    tiny, tmp_path: Path, small_checks, monkeypatch, sampler: str, works: int
) -> None:
    from carnator_core import attention

    monkeypatch.setattr(attention, "FAILED", {})
    call = tiny.call.but(sampler=sampler)
    target = call.but(positive=tiny.near(call.positive, 0.3))
    options = tiny.options(**REGION, **SPARSE)
    tiny.reuse(tmp_path, call, options=options)
    dense, dense_run = tiny.reuse(tmp_path, target, options=tiny.options(**REGION, attention="dense"))
    working, calls = attention.dispatch.block_sparse_attention, []

    def attend(*args: object) -> torch.Tensor:
        """Fails in the middle of a forward of four layers."""
        calls.append(args)
        if len(calls) > works:
            raise RuntimeError("no such kernel")
        return working(*args)

    monkeypatch.setattr(attention.dispatch, "block_sparse_attention", attend)
    found, run = tiny.reuse(tmp_path, target, options=options)
    assert len(calls) == works + 1 and run.report.decision.value == "hit"
    assert run.report.attention == "dense: sparse attention failed (RuntimeError: no such kernel)"
    assert run.report.steps == dense_run.report.steps and run.report.work == dense_run.report.work
    assert relative(found, dense) < 1e-5, "what sparse attention had put into tile order lies row by row again"
    again, later = tiny.reuse(tmp_path, target, options=options)
    assert torch.equal(again, dense) and len(calls) == works + 1
    assert later.report.attention == run.report.attention


def test_an_assist_whose_sparse_kernel_fails_goes_on_with_dense_attention(tiny, tmp_path: Path, monkeypatch) -> None:
    from carnator_core import attention

    monkeypatch.setattr(attention, "FAILED", {})
    closed = tiny.options(**SPARSE, assist=True, gate=0.0)
    tiny.reuse(tmp_path, tiny.call, options=closed)

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(attention.dispatch, "block_sparse_attention", fail)
    target = tiny.call.but(positive=tiny.prompt(5))
    found, run = tiny.reuse(tmp_path, target, options=closed)
    assert run.report.decision.value == "assist" and "no such kernel" in run.report.attention
    assert sum(run.report.steps.values()) == target.steps and run.report.steps["assist"] > 0
    assert 0 < relative(found, target(tiny.model)) < 0.3


def test_running_out_of_memory_in_a_sparse_kernel_finishes_the_run_densely(
    tiny, tmp_path: Path, small_checks, monkeypatch
) -> None:
    from carnator_core import attention

    monkeypatch.setattr(attention, "FAILED", {})
    options = tiny.options(**REGION, **SPARSE)
    tiny.reuse(tmp_path, tiny.call, options=options)

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    monkeypatch.setattr(attention.dispatch, "block_sparse_attention", fail)
    target = tiny.call.but(positive=tiny.near(tiny.call.positive, 0.3))
    found, run = tiny.reuse(tmp_path, target, options=options)
    assert run.report.reason.code.value == "out_of_memory" and attention.FAILED == {}
    assert sum(run.report.steps.values()) == target.steps
    assert bool(torch.isfinite(found).all())


def test_a_run_whose_connectivity_would_be_huge_attends_densely(tiny, tmp_path: Path, monkeypatch) -> None:
    from carnator_core import attention

    monkeypatch.setattr(attention, "MAX_PAIRS", 10)
    _, run = tiny.reuse(tmp_path, tiny.call, options=tiny.options(**SPARSE))
    _, again = tiny.reuse(tmp_path, tiny.call, options=tiny.options(**SPARSE))
    assert again.report.attention == "dense: its connectivity would take 0.0 GB"

"""The two branches of a step, batched into one forward or evaluated apart."""

from pathlib import Path

import pytest
import torch

SIZE = (3, 16, 16)
PARTIAL = {"region_threshold": 0.085, "max_region_percent": 100.0}


@pytest.fixture
def batches(tiny):
    """Batch sizes of all forwards of a test."""
    seen = []
    hook = tiny.model.model.diffusion_model.blocks[0].register_forward_hook(
        lambda module, args, out: seen.append(out.shape[0])
    )
    yield seen
    hook.remove()


@pytest.fixture
def apart(tiny, monkeypatch: pytest.MonkeyPatch):
    """apart() makes ComfyUI evaluate the branches one after the other, as it does when memory is short."""
    return lambda: monkeypatch.setattr(tiny.model.model, "memory_required", lambda *args, **kwargs: 1e30)


def test_equal_token_counts_are_batched_and_others_are_apart(tiny, batches, apart) -> None:
    tiny.call(tiny.model)
    assert set(batches) == {2}
    batches.clear()
    tiny.call.but(positive=tiny.prompt(1, tokens=20))(tiny.model)
    assert set(batches) == {1}
    batches.clear()
    apart()
    tiny.call(tiny.model)
    assert set(batches) == {1}


def test_branches_apart_give_the_same_hit_as_batched_ones(tiny, far, tmp_path: Path, batches, apart) -> None:
    call = tiny.call.but(size=SIZE, steps=12)
    near = call.but(positive=tiny.near(call.positive, 0.2))
    options = tiny.options(**PARTIAL)
    tiny.reuse(tmp_path / "batched", call)
    together, run = tiny.reuse(tmp_path / "batched", near, options=options)
    assert 2 in batches
    apart()
    batches.clear()
    tiny.reuse(tmp_path / "apart", call)
    separate, other = tiny.reuse(tmp_path / "apart", near, options=options)
    assert set(batches) == {1}
    assert run.report.decision.value == other.report.decision.value == "hit"
    assert run.report.steps == other.report.steps and run.report.steps["region"] > 0
    assert run.report.region_history == other.report.region_history
    assert far(separate, together) < 1e-4


def test_a_donor_made_batched_serves_a_request_that_runs_apart(tiny, far, tmp_path: Path, batches, apart) -> None:
    stock, _ = tiny.reuse(tmp_path, tiny.call)
    apart()
    batches.clear()
    result, run = tiny.reuse(tmp_path, tiny.call)
    assert run.report.decision.value == "hit" and set(batches) == {1}
    assert far(result, stock) < 2e-3


@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
def test_different_token_counts_give_a_hit_close_to_stock(tiny, far, tmp_path: Path, batches, sampler: str) -> None:
    call = tiny.call.but(positive=tiny.prompt(1, tokens=20), sampler=sampler)
    stock, _ = tiny.reuse(tmp_path, call)
    result, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "hit" and set(batches) == {1}
    assert far(result, stock) < 2e-3


def test_different_token_counts_give_region_steps_too(tiny, far, tmp_path: Path, batches) -> None:
    call = tiny.call.but(positive=tiny.prompt(1, tokens=20), size=SIZE, steps=12)
    donor, _ = tiny.reuse(tmp_path, call)
    near = call.but(positive=tiny.near(call.positive, 0.2))
    result, run = tiny.reuse(tmp_path, near, options=tiny.options(region_threshold=0.12, max_region_percent=100.0))
    target = near(tiny.model)
    assert run.report.decision.value == "hit" and run.report.steps["region"] > 0
    assert set(batches) == {1}
    assert far(result, target) < 0.7 * far(donor, target)


def test_a_model_that_asks_for_both_branches_at_cfg_1_gives_a_hit_with_both(tiny, far, tmp_path, batches) -> None:
    """Perturbed-attention and similar nodes switch off the host's shortcut at CFG 1."""
    model = tiny.model.clone()
    model.model_options["disable_cfg1_optimization"] = True
    call = tiny.call.but(cfg=1.0)
    stock, miss = tiny.reuse(tmp_path, call, model)
    assert torch.equal(stock, call(model)) and set(batches) == {2}
    result, run = tiny.reuse(tmp_path, call, model)
    assert (miss.report.decision.value, run.report.decision.value) == ("miss", "hit")
    assert run.report.discrepancies.residual is not None
    assert far(result, stock) < 2e-3


def test_without_guidance_there_is_one_branch(tiny, tmp_path: Path, batches) -> None:
    call = tiny.call.but(cfg=1.0)
    tiny.reuse(tmp_path, call)
    _, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "hit"
    assert run.report.discrepancies.residual is None
    assert set(batches) == {1}

"""A hit in the real host: what it computes and how close it comes."""

import math
from pathlib import Path

import pytest
import torch

# With this size, wording and threshold the region of the random model stays within 10 to 60 % of 192 tokens.
PARTIAL = {"region_threshold": 0.135, "max_region_percent": 100.0}
SIZE, TOKENS = (3, 16, 16), 3 * 8 * 8


@pytest.fixture
def partial(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A call with a donor in tmp_path, compatible only in a part of the video.

    The predictions of a random model do not gain amplitude as the noise falls, so its threshold stays.
    """
    from carnator_core import evidence

    monkeypatch.setattr(evidence, "LATE_RISE", 0.0)
    call = tiny.call.but(size=SIZE, steps=12)
    tiny.reuse(tmp_path, call)
    return call.but(positive=tiny.near(call.positive, 0.2))


@pytest.mark.parametrize("cfg", [5.0, 1.0])
@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m", "res_multistep", "ipndm", "uni_pc", "uni_pc_bh2"])
def test_the_same_prompt_again_is_a_hit_close_to_stock(tiny, far, tmp_path: Path, sampler: str, cfg: float) -> None:
    call = tiny.call.but(sampler=sampler, cfg=cfg)
    stock, _ = tiny.reuse(tmp_path, call)
    result, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "hit", run.report.status()
    assert run.report.region_share == 0.0
    assert far(result, stock) < 2e-3  # the store keeps float16


@pytest.mark.parametrize("size", [(3, 8, 8), (2, 9, 11)], ids=["even", "odd"])
@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
@pytest.mark.parametrize(
    "window", [(20.0, 83.0), (25.0, 50.0), (0.0, 100.0), (50.0, 50.0)], ids=["default", "one", "full", "none"]
)
def test_a_region_of_everything_is_the_dense_run(tiny, far, tmp_path: Path, sampler: str, size, window) -> None:
    """All rows computed and nothing replayed: only float rounding may remain."""
    call = tiny.call.but(sampler=sampler, size=size)
    tiny.reuse(tmp_path, call)
    other = call.but(positive=tiny.near(call.positive, 0.5))
    start, end = window
    options = tiny.options(
        region_threshold=0.0, max_region_percent=100.0, guidance_interval=1,
        window_start_percent=start, window_end_percent=end,
    )  # fmt: skip
    result, run = tiny.reuse(tmp_path, other, options=options)
    assert run.report.decision.value == "hit" and run.report.region_share == 1.0
    stock = other(tiny.model)
    assert far(call(tiny.model), stock) > 0.1, "the two prompts must differ for this to say anything"
    assert far(result, stock) < 1e-5


def test_region_steps_leave_rows_out_of_the_computation(tiny, tmp_path: Path, partial) -> None:
    blocks = tiny.model.model.diffusion_model.blocks
    seen, hooks = [], []
    for index, block in enumerate(blocks):
        for name, module in (("q", block.self_attn.q), ("k", block.self_attn.k), ("ffn", block.ffn[0])):
            hook = module.register_forward_hook(
                lambda m, args, out, at=(index, name): seen.append((*at, args[0].shape[1]))
            )
            hooks.append(hook)
    try:
        _, run = tiny.reuse(tmp_path, partial, options=tiny.options(**PARTIAL))
    finally:
        for hook in hooks:
            hook.remove()
    shares = [share for _, share in run.report.region_history]
    assert run.report.decision.value == "hit" and all(0.05 < share < 0.7 for share in shares), shares
    # rows come in whole sixteenths of all tokens
    allowed = {TOKENS // 16 * math.ceil(round(share * TOKENS) / (TOKENS // 16)) for share in shares} | {TOKENS}
    region_forwards = run.report.steps["region"]
    for index in range(len(blocks)):
        for name in ("q", "k", "ffn"):
            rows = [n for i, part, n in seen if (i, part) == (index, name)]
            fewer = [n for n in rows if n < TOKENS]
            limited = index in (1, 2, 3) and name != "k"  # the layer window 1–2 and the last block
            assert len(fewer) == (region_forwards if limited else 0), (index, name)
            assert set(rows) <= allowed


def test_with_the_layer_window_off_only_the_last_block_leaves_rows_out(tiny, tmp_path: Path, partial) -> None:
    seen, hooks = {}, []
    for index, block in enumerate(tiny.model.model.diffusion_model.blocks):
        rows = seen.setdefault(index, [])
        hooks.append(block.ffn[0].register_forward_hook(lambda m, args, out, rows=rows: rows.append(args[0].shape[1])))
    try:
        options = tiny.options(**PARTIAL, window_start_percent=50.0, window_end_percent=50.0)
        result, run = tiny.reuse(tmp_path, partial, options=options)
    finally:
        for hook in hooks:
            hook.remove()
    assert run.report.decision.value == "hit" and bool(torch.isfinite(result).all())
    assert [min(rows) < TOKENS for rows in seen.values()] == [False, False, False, True]


def test_a_replayed_step_makes_no_model_call(tiny, tmp_path: Path) -> None:
    tiny.reuse(tmp_path, tiny.call)
    calls = []
    hook = tiny.model.model.diffusion_model.blocks[0].register_forward_hook(lambda m, args, out: calls.append(1))
    try:
        _, run = tiny.reuse(tmp_path, tiny.call)
    finally:
        hook.remove()
    steps = run.report.steps
    assert steps["replay"] >= 3
    assert len(calls) == steps["dense"] + steps["check"]


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_region_steps_run_the_unconditional_branch_only_when_it_is_due(
    tiny, tmp_path: Path, partial, interval: int
) -> None:
    batches = []
    hook = (
        tiny.model.model.diffusion_model.blocks[1]
        .ffn[0]
        .register_forward_hook(
            lambda m, args, out: batches.append(args[0].shape[0]) if args[0].shape[1] < TOKENS else None
        )
    )
    try:
        options = tiny.options(**PARTIAL, guidance_interval=interval)
        _, run = tiny.reuse(tmp_path, partial, options=options)
    finally:
        hook.remove()
    assert len(batches) == run.report.steps["region"] == 5
    schedule = run.session.request.schedule
    region_steps = [step for step in schedule.reuse_steps if step not in schedule.checks]
    fresh = sum(schedule.sigmas[step] >= options.reuse.guidance_fresh_sigma for step in region_steps)
    assert 0 < fresh < 5, "both rules must apply for this to say anything"
    if interval == 1:
        assert batches.count(2) == 5
    else:
        assert fresh <= batches.count(2) <= fresh + math.ceil((5 - fresh) / interval)


@pytest.mark.parametrize("cfg", [5.0, 1.0])
@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
def test_a_hit_with_a_part_recomputed_is_nearer_to_stock_than_its_donor(
    tiny, far, tmp_path: Path, sampler: str, cfg: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from carnator_core import evidence

    monkeypatch.setattr(evidence, "LATE_RISE", 0.0)  # as in `partial`
    call = tiny.call.but(size=SIZE, steps=12, sampler=sampler, cfg=cfg)
    donor, _ = tiny.reuse(tmp_path, call)
    target = call.but(positive=tiny.near(call.positive, 0.2))
    options = tiny.options(region_threshold=0.135 if cfg > 1 else 0.125, max_region_percent=100.0)
    result, run = tiny.reuse(tmp_path, target, options=options)
    assert run.report.decision.value == "hit" and run.report.steps["region"] > 0
    stock = target(tiny.model)
    assert far(result, stock) < 0.8 * far(donor, stock)


def test_a_hit_is_the_same_every_time(tiny, tmp_path: Path, partial) -> None:
    one, _ = tiny.reuse(tmp_path, partial, options=tiny.options(**PARTIAL))
    two, run = tiny.reuse(tmp_path, partial, options=tiny.options(**PARTIAL))
    assert run.report.decision.value == "hit"
    assert torch.equal(one, two)


def test_a_hit_with_an_odd_latent_size_is_close_to_stock(tiny, far, tmp_path: Path) -> None:
    call = tiny.call.but(size=(2, 9, 11))
    stock, _ = tiny.reuse(tmp_path, call)
    result, run = tiny.reuse(tmp_path, call)
    assert run.report.decision.value == "hit"
    assert far(result, stock) < 2e-3


def test_running_out_of_memory_in_a_region_step_finishes_densely(tiny, tmp_path: Path, stored, partial) -> None:
    import comfy.model_management

    failed = []

    def full(module, args):
        if args[0].shape[1] < TOKENS and not failed:
            failed.append(1)
            raise comfy.model_management.OOM_EXCEPTION("out of memory")

    hook = tiny.model.model.diffusion_model.blocks[1].ffn[0].register_forward_pre_hook(full)
    before = stored(tmp_path)
    try:
        result, run = tiny.reuse(tmp_path, partial, options=tiny.options(**PARTIAL))
    finally:
        hook.remove()
    assert failed and bool(torch.isfinite(result).all())
    assert (run.report.decision.value, run.report.reason.code.value) == ("declined", "out_of_memory")
    assert stored(tmp_path) == before


@pytest.mark.parametrize("sampler", ["euler", "uni_pc", "dpmpp_2m", "res_multistep"])
def test_held_steps_evaluate_nothing_and_stay_near_the_hit_that_evaluates_all(
    tiny, far, tmp_path: Path, sampler: str
) -> None:
    call = tiny.call.but(size=SIZE, steps=20, sampler=sampler)
    tiny.reuse(tmp_path, call)
    target = call.but(positive=tiny.near(call.positive, 0.2))
    whole, _ = tiny.reuse(tmp_path, target, options=tiny.options(**PARTIAL))
    calls = []
    hook = tiny.model.model.diffusion_model.register_forward_hook(lambda *_: calls.append(1))
    try:
        held, run = tiny.reuse(tmp_path, target, options=tiny.options(**PARTIAL, hold_threshold=0.25))
    finally:
        hook.remove()
    steps = run.report.steps
    assert steps["hold"] > 0 and steps["region"] > 0
    assert len(calls) <= 2 * (steps["dense"] + steps["check"] + steps["region"])
    assert far(held, whole) < 0.5 * far(whole, call(tiny.model))

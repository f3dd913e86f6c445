"""Plan: how the steps are divided and what a hit is predicted to cost."""

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from carnator_core.options import ReuseOptions
from carnator_core.plan import (
    LayerWindow,
    ModelShape,
    Schedule,
    StepKind,
    predicted_work,
    region_forward_cost,
    reuse_plans,
)

steps = st.integers(1, 60)
percent = st.floats(0.0, 100.0)
shift = st.floats(1.0, 12.0)
shapes = st.builds(
    ModelShape,
    latent=st.tuples(st.just(16), st.integers(1, 21), st.integers(1, 90), st.integers(1, 90)),
    patch=st.just((1, 2, 2)),
    depth=st.integers(1, 40),
    dim=st.sampled_from([128, 1536, 5120]),
    ffn_dim=st.sampled_from([128, 8960]),
    context_tokens=st.integers(1, 512),
)


def sigmas(count: int, shift: float) -> tuple[float, ...]:
    times = [1 - i / count for i in range(count + 1)]
    return tuple(shift * t / (1 + (shift - 1) * t) for t in times)


def windows(depth: int) -> st.SearchStrategy[LayerWindow]:
    bounds = st.tuples(st.integers(0, depth), st.integers(0, depth))
    return bounds.map(lambda pair: LayerWindow(min(pair), max(pair)))


@given(steps, shift, percent, percent, st.booleans())
def test_probe_reuse_and_refine_partition_the_steps(n, s, probe, refine, multistep) -> None:
    schedule = Schedule.of(sigmas(n, s), probe, refine, multistep)
    if schedule is None:
        return
    assert schedule.steps == n
    assert 1 <= schedule.probe_end < schedule.refine_start < n
    assert len(schedule.reuse_steps) >= 2
    assert schedule.probe_end >= n * probe / 100 and schedule.probe_end - 1 < max(1, n * probe / 100)
    refined = n - schedule.refine_start
    least = 2 if multistep else 1
    assert refined >= max(least, n * refine / 100) and refined - 1 < max(least, n * refine / 100)


@given(steps, shift, percent, percent, st.booleans())
def test_a_schedule_is_refused_only_if_fewer_than_two_reuse_steps_remain(n, s, probe, refine, multistep) -> None:
    schedule = Schedule.of(sigmas(n, s), probe, refine, multistep)
    if schedule is None:
        dense = max(1, n * probe / 100) + max(2 if multistep else 1, n * refine / 100)
        assert n - dense < 4  # two roundings up and two reuse steps


@given(steps, shift, percent, percent, st.booleans())
def test_checks_lie_inside_the_reuse_steps_and_after_the_first_one(n, s, probe, refine, multistep) -> None:
    schedule = Schedule.of(sigmas(n, s), probe, refine, multistep)
    assume(schedule is not None)
    assert 1 <= len(schedule.checks) <= 4
    assert list(schedule.checks) == sorted(set(schedule.checks))
    assert set(schedule.checks) <= set(schedule.reuse_steps) - {schedule.probe_end}


@given(steps, shift, st.integers(1, 30), percent, st.booleans())
def test_a_part_that_does_not_end_at_zero_has_no_refine_steps(n, s, cut, probe, multistep) -> None:
    assume(cut < n)
    part = sigmas(n, s)[: cut + 1]
    schedule = Schedule.of(part, probe, 50.0, multistep)
    assert (schedule is None) == (cut - max(1, math.ceil(cut * probe / 100)) < 2)
    if schedule is not None:
        assert schedule.refine_start == schedule.steps == cut


def test_fifty_wan_steps_check_near_the_four_noise_levels() -> None:
    schedule = Schedule.of(sigmas(50, 8.0), 10.0, 6.0, False)
    found = [schedule.sigmas[i] for i in schedule.checks]
    assert len(found) == 4
    for sigma, wanted in zip(found, (0.96, 0.94, 0.90, 0.82), strict=True):
        assert abs(sigma - wanted) < 0.015


def test_the_default_plan_of_twenty_steps() -> None:
    schedule = Schedule.of(sigmas(20, 8.0), 10.0, 6.0, False)
    assert (schedule.probe_end, schedule.refine_start) == (2, 18)
    assert Schedule.of(sigmas(20, 8.0), 10.0, 6.0, True).refine_start == 18
    assert Schedule.of(sigmas(8, 8.0), 10.0, 6.0, True).refine_start == 6


@pytest.mark.parametrize(
    ("n", "multistep", "fits"), [(3, False, False), (4, False, True), (4, True, False), (5, True, True)]
)
def test_the_fewest_steps_that_can_be_reused(n: int, multistep: bool, fits: bool) -> None:
    assert (Schedule.of(sigmas(n, 8.0), 10.0, 6.0, multistep) is not None) == fits


@given(shapes.flatmap(lambda shape: st.tuples(st.just(shape), windows(shape.depth))))
def test_a_region_of_everything_costs_a_whole_forward(pair: tuple[ModelShape, LayerWindow]) -> None:
    assert region_forward_cost(*pair, share=1.0) == pytest.approx(1.0, rel=1e-12)


@given(
    shapes.flatmap(lambda shape: st.tuples(st.just(shape), windows(shape.depth))),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_smaller_region_never_costs_more(pair, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 0 < region_forward_cost(*pair, share=low) <= region_forward_cost(*pair, share=high) * (1 + 1e-12)


@given(shapes, st.data())
def test_a_wider_layer_window_never_costs_more(shape: ModelShape, data: st.DataObject) -> None:
    outer = data.draw(windows(shape.depth))
    inner = LayerWindow(outer.first, data.draw(st.integers(outer.first, outer.stop)))
    assert region_forward_cost(shape, outer, 0.3) <= region_forward_cost(shape, inner, 0.3) * (1 + 1e-12)


@given(steps, shapes.flatmap(lambda shape: st.tuples(st.just(shape), windows(shape.depth))), st.data())
def test_predicted_work_lies_above_zero_up_to_one_and_grows_with_the_region(n, pair, data) -> None:
    schedule = Schedule.of(
        sigmas(n, 8.0), data.draw(st.floats(1, 50)), data.draw(st.floats(1, 50)), data.draw(st.booleans())
    )
    assume(schedule is not None)
    interval, guided = data.draw(st.integers(1, 9)), data.draw(st.booleans())
    shares = [0.0, *sorted(data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=4))), 1.0]
    plans = reuse_plans(schedule, ReuseOptions(guidance_interval=interval), guided, None)
    work = [predicted_work(schedule, *pair, share, plans, guided) for share in shares]
    assert all(0 < w <= 1 + 1e-12 for w in work)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(work))


def test_predicted_work_falls_with_the_guidance_interval() -> None:
    schedule = Schedule.of(sigmas(20, 8.0), 10.0, 6.0, False)
    shape = ModelShape((16, 5, 16, 16), (1, 2, 2), 4, 256, 256, 16)

    def work(**options: float) -> float:
        plans = reuse_plans(schedule, ReuseOptions(**{"hold_threshold": 0.0, **options}), True, [0.03] * 20)
        return predicted_work(schedule, shape, LayerWindow(1, 3), 0.3, plans, True)

    by_interval = [work(guidance_interval=interval) for interval in (1, 2, 4, 8)]
    assert by_interval == sorted(by_interval, reverse=True) and by_interval[0] > by_interval[1]
    assert work(hold_threshold=0.1) < work(hold_threshold=0.05) < work()
    assert work(guidance_end_percent=50.0) < work()


@given(steps, st.lists(st.floats(0, 0.2), min_size=60, max_size=60), st.floats(0, 0.5))
def test_no_step_is_held_for_longer_than_the_threshold_allows(n: int, change: list, threshold: float) -> None:
    schedule = Schedule.of(sigmas(n, 8.0), 10.0, 6.0, False)
    assume(schedule is not None)
    plans = reuse_plans(schedule, ReuseOptions(hold_threshold=threshold), True, change)
    assert list(plans) == list(schedule.reuse_steps)
    moved = 0.0
    for step, plan in plans.items():
        moved = moved + change[step] if plan.kind is StepKind.HOLD else 0.0
        assert moved < threshold or moved == 0.0
        assert (plan.kind is StepKind.CHECK) == (step in schedule.checks)


def test_nothing_is_held_where_it_is_not_known_how_fast_a_donor_changed() -> None:
    schedule = Schedule.of(sigmas(20, 8.0), 10.0, 6.0, False)
    plans = reuse_plans(schedule, ReuseOptions(hold_threshold=10.0), True, None)
    assert all(plan.kind is not StepKind.HOLD for plan in plans.values())


@given(st.integers(1, 60), percent, percent)
def test_the_layer_window_lies_inside_the_model(depth: int, a: float, b: float) -> None:
    start, end = sorted((a, b))
    window = LayerWindow.of(ReuseOptions(window_start_percent=start, window_end_percent=end), depth)
    assert 0 <= window.first <= window.stop <= depth
    assert (len(window.blocks) == 0) == (window.first == window.stop)


def test_the_default_layer_window_of_thirty_blocks() -> None:
    assert LayerWindow.of(ReuseOptions(), 30).blocks == range(3, 27)
    assert LayerWindow.of(ReuseOptions(), 6).blocks == range(1, 5), "what the demo world's measurements speak of"


def test_equal_ends_switch_the_layer_window_off() -> None:
    window = LayerWindow.of(ReuseOptions(window_start_percent=50, window_end_percent=50), 30)
    assert not window.blocks


@given(shapes)
def test_the_token_grid_rounds_up_and_the_middle_block_exists(shape: ModelShape) -> None:
    t, h, w = shape.latent[1:]
    assert shape.grid == (t, (h + 1) // 2, (w + 1) // 2)
    assert shape.tokens == shape.grid[0] * shape.grid[1] * shape.grid[2]
    assert 0 <= shape.middle_block < shape.depth


def test_nothing_is_held_in_a_part_that_starts_below_pure_noise() -> None:
    later = Schedule.of(sigmas(20, 8.0)[10:], 10.0, 6.0, False)
    plans = reuse_plans(later, ReuseOptions(hold_threshold=10.0), True, [0.0] * 10)
    assert all(plan.kind is not StepKind.HOLD for plan in plans.values())

"""Session, the runs that save work without a donor, and the steps that are held."""

import dataclasses
from pathlib import Path

import pytest
import torch

from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions
from carnator_core.plan import StepKind
from carnator_core.reasons import Code, Decision, Reason
from carnator_core.session import Session
from carnator_core.store.registry import open_store
from support.fake_host import FakeHost

PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])
LOCAL = PROMPT + torch.tensor([0.0, 0, 0, 0, 0, 1.5, 0, 0])
OPEN, CLOSED = GateOptions(*[10.0] * 5), GateOptions(*[0.0] * 5)


def options(gate: GateOptions = CLOSED, **reuse) -> Options:
    return Options(
        probe=ProbeOptions(min_text_similarity=-1.0),
        gate=gate,
        reuse=ReuseOptions(**{"region_threshold": 0.05, "assist": True, "hold_threshold": 0.0, **reuse}),
    )


def run(host: FakeHost, root: Path, prompt: torch.Tensor, chosen: Options) -> tuple[Session, torch.Tensor]:
    one = Session(host.request(prompt), chosen, open_store(root, chosen.store))
    return one, host.run(one, prompt)


def entries(root: Path, chosen: Options) -> int:
    return len(open_store(root, chosen.store).entries())


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_a_request_that_resembles_nothing_stays_dense_and_becomes_a_donor(tmp_path: Path) -> None:
    host = FakeHost()
    one, result = run(host, tmp_path, PROMPT, options())
    assert one.report.decision is Decision.MISS and torch.equal(result, host.dense(PROMPT))
    assert entries(tmp_path, options()) == 1


def test_a_refused_variation_is_assisted_told_so_and_never_stored(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT, options())
    one, result = run(host, tmp_path, LOCAL, options())
    assert one.report.decision is Decision.ASSIST
    assert one.report.reason.code is Code.GATE_REJECTED
    assert one.report.status().startswith("assist") and "not bit-identical" in one.report.status()
    assert one.report.steps == {"dense": 4, "assist": 16}
    assert entries(tmp_path, options()) == 1 and one.report.entry_id is None
    # Every step runs the conditional branch over all tokens; the other one in every second late step.
    tokens = one.request.shape.tokens
    assert {count for _, _, count in host.evaluated} == {tokens}
    assert sum(branch == "cond" for _, branch, _ in host.evaluated) == 20
    assert 12 <= sum(branch == "uncond" for _, branch, _ in host.evaluated) < 20
    assert relative(result, host.dense(LOCAL)) < 0.02


def test_without_the_option_the_same_request_is_a_dense_miss(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT, options())
    one, result = run(host, tmp_path, LOCAL, options(assist=False))
    assert one.report.decision is Decision.MISS and torch.equal(result, host.dense(LOCAL))


def test_a_model_that_is_still_being_learned_is_not_assisted(tmp_path: Path) -> None:
    host, chosen = FakeHost(), dataclasses.replace(options(), gate=None)
    run(host, tmp_path, PROMPT, chosen)
    one, result = run(host, tmp_path, LOCAL, chosen)
    assert one.report.decision is Decision.MISS and one.report.reason.code is Code.LEARNING
    assert torch.equal(result, host.dense(LOCAL))


@pytest.mark.parametrize("gate", [OPEN, CLOSED], ids=["hit", "assist"])
@pytest.mark.parametrize("cfg", [3.0, 1.0])
def test_held_steps_evaluate_nothing_and_the_result_stays_near(tmp_path: Path, gate: GateOptions, cfg: float) -> None:
    host = FakeHost(cfg=cfg)
    run(host, tmp_path, PROMPT, options(gate))
    every, without = run(host, tmp_path, LOCAL, options(gate))
    evaluated = len(host.evaluated)
    one, result = run(host, tmp_path, LOCAL, options(gate, hold_threshold=0.1))
    held = [step for step, plan in enumerate(host.plans) if plan.kind is StepKind.HOLD]
    assert held and len(host.evaluated) < evaluated
    assert not {step for step, _, _ in host.evaluated} & set(held)
    assert one.report.decision is every.report.decision
    assert relative(result, without) < 0.05


def test_the_longer_steps_are_held_the_farther_the_result_is_from_stock(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT, options())
    dense = host.dense(LOCAL)
    found = [relative(run(host, tmp_path, LOCAL, options(hold_threshold=t))[1], dense) for t in (0.0, 0.1, 0.6)]
    assert found == sorted(found) and found[0] < found[2]


def test_guidance_that_ends_early_leaves_out_the_other_branch(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT, options())
    run(host, tmp_path, LOCAL, options(guidance_end_percent=50.0))
    late = [step for step, branch, _ in host.evaluated if branch == "uncond" and step >= 10]
    assert late == [18, 19], "the refine steps are the stock ones"


def test_standing_aside_after_assisted_steps_keeps_the_name_and_tells_why(tmp_path: Path) -> None:
    def fail(session: Session, step: int) -> None:
        if step == 10:
            session.go_dense(Reason.of(Code.OUT_OF_MEMORY))

    host = FakeHost()
    run(host, tmp_path, PROMPT, options())
    failing = FakeHost(before_step=fail)
    one, result = run(failing, tmp_path, LOCAL, options())
    assert (one.report.decision, one.report.reason.code) == (Decision.ASSIST, Code.OUT_OF_MEMORY)
    assert one.report.steps == {"dense": 12, "assist": 8}
    assert entries(tmp_path, options()) == 1


def test_standing_aside_after_a_held_step_of_an_assist_is_no_stock_run(tmp_path: Path) -> None:
    def fail(session: Session, step: int) -> None:
        if step == 3:
            session.go_dense(Reason.of(Code.OUT_OF_MEMORY))

    host, held = FakeHost(), options(hold_threshold=0.6)
    run(host, tmp_path, PROMPT, held)
    failing = FakeHost(before_step=fail)
    one, result = run(failing, tmp_path, LOCAL, held)
    assert failing.plans[2].kind is StepKind.HOLD, "for this to say anything"
    assert one.report.decision is Decision.ASSIST
    assert not torch.equal(result, host.dense(LOCAL))


def test_an_assist_that_would_save_nothing_is_a_miss_and_becomes_a_donor(tmp_path: Path) -> None:
    host, nothing = FakeHost(cfg=1.0), options(OPEN, max_region_percent=0.0)
    run(host, tmp_path, PROMPT, nothing)
    one, result = run(host, tmp_path, LOCAL, nothing)
    assert one.report.reason.code is Code.REGION_TOO_LARGE
    assert one.report.decision is Decision.MISS and torch.equal(result, host.dense(LOCAL))
    assert entries(tmp_path, options()) == 2


def test_checks_go_without_guidance_too_once_it_has_ended(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT, options(OPEN))
    run(host, tmp_path, LOCAL, options(OPEN, guidance_end_percent=0.0))
    assert {plan.kind for plan in host.plans} >= {StepKind.CHECK, StepKind.REGION}
    late = [step for step, branch, _ in host.evaluated if branch == "uncond" and 2 <= step < 18]
    assert late == [] and all(plan.unguided for plan in host.plans[2:18])

"""Session, what reuse steps attend by: connectivity of earlier runs, and dense attention once a kernel has failed."""

import logging
from pathlib import Path

import pytest
import torch

from carnator_core import attention
from carnator_core.attention import AttentionSite
from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions
from carnator_core.plan import StepKind
from carnator_core.reasons import Code, Decision
from carnator_core.session import Session
from carnator_core.store.registry import open_store
from support.fake_host import FakeHost

PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])
LOCAL = PROMPT + torch.tensor([0.0, 0, 0, 0, 0, 1.5, 0, 0])
SITE = AttentionSite(torch.device("cpu"), torch.float32, heads=2, head_dim=4)
OPEN, CLOSED = GateOptions(*[10.0] * 5), GateOptions(*[0.0] * 5)


@pytest.fixture(autouse=True)
def nothing_failed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FAILED", {})


def options(gate: GateOptions = OPEN, **reuse: object) -> Options:
    kept = {"attention": "consensus", "attention_block": 8, "hold_threshold": 0.0, "region_threshold": 0.05}
    return Options(probe=ProbeOptions(min_text_similarity=-1.0), gate=gate, reuse=ReuseOptions(**{**kept, **reuse}))


def run(root: Path, prompt: torch.Tensor, chosen: Options) -> tuple[Session, torch.Tensor, FakeHost]:
    host, store = FakeHost(attention=SITE), open_store(root, chosen.store)
    one = Session(host.request(prompt), chosen, store)
    result = host.run(one, prompt)
    store.wait()
    return one, result, host


def fail_from(monkeypatch: pytest.MonkeyPatch, call: int, error: Exception) -> list[int]:
    """Sparse attention works until its call number ``call``; the numbers of all calls."""
    working, calls = attention.dispatch.block_sparse_attention, []

    def attend(*args: object) -> torch.Tensor:
        calls.append(len(calls))
        if len(calls) > call:
            raise error
        return working(*args)

    monkeypatch.setattr(attention.dispatch, "block_sparse_attention", attend)
    return calls


def sparse_steps(host: FakeHost) -> list[int]:
    return [step for step, plan in enumerate(host.plans) if plan.sparse]


@pytest.mark.parametrize(("gate", "kind"), [(OPEN, StepKind.REGION), (CLOSED, StepKind.ASSIST)])
def test_reuse_steps_attend_by_what_earlier_runs_attended_to(tmp_path: Path, gate: GateOptions, kind: StepKind) -> None:
    chosen = options(gate, assist=True)
    run(tmp_path, PROMPT, chosen)
    one, _, host = run(tmp_path, LOCAL, chosen)
    assert one.report.attention == "density 50 % by the connectivity of 1 earlier requests"
    assert sparse_steps(host) == [step for step, plan in enumerate(host.plans) if plan.kind is kind] != []
    assert one.report.settings["attention used"] == "consensus by reference in torch.float32"


@pytest.mark.parametrize("call", [0, 2, 20])
@pytest.mark.parametrize(("gate", "decision"), [(OPEN, Decision.HIT), (CLOSED, Decision.ASSIST)])
def test_a_kernel_that_fails_costs_its_step_once_more_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog, gate: GateOptions, decision: Decision, call: int
) -> None:
    chosen = options(gate, assist=True)
    run(tmp_path, PROMPT, chosen)
    expected, result, good = run(tmp_path, LOCAL, chosen)
    calls = fail_from(monkeypatch, call, RuntimeError("no such kernel"))
    with caplog.at_level(logging.WARNING, "carnator"):
        one, found, host = run(tmp_path, LOCAL, chosen)
    assert len(calls) == call + 1, "it was not tried again"
    assert one.report.decision is expected.report.decision is decision
    assert one.report.reason == expected.report.reason
    assert torch.equal(found, result), "the fake model's results do not depend on its attention"
    assert one.report.attention == "dense: sparse attention failed (RuntimeError: no such kernel)"
    assert one.report.settings["attention used"] == "dense after a failure"
    assert (one.report.steps, one.report.work) == (expected.report.steps, expected.report.work)
    assert list(dict.fromkeys(host.evaluated)) == good.evaluated, "one step twice"
    assert [plan.kind for plan in host.plans] == [plan.kind for plan in good.plans]
    assert len([record for record in caplog.records if "sparse attention failed" in record.message]) == 1


def test_a_kernel_that_failed_is_not_tried_by_later_runs_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, PROMPT, options())
    calls = fail_from(monkeypatch, 0, RuntimeError("no such kernel"))
    run(tmp_path, LOCAL, options())
    one, _, host = run(tmp_path, LOCAL, options())
    assert len(calls) == 1 and sparse_steps(host) == []
    assert one.report.decision is Decision.HIT and one.report.reason.code is Code.REUSED
    assert one.report.attention == "dense: sparse attention failed (RuntimeError: no such kernel)"
    assert one.report.settings["attention used"] == "dense"
    run(tmp_path, 2 * PROMPT, options(CLOSED, attention_block=16))
    run(tmp_path, 2 * LOCAL, options(attention_block=16))
    assert len(calls) == 2, "with blocks of another size it may work"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("none left"), RuntimeError("Triton Error: out of memory")])
def test_running_out_of_memory_is_no_failure_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    run(tmp_path, PROMPT, options())
    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        fail_from(patch, 0, error)
        run(tmp_path, LOCAL, options())
    assert attention.FAILED == {}
    assert run(tmp_path, LOCAL, options())[0].report.attention.startswith("density 50 %")


def test_too_little_memory_to_prepare_sparse_attention_leaves_a_hit_with_dense_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: object) -> None:
        raise torch.OutOfMemoryError("none left")

    run(tmp_path, PROMPT, options())
    with monkeypatch.context() as patch:
        patch.setattr(attention.dispatch, "choose", fail)
        one, _, host = run(tmp_path, LOCAL, options())
    assert one.report.decision is Decision.HIT and sparse_steps(host) == []
    assert one.report.attention == "dense: there was too little memory to prepare sparse attention"
    assert run(tmp_path, LOCAL, options())[0].report.attention.startswith("density 50 %")

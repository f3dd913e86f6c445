"""Session, the runs that stay dense: what they store, why they miss, and that nothing in them changes."""

import time
from pathlib import Path

import pytest
import torch

from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions, StoreOptions
from carnator_core.plan import StepKind
from carnator_core.reasons import Code, Decision, Reason
from carnator_core.session import Session
from carnator_core.store import folder as store_folder
from carnator_core.store.entry import PREVIEW_FILE
from carnator_core.store.registry import open_store
from support.fake_host import FakeHost

PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])
LOCAL = PROMPT + torch.tensor([0.0, 0, 0, 0, 0, 1.5, 0, 0])
UNRELATED = -PROMPT.flip(0)
WIDE_GATE = GateOptions(1e3, 1e3, 1e3, 1e3)


def options(mode: str = "read+write", **parts) -> Options:
    return Options(store=StoreOptions(mode=mode), **parts)


def session(host: FakeHost, root: Path, prompt: torch.Tensor, chosen: Options | None = None, **key: str) -> Session:
    chosen = chosen or options()
    return Session(host.request(prompt, **key), chosen, open_store(root, chosen.store))


def stored(root: Path) -> list[str]:
    open_store(root, StoreOptions()).wait()
    return sorted(item.name for item in (root / "default" / "entries").iterdir())


def run(host: FakeHost, root: Path, prompt: torch.Tensor, chosen: Options | None = None, **key: str):
    one = session(host, root, prompt, chosen, **key)
    return one, host.run(one, prompt)


@pytest.mark.parametrize("cfg", [3.0, 1.0])
def test_a_miss_is_the_dense_run_bit_for_bit_and_is_stored(tmp_path: Path, cfg: float) -> None:
    host = FakeHost(cfg=cfg)
    one, result = run(host, tmp_path, PROMPT)
    assert torch.equal(result, host.dense(PROMPT))
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.STORE_EMPTY)
    assert stored(tmp_path) == [one.report.entry_id]
    assert {plan.kind for plan in host.plans} == {StepKind.DENSE}


def test_a_miss_evaluates_every_branch_of_every_step_over_all_tokens(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    tokens = 3 * 8 * 16
    assert host.evaluated == [(step, branch, tokens) for step in range(20) for branch in ("cond", "uncond")]


def test_what_no_budget_holds_is_not_even_kept_in_memory(tmp_path: Path) -> None:
    """A thousand steps of a large video are as many gigabytes."""
    host = FakeHost()
    size = 2 * 4 * 3 * 16 * 32 * (20 + len(host.request(PROMPT).schedule.checks)) / 1e9
    small, kept = Options(store=StoreOptions(budget_gb=0.99 * size)), []
    host.before_step = lambda one, step: kept.append(len(one._capture.guided))
    one, result = run(host, tmp_path, PROMPT, small)
    assert torch.equal(result, host.dense(PROMPT)) and set(kept) == {0}
    assert one.report.status().endswith(f"(not stored: one entry is larger than the budget of {0.99 * size:g} GB)")
    assert one.report.entry_id is None and stored(tmp_path) == []
    quiet, _ = run(host, tmp_path, PROMPT, Options(store=StoreOptions(budget_gb=0.99 * size, mode="read")))
    assert quiet.report.store_note is None
    assert run(FakeHost(), tmp_path, PROMPT, Options(store=StoreOptions(budget_gb=2 * size)))[0].report.entry_id


def test_an_unguided_request_never_asks_for_the_unconditional_branch(tmp_path: Path) -> None:
    host = FakeHost(cfg=1.0)
    run(host, tmp_path, PROMPT)
    run(host, tmp_path, LOCAL, options(gate=WIDE_GATE, probe=ProbeOptions(min_text_similarity=-1.0)))
    assert not any(plan.run_uncond for plan in host.plans)
    assert {branch for _, branch, _ in host.evaluated} == {"cond"}


def test_the_stored_trajectory_is_the_x0_of_every_step(tmp_path: Path) -> None:
    host = FakeHost()
    one, result = run(host, tmp_path, PROMPT)
    schedule = one.request.schedule
    assert stored(tmp_path) == [one.report.entry_id]
    kept = open_store(tmp_path, StoreOptions()).trajectory(one.report.entry_id, host.latent, 20, schedule.checks)
    torch.testing.assert_close(kept.guided(19).float(), result[0], atol=2e-3, rtol=2e-3)
    assert bool((kept.residual_norm > 0).all())


def test_text_that_is_too_different_is_a_miss_that_names_both_numbers(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    one, result = run(host, tmp_path, UNRELATED)
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.TEXT_TOO_DIFFERENT)
    best = torch.nn.functional.cosine_similarity(PROMPT, UNRELATED, dim=0)
    assert f"best similarity {best:.2f}, needed 0.50" in one.report.reason.sentence
    assert torch.equal(result, host.dense(UNRELATED))
    assert len(stored(tmp_path)) == 2


def test_the_gate_rejects_an_unrelated_request_and_names_the_families(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    one, result = run(host, tmp_path, UNRELATED, options(probe=ProbeOptions(min_text_similarity=-1.0)))
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.GATE_REJECTED)
    assert "state (" in one.report.reason.sentence
    assert one.report.discrepancies.state > GateOptions().state
    assert torch.equal(result, host.dense(UNRELATED))
    assert len(stored(tmp_path)) == 2


def test_a_region_over_the_allowed_share_is_a_miss(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    probe = ProbeOptions(min_text_similarity=-1.0)
    chosen = options(gate=WIDE_GATE, probe=probe, reuse=ReuseOptions(region_threshold=0.01, max_region_percent=5.0))
    one, result = run(host, tmp_path, UNRELATED, chosen)
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.REGION_TOO_LARGE)
    assert torch.equal(result, host.dense(UNRELATED))


def test_a_region_of_exactly_the_allowed_share_is_accepted(tmp_path: Path) -> None:
    host = FakeHost(latent=(4, 5, 8, 16))
    run(host, tmp_path, PROMPT)
    probe = ProbeOptions(min_text_similarity=-1.0)
    wide = options(gate=WIDE_GATE, probe=probe, reuse=ReuseOptions(max_region_percent=100.0))
    one, _ = run(host, tmp_path, LOCAL, wide)
    share = one.report.region_history[0][1]
    tokens = round(share * 5 * 4 * 8)
    exactly = options(gate=WIDE_GATE, probe=probe, reuse=ReuseOptions(max_region_percent=100 * tokens / 160))
    one, _ = run(host, tmp_path, LOCAL, exactly)
    assert one.report.decision is Decision.HIT, one.report.reason.sentence


def test_a_hit_that_would_save_nothing_is_a_miss(tmp_path: Path) -> None:
    host = FakeHost(cfg=1.0)
    run(host, tmp_path, PROMPT)
    everything = ReuseOptions(region_threshold=0.0, max_region_percent=100.0, hold_threshold=0.0)
    probe = ProbeOptions(min_text_similarity=-1.0)
    one, result = run(host, tmp_path, UNRELATED, options(gate=WIDE_GATE, probe=probe, reuse=everything))
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.NO_SAVING)
    assert torch.equal(result, host.dense(UNRELATED))


@pytest.mark.parametrize("field", ["seed", "CFG", "negative prompt"])
def test_a_key_difference_is_a_miss_that_names_the_field(tmp_path: Path, field: str) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT, **{field: "a"})
    one, result = run(host, tmp_path, PROMPT, **{field: "b"})
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.KEY_DIFFERS)
    assert one.report.reason.sentence.endswith(f"differs in: {field}")
    assert torch.equal(result, host.dense(PROMPT))


def test_several_key_differences_are_all_named(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT, seed="1", sampler="euler")
    one = session(host, tmp_path, PROMPT, seed="2", sampler="lms")
    assert one.report.reason.sentence.endswith("differs in: sampler, seed")


def test_a_store_set_to_write_only_is_never_read_but_filled(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    one, result = run(host, tmp_path, LOCAL, options("write"))
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.STORE_WRITE_ONLY)
    assert torch.equal(result, host.dense(LOCAL))
    assert len(stored(tmp_path)) == 2


def test_a_store_set_to_read_only_gets_no_entry(tmp_path: Path) -> None:
    host = FakeHost()
    one, result = run(host, tmp_path, PROMPT, options("read"))
    assert torch.equal(result, host.dense(PROMPT))
    assert stored(tmp_path) == [] and one.report.entry_id is None


def test_nothing_is_stored_without_a_commit(tmp_path: Path) -> None:
    host = FakeHost()
    host.run(session(host, tmp_path, PROMPT), PROMPT, seconds=None)
    assert stored(tmp_path) == []


def test_a_run_that_ended_early_is_not_stored_even_if_it_is_committed(tmp_path: Path) -> None:
    host, other = FakeHost(), FakeHost()
    one = session(host, tmp_path, PROMPT)

    class Ended(Exception):
        pass

    def end(_, step: int) -> None:
        if step == 12:
            raise Ended

    host.before_step = end
    with pytest.raises(Ended):
        host.run(one, PROMPT)
    one.commit(1.0)
    assert stored(tmp_path) == []
    assert torch.equal(run(other, tmp_path, PROMPT)[1], other.dense(PROMPT))


@pytest.mark.parametrize("at", [0, 1, 2, 9, 19])
def test_a_miss_that_is_told_to_go_dense_stores_nothing_and_stays_bit_identical(tmp_path: Path, at: int) -> None:
    host = FakeHost(before_step=lambda one, step: step == at and one.go_dense(Reason.of(Code.OUT_OF_MEMORY)))
    one, result = run(host, tmp_path, PROMPT)
    assert torch.equal(result, host.dense(PROMPT))
    assert one.report.decision is Decision.DECLINED
    assert stored(tmp_path) == []


@pytest.mark.parametrize("odd", [(4, 3, 7, 9), (4, 1, 6, 11)])
def test_odd_latent_sizes_miss_and_hit(tmp_path: Path, odd: tuple[int, int, int, int]) -> None:
    host = FakeHost(latent=odd)
    _, dense = run(host, tmp_path, PROMPT)
    assert torch.equal(dense, host.dense(PROMPT))
    one, again = run(host, tmp_path, PROMPT)
    assert one.report.decision is Decision.HIT
    torch.testing.assert_close(again, dense, atol=5e-3, rtol=5e-3)


def test_a_write_that_fails_in_the_background_is_told_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_folder, "write_entry", full)
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    assert stored(tmp_path) == []
    monkeypatch.undo()
    one, _ = run(host, tmp_path, PROMPT)
    assert one.report.status() == (
        "miss: no earlier request in this store yet (the run before was not stored: No space left on device)"
    )
    again, _ = run(host, tmp_path, PROMPT)
    assert again.report.decision is Decision.HIT and again.report.store_note is None


def test_the_next_run_waits_for_what_is_still_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = store_folder.write_entry
    monkeypatch.setattr(store_folder, "write_entry", lambda *args: (time.sleep(0.3), write(*args)))
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    assert run(host, tmp_path, PROMPT)[0].report.decision is Decision.HIT


def test_a_preview_is_kept_with_a_dense_run(tmp_path: Path) -> None:
    host, made = FakeHost(), []

    def picture() -> bytes:
        made.append(1)
        return b"\xff\xd8\xff"

    for _ in range(2):
        host.run(session(host, tmp_path, PROMPT), PROMPT, preview=picture)
    (entry,) = stored(tmp_path)
    assert (tmp_path / "default" / "entries" / entry / PREVIEW_FILE).read_bytes() == b"\xff\xd8\xff"
    assert made == [1], "none for a hit"

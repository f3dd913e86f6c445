"""Session, the runs that reuse: where the region lies, what is computed and what comes out."""

import dataclasses
import math
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch

from carnator_core import evidence
from carnator_core.donor import STEPS_AHEAD
from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions, StoreOptions
from carnator_core.plan import StepKind
from carnator_core.reasons import Code, Decision, Reason
from carnator_core.session import Session
from carnator_core.store import read_ahead
from carnator_core.store.entry import SIGNATURE_FILE, TRAJECTORY_FILE
from carnator_core.store.registry import close_stores, open_store
from carnator_core.store.tensor_file import EntryError
from support.fake_host import FakeHost

PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])
LOCAL = PROMPT + torch.tensor([0.0, 0, 0, 0, 0, 1.5, 0, 0])  # second row, second column of the frame
CHANGED = (slice(None), slice(8, 16), slice(8, 16))  # [T, H, W] of that part
GRID, TOKENS = (3, 8, 16), 3 * 8 * 16
HIT_STEPS = range(2, 18)


def options(interval: int = 2, mode: str = "read+write", threshold: float = 0.05, **reuse: float) -> Options:
    return Options(
        store=StoreOptions(mode=mode),
        probe=ProbeOptions(min_text_similarity=-1.0),
        gate=GateOptions(10.0, 10.0, 10.0, 10.0),
        reuse=ReuseOptions(**{"hold_threshold": 0.0, **reuse}, region_threshold=threshold, guidance_interval=interval),
    )


def run(
    host: FakeHost, root: Path, prompt: torch.Tensor, chosen: Options | None = None, seconds: float = 1.0
) -> tuple[Session, torch.Tensor]:
    chosen = chosen or options()
    one = Session(host.request(prompt), chosen, open_store(root, chosen.store))
    return one, host.run(one, prompt, seconds)


def stored(root: Path) -> list[str]:
    open_store(root, StoreOptions()).wait()
    return sorted(item.name for item in (root / "default" / "entries").iterdir())


def kinds(host: FakeHost) -> list[StepKind]:
    return [plan.kind for plan in host.plans]


@pytest.fixture
def donor(tmp_path: Path) -> torch.Tensor:
    """The donor's final latent; its entry lies in tmp_path."""
    return run(FakeHost(), tmp_path, PROMPT)[1]


def test_a_local_change_is_a_hit_whose_region_lies_where_the_change_is(tmp_path: Path, donor: torch.Tensor) -> None:
    one, _ = run(FakeHost(), tmp_path, LOCAL)
    assert one.report.decision is Decision.HIT
    changed = torch.zeros(3, 16, 32, dtype=torch.bool)
    changed[CHANGED] = True
    expected = evidence.dilate(changed[:, ::2, ::2])
    assert torch.equal(one.heat, expected.float()), "the region is the changed part and one token around it"
    assert one.report.region_share == pytest.approx(float(expected.float().mean()))


def test_outside_the_region_the_result_is_the_donors(tmp_path: Path, donor: torch.Tensor) -> None:
    one, result = run(FakeHost(), tmp_path, LOCAL, options(refine_percent=0.0))
    weight = evidence.blend_weight(one.heat > 0, (3, 16, 32), (1, 2, 2))
    outside = (weight == 0).expand_as(result[0])
    torch.testing.assert_close(result[0][outside], donor[0][outside], atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("interval", [1, 3, 9])
def test_inside_the_region_the_result_is_the_targets_own(tmp_path: Path, donor: torch.Tensor, interval: int) -> None:
    """With every interval: the analytic denoiser's guidance shrinks exactly along the donor's curve."""
    host = FakeHost()
    _, result = run(host, tmp_path, LOCAL, options(interval=interval))
    dense = host.dense(LOCAL)
    inside = (slice(None), slice(None), *CHANGED)
    far = (dense[inside] - donor[inside]).norm() / dense[inside].norm()
    assert far > 0.3, "the two prompts must differ there for this to say anything"
    torch.testing.assert_close(result[inside], dense[inside], atol=1e-3, rtol=0)


@pytest.mark.parametrize("hold", [0.0, 0.01])
def test_no_value_from_outside_the_evaluated_rows_reaches_the_result(
    tmp_path: Path, donor: torch.Tensor, hold: float
) -> None:
    """The fake host fills everything outside the rows of a region evaluation with NaN."""
    host = FakeHost()
    _, result = run(host, tmp_path, LOCAL, options(hold_threshold=hold))
    assert StepKind.REGION in kinds(host) and (StepKind.HOLD in kinds(host)) == (hold > 0)
    assert bool(torch.isfinite(result).all())


@pytest.mark.parametrize("cfg", [3.0, 1.0])
def test_reuse_replays_x0_exactly_outside_the_region(tmp_path: Path, cfg: float) -> None:
    host = FakeHost(cfg=cfg)
    first, _ = run(host, tmp_path, PROMPT)
    seen = {}

    class Watching(Session):
        def finish_step(self, step, guided, kind):
            seen[step] = super().finish_step(step, guided, kind)
            return seen[step]

    chosen = options()
    one = Watching(host.request(LOCAL), chosen, open_store(tmp_path, chosen.store))
    host.run(one, LOCAL)
    checks = one.request.schedule.checks
    kept = open_store(tmp_path, chosen.store).trajectory(first.report.entry_id, host.latent, 20, checks)
    outside = evidence.blend_weight(one.heat > 0, (3, 16, 32), (1, 2, 2)) == 0
    for step in HIT_STEPS:
        assert torch.equal(seen[step][0][:, outside], kept.guided(step).float()[:, outside])


def test_region_steps_evaluate_only_the_rows_of_the_region(tmp_path: Path, donor: torch.Tensor) -> None:
    host = FakeHost()
    one, _ = run(host, tmp_path, LOCAL)
    bucket = math.ceil(TOKENS / evidence.ROW_BUCKETS)
    rows = bucket * math.ceil(int((one.heat > 0).sum()) / bucket)
    assert 0 < rows < TOKENS / 2
    region = {step for step in HIT_STEPS if kinds(host)[step] is StepKind.REGION}
    assert {tokens for step, _, tokens in host.evaluated if step in region} == {rows}
    assert {tokens for step, _, tokens in host.evaluated if step not in region} == {TOKENS}


def test_probe_and_refine_steps_stay_dense(tmp_path: Path, donor: torch.Tensor) -> None:
    host = FakeHost()
    run(host, tmp_path, LOCAL)
    dense = [step for step, kind in enumerate(kinds(host)) if kind is StepKind.DENSE]
    assert dense == [0, 1, 18, 19]
    assert all(host.plans[step].run_uncond for step in dense)


@pytest.mark.parametrize("interval", [2, 3, 5])
def test_the_unconditional_branch_runs_only_when_it_is_due(tmp_path: Path, donor: torch.Tensor, interval: int) -> None:
    host = FakeHost()
    one, _ = run(host, tmp_path, LOCAL, options(interval=interval))
    ran = [step for step, branch, _ in host.evaluated if branch == "uncond" and step in HIT_STEPS]
    last, due = 1, []  # the probe has just run it
    for step in HIT_STEPS:
        fragile = one.request.schedule.sigmas[step] >= ReuseOptions().guidance_fresh_sigma
        if kinds(host)[step] is StepKind.REGION and (fragile or step - last >= interval):
            due.append(step)
            last = step
    assert ran == due


def test_guidance_interval_1_runs_the_unconditional_branch_in_every_step(tmp_path: Path, donor: torch.Tensor) -> None:
    host = FakeHost()
    run(host, tmp_path, LOCAL, options(interval=1))
    assert [step for step, branch, _ in host.evaluated if branch == "uncond"] == list(range(20))


def test_the_same_prompt_again_evaluates_nothing_between_its_checks(tmp_path: Path, donor: torch.Tensor) -> None:
    host = FakeHost()
    one, result = run(host, tmp_path, PROMPT)
    checks = one.request.schedule.checks
    reused = [(step, branch) for step, branch, _ in host.evaluated if step in HIT_STEPS]
    assert reused == [(step, "cond") for step in checks]
    assert one.report.region_share == 0.0 and not one.heat.any()
    torch.testing.assert_close(result, donor, atol=5e-3, rtol=5e-3)


def test_the_report_counts_what_was_done(tmp_path: Path, donor: torch.Tensor) -> None:
    host = FakeHost()
    one, _ = run(host, tmp_path, LOCAL)
    assert one.report.steps == {"dense": 4, "check": 4, "region": 12}
    assert one.report.seconds == 1.0
    assert 0 < one.report.predicted_work < 1
    assert [step for step, _ in one.report.region_history] == [1, *one.request.schedule.checks]
    assert one.report.donor_id in stored(tmp_path)


def test_a_hit_does_not_become_a_donor(tmp_path: Path, donor: torch.Tensor) -> None:
    before = stored(tmp_path)
    one, _ = run(FakeHost(), tmp_path, LOCAL)
    assert one.report.decision is Decision.HIT and one.report.entry_id is None
    assert stored(tmp_path) == before


def timed(session: Session, step: int) -> None:
    """A second for a dense run."""
    session.report.dense_step_seconds = 1.0 / session.request.schedule.steps


def test_a_hit_counts_for_its_donor_with_the_seconds_it_saved(tmp_path: Path, donor: torch.Tensor) -> None:
    (name,) = stored(tmp_path)
    started = time.time()
    for seconds in (0.25, 5.0):
        host = FakeHost()
        host.before_step = timed
        one, _ = run(host, tmp_path, LOCAL, seconds=seconds)
        assert sum(one.report.steps.values()) == host.steps
    (usage,) = open_store(tmp_path, StoreOptions()).usage()
    assert (usage.id, usage.hits, usage.seconds_saved) == (name, 2, pytest.approx(0.75)), "a slow hit saves nothing"
    assert usage.last_used >= started


def test_a_hit_gives_the_same_result_every_time(tmp_path: Path, donor: torch.Tensor) -> None:
    assert torch.equal(run(FakeHost(), tmp_path, LOCAL)[1], run(FakeHost(), tmp_path, LOCAL)[1])


@pytest.mark.parametrize("at", [2, 5, 17])
def test_a_hit_that_is_told_to_go_dense_evaluates_everything_from_there_on(
    tmp_path: Path, donor: torch.Tensor, at: int
) -> None:
    host = FakeHost(before_step=lambda one, step: step == at and one.go_dense(Reason.of(Code.OUT_OF_MEMORY)))
    one, result = run(host, tmp_path, LOCAL)
    assert kinds(host)[at:] == [StepKind.DENSE] * (20 - at)
    assert [(s, b) for s, b, _ in host.evaluated if s >= at] == [
        (s, b) for s in range(at, 20) for b in ("cond", "uncond")
    ]
    # before its first reused step it is the stock result, after that it is not
    decision = Decision.DECLINED if at == 2 else Decision.HIT
    assert (one.report.decision, one.report.reason.code) == (decision, Code.OUT_OF_MEMORY)
    assert bool(torch.isfinite(result).all())
    assert len(stored(tmp_path)) == 1


def test_a_hit_that_goes_dense_before_its_first_reused_step_is_the_dense_run(
    tmp_path: Path, donor: torch.Tensor
) -> None:
    host = FakeHost(before_step=lambda one, step: step == 2 and one.go_dense(Reason.of(Code.OUT_OF_MEMORY)))
    assert torch.equal(run(host, tmp_path, LOCAL)[1], host.dense(LOCAL))


@pytest.mark.parametrize("name", [SIGNATURE_FILE, TRAJECTORY_FILE])
def test_a_corrupt_entry_gives_the_dense_run_and_is_set_aside(tmp_path: Path, donor: torch.Tensor, name: str) -> None:
    (entry,) = stored(tmp_path)
    path = tmp_path / "default" / "entries" / entry / name
    data = bytearray(path.read_bytes())
    data[-40] ^= 4
    path.write_bytes(data)
    host = FakeHost()
    one, result = run(host, tmp_path, LOCAL)
    assert torch.equal(result, host.dense(LOCAL))
    assert one.report.decision is Decision.MISS
    assert one.report.reason.code is Code.ENTRY_CORRUPT
    assert [item.name.split("-")[0] for item in (tmp_path / "default" / "quarantine").iterdir()] == [entry]
    assert stored(tmp_path) == [one.report.entry_id]


def test_a_second_candidate_serves_where_the_first_ones_file_is_corrupt(tmp_path: Path, donor: torch.Tensor) -> None:
    near, _ = run(FakeHost(), tmp_path, LOCAL, options(mode="write"))
    assert len(stored(tmp_path)) == 2
    path = tmp_path / "default" / "entries" / near.report.entry_id / TRAJECTORY_FILE
    path.write_bytes(path.read_bytes()[:-9])
    one, _ = run(FakeHost(), tmp_path, LOCAL)
    assert one.report.decision is Decision.HIT
    assert one.report.donor_id not in (None, near.report.entry_id)


def test_of_two_compatible_donors_the_one_that_saves_more_is_taken(tmp_path: Path, donor: torch.Tensor) -> None:
    near, _ = run(FakeHost(), tmp_path, LOCAL, options(mode="write"))
    one, _ = run(FakeHost(), tmp_path, LOCAL)
    assert one.report.donor_id == near.report.entry_id
    assert one.report.region_share == 0.0


def test_the_region_shrinks_to_nothing_where_the_difference_is_gone(tmp_path: Path, donor: torch.Tensor) -> None:
    host = FakeHost()

    def change_back(session: Session, step: int) -> None:
        host_prompt.copy_(LOCAL if step < 2 else PROMPT)

    host_prompt = LOCAL.clone()
    host.before_step = change_back
    one, _ = run(host, tmp_path, host_prompt)
    first = one.request.schedule.checks[0]
    assert one.report.region_history[0][1] > 0
    assert [share for _, share in one.report.region_history[1:]] == [0.0] * 4
    assert set(kinds(host)[first + 1 : 18]) == {StepKind.REPLAY, StepKind.CHECK}


def test_a_check_that_grows_the_region_runs_the_unconditional_branch_at_once(
    tmp_path: Path, donor: torch.Tensor
) -> None:
    host = FakeHost()
    host_prompt = PROMPT.clone()
    host.before_step = lambda session, step: host_prompt.copy_(PROMPT if step < 4 else LOCAL)
    one, _ = run(host, tmp_path, host_prompt)
    grew = next(step for step, share in one.report.region_history if share > 0)
    assert grew in one.request.schedule.checks
    assert (grew, "uncond", TOKENS) in host.evaluated
    assert [branch for step, branch, _ in host.evaluated if step == grew] == ["cond", "uncond"]


def test_the_layer_window_and_refine_share_are_taken_from_the_options(tmp_path: Path, donor: torch.Tensor) -> None:
    one = Session(
        FakeHost().request(LOCAL),
        options(window_start_percent=25.0, window_end_percent=75.0),
        open_store(tmp_path, StoreOptions()),
    )
    assert one.window.blocks == range(1, 3)


# -- a chosen donor ------------------------------------------------------------------------------------------------


def choosing(donor: str, **others: float) -> Options:
    probe = ProbeOptions(min_text_similarity=1.0, donor=donor)
    return dataclasses.replace(options(max_region_percent=100.0, **others), probe=probe)


def test_a_chosen_donor_is_used_whatever_its_text_and_in_place_of_nearer_ones(tmp_path: Path) -> None:
    far, _ = run(FakeHost(), tmp_path, PROMPT)
    closed = dataclasses.replace(options(), gate=GateOptions(0.0, 0.0, 0.0, 0.0, 0.0))
    near, _ = run(FakeHost(), tmp_path, LOCAL, closed)
    assert near.report.entry_id is not None
    one, _ = run(FakeHost(), tmp_path, LOCAL * 1.01, choosing(far.report.entry_id))
    assert one.report.decision is Decision.HIT and one.report.donor_id == far.report.entry_id


def test_a_chosen_donor_of_another_key_is_refused_by_the_fields(tmp_path: Path) -> None:
    first, _ = run(FakeHost(), tmp_path, PROMPT)
    one, _ = run(FakeHost(seed=1), tmp_path, PROMPT, choosing(first.report.entry_id))
    assert one.report.reason == Reason.of(Code.DONOR_DIFFERS, fields="seed")


@pytest.mark.parametrize(("donor", "said"), [("", "names no stored request"), ("0" * 32, "not in this store")])
def test_a_chosen_donor_that_is_not_there_is_a_reason(tmp_path: Path, donor: str, said: str) -> None:
    run(FakeHost(), tmp_path, PROMPT)
    host = FakeHost()
    one, result = run(host, tmp_path, LOCAL, choosing(donor))
    assert one.report.reason.code is Code.DONOR_UNAVAILABLE and said in one.report.reason.sentence
    assert torch.equal(result, host.dense(LOCAL))


def damage(root: Path, name: str, at: int = -40) -> str:
    """Flip a bit in a file of the only entry; its id."""
    (entry,) = stored(root)
    path = root / "default" / "entries" / entry / name
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    return entry


def quarantined(root: Path) -> list[str]:
    return [item.name.split("-")[0] for item in (root / "default" / "quarantine").iterdir()]


@pytest.mark.parametrize("catalog", ["kept", "lost"])
def test_an_entry_whose_header_cannot_be_read_is_told_and_not_called_an_empty_store(
    tmp_path: Path, donor: torch.Tensor, catalog: str
) -> None:
    entry = damage(tmp_path, SIGNATURE_FILE, at=40)
    if catalog == "lost":
        close_stores()
        (tmp_path / "default" / "catalog.sqlite").unlink()
    host = FakeHost()
    one, result = run(host, tmp_path, LOCAL)
    assert torch.equal(result, host.dense(LOCAL))
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.ENTRY_CORRUPT)
    assert quarantined(tmp_path) == [entry]
    assert run(FakeHost(), tmp_path, LOCAL)[0].report.decision is Decision.HIT, "its own entry, by now"


@pytest.mark.parametrize("trouble", ["flipped", "cut short", "overwritten"])
@pytest.mark.parametrize("at", [2, 3, 7, 12])
def test_a_file_too_large_for_memory_that_goes_bad_in_use_makes_the_rest_of_the_run_dense(
    tmp_path: Path, donor: torch.Tensor, monkeypatch: pytest.MonkeyPatch, trouble: str, at: int
) -> None:
    monkeypatch.setattr(read_ahead, "KEPT_BYTES", 0)
    (entry,) = stored(tmp_path)
    path = tmp_path / "default" / "entries" / entry / TRAJECTORY_FILE

    def spoil(_, step: int) -> None:
        if step == at:
            data = path.read_bytes()
            with open(path, "r+b") as file:
                if trouble == "cut short":
                    file.truncate(5000)
                elif trouble == "overwritten":
                    file.write(os.urandom(len(data)))
                else:
                    file.seek(5000)
                    file.write(bytes(255 - byte for byte in data[5000:]))

    host = FakeHost(before_step=spoil)
    one, result = run(host, tmp_path, LOCAL)
    dense_from = next(i for i in range(2, 20) if all(kind is StepKind.DENSE for kind in kinds(host)[i:]))
    assert at <= dense_from <= at + STEPS_AHEAD, "steps that were read ahead are good"
    assert one.report.reason.code is Code.ENTRY_CORRUPT
    assert one.report.decision is (Decision.DECLINED if dense_from == 2 else Decision.HIT)
    assert "set aside" in one.report.status()
    assert bool(torch.isfinite(result).all()) and quarantined(tmp_path) == [entry] and stored(tmp_path) == []
    if dense_from == 2:
        assert torch.equal(result, host.dense(LOCAL))


@pytest.mark.parametrize("at", [2, 9])
def test_a_step_that_finds_no_room_on_the_device_makes_the_rest_of_the_run_dense(
    tmp_path: Path, donor: torch.Tensor, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    guided = read_ahead.ReadAhead.guided

    def full(ahead: read_ahead.ReadAhead, step: int) -> torch.Tensor:
        if step == at:
            raise torch.OutOfMemoryError("none left")
        return guided(ahead, step)

    monkeypatch.setattr(read_ahead.ReadAhead, "guided", full)
    host = FakeHost()
    one, result = run(host, tmp_path, LOCAL)
    assert kinds(host)[at:] == [StepKind.DENSE] * (20 - at)
    assert one.report.reason.code is Code.OUT_OF_MEMORY and bool(torch.isfinite(result).all())
    assert one.report.decision is (Decision.DECLINED if at == 2 else Decision.HIT)
    assert quarantined(tmp_path) == [], "nothing is wrong with the entry"


@pytest.mark.parametrize("kept", [0, 100_000, 1_000_000])
def test_how_much_of_a_file_is_kept_in_memory_changes_nothing(
    tmp_path: Path, donor: torch.Tensor, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(read_ahead, "KEPT_BYTES", kept)
    (entry,) = stored(tmp_path)
    path = tmp_path / "default" / "entries" / entry / TRAJECTORY_FILE
    expected = run(FakeHost(), tmp_path, LOCAL)[1]

    def spoil(_, step: int) -> None:
        if step == 2 and kept == 1_000_000:  # more than the file has
            path.write_bytes(b"")

    one, result = run(FakeHost(before_step=spoil), tmp_path, LOCAL)
    assert one.report.decision is Decision.HIT and one.report.reason.code is Code.REUSED
    assert torch.equal(result, expected), "what is kept was checked and needs no file any more"


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
@pytest.mark.parametrize("at", [2, 9])
def test_an_entry_that_is_deleted_in_use_serves_to_the_end(tmp_path: Path, donor: torch.Tensor, at: int) -> None:
    expected = run(FakeHost(), tmp_path, LOCAL)[1]
    (entry,) = stored(tmp_path)
    path = tmp_path / "default" / "entries" / entry
    host = FakeHost(before_step=lambda one, step: step == at and shutil.rmtree(path))
    one, result = run(host, tmp_path, LOCAL)
    assert one.report.decision is Decision.HIT and torch.equal(result, expected)


def test_an_entry_that_is_deleted_before_its_use_is_a_miss_that_says_so(tmp_path: Path, donor: torch.Tensor) -> None:
    (entry,) = stored(tmp_path)
    path = tmp_path / "default" / "entries" / entry
    host = FakeHost(before_step=lambda one, step: step == 1 and shutil.rmtree(path))
    one, result = run(host, tmp_path, LOCAL)
    assert torch.equal(result, host.dense(LOCAL))
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.ENTRY_GONE)
    assert quarantined(tmp_path) == [] and stored(tmp_path) == [one.report.entry_id]


def test_an_entry_that_is_deleted_while_it_is_read_is_a_miss_that_says_so(
    tmp_path: Path, donor: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go one after the other: for a moment it looks as if one were missing."""
    (entry,) = stored(tmp_path)
    path = tmp_path / "default" / "entries" / entry
    (path / SIGNATURE_FILE).rename(tmp_path / "gone")
    expect = read_ahead.EarlyReads.expect

    def delete_behind(early: read_ahead.EarlyReads, look_up: object, *arguments: object) -> None:
        expect(early, look_up, *arguments)
        with pytest.raises(EntryError):
            early.answer(look_up, *arguments)
        shutil.rmtree(path)

    monkeypatch.setattr(read_ahead.EarlyReads, "expect", delete_behind)
    one, _ = run(FakeHost(), tmp_path, LOCAL)
    assert (one.report.decision, one.report.reason.code) == (Decision.MISS, Code.ENTRY_GONE)
    assert quarantined(tmp_path) == []


def test_a_donor_in_use_outlives_the_budget_and_goes_afterwards(tmp_path: Path, donor: torch.Tensor) -> None:
    (entry,) = stored(tmp_path)
    store = open_store(tmp_path, StoreOptions())
    host = FakeHost(before_step=lambda one, step: step == 5 and seen.append(store.delete(entry)))
    seen: list[bool] = []
    one, _ = run(host, tmp_path, LOCAL)
    assert one.report.decision is Decision.HIT and seen == [False]
    assert store.delete(entry)

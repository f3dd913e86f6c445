"""The log of verdicts: whatever happens to the file, every whole line counts and nothing is written twice."""

import json
import math
import os
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carnator_core.options import StoreOptions
from carnator_core.reasons import Decision
from carnator_core.store import journal
from carnator_core.store import lock as store_lock
from carnator_core.store import verdicts as module
from carnator_core.store.folder import Store
from carnator_core.store.lock import locked
from carnator_core.store.verdicts import Verdict, VerdictLog, judge_decision, withdraw_verdict
from support.fake_host import a_donor
from support.logs import a_record, a_verdict, cut
from support.processes import end_at, in_another_process

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="plays other processes with fork")
in_one_folder = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

ADDS = st.tuples(st.just("add"), st.integers(0, 5), st.sampled_from([None, "x", "y"]), st.booleans())
UNDOS = st.tuples(st.just("undo"), st.integers(0, 7))


def fresh(folder: Path) -> VerdictLog:
    (folder / module.FILE).unlink(missing_ok=True)
    return VerdictLog(folder)


def apply(log: VerdictLog, standing: list[Verdict], step: tuple) -> None:
    """Do one step to the log, and to a list what the log should then say."""
    if step[0] == "undo":
        name = f"v{step[1]}"
        assert log.undo(name) == any(v.id == name for v in standing)
        standing[:] = [v for v in standing if v.id != name]
        return
    verdict = a_verdict(f"v{step[1]}", decision=step[2], safe=step[3])
    log.add(verdict)
    same = verdict.decision and [v.id for v in standing if v.decision == verdict.decision]
    standing[:] = [v for v in standing if v.id != verdict.id and v.id not in (same or [])] + [verdict]


@given(steps=st.lists(ADDS | UNDOS, max_size=12))
@in_one_folder
def test_the_log_says_what_was_added_and_not_taken_back(tmp_path: Path, steps: list[tuple]) -> None:
    log, standing = fresh(tmp_path), []
    for step in steps:
        apply(log, standing, step)
        assert log.read() == standing
        assert log.tally() == {"safe": sum(v.safe for v in standing), "unsafe": sum(not v.safe for v in standing)}
    assert VerdictLog(tmp_path).read() == standing and log.damaged == 0


@given(steps=st.lists(ADDS | UNDOS, min_size=1, max_size=6), where=st.floats(0, 1))
@in_one_folder
def test_a_file_that_was_cut_at_any_byte_keeps_its_whole_lines_and_takes_new_ones(
    tmp_path: Path, steps: list[tuple], where: float
) -> None:
    log, standing = fresh(tmp_path), []
    path, states = tmp_path / module.FILE, [(0, [])]
    for step in steps:
        apply(log, standing, step)
        states.append((path.stat().st_size if path.exists() else 0, list(standing)))
    at = round(where * states[-1][0])
    if path.exists():
        cut(path, at)
    whole = max(size for size, _ in states if size - 1 <= at)  # a line without its end is whole, too
    expected = next(list(kept) for size, kept in reversed(states) if size == whole)
    assert log.read() == expected
    assert log.damaged == (at > whole)
    before = path.read_bytes() if path.exists() else b""
    apply(log, expected, ("add", 9, None, False))
    assert log.read() == expected and log.damaged == (at > whole)
    assert path.read_bytes().startswith(before), "what was damaged stays for whoever wants to mend it"


@given(where=st.floats(0, 1), junk=st.binary(min_size=1, max_size=60))
@in_one_folder
def test_junk_in_the_file_costs_no_other_line(tmp_path: Path, where: float, junk: bytes) -> None:
    log = fresh(tmp_path)
    path = tmp_path / module.FILE
    for number in range(4):
        log.add(a_verdict(f"v{number}"))
    lines = path.read_bytes().splitlines(keepends=True)
    at = round(where * 4)
    path.write_bytes(b"".join([*lines[:at], junk + b"\n", *lines[at:]]))
    assert {v.id for v in log.read()} == {f"v{number}" for number in range(4)}
    log.add(a_verdict("new"))
    assert log.read()[-1].id == "new"


BAD_FIELDS = {
    "a path for an id": {"id": "../x"},
    "no id": {"id": None},
    "no time": {"when": None},
    "a time that is none": {"when": math.nan},
    "a time that no date can name": {"when": 1e15},
    "safe as a word": {"safe": "yes"},
    "somebody else": {"origin": "nobody"},
    "an endless share": {"share": math.inf},
    "a number for a setting": {"settings": {"steps": 20}},
    "text for a distance": {"discrepancies": {"state": "far"}},
    "true for a number": {"work": True},
    "a very long text": {"donor": "x" * 5000},
    "a list for thresholds": {"accepted_by": []},
}


@pytest.mark.parametrize("change", BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_what_could_not_be_read_again_is_not_written_and_not_believed(tmp_path: Path, change: dict) -> None:
    log = VerdictLog(tmp_path)
    with pytest.raises(ValueError):
        log.add(replace(a_verdict(), **change))
    assert not (tmp_path / module.FILE).exists()
    (tmp_path / module.FILE).write_text(json.dumps({**asdict(a_verdict()), **change}) + "\n")
    assert log.read() == [] and log.damaged == 1


@pytest.mark.parametrize("line", ["[]", "7", "null", "{", "[" * 5000, '{"undo": "../x"}', "{}", "\x00" * 40])
def test_a_line_that_says_something_else_is_skipped_and_counted(tmp_path: Path, line: str) -> None:
    log = VerdictLog(tmp_path)
    log.add(a_verdict("one"))
    with open(tmp_path / module.FILE, "a") as file:
        file.write(line + "\n")
    log.add(a_verdict("two"))
    assert [v.id for v in log.read()] == ["one", "two"] and log.damaged == 1


def test_a_line_of_a_later_version_with_more_fields_is_read(tmp_path: Path) -> None:
    (tmp_path / module.FILE).write_text(json.dumps({**asdict(a_verdict()), "mood": "good"}) + "\n")
    assert VerdictLog(tmp_path).read() == [a_verdict()]


def test_a_full_log_takes_no_more_and_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1500)
    log, added = VerdictLog(tmp_path), 0
    with pytest.raises(OSError, match="have reached"):
        for added in range(100):
            log.add(a_verdict(f"v{added}"))
    assert 2 <= added < 100 and len(log.read()) == added


def test_a_disk_that_fails_in_the_middle_of_a_line_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch) -> None:
    log = VerdictLog(tmp_path)
    log.add(a_verdict("one"))
    before = (tmp_path / module.FILE).read_bytes()

    def half(file, data: bytes) -> None:
        file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "_write", half)
    with pytest.raises(OSError, match="No space"):
        log.add(a_verdict("two"))
    assert (tmp_path / module.FILE).read_bytes() == before
    monkeypatch.undo()
    log.add(a_verdict("two"))
    assert [v.id for v in log.read()] == ["one", "two"]


def test_a_log_that_others_hold_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    log = VerdictLog(tmp_path)
    log.add(a_verdict("one"))
    monkeypatch.setattr(store_lock, "BUSY_SECONDS", 0)
    with locked(tmp_path / "verdicts.lock", "others"):
        with pytest.raises(OSError, match="the verdicts are in use"):
            log.add(a_verdict("two"))
        assert [v.id for v in log.read()] == ["one"], "reading waits for nobody"


def test_no_verdict_of_several_threads_is_lost(tmp_path: Path) -> None:
    def work(thread: int) -> None:
        for number in range(10):
            VerdictLog(tmp_path).add(a_verdict(f"t{thread}-{number}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = VerdictLog(tmp_path)
    assert {v.id for v in log.read()} == {f"t{t}-{n}" for t in range(4) for n in range(10)} and log.damaged == 0


@needs_fork
def test_no_verdict_of_two_processes_is_lost(tmp_path: Path) -> None:
    def work(process: int) -> None:
        for number in range(15):
            VerdictLog(tmp_path).add(a_verdict(f"p{process}-{number}"))

    children = [in_another_process(lambda: work(process)) for process in (1, 2)]  # noqa: B023 (runs at once)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    log = VerdictLog(tmp_path)
    assert len(log.read()) == 30 and log.damaged == 0


@needs_fork
@pytest.mark.parametrize("call", ["fsync 0", "fsync 1", "never"])
def test_a_crash_ends_the_lock_and_keeps_what_was_there(tmp_path: Path, call: str) -> None:
    def work() -> None:
        end_at(call)
        VerdictLog(tmp_path).add(a_verdict("one"))

    os.waitpid(in_another_process(work), 0)
    log = VerdictLog(tmp_path)
    log.add(a_verdict("two"))
    assert [v.id for v in log.read()] == ["one", "two"], "the line was written whole before it was synced"


# -- verdicts on decisions -------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path, StoreOptions())
    store.history.add(a_record(id="hit"))
    store.history.add(a_record(Decision.MISS, id="miss"))
    return store


def test_a_verdict_says_all_that_the_decision_did(store: Store) -> None:
    verdict = judge_decision(store, "hit", safe=False)
    assert store.verdicts.read() == [verdict] and store.verdicts.by_decision() == {"hit": verdict}
    assert (verdict.target, verdict.donor, verdict.safe, verdict.origin) == ("r0", "d0", False, "artist")
    assert (verdict.similarity, verdict.share, verdict.work) == (0.97, 0.25, 0.4)
    assert verdict.settings == {"steps": "20"} and verdict.discrepancies["state"] == 0.3


def test_another_verdict_replaces_the_first_and_the_same_one_changes_nothing(store: Store) -> None:
    first = judge_decision(store, "hit", safe=True)
    assert judge_decision(store, "hit", safe=True) == first
    second = judge_decision(store, "hit", safe=False)
    assert store.verdicts.read() == [second]
    scorer = a_verdict("scorer", decision="hit", origin="scorer")
    store.verdicts.add(scorer)
    third = judge_decision(store, "hit", safe=True)
    assert store.verdicts.read() == [scorer, third], "a scorer keeps its own"
    assert withdraw_verdict(store, "hit") and store.verdicts.read() == [scorer]


def test_the_record_tells_whether_a_verdict_is_on_an_audit(store: Store) -> None:
    store.history.add(a_record(id="audited", audit=True))
    volunteered, first = (judge_decision(store, name, safe=True) for name in ("hit", "audited"))
    assert (volunteered.origin, first.origin) == ("artist", "audit")
    changed = judge_decision(store, "audited", safe=False)
    assert changed.origin == "audit" and store.verdicts.read() == [volunteered, changed]
    assert store.verdicts.by_decision() == {"hit": volunteered, "audited": changed}
    assert withdraw_verdict(store, "audited") and store.verdicts.read() == [volunteered]


def test_a_verdict_can_be_taken_back_once(store: Store) -> None:
    judge_decision(store, "hit", safe=True)
    assert withdraw_verdict(store, "hit") and not withdraw_verdict(store, "hit")
    assert store.verdicts.read() == []


def test_only_hits_of_the_history_can_be_judged(store: Store) -> None:
    with pytest.raises(LookupError):
        judge_decision(store, "unknown", safe=True)
    with pytest.raises(ValueError, match="only a hit"):
        judge_decision(store, "miss", safe=True)
    assert store.verdicts.read() == []


def test_verdicts_outlive_entries_and_decisions(store: Store, monkeypatch) -> None:
    store.commit(a_donor("d0"))
    verdict = judge_decision(store, "hit", safe=True)
    store.wait()
    assert store.delete("d0") and store.purge(0.0).entries == 0
    (store.disk.base / "decisions.jsonl").unlink()
    assert store.verdicts.read() == [verdict]
    assert withdraw_verdict(store, "hit")

"""The history of a store: the last decisions, their pictures, and what happens to both when the disk does not obey."""

import json
import os
import shutil
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carnator_core.options import GateOptions, StoreOptions
from carnator_core.reasons import Code, Decision, Reason
from carnator_core.report import Report
from carnator_core.store import history as module
from carnator_core.store import journal
from carnator_core.store.folder import Store
from carnator_core.store.history import History, Record, finish
from carnator_core.store.tensor_file import EntryError
from support.logs import JPEG, a_record, cut
from support.processes import in_another_process

DENSE = ("dense_picture", "dense_difference")
in_one_folder = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ids(history: History) -> list[str]:
    return [record.id for record in history.read()]


def pictures(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "decisions").glob("*")}


@pytest.fixture
def few(monkeypatch) -> None:
    """A history of 4 decisions that is trimmed at 6."""
    monkeypatch.setattr(module, "KEPT", 4)
    monkeypatch.setattr(module, "SLACK", 2)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    history, hit, miss = History(tmp_path), a_record(), a_record(Decision.MISS)
    history.add(hit, JPEG)
    history.add(miss)
    assert History(tmp_path).read() == [replace(hit, picture=True), miss]
    assert history.find(miss.id) == miss and history.find("unknown") is None
    assert history.picture(hit.id) == JPEG and history.picture(miss.id) is None


def test_an_audited_hit_has_two_pictures_and_what_lies_between_them(tmp_path: Path) -> None:
    history, dense = History(tmp_path), JPEG + b" in full"
    report = Report(decision=Decision.HIT, audit=True, dense_difference={"inside": 0.2, "outside": None})
    record = Record.of(report.to_dict(), report.status(), 0.0)
    assert record.audit and record.dense_difference == {"inside": 0.2, "outside": None} and not record.dense_picture
    history.add(record, JPEG, dense)
    history.add_later(a_record(id="hit"), JPEG)
    history.add_later(a_record(id="bare"), b"no picture", dense)
    audited, plain, bare = History(tmp_path).read()
    assert audited == replace(record, picture=True, dense_picture=True)
    assert (history.picture(record.id), history.dense_picture(record.id)) == (JPEG, dense)
    assert (plain.audit, plain.dense_picture, plain.dense_difference) == (False, False, None)
    assert history.dense_picture("hit") is None
    assert (bare.picture, bare.dense_picture) == (False, True)


def test_a_line_of_before_there_were_audits_is_read(tmp_path: Path) -> None:
    record = a_record()
    old = {name: value for name, value in asdict(record).items() if name not in ("audit", *DENSE)}
    (tmp_path / module.FILE).write_text(json.dumps(old) + "\n")
    assert History(tmp_path).read() == [record]
    for name in ("audit", *DENSE):
        (tmp_path / module.FILE).write_text(json.dumps({**old, name: "yes"}) + "\n")
        assert History(tmp_path).read() == []


def test_a_record_holds_what_people_ask_for() -> None:
    record = a_record()
    assert (record.decision, record.reason_code, record.donor, record.request_id) == ("hit", "reused", "d0", "r0")
    assert (record.region_share, record.decided_share, record.similarity, record.work) == (0.2, 0.25, 0.97, 0.4)
    assert record.discrepancies == {"representation": 0.01, "residual": None, "dynamics": 0.2, "state": 0.3}
    assert record.seconds_saved == 10.0 and record.seconds == 10.0 and not record.picture
    assert abs(record.when - time.time()) < 60 and record.status.startswith("hit 2.0×")
    assert a_record().id != record.id


@pytest.mark.parametrize("decision", list(Decision))
def test_no_record_names_a_prompt(decision: Decision) -> None:
    report = Report(decision=decision, donor_id="d0", donor_created=1.0, donor_prompt="my secret", similarity=0.5)
    assert "secret" not in json.dumps(asdict(Record.of(report.to_dict(), report.status(), 0.0)))


SENTENCES = {
    "failed at '/home/me/My Models/wan.py' in line 3": "failed at 'wan.py' in line 3",
    "[Errno 13] Permission denied: 'C:\\Users\\Me Too\\ComfyUI\\x.bin'": "[Errno 13] Permission denied: 'x.bin'",
    'File "/usr/lib/python3/triton/compiler.py", line 9': 'File "compiler.py", line 9',
    "cannot open /data/models/wan.safetensors (gone)": "cannot open wan.safetensors (gone)",
    "at ~/stores/default": "at default",
    "on \\\\server\\share\\x.bin": "on x.bin",
    "D:/ComfyUI/custom_nodes/other_pack.Node.run": "other_pack.Node.run",
    "kept and/or lost, 3 s/it, 12/20 steps": "kept and/or lost, 3 s/it, 12/20 steps",
    "42% of the video would change": "42% of the video would change",
}


@pytest.mark.parametrize(("text", "kept"), SENTENCES.items())
def test_no_record_names_a_place_on_the_disk(text: str, kept: str) -> None:
    report = Report(decision=Decision.DECLINED, reason=Reason(Code.UNEXPECTED_CALL, text))
    record = Record.of(report.to_dict(), report.status(), 0.0)
    assert record.reason == kept and record.status == f"declined: {kept}"


@pytest.mark.parametrize("when", [-1.0, 1e15, None, "now"])
def test_a_record_whose_time_no_date_can_name_is_left_out(tmp_path: Path, when) -> None:
    """Whoever shows it makes a date of it."""
    history = History(tmp_path)
    history.add(a_record(id="good"))
    with open(tmp_path / "decisions.jsonl", "a") as file:
        file.write(json.dumps({**asdict(a_record(id="bad")), "when": when}) + "\n")
    assert ids(history) == ["good"]


def test_a_very_long_reason_is_clipped_at_once() -> None:
    started = time.perf_counter()
    report = Report(reason=Reason(Code.UNEXPECTED_CALL, "/ a" * 100_000))
    record = Record.of(report.to_dict(), report.status(), 0.0)
    assert len(record.reason) <= 1000 and time.perf_counter() - started < 1.0


def test_thresholds_without_an_end_have_no_number() -> None:
    report = Report(thresholds=GateOptions(state=float("inf")))
    record = Record.of(report.to_dict(), report.status(), 0.0)
    assert record.thresholds["state"] is None and record.thresholds["dynamics"] == 2.0


@given(count=st.integers(1, 20))
@in_one_folder
def test_the_last_ones_are_kept_with_their_pictures(few, tmp_path: Path, count: int) -> None:
    shutil.rmtree(tmp_path / "decisions", ignore_errors=True)
    (tmp_path / module.FILE).unlink(missing_ok=True)
    history, added = History(tmp_path), []
    for number in range(count):
        added.append(f"n{number}")
        history.add(a_record(id=added[-1]), JPEG if number % 2 else None, JPEG if number % 3 else None)
        assert ids(history) == added[-4:]
    with_picture = [name for name in added[-4:] if int(name[1:]) % 2]
    with_dense = [name for name in added[-4:] if int(name[1:]) % 3]
    kept = {*with_picture, *(f"{name}.dense" for name in with_dense)}
    assert kept <= pictures(tmp_path) and {name.split(".")[0] for name in pictures(tmp_path)} <= set(added[-6:])
    assert len((tmp_path / module.FILE).read_bytes().splitlines()) <= 6
    for name in added[-4:]:
        assert (history.picture(name) is not None) == (name in with_picture)
        assert (history.dense_picture(name) is not None) == (name in with_dense)


@given(count=st.integers(1, 5), where=st.floats(0, 1))
@in_one_folder
def test_a_file_that_was_cut_anywhere_loses_no_whole_line(few, tmp_path: Path, count: int, where: float) -> None:
    (tmp_path / module.FILE).unlink(missing_ok=True)
    history, path, ends = History(tmp_path), tmp_path / module.FILE, []
    for number in range(count):
        history.add(a_record(id=f"n{number}"))
        ends.append(path.stat().st_size)
    at = round(where * ends[-1])
    cut(path, at)
    kept = [f"n{number}" for number, end in enumerate(ends) if end - 1 <= at]
    assert ids(history) == kept[-4:]
    for number in range(3):  # one of these writes the file anew
        history.add(a_record(id=f"new{number}"))
        kept.append(f"new{number}")
        assert ids(history) == kept[-4:]


def test_damaged_lines_among_those_that_stay_are_left_as_they_are(few, tmp_path: Path) -> None:
    history, path = History(tmp_path), tmp_path / module.FILE
    for number in range(4):
        history.add(a_record(id=f"n{number}"))
    with open(path, "ab") as file:
        file.write(b"half a lin")
    for number in (4, 5):
        history.add(a_record(id=f"n{number}"))
    assert path.read_bytes().count(b"half a lin\n") == 1 and ids(history) == ["n2", "n3", "n4", "n5"]
    assert b'"n0"' not in path.read_bytes()


def test_a_file_full_of_something_else_is_cut_down(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 20_000)
    monkeypatch.setattr(module, "SLACK", 0)
    monkeypatch.setattr(module, "MAX_BYTES", 60_000)
    (tmp_path / module.FILE).write_bytes((b"x" * 99 + b"\n") * 10_000)
    history = History(tmp_path)
    history.add(a_record(id="new"))
    assert ids(history) == ["new"] and (tmp_path / module.FILE).stat().st_size < 22_000


@pytest.mark.parametrize("picture", [b"", b"no jpeg", b"\xff\xd8\xff" + bytes(70_000)])
def test_what_is_no_small_jpeg_is_no_picture(tmp_path: Path, picture: bytes) -> None:
    history, record = History(tmp_path), a_record()
    history.add(record, picture)
    assert history.read() == [record] and history.picture(record.id) is None and not pictures(tmp_path)
    (tmp_path / "decisions").mkdir()
    (tmp_path / "decisions" / f"{record.id}.jpg").write_bytes(picture)
    assert history.picture(record.id) is None, "nor if somebody puts it there"


def test_a_picture_that_cannot_be_written_costs_no_record(tmp_path: Path, caplog) -> None:
    (tmp_path / "decisions").write_text("a file in the way")
    history, record = History(tmp_path), a_record()
    history.add(record, JPEG)
    assert history.read() == [record] and "picture" in caplog.text


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "a\\b", "", "a" * 65, "x.jpg"])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    for read in (History(tmp_path).picture, History(tmp_path).dense_picture):
        with pytest.raises(EntryError):
            read(name)


def test_a_record_added_in_the_background_is_read_at_once(tmp_path: Path) -> None:
    history = History(tmp_path / "not made yet")
    for number in range(5):
        history.add_later(a_record(id=f"n{number}"), JPEG)
    assert ids(History(tmp_path / "not made yet")) == [f"n{number}" for number in range(5)]


def test_who_adds_a_record_waits_for_no_disk(tmp_path: Path, monkeypatch) -> None:
    held, real = threading.Event(), journal._write
    monkeypatch.setattr(journal, "_write", lambda file, data: (held.wait(20), real(file, data)))
    history, started = History(tmp_path), time.perf_counter()
    for number in range(10):
        history.add_later(a_record(id=f"n{number}"))
    assert time.perf_counter() - started < 1.0
    held.set()
    finish()
    assert ids(history) == [f"n{number}" for number in range(10)]


def test_a_thread_that_cannot_be_started_costs_no_run_and_no_later_record(tmp_path: Path, monkeypatch) -> None:
    def refuse(self) -> None:
        raise RuntimeError("can't start new thread")

    history = History(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    history.add_later(a_record(id="waits"))
    monkeypatch.undo()
    history.add_later(a_record(id="next"))
    assert ids(history) == ["waits", "next"]


def test_a_disk_that_fails_is_a_line_of_the_log_and_the_next_record_is_written(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    def full(file, data) -> None:
        raise OSError(28, "No space left on device")

    history = History(tmp_path)
    monkeypatch.setattr(journal, "_write", full)
    history.add_later(a_record(id="lost"))
    finish()
    monkeypatch.undo()
    assert caplog.text.count("the history was not written: No space left on device") == 1
    history.add_later(a_record(id="kept"))
    assert ids(history) == ["kept"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="plays other processes with fork")
def test_no_record_of_two_processes_is_lost_while_the_file_is_written_anew(tmp_path: Path, few) -> None:
    def work(process: int) -> None:
        history = History(tmp_path)
        for number in range(20):
            history.add(a_record(id=f"p{process}-{number}"), JPEG)

    children = [in_another_process(lambda: work(process)) for process in (1, 2)]  # noqa: B023 (runs at once)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    history = History(tmp_path)
    assert len(ids(history)) == 4 and {"p1-19", "p2-19"} & set(ids(history))
    assert set(ids(history)) <= pictures(tmp_path)


def test_a_store_has_its_history(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    store.history.add(a_record(id="one"))
    assert ids(History(tmp_path / "default")) == ["one"]

"""Store: atomic commits, a byte budget, quarantine, and what two users of one folder see of each other."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from carnator_core.options import StoreOptions
from carnator_core.scale import Scale
from carnator_core.store import disk as store_disk
from carnator_core.store import folder as store_folder
from carnator_core.store.entry import SIGNATURE_FILE, TRAJECTORY_FILE, Entry
from carnator_core.store.folder import Store
from carnator_core.store.registry import open_store
from carnator_core.store.tensor_file import EntryError, EntryGone
from support.fake_host import a_donor
from support.paths import ROOT, TESTS
from support.processes import end_at, in_another_process

WANTED = ((2, 2, 4, 4), 4, (2,))


def folders(root: Path, name: str = "default") -> tuple[Path, Path, Path]:
    return root / name / "entries", root / name / "staging", root / name / "quarantine"


def ids(store: Store) -> set[str]:
    return {info.id for info in store.entries()}


def commit(store: Store, entry: Entry) -> str | None:
    """What became of an entry once its write has ended."""
    note = store.commit(entry)
    store.wait()
    return note or store.take_failure()


def entry_bytes(tmp_path: Path) -> int:
    commit(Store(tmp_path, StoreOptions(name="measure")), a_donor("one"))
    return sum(file.stat().st_size for file in (tmp_path / "measure" / "entries" / "one").iterdir())


def test_a_new_store_is_empty(tmp_path: Path) -> None:
    assert Store(tmp_path, StoreOptions()).entries() == []


def test_a_committed_entry_is_found_by_this_store_and_by_a_later_one(tmp_path: Path) -> None:
    store, donor = Store(tmp_path, StoreOptions()), a_donor("one")
    assert commit(store, donor) is None
    for reader in (store, Store(tmp_path, StoreOptions())):
        assert reader.entries() == [donor.info]
        assert reader.signature("one").tensors().keys() == donor.signature.tensors().keys()
        assert torch.equal(reader.trajectory("one", *WANTED).guided(3), donor.trajectory.guided[3])


def test_stores_with_other_names_are_apart(tmp_path: Path) -> None:
    commit(Store(tmp_path, StoreOptions(name="a")), a_donor("one"))
    assert Store(tmp_path, StoreOptions(name="b")).entries() == []


def test_two_open_stores_see_each_others_entries_come_and_go(tmp_path: Path) -> None:
    one, other = Store(tmp_path, StoreOptions()), Store(tmp_path, StoreOptions())
    commit(one, a_donor("a"))
    assert ids(other) == {"a"}
    shutil.rmtree(folders(tmp_path)[0] / "a")
    assert ids(one) == ids(other) == set()


def test_committing_an_id_again_keeps_the_first_entry_and_marks_it_used(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, a_donor("one", seed=1))
    path = folders(tmp_path)[0] / "one"
    before, started = {file.name: file.read_bytes() for file in path.iterdir()}, time.time()
    assert commit(store, a_donor("one", seed=2)) is None
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    (usage,) = store.usage()
    assert usage.last_used >= started and usage.hits == 0


@pytest.mark.parametrize("deleted_at_once", [False, True])
def test_of_two_equal_requests_the_first_is_kept_and_the_second_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted_at_once: bool
) -> None:
    mine, other = Store(tmp_path, StoreOptions()), Store(tmp_path, StoreOptions())
    rename = os.rename

    def rename_after_the_other(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        other.commit(a_donor("one"))
        other.wait()
        try:
            os.rename(source, target)
        finally:
            if deleted_at_once:
                other.delete("one")

    monkeypatch.setattr(os, "rename", rename_after_the_other)
    assert mine.commit(a_donor("one")) is None
    mine.wait()
    assert (mine.take_failure(), other.take_failure()) == (None, None)
    assert [info.id for info in mine.entries()] == ([] if deleted_at_once else ["one"])


def test_half_written_entries_in_staging_are_never_seen(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, a_donor("one"))
    entries, staging, _ = folders(tmp_path)
    shutil.copytree(entries / "one", staging / "left-by-a-crash")
    (staging / "left-by-a-crash" / SIGNATURE_FILE).unlink()
    later = Store(tmp_path, StoreOptions())
    assert ids(later) == {"one"}
    assert commit(later, a_donor("two")) is None
    assert ids(later) == {"one", "two"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a crash is played by a child process that ends at once")
@pytest.mark.parametrize("call", ["fsync 0", "fsync 1", "rename 0", "fsync 2", "never"])
def test_a_crash_at_any_instant_leaves_no_entry_or_a_whole_one(tmp_path: Path, call: str) -> None:
    root = tmp_path / "stores"
    commit(Store(root, StoreOptions()), a_donor("old"))

    def work() -> None:
        end_at(call)
        commit(Store(root, StoreOptions()), a_donor("new"))

    os.waitpid(in_another_process(work), 0)
    store = Store(root, StoreOptions())
    expected = {"old", "new"} if call in ("fsync 2", "never") else {"old"}
    assert ids(store) == expected
    for name in expected:
        store.signature(name)
        store.trajectory(name, *WANTED)
    assert not list(folders(root)[2].iterdir())
    assert commit(store, a_donor("new")) is None, "the same entry can be written after the crash"


@pytest.mark.parametrize("failing", ["write_entry", "rename"])
def test_a_disk_error_while_writing_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, StoreOptions())

    def full(*args):
        raise OSError(28, "No space left on device")

    target = (store_folder, "write_entry") if failing == "write_entry" else (store_disk.os, "rename")
    monkeypatch.setattr(*target, full)
    assert commit(store, a_donor("one")) == "not stored: No space left on device"
    monkeypatch.undo()
    entries, staging, _ = folders(tmp_path)
    assert not list(entries.iterdir()) and not list(staging.iterdir()) and store.entries() == []


@pytest.mark.parametrize("name", [SIGNATURE_FILE, TRAJECTORY_FILE])
def test_a_corrupt_file_raises_and_its_quarantine_keeps_the_files(tmp_path: Path, name: str) -> None:
    commit(Store(tmp_path, StoreOptions()), a_donor("bad"))
    entries, _, quarantine = folders(tmp_path)
    data = bytearray((entries / "bad" / name).read_bytes())
    data[-3] ^= 1
    (entries / "bad" / name).write_bytes(data)
    store = Store(tmp_path, StoreOptions())
    with pytest.raises(EntryError):
        store.signature("bad") if name == SIGNATURE_FILE else store.trajectory("bad", *WANTED).check()
    store.quarantine("bad", "checksum")
    assert store.entries() == []
    (kept,) = quarantine.iterdir()
    assert (kept / name).read_bytes() == data


def test_an_entry_whose_header_cannot_be_read_is_quarantined_by_looking(tmp_path: Path) -> None:
    commit(Store(tmp_path, StoreOptions()), a_donor("good"))
    commit(Store(tmp_path, StoreOptions()), a_donor("bad"))
    entries, _, quarantine = folders(tmp_path)
    (entries / "bad" / SIGNATURE_FILE).write_bytes(b"not an entry")
    (tmp_path / "default" / "catalog.sqlite").unlink()
    assert ids(Store(tmp_path, StoreOptions())) == {"good"}
    assert [item.name.split("-")[0] for item in quarantine.iterdir()] == ["bad"]


def test_a_foreign_folder_or_file_among_the_entries_does_no_harm(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, a_donor("one"))
    entries = folders(tmp_path)[0]
    (entries / "holiday pictures").mkdir()
    (entries / ".DS_Store").write_bytes(b"x")
    later = Store(tmp_path, StoreOptions())
    assert ids(later) == {"one"}
    assert commit(later, a_donor("two")) is None


def test_an_entry_that_was_quarantined_can_be_made_anew_and_quarantined_again(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    for _ in range(2):
        assert commit(store, a_donor("one")) is None
        store.quarantine("one", "test")
    assert len(list(folders(tmp_path)[2].iterdir())) == 2


def test_an_entry_that_vanished_raises_and_its_bookkeeping_stays_quiet(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, a_donor("one"))
    shutil.rmtree(folders(tmp_path)[0] / "one")
    for part in (store.signature, lambda name: store.trajectory(name, *WANTED)):
        with pytest.raises(EntryGone):
            part("one")
    store.note_hit("one", 1.0)
    store.quarantine("one", "gone")
    assert store.entries() == [] and store.usage() == []


def test_an_entry_larger_than_the_whole_budget_is_not_stored_and_evicts_nothing(tmp_path: Path) -> None:
    size = entry_bytes(tmp_path)
    store = Store(tmp_path, StoreOptions(budget_gb=1.5 * size / 1e9))
    commit(store, a_donor("small"))
    note = commit(store, a_donor("large", latent=(2, 2, 40, 40)))
    assert note is not None and "larger than the budget" in note
    assert ids(store) == {"small"}
    assert not list(folders(tmp_path)[1].iterdir())


def test_a_smaller_budget_takes_hold_at_the_next_commit(tmp_path: Path) -> None:
    size = entry_bytes(tmp_path)
    large = Store(tmp_path, StoreOptions())
    for name in "abcd":
        commit(large, a_donor(name))
        large.note_hit(name, 0.0)
    small = Store(tmp_path, StoreOptions(budget_gb=2.5 * size / 1e9))
    commit(small, a_donor("e"))
    assert ids(small) == {"d", "e"}


@pytest.mark.parametrize(("free_gb", "stored"), [(4.99, False), (5.01, True)])
def test_nothing_is_stored_with_less_than_5_gb_free(
    tmp_path: Path, free_gb: float, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(10**12, 0, int(free_gb * 1e9))
    monkeypatch.setattr(store_disk.shutil, "disk_usage", lambda path: usage)
    store = Store(tmp_path, StoreOptions())
    note = commit(store, a_donor("one"))
    assert (note is None) == stored
    assert ids(store) == ({"one"} if stored else set())
    assert stored or "5 GB" in note


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights there")
def test_eviction_never_deletes_outside_the_store(tmp_path: Path) -> None:
    size = entry_bytes(tmp_path)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"x" * size)
    store = Store(tmp_path, StoreOptions(budget_gb=1.5 * size / 1e9))
    os.symlink(precious, folders(tmp_path)[0] / "link")
    commit(store, a_donor("one"))
    commit(store, a_donor("two"))
    assert (precious / "file").exists()


def test_a_result_that_is_not_finite_is_never_stored(tmp_path: Path) -> None:
    one, bad = Store(tmp_path, StoreOptions()), a_donor("bad")
    bad.trajectory.guided[0].view(-1)[3] = float("nan")
    assert "not finite" in commit(one, bad)
    assert one.entries() == []


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    one = Store(tmp_path, StoreOptions())
    (foreign,) = list(tmp_path.rglob("entries"))
    (foreign / "my folder").mkdir()
    (foreign / "my folder" / "video.mp4").write_bytes(b"x")
    assert one.entries() == [] and (foreign / "my folder" / "video.mp4").exists()


def test_quarantine_and_staging_are_cleaned_up(tmp_path: Path) -> None:
    Store(tmp_path, StoreOptions())
    (quarantine,), (staging,) = list(tmp_path.rglob("quarantine")), list(tmp_path.rglob("staging"))
    for number in range(12):
        (quarantine / f"bad-{number}").mkdir()
        os.utime(quarantine / f"bad-{number}", (number, number))
    (staging / "killed").mkdir()
    os.utime(staging / "killed", (0, 0))
    (staging / "running").mkdir()
    Store(tmp_path, StoreOptions())
    assert len(list(quarantine.iterdir())) == 8 and (quarantine / "bad-11").exists()
    assert [path.name for path in staging.iterdir()] == ["running"]


def test_a_quarantine_of_large_entries_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, StoreOptions())
    monkeypatch.setattr(store_disk, "QUARANTINE_BYTES", int(2.5 * entry_bytes(tmp_path)))
    for number in range(4):
        commit(store, a_donor(f"bad{number}"))
        store.quarantine(f"bad{number}", "test")
    kept = sorted(item.name.split("-")[0] for item in (tmp_path / "default" / "quarantine").iterdir())
    assert kept == ["bad2", "bad3"]


def test_there_is_one_store_per_root_and_name_in_a_process(tmp_path: Path) -> None:
    one = open_store(tmp_path, StoreOptions(budget_gb=1.0))
    assert open_store(tmp_path / ".", StoreOptions(budget_gb=2.0)) is one
    assert one.options.budget_gb == 2.0
    assert open_store(tmp_path, StoreOptions(name="b")) is not one
    assert open_store(tmp_path / "c", StoreOptions()) is not one


@pytest.mark.parametrize("gone", ["default", "default/catalog.sqlite"])
def test_a_store_that_was_deleted_is_opened_anew(tmp_path: Path, gone: str) -> None:
    one = open_store(tmp_path, StoreOptions())
    commit(one, a_donor("old"))
    path = tmp_path / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = open_store(tmp_path, StoreOptions())
    assert again is not one
    assert ids(again) == (set() if gone == "default" else {"old"})
    assert commit(again, a_donor("new")) is None


def test_a_write_is_pending_until_it_is_waited_for_and_a_second_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write, go_on = Store(tmp_path, StoreOptions()), store_folder.write_entry, threading.Event()

    def slowly(folder: Path, entry: Entry) -> None:
        assert go_on.wait(20)
        write(folder, entry)

    monkeypatch.setattr(store_folder, "write_entry", slowly)
    assert store.commit(a_donor("one")) is None
    assert os.listdir(folders(tmp_path)[0]) == []
    second = threading.Thread(target=store.commit, args=(a_donor("two"),))
    second.start()
    second.join(0.2)
    assert second.is_alive(), "at most one entry is held for writing"
    go_on.set()
    second.join(20)
    assert ids(store) == {"one", "two"}


def test_a_failed_write_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, StoreOptions())
    monkeypatch.setattr(store_folder, "write_entry", lambda *args: 1 / 0)
    assert store.commit(a_donor("one")) is None
    store.wait()
    assert store.take_failure() == "not stored: division by zero"
    assert store.take_failure() is None
    monkeypatch.undo()
    assert commit(store, a_donor("one")) is None


def test_the_end_of_the_program_waits_for_a_pending_write(tmp_path: Path) -> None:
    code = (
        "import sys, threading, time; sys.path[:0] = sys.argv[2:]\n"
        "from carnator_core.options import StoreOptions\n"
        "from carnator_core.store import disk, registry\n"
        "from support.fake_host import a_donor\n"
        "place = disk.Disk.place\n"
        "disk.Disk.place = lambda *args: (time.sleep(0.5), place(*args))\n"
        "registry.open_store(sys.argv[1], StoreOptions()).commit(a_donor('one'))\n"
        "assert threading.current_thread() is threading.main_thread()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(ROOT), str(TESTS)], check=True, timeout=60)
    assert ids(Store(tmp_path, StoreOptions())) == {"one"}
    assert not list(folders(tmp_path)[1].iterdir())


def test_an_entry_in_use_is_neither_evicted_nor_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions(budget_gb=1.5 * entry_bytes(tmp_path) / 1e9))
    commit(store, a_donor("used"))
    trajectory = store.trajectory("used", *WANTED)
    commit(store, a_donor("new"))
    assert ids(store) == {"used", "new"} and not store.delete("used")
    assert store.purge(0.0) == store_folder.Purged(1, entry_bytes(tmp_path), 0, 1)
    trajectory.close()
    assert store.delete("used") and ids(store) == set()


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
def test_an_entry_that_another_process_deletes_can_be_read_to_its_end(tmp_path: Path) -> None:
    donor = a_donor("one")
    commit(Store(tmp_path, StoreOptions()), donor)
    trajectory = Store(tmp_path, StoreOptions()).trajectory("one", *WANTED)
    assert Store(tmp_path, StoreOptions()).delete("one")
    assert torch.equal(trajectory.guided(3), donor.trajectory.guided[3])


def test_a_pinned_entry_stays_also_when_the_catalog_is_lost(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions(budget_gb=1.5 * entry_bytes(tmp_path) / 1e9))
    commit(store, a_donor("a"))
    store.set_pinned("a", True)
    store.close()
    (tmp_path / "default" / "catalog.sqlite").unlink()
    store = Store(tmp_path, store.options)
    for name in "bc":
        commit(store, a_donor(name))
        assert ids(store) == {"a", name}
    assert store.purge(0.0).pinned == 1 and ids(store) == {"a"}
    store.set_pinned("a", False)
    commit(store, a_donor("d"))
    assert ids(store) == {"d"}


def test_a_purge_spares_what_was_used_lately(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    for name in "ab":
        commit(store, a_donor(name))  # made in 2023
    store.note_hit("b", 1.0)
    assert store.purge(86400.0).entries == 1 and ids(store) == {"b"}


def test_a_purge_of_all_spares_nothing_that_a_clock_ahead_has_marked(tmp_path: Path) -> None:
    store, ahead = Store(tmp_path, StoreOptions()), time.time() + 1e6
    entry = a_donor("a")
    commit(store, replace(entry, info=replace(entry.info, created=ahead)))
    store.scales.write("ab" * 16, [Scale(0.1, 0.2, 0.3, 0.4, 0.5)] * 8)
    scale = tmp_path / "default" / "scales" / f"{'ab' * 16}.json"
    os.utime(scale, (ahead, ahead))
    assert store.purge(60.0).entries == 0 and scale.exists()
    assert store.purge(0.0).entries == 1 and not scale.exists()


def test_a_key_that_was_changed_in_the_catalog_alone_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, a_donor("one"))
    other = a_donor("two", seed=5)
    commit(store, other)
    store.close()
    with sqlite3.connect(tmp_path / "default" / "catalog.sqlite") as base:
        base.execute("update entries set (key, key_digest) = (select key, key_digest from entries where id = 'two')")
    with pytest.raises(EntryError, match="another kind"):
        Store(tmp_path, StoreOptions()).signature("one")


def test_names_that_lead_out_of_the_store_are_refused_everywhere(tmp_path: Path) -> None:
    store = Store(tmp_path / "stores", StoreOptions())
    commit(store, a_donor("one"))
    precious = tmp_path / "precious"
    shutil.copytree(folders(tmp_path / "stores")[0] / "one", precious)
    entry = a_donor("two")
    for name in ("../../../precious", str(precious), "..", ""):
        for part in (store.signature, store.delete, lambda name: store.trajectory(name, *WANTED)):
            with pytest.raises(EntryError):
                part(name)
        with pytest.raises(EntryError):
            store.set_pinned(name, True)
        with pytest.raises(EntryError):
            store.commit(replace(entry, info=replace(entry.info, id=name)))
    assert sorted(os.listdir(precious)) == sorted([SIGNATURE_FILE, TRAJECTORY_FILE])

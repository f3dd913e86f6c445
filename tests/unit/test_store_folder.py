"""Store folder: atomic commits, a byte budget, quarantine."""

import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carnator_core.options import StoreOptions
from carnator_core.store import folder as store_folder
from carnator_core.store.entry import SIGNATURE_FILE, TRAJECTORY_FILE, EntryError
from carnator_core.store.folder import Store
from support.fake_host import a_donor

WANTED = ((2, 2, 4, 4), 4, (2,))


def folders(root: Path, name: str = "default") -> tuple[Path, Path, Path]:
    return root / name / "entries", root / name / "staging", root / name / "quarantine"


def ids(store: Store) -> set[str]:
    return {info.id for info in store.entries()}


def entry_bytes(tmp_path: Path) -> int:
    Store(tmp_path, StoreOptions(name="measure")).commit(*a_donor("one"))
    return sum(file.stat().st_size for file in (tmp_path / "measure" / "entries" / "one").iterdir())


def test_a_new_store_is_empty(tmp_path: Path) -> None:
    assert Store(tmp_path, StoreOptions()).entries() == []


def test_a_committed_entry_is_found_by_this_store_and_by_a_later_one(tmp_path: Path) -> None:
    store, donor = Store(tmp_path, StoreOptions()), a_donor("one")
    assert store.commit(*donor) is None
    for reader in (store, Store(tmp_path, StoreOptions())):
        (info,) = reader.entries()
        assert (info.id, info.key, info.seconds) == ("one", donor[0].key, donor[0].seconds)
        assert reader.signature("one").tensors().keys() == donor[1].tensors().keys()
        assert reader.trajectory("one", *WANTED).guided.keys() == donor[2].guided.keys()


def test_stores_with_other_names_are_apart(tmp_path: Path) -> None:
    Store(tmp_path, StoreOptions(name="a")).commit(*a_donor("one"))
    assert Store(tmp_path, StoreOptions(name="b")).entries() == []


def test_two_open_stores_see_each_others_entries_come_and_go(tmp_path: Path) -> None:
    one, other = Store(tmp_path, StoreOptions()), Store(tmp_path, StoreOptions())
    one.commit(*a_donor("a"))
    assert ids(other) == {"a"}
    shutil.rmtree(folders(tmp_path)[0] / "a")
    assert ids(one) == ids(other) == set()


def test_committing_an_id_again_keeps_the_first_entry_and_marks_it_used(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    store.commit(*a_donor("one", seed=1))
    path = folders(tmp_path)[0] / "one"
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    os.utime(path, (1000, 1000))
    assert store.commit(*a_donor("one", seed=2)) is None
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert path.stat().st_mtime > 1000


def test_half_written_entries_in_staging_are_never_seen(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    store.commit(*a_donor("one"))
    entries, staging, _ = folders(tmp_path)
    shutil.copytree(entries / "one", staging / "left-by-a-crash")
    (staging / "left-by-a-crash" / SIGNATURE_FILE).unlink()
    later = Store(tmp_path, StoreOptions())
    assert ids(later) == {"one"}
    assert later.commit(*a_donor("two")) is None
    assert ids(later) == {"one", "two"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a crash is played by a child process that ends at once")
@pytest.mark.parametrize("call", ["fsync 0", "fsync 1", "rename 0", "fsync 2", "never"])
def test_a_crash_at_any_instant_leaves_no_entry_or_a_whole_one(tmp_path: Path, call: str) -> None:
    root = tmp_path / "stores"
    Store(root, StoreOptions()).commit(*a_donor("old"))
    child = os.fork()
    if child == 0:
        try:
            _end_at(call)
            Store(root, StoreOptions()).commit(*a_donor("new"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    store = Store(root, StoreOptions())
    expected = {"old", "new"} if call in ("fsync 2", "never") else {"old"}
    assert ids(store) == expected
    for name in expected:
        store.signature(name)
        store.trajectory(name, *WANTED)
    assert not list(folders(root)[2].iterdir())
    assert store.commit(*a_donor("new")) is None, "the same entry can be written after the crash"


def _end_at(call: str) -> None:
    """End this process at the n-th call of an os function, before that call does anything."""
    function, _, number = call.partition(" ")
    if function == "never":
        return
    original, calls = getattr(os, function), []

    def ending(*args):
        calls.append(args)
        if len(calls) > int(number):
            os._exit(1)
        return original(*args)

    setattr(os, function, ending)


@pytest.mark.parametrize("failing", ["write_entry", "rename"])
def test_a_disk_error_while_writing_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, StoreOptions())

    def full(*args):
        raise OSError(28, "No space left on device")

    target = (store_folder, "write_entry") if failing == "write_entry" else (store_folder.os, "rename")
    monkeypatch.setattr(*target, full)
    assert store.commit(*a_donor("one")) == "not stored: No space left on device"
    monkeypatch.undo()
    entries, staging, _ = folders(tmp_path)
    assert not list(entries.iterdir()) and not list(staging.iterdir()) and store.entries() == []


@pytest.mark.parametrize("name", [SIGNATURE_FILE, TRAJECTORY_FILE])
def test_a_corrupt_file_raises_and_its_quarantine_keeps_the_files(tmp_path: Path, name: str) -> None:
    Store(tmp_path, StoreOptions()).commit(*a_donor("bad"))
    entries, _, quarantine = folders(tmp_path)
    data = bytearray((entries / "bad" / name).read_bytes())
    data[-3] ^= 1
    (entries / "bad" / name).write_bytes(data)
    store = Store(tmp_path, StoreOptions())
    with pytest.raises(EntryError):
        store.signature("bad") if name == SIGNATURE_FILE else store.trajectory("bad", *WANTED)
    store.quarantine("bad", "checksum")
    assert store.entries() == []
    (kept,) = quarantine.iterdir()
    assert (kept / name).read_bytes() == data


def test_an_entry_whose_header_cannot_be_read_is_quarantined_by_looking(tmp_path: Path) -> None:
    Store(tmp_path, StoreOptions()).commit(*a_donor("good"))
    Store(tmp_path, StoreOptions()).commit(*a_donor("bad"))
    entries, _, quarantine = folders(tmp_path)
    (entries / "bad" / SIGNATURE_FILE).write_bytes(b"not an entry")
    assert ids(Store(tmp_path, StoreOptions())) == {"good"}
    assert [item.name.split("-")[0] for item in quarantine.iterdir()] == ["bad"]


def test_a_foreign_folder_or_file_among_the_entries_does_no_harm(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    store.commit(*a_donor("one"))
    entries = folders(tmp_path)[0]
    (entries / "holiday pictures").mkdir()
    (entries / ".DS_Store").write_bytes(b"x")
    later = Store(tmp_path, StoreOptions())
    assert ids(later) == {"one"}
    assert later.commit(*a_donor("two")) is None


def test_an_entry_that_was_quarantined_can_be_made_anew_and_quarantined_again(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    for _ in range(2):
        assert store.commit(*a_donor("one")) is None
        store.quarantine("one", "test")
    assert len(list(folders(tmp_path)[2].iterdir())) == 2


def test_an_entry_that_vanished_raises_and_its_bookkeeping_stays_quiet(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    store.commit(*a_donor("one"))
    shutil.rmtree(folders(tmp_path)[0] / "one")
    with pytest.raises(EntryError):
        store.signature("one")
    store.touch("one")
    store.quarantine("one", "gone")
    assert store.entries() == []


@given(st.lists(st.tuples(st.sampled_from(["commit", "use"]), st.sampled_from("abcdef")), max_size=14))
@settings(max_examples=15)
def test_the_least_recently_used_entries_are_evicted_first(operations: list[tuple[str, str]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        room = StoreOptions(budget_gb=3.5 * entry_bytes(root) / 1e9)
        store, expected = Store(root, room), []  # least recently used first
        for clock, (operation, name) in enumerate(operations):
            if operation == "commit":
                assert store.commit(*a_donor(name)) is None
                if name not in expected and len(expected) == 3:
                    expected.pop(0)
            elif name in expected:
                store.touch(name)
            if operation == "commit" or name in expected:
                expected = [n for n in expected if n != name] + [name]
                os.utime(folders(root)[0] / name, (clock, clock))  # file times are too coarse for a test
            assert ids(store) == set(expected)


def test_an_entry_larger_than_the_whole_budget_is_not_stored_and_evicts_nothing(tmp_path: Path) -> None:
    size = entry_bytes(tmp_path)
    store = Store(tmp_path, StoreOptions(budget_gb=1.5 * size / 1e9))
    store.commit(*a_donor("small"))
    note = store.commit(*a_donor("large", latent=(2, 2, 40, 40)))
    assert note is not None and "larger than the budget" in note
    assert ids(store) == {"small"}
    assert not list(folders(tmp_path)[1].iterdir())


def test_a_smaller_budget_takes_hold_at_the_next_commit(tmp_path: Path) -> None:
    size = entry_bytes(tmp_path)
    for index, name in enumerate("abcd"):
        Store(tmp_path, StoreOptions()).commit(*a_donor(name))
        os.utime(folders(tmp_path)[0] / name, (index, index))
    small = Store(tmp_path, StoreOptions(budget_gb=2.5 * size / 1e9))
    small.commit(*a_donor("e"))
    assert ids(small) == {"d", "e"}


@pytest.mark.parametrize(("free_gb", "stored"), [(4.99, False), (5.01, True)])
def test_nothing_is_stored_with_less_than_5_gb_free(
    tmp_path: Path, free_gb: float, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(10**12, 0, int(free_gb * 1e9))
    monkeypatch.setattr(store_folder.shutil, "disk_usage", lambda path: usage)
    store = Store(tmp_path, StoreOptions())
    note = store.commit(*a_donor("one"))
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
    os.utime(precious, (1, 1))
    store.commit(*a_donor("one"))
    store.commit(*a_donor("two"))
    assert (precious / "file").exists()


def test_a_result_that_is_not_finite_is_never_stored(tmp_path: Path) -> None:
    one = Store(tmp_path, StoreOptions())
    info, signature, trajectory = a_donor("bad")
    trajectory.guided[0].view(-1)[3] = float("nan")
    assert "not finite" in one.commit(info, signature, trajectory)
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

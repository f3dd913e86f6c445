"""The consensus of a store: the mean of what new entries attended to, whatever happens to its files."""

import os
import sqlite3
import time
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carnator_core.connectivity import CONSENSUS_MEMORY, Consensus
from carnator_core.options import StoreOptions
from carnator_core.store import consensus as files
from carnator_core.store import disk as store_disk
from carnator_core.store import folder as store_folder
from carnator_core.store import lock as store_lock
from carnator_core.store.__main__ import main
from carnator_core.store.entry import Entry
from carnator_core.store.folder import MIN_FREE_BYTES, Store
from carnator_core.store.registry import close_stores
from carnator_core.store.tensor_file import EntryError, write_file
from support.attention import a_connected_donor, a_mass, connected
from support.fake_host import a_donor
from support.processes import end_at, in_another_process

ID = "0123456789abcdef"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="plays other processes with fork")


def commit(store: Store, name: str, mass: torch.Tensor, block: int = 8, consensus_id: str = ID) -> str | None:
    """What became of an entry and its mass once the write has ended."""
    note = store.commit(connected(a_donor(name), mass, block), mass, consensus_id)
    store.wait()
    return note or store.take_failure()


def same(found: Consensus | None, expected: Consensus) -> bool:
    return (
        found is not None
        and (found.block, found.count, found.mass.dtype) == (expected.block, expected.count, torch.float16)
        and torch.equal(found.mass, expected.mass)
    )


def path_of(root: Path, consensus_id: str = ID) -> Path:
    return root / "default" / "consensus" / f"{consensus_id}.safetensors"


def ids(store: Store) -> list[str]:
    return [info.id for info in store.entries()]


def test_a_store_without_masses_has_no_consensus_and_no_folder_for_it(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    store.commit(a_connected_donor("one"))
    assert store.consensus(ID) is None and not path_of(tmp_path).parent.exists()


@given(seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=5), blocks=st.integers(1, 12))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_new_entry_counts_once(seeds: list[int], blocks: int, tmp_path: Path) -> None:
    root = tmp_path / f"{time.monotonic_ns()}"
    store, expected = Store(root, StoreOptions()), None
    for number, seed in enumerate(seeds):
        mass = a_mass(seed, blocks=blocks)
        assert commit(store, f"e{number}", mass) is None
        expected = Consensus.of(mass, 8) if expected is None else expected.with_request(mass)
        assert same(store.consensus(ID), expected)
        assert commit(store, f"e{number}", a_mass(seed + 1, blocks=blocks)) is None, "the entry is there already"
    assert same(Store(root, StoreOptions()).consensus(ID), expected)
    store.close()


def test_two_requests_make_the_mean_of_both_and_the_entry_is_stored(tmp_path: Path) -> None:
    store, one, two = Store(tmp_path, StoreOptions()), a_mass(1), a_mass(2)
    commit(store, "one", one)
    commit(store, "two", two)
    found = store.consensus(ID)
    assert found.count == 2 and torch.allclose(found.mass.float(), (one + two) / 2, rtol=0, atol=2.0**-10)
    assert ids(store) == ["one", "two"] and store.connectivity("two") is not None


def test_of_two_equal_requests_at_once_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other, write = Store(tmp_path, StoreOptions()), Store(tmp_path, StoreOptions()), store_folder.write_entry

    def overtaken(folder: Path, donor: Entry) -> None:
        monkeypatch.undo()
        assert commit(other, "one", a_mass(1)) is None
        write(folder, donor)

    monkeypatch.setattr(store_folder, "write_entry", overtaken)
    assert commit(store, "one", a_mass(2)) is None
    assert same(store.consensus(ID), Consensus.of(a_mass(1), 8))


def test_a_new_request_still_counts_after_many(tmp_path: Path) -> None:
    """The weight of one request never falls below that of one among CONSENSUS_MEMORY."""
    store, old, new = Store(tmp_path, StoreOptions()), torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    path_of(tmp_path).parent.mkdir()
    header = {"id": ID, "block": 8, "count": 100 * CONSENSUS_MEMORY}
    write_file(path_of(tmp_path), {"mass": old.half()}, header)
    assert commit(store, "one", new) is None
    found = store.consensus(ID)
    assert found.count == 100 * CONSENSUS_MEMORY + 1
    assert found.mass.flatten().tolist() == [1 / CONSENSUS_MEMORY] * 4


@pytest.mark.parametrize(("blocks", "layers", "block"), [(12, 2, 8), (11, 3, 8), (11, 2, 16)])
def test_another_shape_or_block_begins_the_consensus_anew(tmp_path: Path, blocks: int, layers: int, block: int) -> None:
    store, other = Store(tmp_path, StoreOptions()), a_mass(5, layers=layers, blocks=blocks)
    commit(store, "one", a_mass(1))
    assert commit(store, "two", other, block) is None
    assert same(store.consensus(ID), Consensus.of(other, block))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_mass_may_have_any_float(tmp_path: Path, dtype: torch.dtype) -> None:
    store, mass = Store(tmp_path, StoreOptions()), a_mass().to(dtype)
    assert store.commit(a_connected_donor(), mass, ID) is None
    assert same(store.consensus(ID), Consensus.of(mass.float(), 8))


BAD_MASSES = {
    "NaN": lambda mass: mass.index_fill(3, torch.tensor(2), float("nan")),
    "infinity": lambda mass: mass.index_fill(3, torch.tensor(2), float("inf")),
    "too large for float16": lambda mass: mass * 1e9,
    "below zero": lambda mass: mass.index_fill(3, torch.tensor(2), -0.25),
    "three dimensions": lambda mass: mass[0],
    "not square": lambda mass: mass[..., :-1],
    "nothing": lambda mass: mass[:0],
}


@pytest.mark.parametrize("change", BAD_MASSES.values(), ids=BAD_MASSES.keys())
def test_a_mass_that_is_none_changes_nothing_and_the_entry_is_stored(tmp_path: Path, change) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, "one", a_mass(1))
    before = path_of(tmp_path).read_bytes()
    assert store.commit(a_connected_donor("two"), change(a_mass(2)), ID) is None
    store.wait()
    assert store.take_failure().startswith("consensus not updated: a mass")
    assert store.take_failure() is None and ids(store) == ["one", "two"]
    assert path_of(tmp_path).read_bytes() == before


@pytest.mark.parametrize("name", ["", "..", "../x", "ABC", "a/b", "con", "a.b", "a" * 65, "a\n", 7])
def test_no_name_of_a_consensus_leads_out_of_its_folder(tmp_path: Path, name: object) -> None:
    store = Store(tmp_path, StoreOptions())
    with pytest.raises(EntryError):
        store.consensus(name)
    with pytest.raises(EntryError):
        store.commit(a_connected_donor(), a_mass(), name)
    assert ids(store) == []


def test_a_mass_without_its_blocks_or_its_name_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    for donor, consensus_id in ((a_donor("one"), ID), (a_connected_donor(), None)):
        with pytest.raises(ValueError):
            store.commit(donor, a_mass(), consensus_id)


@given(where=st.floats(0, 1), value=st.binary(min_size=1, max_size=4))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_overwritten_bytes_never_come_back(where: float, value: bytes, tmp_path: Path) -> None:
    store, path = Store(tmp_path, StoreOptions()), path_of(tmp_path)
    if not path.exists():
        commit(store, "one", a_mass())
    good = path.read_bytes()
    at = int(where * (len(good) - len(value)))
    path.write_bytes(good[:at] + value + good[at + len(value) :])
    try:
        found = store.consensus(ID)
        assert found is None or same(found, Consensus.of(a_mass(), 8))
    finally:
        path.write_bytes(good)
        store.close()


SEALED = {
    "no tensor": lambda t, h: t.clear(),
    "another name": lambda t, h: t.update(kept=t.pop("mass")),
    "float32": lambda t, h: t.update(mass=t["mass"].float()),
    "bytes": lambda t, h: t.update(mass=t["mass"].to(torch.uint8)),
    "NaN": lambda t, h: t["mass"][0, 0, 0].fill_(float("nan")),
    "below zero": lambda t, h: t["mass"][0, 0, 0].fill_(-0.25),
    "three dimensions": lambda t, h: t.update(mass=t["mass"][0]),
    "not square": lambda t, h: t.update(mass=t["mass"][..., :-1].contiguous()),
    "no block": lambda t, h: h.pop("block"),
    "a block of zero": lambda t, h: h.update(block=0),
    "a block of a fraction": lambda t, h: h.update(block=8.0),
    "no count": lambda t, h: h.pop("count"),
    "a count of zero": lambda t, h: h.update(count=0),
    "a count that is true": lambda t, h: h.update(count=True),
    "another consensus": lambda t, h: h.update(id="fedcba"),
}


@pytest.mark.parametrize("change", SEALED.values(), ids=SEALED.keys())
def test_a_sealed_file_with_other_contents_is_set_aside_and_begun_anew(tmp_path: Path, change) -> None:
    store, path = Store(tmp_path, StoreOptions()), path_of(tmp_path)
    tensors, header = {"mass": a_mass().half()}, {"id": ID, "block": 8, "count": 3}
    change(tensors, header)
    path.parent.mkdir()
    write_file(path, tensors, header)
    bad = path.read_bytes()
    assert store.consensus(ID) is None and not path.exists()
    (aside,) = (tmp_path / "default" / "quarantine").iterdir()
    assert aside.name.startswith("consensus-") and (aside / path.name).read_bytes() == bad
    path.write_bytes(bad)
    assert commit(store, "one", a_mass(4)) is None, "writing sets it aside as well"
    assert same(store.consensus(ID), Consensus.of(a_mass(4), 8))
    assert len(list(aside.parent.iterdir())) == 2


def test_a_folder_in_the_place_of_a_consensus_is_set_aside(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    path_of(tmp_path).mkdir(parents=True)
    assert store.consensus(ID) is None and commit(store, "one", a_mass()) is None
    assert same(store.consensus(ID), Consensus.of(a_mass(), 8))


def test_only_the_files_used_last_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    for number in range(files.KEPT):
        commit(store, f"e{number}", a_mass(number), consensus_id=f"{number:x}")
        os.utime(path_of(tmp_path, f"{number:x}"), (number, number))
    assert store.consensus("0") is not None
    commit(store, "new", a_mass(), consensus_id="ff")
    kept = {path.stem for path in store.consensuses.paths()}
    assert kept == {f"{number:x}" for number in range(files.KEPT)} - {"1"} | {"ff"}


def test_a_new_consensus_stays_when_the_clock_was_set_back(tmp_path: Path) -> None:
    store, later = Store(tmp_path, StoreOptions()), time.time() + 10**6
    for number in range(files.KEPT):
        commit(store, f"e{number}", a_mass(number), consensus_id=f"{number:x}")
        os.utime(path_of(tmp_path, f"{number:x}"), (later, later))
    commit(store, "new", a_mass(), consensus_id="ff")
    assert store.consensus("ff") is not None and len(store.consensuses.paths()) == files.KEPT


def sizes(root: Path) -> tuple[int, int]:
    """Bytes of one entry and of one consensus file as these tests write them."""
    store = Store(root / "measured", StoreOptions())
    commit(store, "one", a_mass())
    return store.usage()[0].bytes, store.consensuses.bytes


def kept_within(store: Store) -> list[str]:
    """The entries, after what they and the consensus files take was held against the budget."""
    entries = sum(usage.bytes for usage in store.usage())
    assert entries + store.consensuses.bytes <= store.options.budget_gb * 1e9
    return ids(store)


def test_consensus_files_count_for_the_budget(tmp_path: Path) -> None:
    entry, mean = sizes(tmp_path)
    assert mean < entry
    store = Store(tmp_path, StoreOptions(budget_gb=(4 * entry + 0.5 * mean) / 1e9))
    for number in range(6):
        assert commit(store, f"e{number}", a_mass(number)) is None
        assert len(kept_within(store)) == min(number + 1, 3), "four entries alone would fit"
    assert store.consensus(ID).count == 6


def test_consensus_files_take_at_most_a_quarter_of_the_budget(tmp_path: Path) -> None:
    entry, mean = sizes(tmp_path)
    store = Store(tmp_path, StoreOptions(budget_gb=4 * 2.5 * mean / 1e9))
    for number in range(5):
        assert commit(store, f"e{number}", a_mass(number), consensus_id=f"{number:x}") is None
        kept_within(store)
        os.utime(path_of(tmp_path, f"{number:x}"), (number, number))
    assert {path.stem for path in store.consensuses.paths()} == {"3", "4"}
    assert "e4" in ids(store)


def test_a_consensus_that_would_take_more_is_not_written(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions(budget_gb=4 * (2 * a_mass().numel() - 1) / 1e9))
    assert commit(store, "one", a_mass()).startswith("consensus not updated: it would take over a quarter")
    assert ids(store) == ["one"] and not store.consensuses.paths()


def test_entries_that_must_stay_leave_no_room_for_a_consensus(tmp_path: Path) -> None:
    entry, mean = sizes(tmp_path)
    store = Store(tmp_path, StoreOptions(budget_gb=(2 * entry + 0.5 * mean) / 1e9))
    for name in ("one", "two"):
        assert commit(store, name, a_mass()) is None
        store.set_pinned(name, True)
    assert kept_within(store) == ["one", "two"]
    assert not store.consensuses.paths()


def test_a_smaller_budget_applies_to_consensus_files_at_the_next_write(tmp_path: Path) -> None:
    entry, mean = sizes(tmp_path)
    store = Store(tmp_path, StoreOptions())
    for number in range(4):
        commit(store, f"e{number}", a_mass(number), consensus_id=f"{number:x}")
    store.options = StoreOptions(budget_gb=(entry + mean) * 2 / 1e9)
    store.commit(a_donor("plain"))
    assert "plain" in kept_within(store) and len(store.consensuses.paths()) == 1


def test_a_purge_deletes_what_was_not_used_for_so_long(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    for name in ("aa", "bb"):
        commit(store, name, a_mass(), consensus_id=name)
        store.note_hit(name, 0.0)
    os.utime(path_of(tmp_path, "aa"), (time.time() - 5 * 86400,) * 2)
    size = path_of(tmp_path, "aa").stat().st_size
    for dry in (True, False):
        purged = store.purge(86400.0, dry)
        assert (purged.entries, purged.consensuses, purged.bytes) == (0, 1, size)
        assert path_of(tmp_path, "aa").exists() == dry
    assert purged.sentence == "0 entries and 1 consensus file deleted, 1 kB"
    assert store.purge(0.0).consensuses == 1
    assert not store.consensuses.paths() and not store.entries()


def test_a_failure_to_write_is_told_once_and_loses_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, "one", a_mass(1))
    before = path_of(tmp_path).read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_disk.os, "replace", full)
    assert commit(store, "two", a_mass(2)) == "consensus not updated: No space left on device"
    monkeypatch.undo()
    assert store.take_failure() is None and ids(store) == ["one", "two"]
    assert path_of(tmp_path).read_bytes() == before and not list((tmp_path / "default" / "staging").iterdir())


def test_a_file_in_the_place_of_the_folder_loses_no_entry(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    path_of(tmp_path).parent.write_text("mine")
    assert commit(store, "one", a_mass()).startswith("consensus not updated: ")
    assert ids(store) == ["one"] and store.consensus(ID) is None


def test_a_disk_that_is_nearly_full_has_to_hold_the_consensus_too(tmp_path: Path, monkeypatch) -> None:
    store, donor, mass = Store(tmp_path, StoreOptions()), a_connected_donor("one"), a_mass()
    size = sum(t.nbytes for t in donor.tensors()) + 2 * mass.numel()
    for missing, stored in ((1, False), (0, True)):
        free = namedtuple("usage", "total used free")(10**12, 0, MIN_FREE_BYTES + size - missing)
        monkeypatch.setattr(store_disk.shutil, "disk_usage", lambda path, free=free: free)
        assert (store.commit(donor, mass, ID) is None) == stored
        assert (store.consensus(ID) is not None) == stored


def test_files_that_another_program_locks_are_left_alone_for_now(tmp_path: Path, monkeypatch) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, "one", a_mass(1))
    monkeypatch.setattr(store_lock, "BUSY_SECONDS", 0)
    other = sqlite3.connect(path_of(tmp_path).parent / files.LOCK_FILE, isolation_level=None)
    other.execute("begin exclusive")
    assert commit(store, "two", a_mass(2)).startswith("consensus not updated: the consensus files are in use")
    assert store.consensus(ID) is None and ids(store) == ["one", "two"]
    other.close()
    assert store.consensus(ID).count == 1 and commit(store, "three", a_mass(3)) is None
    assert store.consensus(ID).count == 2


def test_a_damaged_lock_is_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, "one", a_mass(1))
    (path_of(tmp_path).parent / files.LOCK_FILE).write_bytes(b"no lock " * 1000)
    assert commit(store, "two", a_mass(2)).startswith("consensus not updated: the lock")
    assert commit(store, "three", a_mass(3)) is None and store.consensus(ID).count == 2


@needs_fork
def test_no_request_of_two_processes_is_lost(tmp_path: Path) -> None:
    Store(tmp_path, StoreOptions()).close()

    def work(process: int) -> None:
        store = Store(tmp_path, StoreOptions())
        for number in range(6):
            assert commit(store, f"p{process}-{number}", a_mass(10 * process + number, blocks=4)) is None

    children = [in_another_process(lambda: work(process)) for process in (1, 2)]  # noqa: B023 (runs at once)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    found = Store(tmp_path, StoreOptions()).consensus(ID)
    mean = torch.stack([a_mass(10 * p + n, blocks=4) for p in (1, 2) for n in range(6)]).mean(0)
    assert found.count == 12 and torch.allclose(found.mass.float(), mean, rtol=0, atol=12 * 2.0**-11)


@needs_fork
@pytest.mark.parametrize("call", ["fsync 0", "replace 0", "fsync 1", "never"])
def test_a_crash_at_any_instant_leaves_the_old_mean_or_the_new_one(tmp_path: Path, call: str) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, "one", a_mass(1))
    store.close()

    def work() -> None:
        other = Store(tmp_path, StoreOptions())
        end_at(call)
        other.consensuses.add(ID, a_mass(2), 8)

    os.waitpid(in_another_process(work), 0)
    old = Consensus.of(a_mass(1), 8)
    new = old.with_request(a_mass(2))
    store = Store(tmp_path, StoreOptions())
    assert same(store.consensus(ID), new if call in ("fsync 1", "never") else old)
    left = list((tmp_path / "default" / "staging").iterdir())
    assert len(left) == (call != "never"), "what the crash left"
    for folder in left:
        os.utime(folder, (0, 0))
    assert commit(Store(tmp_path, StoreOptions()), "two", a_mass(3)) is None, "the lock ended with its process"
    assert not list((tmp_path / "default" / "staging").iterdir())


def test_the_command_line_checks_every_consensus(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    store = Store(tmp_path, StoreOptions())
    commit(store, "one", a_mass())
    commit(store, "two", a_mass(), consensus_id="ff")

    def verify() -> tuple[int, str]:
        code = main(["--root", str(tmp_path), "verify"])
        close_stores()
        return code, capsys.readouterr().out

    code, out = verify()
    assert code == 0 and f"{ID}  good consensus" in out and "ff  good consensus" in out
    path_of(tmp_path, "ff").write_bytes(path_of(tmp_path, "ff").read_bytes()[:-1])
    code, out = verify()
    assert code == 1 and f"{ID}  good consensus" in out and "ff  BAD consensus: ff.safetensors" in out

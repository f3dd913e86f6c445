"""The store under kills, damaged files, several processes and a full disk.

Each test runs a small part of its count; CARNATOR_TESTS=full python3 scripts/test.py tests/unit/test_store_stress.py -s
runs 200 kills, 1,000 damaged files and 2 × 500 operations and prints what happened.
"""

import json
import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from carnator_core.options import StoreOptions
from carnator_core.store import folder as store_folder
from carnator_core.store.entry import SIGNATURE_FILE, TRAJECTORY_FILE, Entry, verify_entry
from carnator_core.store.folder import Store
from carnator_core.store.tensor_file import EntryError, TensorFile, write_file
from support.disks import small_disk
from support.fake_host import a_donor
from support.processes import in_another_process

FULL = os.environ.get("CARNATOR_TESTS") == "full"
KILLS, DAMAGES, OPERATIONS = (200, 1000, 500) if FULL else (12, 150, 40)
WANTED = ((2, 2, 4, 4), 4, (2,))

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="plays other processes with fork"),
    pytest.mark.timeout(1200),
]


def entry_bytes(tmp_path: Path) -> int:
    store = Store(tmp_path, StoreOptions(name="measure"))
    store.commit(a_donor("one"))
    return store.usage()[0].bytes


def assert_sound(root: Path, options: StoreOptions, latent: tuple[int, ...] = WANTED[0]) -> int:
    """Every listed entry loads to the last byte, nothing else lies among them, and the catalog is intact."""
    store = Store(root, options)
    names = {info.id for info in store.entries()}
    assert names == set(os.listdir(root / options.name / "entries")) == {usage.id for usage in store.usage()}
    for name in names:
        verify_entry(store.disk.folder(name))
        store.trajectory(name, latent, *WANTED[1:]).check()
        store.signature(name)
    assert store.check_catalog() is None
    assert list((root / options.name / "quarantine").iterdir()) == []
    store.close()
    return len(names)


def test_a_kill_at_any_instant_leaves_whole_entries_only(tmp_path: Path) -> None:
    chance = random.Random(1)
    options = StoreOptions(budget_gb=6.5 * entry_bytes(tmp_path) / 1e9)
    staging = tmp_path / "default" / "staging"
    seen: Counter[str] = Counter()

    def commit_for_ever(first: int) -> None:
        store = Store(tmp_path, options)
        for number in range(first, first + 10**6):
            assert store.commit(a_donor(f"e{number}", seed=number)) is None

    for kill in range(KILLS):
        child = in_another_process(lambda: commit_for_ever(10**6 * kill))  # noqa: B023 (runs at once)
        time.sleep(chance.uniform(0.0, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        half = [set(os.listdir(folder)) for folder in (staging.iterdir() if staging.exists() else ())]
        seen["while writing"] += any(files != {SIGNATURE_FILE, TRAJECTORY_FILE} for files in half)
        seen["before the rename or while deleting"] += any(files >= {SIGNATURE_FILE, TRAJECTORY_FILE} for files in half)
        seen["elsewhere"] += not half
        shutil.rmtree(staging, ignore_errors=True)
        seen["entries checked"] += assert_sound(tmp_path, options)
    print(f"\n{KILLS} kills: {dict(seen)}")
    assert seen["while writing"], "no kill came in the middle of a write"


def layout_lie(data: bytes, chance: random.Random) -> bytes:
    """The same file with one false field in the safetensors layout."""
    end = 8 + int.from_bytes(data[:8], "little")
    layout = json.loads(data[8:end])
    name = chance.choice([n for n in layout if n != "__metadata__"])
    field = chance.choice(["shape", "dtype", "data_offsets"])
    if field == "dtype":
        layout[name]["dtype"] = chance.choice(["F32", "F16", "BF16", "I16", "F64", "U8", "", None])
    else:
        layout[name][field][chance.randrange(len(layout[name][field]))] += chance.choice([-2, -1, 1, 2, 1 << 33])
    text = json.dumps(layout).encode()
    return len(text).to_bytes(8, "little") + text + data[end:]


def resealed(path: Path, chance: random.Random) -> None:
    """A file whose bookkeeping is right, but a tensor is not finite, has another dtype, shape or name, or is gone."""
    with TensorFile(path) as file:
        tensors, header = {name: file.tensor(name) for name in file.names}, dict(file.header)
    path.unlink()
    name = chance.choice(sorted(tensors))
    tensor = tensors.pop(name)
    kind = chance.randrange(6)
    if kind == 0:
        tensor.view(-1)[chance.randrange(tensor.numel())] = chance.choice([float("nan"), float("inf"), -float("inf")])
        tensors[name] = tensor
    elif kind == 1:
        tensors[name] = tensor.to(torch.float32 if tensor.dtype == torch.float16 else torch.float16)
    elif kind == 2:
        tensors[name] = tensor.to(torch.bfloat16)
    elif kind == 3:
        tensors[name] = tensor.reshape(-1)[:-1].clone()
    elif kind == 4:
        tensors[name + "x"] = tensor
    write_file(path, tensors, header)


def damaged(path: Path, chance: random.Random) -> str:
    """Damage a file in one of many ways; the name of the way."""
    data = bytearray(path.read_bytes())
    ways = ["truncation", "bit flips", "layout lie", "resealed", "zeros", "longer", "swapped parts", "random"]
    way = chance.choice(ways)
    if way == "resealed":
        resealed(path, chance)
        return way
    at, size = chance.randrange(len(data)), chance.randint(1, 64)
    if way == "truncation":
        del data[at:]
    elif way == "bit flips":
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif way == "layout lie":
        data = layout_lie(bytes(data), chance)
    elif way == "zeros":
        data[at : at + size] = bytes(len(data[at : at + size]))
    elif way == "longer":
        data[at:at] = chance.randbytes(size)
    elif way == "swapped parts":
        other = chance.randrange(len(data) - 8)
        data[other : other + 8], data[:8] = data[:8], data[other : other + 8]
    else:
        data[at : at + size] = chance.randbytes(len(data[at : at + size]))
    path.write_bytes(data)
    return way


def handed_out(store: Store, original: Entry) -> bool:
    """Read an entry as a request does. Whether anything was refused; what is handed out must be the original."""
    refused = False
    try:
        found = store.signature("one").tensors()
        refused = found.keys() != original.signature.tensors().keys()  # which a session refuses
        assert all(torch.equal(tensor, getattr(original.signature, name)) for name, tensor in found.items())
    except EntryError:
        refused = True
    try:
        trajectory = store.trajectory("one", *WANTED)
    except EntryError:
        return True
    expected = original.trajectory
    assert torch.equal(trajectory.residual_norm, expected.residual_norm)
    for read, tensors in ((trajectory.guided, expected.guided), (trajectory.conditional, expected.conditional)):
        for step, tensor in tensors.items():
            try:
                found = read(step)
            except EntryError:
                refused = True
                continue
            assert found.dtype == tensor.dtype and torch.equal(found, tensor), f"a wrong tensor of step {step}"
    trajectory.close()
    return refused


def test_no_damaged_file_hands_out_a_wrong_tensor(tmp_path: Path) -> None:
    chance, seen = random.Random(2), Counter()
    store, original = Store(tmp_path, StoreOptions()), a_donor("one")
    store.commit(original)
    assert [info.id for info in store.entries()] == ["one"]
    folder = store.disk.folder("one")
    good = {name: (folder / name).read_bytes() for name in (SIGNATURE_FILE, TRAJECTORY_FILE)}
    assert not handed_out(store, original)
    for _ in range(DAMAGES):
        path = folder / chance.choice(sorted(good))
        way = damaged(path, chance)
        harmless = path.read_bytes() == good[path.name]  # zeros over zeros
        refused = handed_out(store, original)
        assert refused or harmless or way == "resealed", (path.name, way)
        seen[way] += refused
        path.write_bytes(good[path.name])
    print(f"\n{DAMAGES} damaged files, {sum(seen.values())} noticed, none wrong: {dict(seen)}")
    assert not handed_out(store, original)


def operate(root: Path, options: StoreOptions, seed: int) -> None:
    """Random operations; entries that the other process took away are expected, anything else is not."""
    chance = random.Random(seed)
    store = Store(root, options)
    for _ in range(OPERATIONS):
        number = chance.randrange(24)
        name, donor = f"e{number}", a_donor(f"e{number}", seed=number)
        kind = chance.choice(["commit", "commit", "recall", "load", "delete", "hit", "pin", "purge"])
        if kind == "commit":
            assert store.commit(donor) is None
            failure = store.take_failure()
            assert failure is None, failure
        elif kind == "recall":
            found = store.recall(donor.info.key, donor.embedding, 4, name)
            assert found.trouble is None and {c.info.id for c in found.same_key} <= {name}
        elif kind == "delete":
            store.delete(name)
        elif kind == "hit":
            store.note_hit(name, chance.uniform(0, 9))
        elif kind == "purge":
            store.purge(1e12)
        else:
            try:
                if kind == "pin":
                    store.set_pinned(name, chance.random() < 0.1)
                else:
                    assert torch.equal(store.signature(name).state, donor.signature.state)
                    trajectory = store.trajectory(name, *WANTED)
                    assert torch.equal(trajectory.guided(1), donor.trajectory.guided[1])
                    trajectory.close()
            except (EntryError, FileNotFoundError):
                assert kind == "pin" or not store.disk.folder(name).is_dir() or kind == "load"
    store.close()


def test_two_processes_on_one_store_leave_it_intact(tmp_path: Path) -> None:
    options = StoreOptions(budget_gb=10.5 * entry_bytes(tmp_path) / 1e9)
    children = [in_another_process(lambda: operate(tmp_path, options, seed)) for seed in (3, 4)]  # noqa: B023
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    kept = assert_sound(tmp_path, options)
    print(f"\n2 × {OPERATIONS} operations, {kept} entries at the end")
    assert 0 < kept <= 24


def test_a_process_sees_what_another_one_stores_and_deletes(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions())

    def commit() -> None:
        other = Store(tmp_path, StoreOptions())
        other.commit(a_donor("theirs"))
        other.wait()

    assert store.entries() == []
    os.waitpid(in_another_process(commit), 0)
    assert [info.id for info in store.entries()] == ["theirs"]
    os.waitpid(in_another_process(lambda: Store(tmp_path, StoreOptions()).delete("theirs")), 0)
    assert store.entries() == []


def test_a_limit_on_the_size_of_files_is_a_sentence_and_costs_nothing_else(tmp_path: Path) -> None:
    """A real error of the operating system: writes past 64 KB fail."""
    first = Store(tmp_path, StoreOptions())
    first.commit(a_donor("old"))
    first.wait()

    def limited() -> None:
        store = Store(tmp_path, StoreOptions())
        assert [info.id for info in store.entries()] == ["old"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
        assert store.commit(a_donor("large", latent=(4, 4, 64, 64))) is None
        store.wait()
        failure = store.take_failure()
        assert failure == "not stored: File too large", failure
        assert [info.id for info in store.entries()] == ["old"]

    assert os.waitpid(in_another_process(limited), 0)[1] == 0
    assert os.listdir(tmp_path / "default" / "staging") == []
    assert assert_sound(tmp_path, StoreOptions()) == 1


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def test_a_full_disk_is_a_sentence_and_what_was_stored_stays(full_disk: Path, monkeypatch) -> None:
    monkeypatch.setattr(store_folder, "MIN_FREE_BYTES", -(10**12))
    latent = (4, 4, 32, 32)
    store, failure = Store(full_disk, StoreOptions()), None
    for number in range(1000):
        assert store.commit(a_donor(f"e{number}", number, latent)) is None
        store.wait()
        failure = store.take_failure()
        if failure is not None:
            break
    assert failure == "not stored: No space left on device"
    names = {info.id for info in store.entries()}
    assert len(names) == number > 5
    for name in names:
        store.trajectory(name, latent, 4, (2,)).check()
        store.note_hit(name, 1.0)  # may fail to be counted, never to return
    for name in sorted(names)[3:]:
        assert store.delete(name)
    assert store.commit(a_donor("last", 0, latent)) is None
    store.wait()
    assert store.take_failure() is None
    store.close()
    assert assert_sound(full_disk, StoreOptions(), latent) == 4

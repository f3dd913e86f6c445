"""The connectivity of an entry: it comes back as it was written or not at all, and entries without one stay good."""

import zipfile
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carnator_core.connectivity import Connectivity
from carnator_core.options import StoreOptions
from carnator_core.store import disk as store_disk
from carnator_core.store import entry
from carnator_core.store.__main__ import main
from carnator_core.store.archive import export_entry, import_entry
from carnator_core.store.entry import CONNECTIVITY_FILE, SIGNATURE_FILE, TRAJECTORY_FILE
from carnator_core.store.folder import GB, MIN_FREE_BYTES, Store
from carnator_core.store.registry import close_stores
from carnator_core.store.tensor_file import BYTES, EntryError, EntryGone, TensorFile, is_finite, write_file
from support.attention import a_connected_donor
from support.damage import overwritten
from support.fake_host import a_donor

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder: Path, seed: int = 0, blocks: int = 11) -> Connectivity:
    folder.mkdir()
    donor = a_connected_donor(folder.name, seed, blocks)
    entry.write_entry(folder, donor)
    return donor.connectivity


def same(found: Connectivity | None, expected: Connectivity) -> bool:
    return (
        found is not None
        and (found.block, found.rule, found.packed.dtype) == (expected.block, expected.rule, expected.packed.dtype)
        and torch.equal(found.packed, expected.packed)
    )


def outcome(folder: Path, expected: Connectivity) -> str:
    try:
        return "unchanged" if same(entry.read_connectivity(folder), expected) else "wrong value"
    except EntryError:
        return "refused"


@given(seed=st.integers(0, 1000), blocks=st.integers(1, 40))
@same_folder
def test_connectivity_comes_back_exactly_as_it_was_written(seed: int, blocks: int, tmp_path: Path) -> None:
    folder = tmp_path / f"entry{seed}-{blocks}"
    if not folder.exists():
        expected = written(folder, seed, blocks)
        assert same(entry.read_connectivity(folder), expected)


def test_connectivity_comes_back_and_is_verified(tmp_path: Path) -> None:
    expected = written(tmp_path / "one")
    assert outcome(tmp_path / "one", expected) == "unchanged"
    assert entry.verify_entry(tmp_path / "one").id == "one"


def test_an_entry_without_connectivity_is_a_good_entry(tmp_path: Path) -> None:
    """Entries written before there was connectivity have the two files alone."""
    store = Store(tmp_path, StoreOptions())
    assert store.commit(a_donor("old")) is None
    store.wait()
    assert {file.name for file in store.disk.folder("old").iterdir()} == {SIGNATURE_FILE, TRAJECTORY_FILE}
    assert store.connectivity("old") is None
    assert entry.verify_entry(store.disk.folder("old")).id == "old"
    export_entry(store, "old", tmp_path / "file")
    other = Store(tmp_path / "other", StoreOptions())
    assert import_entry(other, tmp_path / "file").id == "old" and other.connectivity("old") is None


def test_the_connectivity_of_a_deleted_entry_is_gone_not_absent(tmp_path: Path) -> None:
    with pytest.raises(EntryGone):
        entry.read_connectivity(tmp_path / "one")


def test_a_flipped_bit_at_any_byte_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    expected, path = written(folder), folder / CONNECTIVITY_FILE
    good = path.read_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << (at % 8)
        path.write_bytes(bad)
        assert outcome(folder, expected) != "wrong value", f"byte {at}"


@given(where=st.floats(0, 1), value=st.binary(min_size=1, max_size=4))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_overwritten_bytes_never_come_back(where: float, value: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    expected = entry.read_connectivity(folder) if folder.exists() else written(folder)
    with overwritten(folder / CONNECTIVITY_FILE, where, value):
        assert outcome(folder, expected) != "wrong value"


def test_a_truncated_or_longer_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    expected, path = written(folder), folder / CONNECTIVITY_FILE
    good = path.read_bytes()
    for bad in [*(good[:length] for length in range(0, len(good), 7)), good[:-1], good + b"\0"]:
        path.write_bytes(bad)
        assert outcome(folder, expected) == "refused"


def test_the_connectivity_of_another_entry_and_a_folder_in_its_place_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "one")
    written(tmp_path / "other", seed=2)
    path = tmp_path / "one" / CONNECTIVITY_FILE
    path.write_bytes((tmp_path / "other" / CONNECTIVITY_FILE).read_bytes())
    with pytest.raises(EntryError, match="another entry"):
        entry.read_connectivity(tmp_path / "one")
    path.unlink()
    path.mkdir()
    with pytest.raises(EntryError):
        entry.read_connectivity(tmp_path / "one")


def beyond(tensors: dict, header: dict) -> None:
    tensors["kept"][0, 1, 2, -1] |= 1 << 3  # 11 blocks use three bits of the second byte


CHANGES = {
    "no tensor": lambda t, h: t.clear(),
    "another name": lambda t, h: t.update(mask=t.pop("kept")),
    "a tensor too many": lambda t, h: t.update(more=t["kept"].clone()),
    "floats": lambda t, h: t.update(kept=t["kept"].half()),
    "signed bytes": lambda t, h: t.update(kept=t["kept"].to(torch.int8)),
    "truth values": lambda t, h: t.update(kept=t["kept"].bool()),
    "three dimensions": lambda t, h: t.update(kept=t["kept"][0]),
    "five dimensions": lambda t, h: t.update(kept=t["kept"][None]),
    "no layers": lambda t, h: t.update(kept=t["kept"][:0]),
    "no blocks": lambda t, h: t.update(kept=t["kept"][:, :, :0]),
    "rows too short": lambda t, h: t.update(kept=t["kept"][..., :1]),
    "rows too long": lambda t, h: t.update(kept=torch.nn.functional.pad(t["kept"], (0, 1))),
    "a block too few": lambda t, h: t.update(kept=t["kept"][:, :, :8]),
    "a bit beyond the last block": beyond,
    "a block that does not keep itself": lambda t, h: t["kept"][1, 1, 9, 1].bitwise_and_(0b101),
    "no block size": lambda t, h: h.pop("block"),
    "a block size of zero": lambda t, h: h.update(block=0),
    "a block size below zero": lambda t, h: h.update(block=-64),
    "a block size of a fraction": lambda t, h: h.update(block=64.0),
    "a block size that is true": lambda t, h: h.update(block=True),
    "no rule": lambda t, h: h.pop("rule"),
    "a rule that is no text": lambda t, h: h.update(rule=50),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_sealed_file_with_other_contents_is_refused(tmp_path: Path, change) -> None:
    folder = tmp_path / "entry"
    donor = a_connected_donor("entry")
    tensors = {"kept": donor.connectivity.packed.clone()}
    header = {"id": "entry", "block": donor.connectivity.block, "rule": donor.connectivity.rule}
    change(tensors, header)
    folder.mkdir()
    entry.write_entry(folder, a_donor("entry"))
    write_file(folder / CONNECTIVITY_FILE, {name: t.contiguous() for name, t in tensors.items()}, header)
    for read in (entry.read_connectivity, entry.verify_entry):
        with pytest.raises(EntryError):
            read(folder)


def test_bytes_are_admitted_in_the_file_of_connectivity_alone(tmp_path: Path) -> None:
    write_file(tmp_path / "file", {"kept": torch.arange(9, dtype=torch.uint8)}, {"id": tmp_path.name})
    with TensorFile(tmp_path / "file", dtypes=BYTES) as file:
        assert file.tensor("kept").tolist() == list(range(9))
    with pytest.raises(EntryError, match="dtype U8"):
        TensorFile(tmp_path / "file")
    assert is_finite(torch.full((3,), 255, dtype=torch.uint8))


def test_a_store_keeps_the_connectivity_of_its_entries_and_counts_its_bytes(tmp_path: Path) -> None:
    store, donor = Store(tmp_path, StoreOptions()), a_connected_donor("one")
    assert store.commit(donor) is None
    store.wait()
    assert same(store.connectivity("one"), donor.connectivity)
    (usage,) = store.usage()
    assert usage.bytes == sum(file.stat().st_size for file in store.disk.folder("one").iterdir())
    assert same(Store(tmp_path, StoreOptions()).connectivity("one"), donor.connectivity)
    for name in ("..", "../one", ""):
        with pytest.raises(EntryError):
            store.connectivity(name)


def test_the_budget_and_the_free_space_count_the_connectivity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    donor = a_connected_donor("one", blocks=200)
    plain, extra = sum(t.nbytes for t in a_donor("one").tensors()), donor.connectivity.packed.nbytes
    assert sum(t.nbytes for t in donor.tensors()) == plain + extra
    store = Store(tmp_path, StoreOptions(budget_gb=(plain + extra - 1) / GB))
    assert "larger than the budget" in store.commit(donor)
    store = Store(tmp_path, StoreOptions())
    free = namedtuple("usage", "total used free")(10**12, 0, MIN_FREE_BYTES + plain + extra - 1)
    monkeypatch.setattr(store_disk.shutil, "disk_usage", lambda path: free)
    assert "5 GB" in store.commit(donor)
    assert store.commit(a_donor("two")) is None
    assert [info.id for info in store.entries()] == ["two"]


def test_an_archive_carries_the_connectivity_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    source, donor = Store(tmp_path / "source", StoreOptions()), a_connected_donor("one")
    source.commit(donor)
    source.wait()
    export_entry(source, "one", tmp_path / "file")
    target = Store(tmp_path / "target", StoreOptions())
    import_entry(target, tmp_path / "file")
    assert same(target.connectivity("one"), donor.connectivity)

    with zipfile.ZipFile(tmp_path / "file") as good, zipfile.ZipFile(tmp_path / "bad", "w") as bad:
        for name in good.namelist():
            data = good.read(name)
            bad.writestr(name, data[:-1] + b"\7" if name.endswith(CONNECTIVITY_FILE) else data)
    target.delete("one")
    with pytest.raises(EntryError):
        import_entry(target, tmp_path / "bad")
    assert target.entries() == []
    path = source.disk.folder("one") / CONNECTIVITY_FILE
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EntryError):
        export_entry(source, "one", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_command_line_shows_and_checks_the_connectivity(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    store = Store(tmp_path, StoreOptions())
    for donor in (a_connected_donor("one"), a_donor("two")):
        store.commit(donor)
    store.wait()

    def command(*words: str) -> tuple[int, str]:
        code = main(["--root", str(tmp_path), *words])
        close_stores()
        return code, capsys.readouterr().out

    assert "connectivity  density 50 %, blocks of 8 tokens\n" in command("show", "one")[1]
    assert "connectivity  none\n" in command("show", "two")[1]
    assert command("verify")[0] == 0
    path = store.disk.folder("one") / CONNECTIVITY_FILE
    path.write_bytes(path.read_bytes()[:-1])
    code, out = command("verify")
    assert code == 1 and "one  BAD: connectivity.safetensors" in out and "two  good" in out

"""Export, import and the command line: one entry as one file, and nothing of a file is believed."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from carnator_core.options import StoreOptions
from carnator_core.reasons import Decision
from carnator_core.store.__main__ import main
from carnator_core.store.archive import export_entry, import_entry
from carnator_core.store.entry import PREVIEW_FILE, SIGNATURE_FILE, TRAJECTORY_FILE
from carnator_core.store.folder import Store
from carnator_core.store.registry import close_stores
from carnator_core.store.tensor_file import EntryError, EntryGone
from carnator_core.store.verdicts import judge_decision
from support.fake_host import a_donor
from support.logs import a_record
from support.paths import ROOT

JPEG = b"\xff\xd8\xff a picture"
FILES = (SIGNATURE_FILE, TRAJECTORY_FILE)


@pytest.fixture
def source(tmp_path: Path) -> Store:
    """A store with the entries one (with a preview) and two."""
    store = Store(tmp_path / "source", StoreOptions())
    store.commit(replace(a_donor("one"), preview=JPEG))
    store.commit(a_donor("two", seed=2))
    store.wait()
    return store


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(tmp_path / "target", StoreOptions())


def everything(root: Path) -> list[str]:
    """All files and folders but those of the catalog."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.name.startswith("catalog"))


@pytest.mark.parametrize("name", ["one", "two"])
def test_an_exported_entry_is_imported_to_the_last_byte(source: Store, target: Store, tmp_path: Path, name) -> None:
    export_entry(source, name, tmp_path / "file")
    assert import_entry(target, tmp_path / "file").id == name
    assert [info.id for info in target.entries()] == [name]
    files = sorted(os.listdir(source.disk.folder(name)))
    assert files == sorted(os.listdir(target.disk.folder(name))) and (PREVIEW_FILE in files) == (name == "one")
    for file in files:
        assert (source.disk.folder(name) / file).read_bytes() == (target.disk.folder(name) / file).read_bytes()


def test_an_export_overwrites_nothing_and_leaves_nothing_after_an_error(source: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(FileExistsError):
        export_entry(source, "one", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(EntryGone):
        export_entry(source, "three", tmp_path / "new")
    (source.disk.folder("two") / TRAJECTORY_FILE).write_bytes(b"bad")
    with pytest.raises(EntryError):
        export_entry(source, "two", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_entry_that_is_there_already_is_not_replaced(source: Store, tmp_path: Path) -> None:
    export_entry(source, "one", tmp_path / "file")
    with pytest.raises(EntryError, match="already"):
        import_entry(source, tmp_path / "file")


def test_an_entry_larger_than_the_budget_is_refused_before_it_is_written(
    source: Store, target: Store, tmp_path: Path
) -> None:
    export_entry(source, "one", tmp_path / "file")
    target.options = StoreOptions(budget_gb=1e-6)
    with pytest.raises(EntryError, match="budget"):
        import_entry(target, tmp_path / "file")


def packed(path: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def parts(source: Store, name: str = "one") -> list[tuple[str, bytes]]:
    return [(f"{name}/{file}", (source.disk.folder(name) / file).read_bytes()) for file in FILES]


EVIL = {
    "a member that leads out": lambda p: [*p, ("../evil", b"x")],
    "a member that leads out of its folder": lambda p: [*p, ("one/../../evil", b"x")],
    "an absolute member": lambda p: [*p, ("/tmp/evil", b"x")],
    "a member with backslashes": lambda p: [*p, ("one\\..\\evil", b"x")],
    "a file too many": lambda p: [*p, ("one/evil.py", b"x")],
    "a file in a folder": lambda p: [*p, ("one/x/preview.jpg", JPEG)],
    "a pin": lambda p: [*p, ("one/pinned", b"")],
    "another entry's file": lambda p: [*p, ("two/preview.jpg", JPEG)],
    "a folder that leads out": lambda p: [("../" + name, data) for name, data in p],
    "a folder named ..": lambda p: [(name.replace("one", ".."), data) for name, data in p],
    "no folder": lambda p: [(name.partition("/")[2], data) for name, data in p],
    "another id": lambda p: [(name.replace("one", "three"), data) for name, data in p],
    "a missing file": lambda p: p[:1],
    "nothing": lambda p: [],
    "a cut file": lambda p: [p[0], (p[1][0], p[1][1][:-2])],
    "a changed file": lambda p: [p[0], (p[1][0], p[1][1][:-2] + b"\1\2")],
    "a preview that is none": lambda p: [*p, ("one/preview.jpg", b"<script>")],
    "a preview that is large": lambda p: [*p, ("one/preview.jpg", JPEG + bytes(70000))],
}


@pytest.mark.parametrize("change", EVIL.values(), ids=EVIL.keys())
def test_an_archive_with_anything_odd_is_refused_and_leaves_nothing(
    source: Store, target: Store, tmp_path: Path, change
) -> None:
    path = packed(tmp_path / "file", change(parts(source)))
    before = everything(tmp_path)
    with pytest.raises(EntryError):
        import_entry(target, path)
    assert everything(tmp_path) == before and target.entries() == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_doubled_compressed_and_broken_archives_are_refused(source: Store, target: Store, tmp_path: Path) -> None:
    good = packed(tmp_path / "good", parts(source)).read_bytes()
    packed(tmp_path / "doubled", [*parts(source), *parts(source)[:1]])
    packed(tmp_path / "compressed", parts(source), zipfile.ZIP_DEFLATED)
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "cut").write_bytes(good[: len(good) // 2])
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    (tmp_path / "flipped").write_bytes(flipped)
    for name in ("doubled", "compressed", "text", "cut", "flipped"):
        with pytest.raises(EntryError):
            import_entry(target, tmp_path / name)
    assert target.entries() == [] and import_entry(target, tmp_path / "good").id == "one"


@pytest.fixture
def command(source: Store, tmp_path: Path, capsys: pytest.CaptureFixture):
    """command(*words): exit code, output and errors of the command line on the source store."""

    def call(*words: str, root: Path | None = None) -> tuple[int, str, str]:
        code = main(["--root", str(root or tmp_path / "source"), *words])
        close_stores()
        return code, *capsys.readouterr()

    return call


def test_the_list_is_a_table_of_all_entries(command, source: Store) -> None:
    source.note_hit("two", 30.0)
    code, out, _ = command("list")
    lines = out.splitlines()
    assert code == 0 and re.fullmatch(r"id +MB +hits +saved +dense +last use *", lines[0])
    assert re.fullmatch(r"two +0\.0 +1 +30s +12\.2s +\d{4}-\d\d-\d\d \d\d:\d\d", lines[1])
    assert lines[2].startswith("one ") and lines[3].startswith("2 entries")


def test_one_entry_is_shown_with_its_key_and_without_its_text(command) -> None:
    code, out, _ = command("show", "on")
    assert code == 0 and "CFG" in out and "5.0" in out and "preview.jpg" in out


def test_verify_finds_the_bad_entry(command, source: Store) -> None:
    assert command("verify")[0] == 0
    path = source.disk.folder("two") / TRAJECTORY_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    code, out, _ = command("verify")
    assert code == 1 and "one  good" in out and "two  BAD" in out and "catalog  good" in out
    assert command("verify", "one")[0] == 0


def test_entries_are_exported_deleted_imported_and_pinned(command, source: Store, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    assert command("export", "one", file)[0] == 0
    assert command("delete", "one")[0] == 0 and [i.id for i in source.entries()] == ["two"]
    assert command("import", file)[0] == 0 and [i.id for i in source.entries()] == ["one", "two"]
    assert command("pin", "tw")[0] == 0
    assert command("purge", "--yes")[1].startswith("1 entry deleted, ")
    assert [i.id for i in source.entries()] == ["two"]
    assert command("unpin", "two")[0] == 0 and command("purge", "--yes")[0] == 0
    assert source.entries() == []


def test_decisions_and_verdicts_are_listed(command, source: Store) -> None:
    source.history.add(a_record(id="first"))
    source.history.add(a_record(Decision.MISS, id="second"))
    judge_decision(source, "first", safe=False)
    code, out, _ = command("decisions")
    lines = out.splitlines()
    assert code == 0 and lines[1].startswith("second ") and "miss: no earlier request" in lines[1]
    assert re.fullmatch(r"first +\d{4}-\d\d-\d\d \d\d:\d\d  unsafe +hit 2\.0.*", lines[2]) and lines[3] == "2 decisions"
    code, out, _ = command("verdicts")
    assert code == 0 and re.match(r"r0 +from d0 .* artist +unsafe\n", out)
    assert out.endswith("1 verdicts: 0 safe, 1 unsafe; 0 damaged lines\n")


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 2), ("", 2)])
def test_a_purge_asks_first(command, source: Store, monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    code, out, err = command("purge")
    assert "Delete 2 entries" in out and len(source.entries()) == left
    assert (code, "nothing was deleted" in err) == ((0, False) if left == 0 else (1, True))


def test_what_cannot_be_done_is_one_line(command, tmp_path: Path) -> None:
    for words, text in (
        (("show", "three"), "no entry begins with 'three'"),
        (("export", "one", str(tmp_path / "no" / "file")), "No such file"),
        (("import", str(tmp_path / "no")), "No such file"),
        (("--store", "../x", "list"), "a store name is"),
        (("--store", "other", "list"), "there is no store 'other'"),
    ):
        code, _, err = command(*words)
        assert code == 1 and text in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "source" / "other").exists()


def test_the_command_finds_the_comfyui_around_the_pack_or_says_how_to_name_it(source: Store, tmp_path: Path) -> None:
    source.close()
    pack = tmp_path / "ComfyUI" / "custom_nodes" / "ComfyUI-Carnator"
    shutil.copytree(ROOT / "carnator_core", pack / "carnator_core", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "carnator_core.store", "list"]
    shutil.copytree(tmp_path / "source", tmp_path / "ComfyUI" / "user" / "__carnator" / "stores")
    done = subprocess.run(command, cwd=pack, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "2 entries" in done.stdout, done.stderr
    pack.rename(tmp_path / "elsewhere")
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--root" in done.stderr and len(done.stderr.splitlines()) == 1

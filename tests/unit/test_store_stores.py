"""All stores of a server as a user interface sees them: looking changes nothing and waits for no run."""

import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carnator_core.options import StoreOptions
from carnator_core.reasons import Decision
from carnator_core.store import registry
from carnator_core.store.catalog import ORDERS, Catalog, CatalogError
from carnator_core.store.folder import Store
from carnator_core.store.history import History
from carnator_core.store.stores import NotThere, Refused, Stores
from support.attention import a_mass, connected
from support.fake_host import a_donor
from support.logs import JPEG, a_record
from support.rights import closed

PICTURE = JPEG + bytes(50)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "stores"
    registry.close_stores()


@pytest.fixture
def stores(root: Path) -> Stores:
    return Stores(root, video_size=lambda latent: f"video of {latent}")


def fill(root: Path, count: int, name: str = "mine") -> None:
    """A store as another process leaves it: entry i was made at i days, used i times and saved i seconds each time."""
    store = Store(root, StoreOptions(name=name))
    for number in range(count):
        entry = a_donor(f"e{number}", seed=number)
        info = replace(entry.info, created=86400.0 * number, seconds=10.0)
        store.commit(replace(entry, info=info, preview=PICTURE if number % 2 else None))
        for _ in range(number):
            store.note_hit(f"e{number}", float(number))
    store.close()


def state_of(root: Path) -> dict[str, bytes]:
    """Every file under a root."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_without_any_store_there_is_none_and_none_is_made(stores: Stores, root: Path) -> None:
    assert stores.all() == {"stores": []}
    for look in (lambda: stores.entries("mine", "newest", 0, 9), lambda: stores.decisions("mine", 0, 9)):
        with pytest.raises(NotThere):
            look()
    with pytest.raises(NotThere):
        stores.purge("mine", 0.0, True)
    assert not root.exists()


def test_a_summary_has_the_sums_of_a_store(stores: Stores, root: Path) -> None:
    fill(root, 4)
    store = Store(root, StoreOptions(name="mine"))
    store.commit(connected(a_donor("mass"), a_mass(), 8), a_mass(), "ff")
    store.wait()
    store.history.add(a_record(id="hit"))
    stores.judge("mine", "hit", safe=False)
    size = sum(usage.bytes for usage in store.usage()) + store.consensuses.bytes
    assert stores.all() == {
        "stores": [
            {
                "name": "mine",
                "budget_bytes": None,
                "entries": 5,
                "bytes": size,
                "hits": 6,
                "seconds_saved": 14.0,
                "decisions": 1,
                "verdicts": {"safe": 0, "unsafe": 1},
                "error": None,
            }
        ]
    }


def test_a_store_of_somebody_else_hides_no_other() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        fill(root, 2)
        fill(root, 1, "theirs")
        for path in [root / "mine", *(root / "mine").rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        stores = Stores(root, video_size=str)
        with closed(root / "theirs"):
            mine, theirs = stores.all()["stores"]
            assert (mine["name"], mine["entries"], mine["error"]) == ("mine", 2, None)
            assert (theirs["name"], theirs["entries"], theirs["error"]) == ("theirs", 0, "Permission denied")
            with pytest.raises(PermissionError):
                stores.decisions("theirs", 0, 9)
        registry.close_stores()


def test_the_budget_is_that_of_the_last_run_and_looking_leaves_it(stores: Stores, root: Path) -> None:
    options = StoreOptions(name="mine", budget_gb=3.0, mode="read")
    opened = registry.open_store(root, options)
    assert stores.all()["stores"][0]["budget_bytes"] == 3e9
    assert registry.existing_store(root, "mine") is opened and opened.options == options
    stores.purge("mine", 0.0, False)
    assert opened.options == options


def test_a_store_that_only_the_interface_has_opened_has_no_budget_until_a_run_sets_one(
    stores: Stores, root: Path
) -> None:
    fill(root, 1)
    assert stores.pin("mine", "e0", True)["pinned"] and len(registry.open_stores()) == 1
    assert stores.all()["stores"][0]["budget_bytes"] is None
    opened = registry.open_store(root, StoreOptions(name="mine", budget_gb=2.0))
    assert stores.all()["stores"][0]["budget_bytes"] == 2e9 and registry.open_stores() == [opened]


@pytest.mark.parametrize("order", ORDERS)
def test_entries_come_in_pages(stores: Stores, root: Path, order: str) -> None:
    fill(root, 7)
    pages = [stores.entries("mine", order, offset, 3) for offset in (0, 3, 6, 9)]
    assert [page["total"] for page in pages] == [7] * 4
    assert [len(page["entries"]) for page in pages] == [3, 3, 1, 0]
    found = [entry for page in pages for entry in page["entries"]]
    field = {"newest": "created", "largest": "bytes", "most_used": "hits", "least_used": "hits"}[order]
    largest = order != "least_used"
    assert found == sorted(found, key=lambda entry: entry[field], reverse=largest)
    assert {entry["id"] for entry in found} == {f"e{number}" for number in range(7)}


def test_an_entry_tells_what_it_cost_and_saved(stores: Stores, root: Path) -> None:
    fill(root, 4)
    entry = stores.entries("mine", "newest", 0, 1)["entries"][0]
    assert abs(entry.pop("last_used") - time.time()) < 60 and entry.pop("bytes") > 1000
    assert entry == {
        "id": "e3", "created": 3 * 86400.0, "seconds": 10.0, "hits": 3, "seconds_saved": 9.0, "pinned": False,
        "size": None, "picture": True,
    }  # fmt: skip
    assert stores.entry_picture("mine", "e3") == PICTURE
    for name in ("e2", "unknown"):
        with pytest.raises(NotThere):
            stores.entry_picture("mine", name)


def test_looking_changes_no_file_and_opens_no_store(stores: Stores, root: Path) -> None:
    fill(root, 3)
    History(root / "mine").add(a_record(id="hit"), JPEG)
    (root / "mine" / "staging" / "left by a crash").mkdir()
    os.utime(root / "mine" / "staging" / "left by a crash", (0, 0))
    before = state_of(root)
    stores.all(), stores.entries("mine", "newest", 0, 9), stores.decisions("mine", 0, 9), stores.certificate("mine")
    stores.entry_picture("mine", "e1"), stores.hit_picture("mine", "hit")
    assert state_of(root) == before and registry.open_stores() == []
    assert (root / "mine" / "staging" / "left by a crash").exists()


def test_looking_waits_for_no_run_that_holds_the_store(stores: Stores, root: Path) -> None:
    """Neither for its lock, nor for an entry that is being written, nor for another one's catalog transaction."""
    fill(root, 3)
    opened = registry.open_store(root, StoreOptions(name="mine"))
    free = threading.Event()
    opened._writer.start(lambda: free.wait(60) and None)
    other = sqlite3.connect(root / "mine" / "catalog.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with opened._lock:
            seen: list = []
            thread = threading.Thread(target=lambda: seen.append(stores.entries("mine", "newest", 0, 9)["total"]))
            thread.start()
            thread.join(20)
            assert seen == [3]
    finally:
        other.close()
        free.set()


def test_opening_a_store_for_the_interface_makes_no_run_on_another_one_wait(root: Path, monkeypatch) -> None:
    fill(root, 1)
    begun, free, real = threading.Event(), threading.Event(), registry.Store

    def slow(root: Path, options: StoreOptions) -> Store:
        if options.name == "mine":
            begun.set()
            assert free.wait(60)
        return real(root, options)

    monkeypatch.setattr(registry, "Store", slow)
    thread = threading.Thread(target=registry.existing_store, args=(root, "mine"))
    thread.start()
    assert begun.wait(20)
    registry.open_store(root, StoreOptions(name="other"))
    free.set()
    thread.join()
    assert len(registry.open_stores()) == 2


@pytest.mark.parametrize("damage", ["missing", "another version", "no database"])
def test_a_catalog_that_is_of_no_use_is_made_anew_from_the_entries(stores: Stores, root: Path, damage: str) -> None:
    fill(root, 3)
    for path in (root / "mine").glob("catalog.sqlite*"):
        if damage == "missing" or path.suffix != ".sqlite":
            path.unlink()
    if damage == "another version":
        with sqlite3.connect(root / "mine" / "catalog.sqlite") as other:
            other.execute("PRAGMA user_version = 99")
        other.close()
    elif damage == "no database":
        (root / "mine" / "catalog.sqlite").write_bytes(b"no database" * 1000)
    assert {entry["id"] for entry in stores.entries("mine", "newest", 0, 9)["entries"]} == {"e0", "e1", "e2"}
    assert stores.all()["stores"][0]["entries"] == 3


def test_a_catalog_that_is_locked_is_an_error_of_that_store_alone(stores: Stores, root: Path, monkeypatch) -> None:
    fill(root, 1, "one")
    fill(root, 2, "two")

    def locked(self) -> None:
        if self._path.parent.name == "one":
            raise CatalogError("the catalog cannot be used: database is locked")

    monkeypatch.setattr(Catalog, "_check_version", locked)
    found = {store["name"]: (store["entries"], store["error"]) for store in stores.all()["stores"]}
    assert found == {"one": (0, "the catalog cannot be used: database is locked"), "two": (2, None)}
    with pytest.raises(CatalogError):
        stores.entries("one", "newest", 0, 9)


def test_pins_and_deletions(stores: Stores, root: Path) -> None:
    fill(root, 3)
    assert stores.pin("mine", "e1", True)["pinned"] is True
    told = stores.purge("mine", 0.0, False)
    assert (told["count"], told["pinned"], told["in_use"]) == (2, 1, 0) and told["bytes"] > 2000
    assert told["sentence"].startswith("nothing deleted yet; it would be: 2 entries")
    assert stores.entries("mine", "newest", 0, 9)["total"] == 3
    told = stores.purge("mine", 0.0, True)
    assert told["count"] == 2 and told["sentence"].startswith("2 entries deleted")
    assert stores.pin("mine", "e1", False)["pinned"] is False
    assert stores.delete("mine", "e1") == {"deleted": True}
    for change in (stores.delete, lambda name, entry: stores.pin(name, entry, True)):
        with pytest.raises(NotThere):
            change("mine", "e1")
    assert stores.entries("mine", "newest", 0, 9) == {"total": 0, "entries": []}


def test_a_store_that_only_declined_runs_left_has_nothing_to_purge(stores: Stores, root: Path) -> None:
    History(root / "mine").add(a_record(Decision.DECLINED))
    told = stores.purge("mine", 0.0, True)
    assert (told["count"], told["bytes"]) == (0, 0) and told["sentence"] == "0 entries deleted, 0 B"
    assert not (root / "mine" / "entries").exists()
    with pytest.raises(NotThere):
        stores.delete("mine", "e0")


def test_an_entry_that_a_run_reads_is_not_deleted(stores: Stores, root: Path) -> None:
    fill(root, 1)
    reading = registry.open_store(root, StoreOptions(name="mine")).trajectory("e0", (2, 2, 4, 4), 4, (2,))
    with pytest.raises(Refused, match="a run uses this entry"):
        stores.delete("mine", "e0")
    assert stores.purge("mine", 0.0, True)["in_use"] == 1
    reading.close()
    assert stores.delete("mine", "e0") == {"deleted": True}


def test_an_entry_whose_folder_somebody_deleted_is_gone_from_the_list_once_clicked(stores: Stores, root: Path) -> None:
    fill(root, 2)
    shutil.rmtree(root / "mine" / "entries" / "e1")
    with pytest.raises(NotThere):
        stores.delete("mine", "e1")
    assert [entry["id"] for entry in stores.entries("mine", "newest", 0, 9)["entries"]] == ["e0"]


def test_a_store_that_somebody_deleted_is_no_more(stores: Stores, root: Path) -> None:
    fill(root, 1)
    stores.pin("mine", "e0", True)
    shutil.rmtree(root / "mine")
    assert stores.all() == {"stores": []}
    for use in (lambda: stores.delete("mine", "e0"), lambda: stores.entries("mine", "newest", 0, 9)):
        with pytest.raises(NotThere):
            use()
    assert not (root / "mine").exists()


def test_a_store_in_which_everything_was_declined_shows_its_decisions(stores: Stores, root: Path) -> None:
    History(root / "mine").add(a_record(Decision.DECLINED))
    assert [(store["entries"], store["decisions"]) for store in stores.all()["stores"]] == [(0, 1)]
    assert stores.entries("mine", "newest", 0, 9) == {"total": 0, "entries": []}


def test_what_is_no_store_is_not_listed(stores: Stores, root: Path) -> None:
    fill(root, 0, "good")
    for name in (".hidden", "with space", "x" * 70, "empty"):
        (root / name / ("nothing" if name == "empty" else "entries")).mkdir(parents=True)
    (root / "file").write_text("")
    assert [store["name"] for store in stores.all()["stores"]] == ["good"]


def test_decisions_come_newest_first_with_the_verdict_of_a_person(stores: Stores, root: Path) -> None:
    history = History(root / "mine")
    for number in range(5):
        audited = number == 2
        history.add(a_record(id=f"n{number}", audit=audited), JPEG, PICTURE if audited else None)
    first = stores.judge("mine", "n3", safe=True)
    assert first["verdict"] == "safe"
    assert stores.judge("mine", "n3", safe=False)["id"] != first["id"]
    page = stores.decisions("mine", 1, 2)
    assert page["total"] == 5
    assert [(found["id"], found["verdict"]) for found in page["decisions"]] == [("n3", "unsafe"), ("n2", None)]
    json.dumps(page, allow_nan=False)
    assert stores.hit_picture("mine", "n3") == JPEG and stores.dense_picture("mine", "n2") == PICTURE
    assert [found["dense_picture"] for found in page["decisions"]] == [False, True]
    with pytest.raises(NotThere):
        stores.dense_picture("mine", "n3")
    stores.judge("mine", "n2", safe=True)
    assert stores.decisions("mine", 2, 1)["decisions"][0]["verdict"] == "safe", "on an audit too"
    assert stores.withdraw("mine", "n3") == stores.withdraw("mine", "n3") == {"verdict": None}
    assert stores.decisions("mine", 1, 1)["decisions"][0]["verdict"] is None
    with pytest.raises(NotThere):
        stores.withdraw("mine", "unknown")


def test_what_is_no_hit_cannot_be_judged(stores: Stores, root: Path) -> None:
    History(root / "mine").add(a_record(Decision.MISS, id="miss"))
    with pytest.raises(Refused):
        stores.judge("mine", "miss", safe=True)
    with pytest.raises(NotThere):
        stores.judge("mine", "unknown", safe=True)


def test_a_page_of_a_large_store_is_a_query_and_not_a_walk(stores: Stores, root: Path) -> None:
    fill(root, 1)
    with sqlite3.connect(root / "mine" / "catalog.sqlite") as other:
        columns = [row[1] for row in other.execute("PRAGMA table_info(entries)")]
        rest = ", ".join(column for column in columns if column != "id")
        for number in range(1000):
            other.execute(f"INSERT INTO entries (id, {rest}) SELECT 'x{number}', {rest} FROM entries WHERE id = 'e0'")
    other.close()
    started = time.perf_counter()
    page = stores.entries("mine", "newest", 500, 50)
    assert page["total"] == 1001 and len(page["entries"]) == 50
    assert time.perf_counter() - started < 0.5

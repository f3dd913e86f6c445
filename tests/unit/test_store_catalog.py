"""Catalog: derived from the entries, so that losing or damaging it costs counts only; and the rule of eviction."""

import os
import shutil
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.options import StoreOptions
from carnator_core.store import catalog as catalogs
from carnator_core.store.catalog import Catalog, CatalogDamaged, CatalogError, Usage
from carnator_core.store.eviction import HALF_LIFE_SECONDS, benefit, victims
from carnator_core.store.folder import Store
from support.fake_host import a_donor

NOW = 2e9


def filled(root: Path, names: str = "abc") -> Store:
    store = Store(root, StoreOptions())
    for seed, name in enumerate(names):
        assert store.commit(a_donor(name, seed=seed)) is None
    store.note_hit(names[0], 2.5)
    store.note_hit(names[0], 4.0)
    return store


def test_an_entry_comes_back_from_the_catalog_as_it_was_entered(tmp_path: Path) -> None:
    catalog, donor = Catalog(tmp_path), a_donor("one")
    donor = replace(donor, info=replace(donor.info, prompt="a red fox"))
    catalog.enter([(donor.info, donor.embedding, 1234, True)])
    ((info, embedding),) = Catalog(tmp_path).load({"one", "absent"})
    assert info == donor.info and torch.equal(embedding, donor.embedding)
    assert catalog.usage() == [Usage("one", 1234, 12.25, 0, 0.0, donor.info.created, True)]


def test_hits_are_added_up_and_entering_again_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    donor = a_donor("a")
    store._catalog.enter([(donor.info, donor.embedding, 1, True)])
    usage = {u.id: u for u in store.usage()}
    assert (usage["a"].hits, usage["a"].seconds_saved, usage["a"].pinned) == (2, 6.5, False)
    assert (usage["b"].hits, usage["b"].seconds_saved) == (0, 0.0)
    assert usage["a"].bytes == sum(f.stat().st_size for f in store.disk.folder("a").iterdir())


def test_counts_outlive_the_process(tmp_path: Path) -> None:
    filled(tmp_path).close()
    assert {u.id: u.hits for u in Store(tmp_path, StoreOptions()).usage()} == {"a": 2, "b": 0, "c": 0}


def test_opening_brings_the_catalog_to_what_lies_in_the_folder(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.close()
    other = filled(tmp_path / "other", "xy")
    other.close()
    shutil.rmtree(store.disk.folder("b"))
    shutil.copytree(other.disk.folder("x"), store.disk.folder("x"))
    again = Store(tmp_path, StoreOptions())
    assert [info.id for info in again.entries()] == ["a", "c", "x"] == sorted(u.id for u in again.usage())
    assert {u.id: u.hits for u in again.usage()}["a"] == 2


def rewritten(path: Path, command: str) -> None:
    with sqlite3.connect(path) as base:
        base.execute(command)
    base.close()


DAMAGE = {
    "garbage": lambda path: path.write_bytes(os.urandom(20000)),
    "a text": lambda path: path.write_text("not a database " * 100),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "zeros inside": lambda path: path.write_bytes(path.read_bytes()[:100] + bytes(8000) + path.read_bytes()[8100:]),
    "a newer version": lambda path: rewritten(path, "pragma user_version = 99"),
    "an older version": lambda path: rewritten(path, "pragma user_version = 0"),
    "another table": lambda path: rewritten(path, "alter table entries rename to things"),
    "a changed key": lambda path: rewritten(path, "update entries set key = replace(key, '5.0', '7.0')"),
    "a key that is no JSON": lambda path: rewritten(path, "update entries set key = 'x'"),
    "a key that is a list": lambda path: rewritten(path, "update entries set key = '[]'"),
    "an odd embedding": lambda path: rewritten(path, "update entries set embedding = x'010203'"),
    "a text for a number": lambda path: rewritten(path, "update entries set created = 'yesterday'"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_or_foreign_catalog_is_moved_aside_and_made_anew(tmp_path: Path, damage) -> None:
    filled(tmp_path).close()
    path = tmp_path / "default" / "catalog.sqlite"
    damage(path)
    store = Store(tmp_path, StoreOptions())
    assert [info.id for info in store.entries()] == ["a", "b", "c"]
    assert store.check_catalog() is None
    assert sorted(u.id for u in store.usage()) == ["a", "b", "c"]
    (aside,) = (tmp_path / "default" / "quarantine").iterdir()
    assert aside.name.startswith("catalog-") and (aside / path.name).exists()
    found = store.recall(a_donor("a").info.key, a_donor("a").embedding, 1, "a")
    assert [c.info for c in found.same_key] == [a_donor("a").info]


def test_a_catalog_that_is_damaged_while_it_is_open_is_made_anew(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with sqlite3.connect(tmp_path / "default" / "catalog.sqlite") as base:
        base.execute("drop table entries")
    base.close()
    store.note_hit("a", 1.0)
    store.commit(a_donor("d"))
    store.wait()
    assert [info.id for info in Store(tmp_path, StoreOptions()).entries()] == ["a", "b", "c", "d"]


def test_two_catalogs_notice_each_others_changes_by_the_revision(tmp_path: Path) -> None:
    one, other = Catalog(tmp_path), Catalog(tmp_path)
    donor, before = a_donor("one"), (one.revision, other.revision)
    one.enter([(donor.info, donor.embedding, 1, False)])
    assert one.revision == before[0] and other.revision != before[1]


def test_a_catalog_that_another_program_locks_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "BUSY_SECONDS", 0)
    catalog = Catalog(tmp_path)
    base = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
    base.execute("begin immediate")
    with pytest.raises(CatalogError, match="locked") as found:
        catalog.drop(["x"])
    assert not isinstance(found.value, CatalogDamaged)
    base.execute("rollback")
    base.close()
    catalog.drop(["x"])


def test_without_sqlalchemy_a_store_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(OSError, match="SQLAlchemy is missing"):
        Store(tmp_path, StoreOptions())


def test_a_folder_in_the_place_of_the_catalog_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "default" / "catalog.sqlite" / "x").mkdir(parents=True)
    with pytest.raises(CatalogError, match="unable to open"):
        Store(tmp_path, StoreOptions())


def usage(
    name: str, size: int = 100, seconds: float = 10.0, saved: float = 0.0, age: float = 0.0, pinned=False
) -> Usage:
    return Usage(name, size, seconds, 0, saved, NOW - age, pinned)


def test_benefit_is_seconds_saved_per_byte_halved_every_week() -> None:
    assert benefit(usage("a", 100, 10.0, 95.0), NOW) == 1.0
    assert benefit(usage("a", 200, 10.0, 95.0), NOW) == 0.5
    assert benefit(usage("a", 100, 10.0, 95.0, age=2 * HALF_LIFE_SECONDS), NOW) == 0.25
    assert benefit(usage("a", 100, 10.0, 95.0, age=-50.0), NOW) == 1.0, "a clock that was set back"


usages = st.lists(
    st.builds(
        usage,
        st.uuids().map(str),
        st.integers(1, 1000),
        st.floats(0, 1e4),
        st.floats(0, 1e4),
        st.floats(0, 1e7),
        st.booleans(),
    ),
    max_size=12,
)


@given(usages, st.integers(0, 5000), st.data())
def test_just_enough_goes_and_the_worst_first_but_nothing_protected(entries: list[Usage], budget: int, data) -> None:
    protected = set(data.draw(st.lists(st.sampled_from([e.id for e in entries] or ["-"]))))
    gone = victims(entries, budget, protected, NOW)
    by_id = {e.id: e for e in entries}
    free = [e for e in entries if not e.pinned and e.id not in protected]
    assert set(gone) <= {e.id for e in free}
    left = sum(e.bytes for e in entries) - sum(by_id[name].bytes for name in gone)
    assert left <= budget or len(gone) == len(free)
    if gone:
        assert left + by_id[gone[-1]].bytes > budget, "the last one had to go"
        worst = max(benefit(by_id[name], NOW) for name in gone)
        assert all(benefit(e, NOW) >= worst for e in free if e.id not in gone)
    else:
        assert left <= budget or not free


def test_an_entry_that_saved_much_outlives_newer_ones(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.note_hit("a", 1000.0)
    size = store.usage()[0].bytes
    store.options = StoreOptions(budget_gb=2.5 * size / 1e9)
    store.commit(a_donor("d", seed=9))
    assert [info.id for info in store.entries()] == ["a", "d"]


def test_of_equal_entries_the_one_unused_for_longest_goes(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.note_hit("a", 0.0)
    for name in "bca":
        store.note_hit(name, 0.0 if name == "a" else 6.5)
    store.options = StoreOptions(budget_gb=3.5 * store.usage()[0].bytes / 1e9)
    store.commit(a_donor("d", seed=9))
    assert [info.id for info in store.entries()] == ["a", "c", "d"]

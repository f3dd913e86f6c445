"""CarnatorStorePurge as ComfyUI calls it."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from carnator_core.options import StoreOptions
from carnator_core.store.folder import Store
from support.fake_host import a_donor
from support.pack import pack_module


@pytest.fixture
def node(pack, tmp_path: Path):
    import folder_paths

    user = folder_paths.get_user_directory()
    folder_paths.set_user_directory(str(tmp_path))
    yield pack_module("nodes.store_purge").CarnatorStorePurge
    pack_module("carnator_core.store.registry").close_stores()
    folder_paths.set_user_directory(user)


@pytest.fixture
def store(node, tmp_path: Path) -> Store:
    """The store 'mine' with three entries, last used 0, 10 and 100 days ago, opened apart from the node's."""
    opened = Store(tmp_path / "__carnator" / "stores", StoreOptions(name="mine"))
    for days in (0, 10, 100):
        entry = a_donor(f"d{days}")
        opened.commit(replace(entry, info=replace(entry.info, created=time.time() - days * 86400 - 60)))
    opened.wait()
    return opened


def purge(node, days: float, confirm: bool = True, name: str = "mine") -> str:
    """The text on the node."""
    options = pack_module("carnator_core.options").StoreOptions(name=name)
    return node.execute(older_than_days=days, confirm=confirm, store=options).ui.as_dict()["text"][0]


def names(store) -> list[str]:
    return [info.id for info in store.entries()]


def test_nothing_is_deleted_without_confirmation(node, store) -> None:
    told = purge(node, 5.0, confirm=False)
    assert told.startswith("store 'mine': nothing deleted yet") and "2 entries" in told
    assert names(store) == ["d0", "d10", "d100"]


@pytest.mark.parametrize(
    ("days", "left", "gone"),
    [(365.0, ["d0", "d10", "d100"], "0 entries"), (30.0, ["d0", "d10"], "1 entry"), (0.0, [], "3 entries")],
)
def test_what_was_not_used_for_so_long_is_deleted(node, store, days: float, left: list[str], gone: str) -> None:
    told = purge(node, days)
    assert told.startswith(f"store 'mine': {gone} deleted, ")
    assert names(store) == left


def test_pinned_entries_stay_and_are_told(node, store) -> None:
    store.set_pinned("d100", True)
    told = purge(node, 0.0)
    assert told.endswith("kept: 1 pinned") and names(store) == ["d100"]


def test_a_store_that_cannot_be_opened_is_a_sentence(node, tmp_path: Path) -> None:
    (tmp_path / "__carnator").write_text("a file in the way")
    assert "cannot be used" in purge(node, 0.0)


def test_the_node_runs_every_time_and_asks_for_consent_by_default(node) -> None:
    schema = node.GET_SCHEMA()
    assert schema.is_output_node and node.fingerprint_inputs() != node.fingerprint_inputs()
    assert {item.id: item.default for item in schema.inputs if item.id == "confirm"} == {"confirm": False}

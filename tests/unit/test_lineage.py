"""Lineage: what a reused latent stands for."""

from dataclasses import replace
from pathlib import Path

from carnator_core.lineage import Lineage
from carnator_core.options import StoreOptions
from carnator_core.store.entry import read_info, write_entry
from carnator_core.store.folder import Store
from support.fake_host import a_donor


def test_an_unknown_latent_stands_for_itself() -> None:
    lineage = Lineage()
    assert lineage.origin("a") == "a" and not lineage.is_reused("a")


def test_a_reused_latent_stands_for_its_donors() -> None:
    lineage = Lineage()
    lineage.remember("hit", "donor")
    assert lineage.origin("hit") == "donor" and lineage.is_reused("hit")
    assert not lineage.is_reused("donor")


def test_only_the_newest_are_kept() -> None:
    lineage = Lineage(kept=2)
    for name in ("a", "b", "a", "c"):
        lineage.remember(name, "donor")
    assert [lineage.is_reused(name) for name in "abc"] == [True, False, True]


def test_an_entry_keeps_the_digest_of_its_output(tmp_path: Path) -> None:
    donor = a_donor("one")
    for name, output in (("one", None), ("two", "0123")):
        (tmp_path / name).mkdir()
        write_entry(tmp_path / name, replace(donor, info=replace(donor.info, id=name, output=output)))
        assert read_info(tmp_path / name)[0].output == output


def test_the_catalog_keeps_it_too(tmp_path: Path) -> None:
    """A later process reads the catalog and not the entries."""
    donor = a_donor("one")
    with_output = replace(donor, info=replace(donor.info, output="0123"))
    store = Store(tmp_path, StoreOptions())
    assert store.commit(with_output) is None
    store.close()
    (found,) = Store(tmp_path, StoreOptions()).entries()
    assert found.output == "0123"

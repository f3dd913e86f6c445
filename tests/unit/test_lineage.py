"""Lineage: what a reused latent stands for."""

from carnator_core.lineage import Lineage


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

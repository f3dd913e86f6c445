"""Donors of another seed on the fake host: which one is chosen, when none is, and what is told of a refused one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.candidates import find_other_seeds
from carnator_core.identity import HardKey
from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions, StoreOptions
from carnator_core.other_seed import BorrowedSeed, find_borrowed
from carnator_core.reasons import Decision
from carnator_core.recall import TextIndex
from carnator_core.session import Session
from carnator_core.store.entry import EntryInfo
from carnator_core.store.registry import open_store
from support.fake_host import FakeHost, a_donor

PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])
NEAR = PROMPT + torch.tensor([0.0, 0, 0, 0, 0, 0.4, 0, 0])
UNRELATED = -PROMPT.flip(0)
WIDE = GateOptions(1e3, 1e3, 1e3, 1e3, 1e3)


def options(gate: GateOptions | None = WIDE, mode: str = "read+write", allowed: float = 100.0, **probe) -> Options:
    """Options under which everything is a hit, or with ``allowed=0`` nothing that differs."""
    probe = {"seed_policy": "any seed", **probe}
    reuse = ReuseOptions(assist=True, max_region_percent=allowed)
    return Options(StoreOptions(mode=mode), ProbeOptions(**probe), gate, reuse)


def session(host: FakeHost, root: Path, prompt: torch.Tensor, chosen: Options, **key: str) -> Session:
    return Session(host.request(prompt, **key), chosen, open_store(root, chosen.store))


def run(host: FakeHost, root: Path, prompt: torch.Tensor, **key: str) -> Session:
    """A run that is stored."""
    one = session(host, root, prompt, options(mode="write"), **key)
    host.run(one, prompt)
    return one


def borrowed(root: Path, own: Session, seeds: object = ()) -> BorrowedSeed | None:
    """What the host finds that can make the noise of all seeds, or of some."""
    store = open_store(root, own.options.store)
    return find_borrowed(own, store, lambda donor: not seeds or donor.info.seed in seeds)


def test_the_nearest_text_of_another_seed_lends_its_noise_for_a_hit(tmp_path: Path) -> None:
    run(FakeHost(seed=1), tmp_path, UNRELATED)
    donor = run(FakeHost(seed=2), tmp_path, PROMPT)
    known, host = FakeHost(seed=2), FakeHost(seed=7)
    found = borrowed(tmp_path, session(host, tmp_path, NEAR, options()))
    assert found.seed == 2 and found.donor.info.id == donor.report.entry_id
    same = session(known, tmp_path, NEAR, options())
    assert found.session.request.key == same.request.key
    result = known.run(found.session, NEAR)
    assert torch.equal(result, known.run(same, NEAR))
    assert found.session.report.decision is same.report.decision is Decision.HIT
    assert found.session.report.status().count("with the donor's seed 2") == 1
    assert "seed" not in same.report.status()


def test_a_session_with_borrowed_noise_stores_nothing_and_never_assists(tmp_path: Path) -> None:
    run(FakeHost(seed=2), tmp_path, PROMPT)
    before = {info.id for info in open_store(tmp_path, StoreOptions()).entries()}
    found = borrowed(tmp_path, session(FakeHost(seed=7), tmp_path, NEAR, options(allowed=0.0)))
    host = FakeHost(seed=2)
    assert torch.equal(host.run(found.session, NEAR), host.dense(NEAR))
    assert found.session.report.decision is Decision.MISS
    assert {info.id for info in open_store(tmp_path, StoreOptions()).entries()} == before


def test_a_refused_donor_is_told_in_the_report_of_the_run_that_follows(tmp_path: Path) -> None:
    run(FakeHost(seed=2), tmp_path, PROMPT)
    host = FakeHost(seed=7)
    own = session(host, tmp_path, NEAR, options(allowed=0.0))
    found = borrowed(tmp_path, own)
    FakeHost(seed=2).run(found.session, NEAR, seconds=None)
    found.tell_refused(own.report, 2)
    assert torch.equal(host.run(own, NEAR), host.dense(NEAR))
    status = own.report.status()
    assert status.startswith("miss: the nearest earlier request differs in: seed (before that 2 steps were spent on")
    assert "a donor with seed 2: " in status and "of the video would change" in status
    assert own.report.discrepancies == found.session.report.discrepancies is not None
    assert own.report.entry_id == own.request.entry_id and own.report.donor_seed is None


def test_where_no_step_was_spent_nothing_is_told(tmp_path: Path) -> None:
    run(FakeHost(seed=2), tmp_path, PROMPT)
    own = session(FakeHost(seed=7), tmp_path, NEAR, options())
    before = own.report.to_dict()
    borrowed(tmp_path, own).tell_refused(own.report, 0)
    assert own.report.to_dict() == before


def test_a_donor_whose_noise_the_host_cannot_make_is_passed_over(tmp_path: Path) -> None:
    run(FakeHost(seed=1), tmp_path, PROMPT)
    run(FakeHost(seed=2), tmp_path, NEAR)
    own = session(FakeHost(seed=7), tmp_path, NEAR, options())
    assert borrowed(tmp_path, own).seed == 2
    assert borrowed(tmp_path, own, seeds={1}).seed == 1
    assert borrowed(tmp_path, own, seeds={5}) is None


@pytest.mark.parametrize(
    "chosen",
    [
        options(seed_policy="same seed"),
        options(donor=""),
        options(donor="x"),
        options(mode="write"),
        options(gate=None),
        options(min_text_similarity=0.999),
    ],
    ids=["same seed", "pinned to nothing", "pinned", "write only", "learning", "too different words"],
)
def test_nothing_is_borrowed_where_no_hit_can_come_of_it(tmp_path: Path, chosen: Options) -> None:
    run(FakeHost(seed=2), tmp_path, PROMPT)
    assert borrowed(tmp_path, session(FakeHost(seed=7), tmp_path, NEAR, options())) is not None
    assert borrowed(tmp_path, session(FakeHost(seed=7), tmp_path, NEAR, chosen)) is None


def test_nothing_is_borrowed_where_the_own_seed_has_a_candidate(tmp_path: Path) -> None:
    run(FakeHost(seed=2), tmp_path, PROMPT)
    run(FakeHost(seed=7), tmp_path, PROMPT)
    assert borrowed(tmp_path, session(FakeHost(seed=7), tmp_path, NEAR, options())) is None
    # One of which the words are too different is none.
    assert borrowed(tmp_path, session(FakeHost(seed=7), tmp_path, -PROMPT, options())) is None
    run(FakeHost(seed=2), tmp_path, -PROMPT)
    assert borrowed(tmp_path, session(FakeHost(seed=7), tmp_path, -PROMPT, options())).seed == 2


def test_any_other_difference_in_the_key_forbids_it(tmp_path: Path) -> None:
    run(FakeHost(seed=2), tmp_path, PROMPT, shift="8")
    assert borrowed(tmp_path, session(FakeHost(seed=7), tmp_path, NEAR, options(), shift="8")).seed == 2
    assert borrowed(tmp_path, session(FakeHost(seed=7), tmp_path, NEAR, options(), shift="5")) is None


def test_the_very_same_words_are_as_similar_as_can_be(tmp_path: Path) -> None:
    run(FakeHost(seed=2), tmp_path, PROMPT)
    store, chosen = open_store(tmp_path, StoreOptions()), options(min_text_similarity=1.0)
    (found,) = find_other_seeds(FakeHost(seed=7).request(PROMPT), chosen, store)
    assert found.similarity == 1.0
    assert find_other_seeds(FakeHost(seed=7).request(NEAR), chosen, store) == []


entries = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["5.0", "6.0"]), st.integers(0, 9), st.booleans()), max_size=12
)


@given(entries, st.integers(0, 3), st.integers(0, 9), st.integers(1, 5))
def test_the_index_finds_what_a_look_at_every_entry_finds(listed, seed: int, text: int, count: int) -> None:
    def embedding(number: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(number)
        return torch.nn.functional.normalize(torch.randn(6, generator=random), dim=0)

    index = TextIndex()
    for number, (its_seed, cfg, words, names_it) in enumerate(listed):
        key = HardKey.of({"CFG": cfg, "seed": f"noise {its_seed}"})
        info = EntryInfo(f"e{number:02}", key, 0.0, 1.0, None, seed=its_seed if names_it else None)
        index.add([(info, embedding(words))])
    target = embedding(text)
    scored = [
        (-float(embedding(words).double() @ target.double()), f"e{number:02}")
        for number, (its_seed, cfg, words, names_it) in enumerate(listed)
        if its_seed != seed and cfg == "5.0" and names_it
    ]
    found = index.of_other_seeds(HardKey.of({"CFG": "5.0", "seed": f"noise {seed}"}), target, count)
    assert [c.info.id for c in found] == [name for _, name in sorted(scored)[:count]]


@pytest.mark.parametrize("seed", [None, 0, 3, (1 << 53) + 1, (1 << 64) - 1])
def test_the_seed_survives_file_and_catalog(tmp_path: Path, seed: int | None) -> None:
    donor = a_donor("one")
    donor = replace(donor, info=replace(donor.info, seed=seed))
    store = open_store(tmp_path, StoreOptions())
    assert store.commit(donor) is None
    assert [info.seed for info in store.entries()] == [seed]  # from the file
    store._index.remove(["one"])
    store._revision = None
    assert [info.seed for info in store.entries()] == [seed]  # from the catalog

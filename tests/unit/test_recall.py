"""Recall: entries in the order of their text similarity."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.identity import HardKey
from carnator_core.recall import nearest_other_key, rank
from carnator_core.store.entry import EntryInfo


def entry(name: str, embedding: torch.Tensor, **fields: str) -> EntryInfo:
    return EntryInfo(name, HardKey.of(fields), 0.0, 1.0, embedding, None)


def unit(seed: int, width: int = 8) -> torch.Tensor:
    vector = torch.randn(width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vector, dim=0)


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 50))
def test_entries_come_back_by_falling_similarity_and_none_is_lost(seeds: list[int], target: int) -> None:
    entries = [entry(str(i), unit(seed)) for i, seed in enumerate(seeds)]
    ranked = rank(entries, unit(target))
    assert sorted(c.info.id for c in ranked) == sorted(e.id for e in entries)
    similarities = [c.similarity for c in ranked]
    assert similarities == sorted(similarities, reverse=True)
    for candidate in ranked:
        expected = float(candidate.info.embedding @ unit(target))
        assert abs(candidate.similarity - expected) < 1e-5


def test_equal_texts_have_similarity_one() -> None:
    assert abs(rank([entry("a", unit(3))], unit(3))[0].similarity - 1.0) < 1e-6


def test_equally_similar_entries_keep_their_order() -> None:
    entries = [entry(name, unit(1)) for name in "cab"]
    assert [c.info.id for c in rank(entries, unit(2))] == ["c", "a", "b"]


def test_an_entry_with_another_embedding_size_is_left_out() -> None:
    assert [c.info.id for c in rank([entry("a", unit(1, 4)), entry("b", unit(1))], unit(1))] == ["b"]


def test_an_empty_store_recalls_nothing() -> None:
    assert rank([], unit(1)) == []


def test_the_nearest_entry_of_another_kind_tells_the_fields_that_differ() -> None:
    near, far = entry("near", unit(1), seed="1", CFG="5.0"), entry("far", unit(9), seed="2", CFG="6.0")
    mine = HardKey.of({"seed": "2", "CFG": "5.0"})
    assert nearest_other_key(rank([far, near], unit(1)), mine) == ["seed"]
    assert nearest_other_key([], mine) == []

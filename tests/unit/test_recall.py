"""Recall: entries of a key in the order of their text similarity, by numpy and by FAISS."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carnator_core import recall
from carnator_core.identity import HardKey
from carnator_core.recall import TextIndex
from carnator_core.store.entry import EntryInfo

KEY, OTHER = HardKey.of({"seed": "1", "CFG": "5.0"}), HardKey.of({"seed": "2", "CFG": "5.0"})


def info(name: str, key: HardKey = KEY) -> EntryInfo:
    return EntryInfo(name, key, 0.0, 1.0, None)


def unit(seed: int, width: int = 8) -> torch.Tensor:
    vector = torch.randn(width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vector, dim=0)


def index(*found: tuple[EntryInfo, torch.Tensor]) -> TextIndex:
    made = TextIndex()
    made.add(found)
    return made


def names(candidates: list) -> list[str]:
    return [candidate.info.id for candidate in candidates]


@pytest.fixture(params=["numpy", "faiss"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to a shortlist, also for few entries."""
    monkeypatch.setattr(recall, "EXACT_ROWS", 10**9 if request.param == "numpy" else 0)
    monkeypatch.setattr(recall, "SPARE", 2)
    if request.param == "faiss":
        pytest.importorskip("faiss")
    return request.param


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 50))
def test_entries_come_back_by_falling_similarity_and_none_is_lost(seeds: list[int], target: int) -> None:
    vectors = {str(i): unit(seed) for i, seed in enumerate(seeds)}
    found = index(*((info(name), vector) for name, vector in vectors.items())).of_key(KEY, unit(target), 99, "")
    assert sorted(names(found)) == sorted(vectors)
    similarities = [c.similarity for c in found]
    assert similarities == sorted(similarities, reverse=True)
    for candidate in found:
        assert abs(candidate.similarity - float(vectors[candidate.info.id] @ unit(target))) < 1e-5


def test_the_most_similar_of_many_are_found_while_entries_come_and_go(way: str) -> None:
    made, present = TextIndex(), {}
    for round_ in range(6):
        new = {f"{round_}-{i}": unit(1000 * round_ + i) for i in range(400)}
        made.add((info(name), vector) for name, vector in new.items())
        made.add((info(f"other {name}", OTHER), vector) for name, vector in new.items())
        present |= new
        gone = list(present)[:: 3 + round_]
        made.remove(gone)
        for name in gone:
            del present[name]
        target = unit(-round_ - 1)
        expected = sorted(present, key=lambda name: -float(present[name].double() @ target.double()))[:5]
        assert names(made.of_key(KEY, target, 5, "")) == expected
        assert len(made) == len(present) + 400 * (round_ + 1) and made.ids >= present.keys()


def test_the_score_depends_neither_on_the_way_nor_on_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    found = [(info(str(i)), unit(i, 256)) for i in range(300)]
    scores = []
    for rows, order in ((10**9, 1), (0, 1), (10**9, -1), (0, -1)):
        monkeypatch.setattr(recall, "EXACT_ROWS", rows)
        scores.append([(c.info.id, c.similarity) for c in index(*found[::order]).of_key(KEY, unit(999, 256), 4, "")])
    assert scores[1:] == scores[:-1]


def test_equally_similar_entries_come_by_name() -> None:
    assert names(index(*((info(name), unit(1)) for name in "cab")).of_key(KEY, unit(2), 9, "")) == ["a", "b", "c"]


def test_an_entry_with_another_embedding_size_is_left_out() -> None:
    made = index((info("a"), unit(1, 4)), (info("b"), unit(1)))
    assert names(made.of_key(KEY, unit(1), 9, "")) == ["b"]
    assert names(made.of_key(KEY, unit(1, 4), 9, "")) == ["a"]
    assert made.of_key(KEY, unit(1, 5), 9, "") == [] and made.nearest(unit(1, 5), KEY) is None


def test_an_empty_store_recalls_nothing() -> None:
    assert TextIndex().of_key(KEY, unit(1), 4, "") == [] and TextIndex().nearest(unit(1), KEY) is None


def test_the_entry_of_the_same_text_comes_first_with_similarity_one() -> None:
    """An empty prompt has an embedding of zeros, whose cosine with anything is 0."""
    zeros = torch.zeros(8)
    made = index((info("own"), zeros), (info("a"), unit(1)), (info("b"), unit(2)))
    found = made.of_key(KEY, zeros, 2, "own")
    assert names(found)[0] == "own" and found[0].similarity == 1.0 and len(found) == 2
    assert "own" not in names(made.of_key(OTHER, zeros, 2, "own"))


def test_the_nearest_entry_is_found_whatever_its_key(way: str) -> None:
    many = [(info(str(i), HardKey.of({"seed": str(i)})), unit(i)) for i in range(40)]
    made = index(*many, (info("near", OTHER), unit(77)))
    nearest = made.nearest(unit(77), KEY)
    assert nearest.info.id == "near" and nearest.info.key.differs_in(KEY) == ["seed"]


def test_a_missing_faiss_is_told_once_and_numpy_goes_on(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(recall, "EXACT_ROWS", 0)
    recall._faiss.cache_clear()
    caplog.set_level("INFO", logger="carnator")
    try:
        made = index(*((info(str(i)), unit(i)) for i in range(100)))
        assert names(made.of_key(KEY, unit(7), 1, "")) == names(made.of_key(KEY, unit(7), 1, "")) == ["7"]
    finally:
        recall._faiss.cache_clear()
    assert [r.levelname for r in caplog.records if "faiss-cpu" in r.message] == ["INFO"]


def test_of_equal_texts_the_key_that_differs_least_is_nearest() -> None:
    """A graph with two samplers leaves two entries of every prompt."""
    here = HardKey.of({"seed": "1", "steps": "10", "input latent": "empty"})
    stage = HardKey.of({"seed": "zeros", "steps": "9", "input latent": "x"})
    again = HardKey.of({"seed": "2", "steps": "10", "input latent": "empty"})
    made = index((info("a", stage), unit(1)), (info("b", again), unit(1)))
    assert made.nearest(unit(1), here).info.id == "b"

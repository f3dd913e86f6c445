"""Text-level recall: which earlier requests had similar words.

Scores are inner products of normalised embeddings. Up to a few thousand entries numpy computes them all; above that
FAISS makes a shortlist. The final scores are always computed in float64 from the full embeddings, row by row, so that
they depend neither on the way nor on the order in which entries came.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .identity import HardKey
from .store.entry import EntryInfo

log = logging.getLogger("carnator")

EXACT_ROWS = 4096
SPARE = 32  # how much longer the shortlist is than what is asked for
BLOCK_ROWS = 1024
NEAREST_TEXTS = 8


@dataclass(frozen=True)
class Candidate:
    """A recalled entry and the cosine of its text embedding with the target's."""

    info: EntryInfo
    similarity: float


@dataclass(frozen=True)
class Recalled:
    """What a store knows of a request before its first step.

    Args:
        same_key: entries that may be reused, most similar text first.
        nearest: a similar text of a key that differs little; looked for only where there is none of the same key.
        trouble: what was wrong with an entry that was set aside since the last recall, or None.
        donors: how many entries of the same key there are.
    """

    same_key: list[Candidate]
    nearest: Candidate | None
    trouble: str | None
    donors: int


class TextIndex:
    """The embeddings of a store's entries in memory. Not thread-safe."""

    def __init__(self) -> None:
        self._by_width: dict[int, _Rows] = {}
        self._width: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._width)

    @property
    def ids(self) -> set[str]:
        return set(self._width)

    @property
    def infos(self) -> list[EntryInfo]:
        """By id."""
        found = [info for rows in self._by_width.values() for info in rows.infos if info is not None]
        return sorted(found, key=lambda info: info.id)

    @property
    def texts(self) -> list[tuple[EntryInfo, torch.Tensor]]:
        """Entries with their embeddings, by id."""
        found = [pair for rows in self._by_width.values() for pair in rows.texts()]
        return sorted(found, key=lambda pair: pair[0].id)

    def info(self, entry_id: str) -> EntryInfo | None:
        width = self._width.get(entry_id)
        return None if width is None else self._by_width[width].of(entry_id)

    def count(self, key: HardKey) -> int:
        """How many entries there are of a key."""
        return sum(len(rows.of_key(key)) for rows in self._by_width.values())

    def add(self, found: Iterable[tuple[EntryInfo, torch.Tensor]]) -> None:
        """Entries with their embeddings [D] float32; D may differ between entries of different text encoders."""
        for info, embedding in found:
            if info.id not in self._width:
                self._width[info.id] = width = embedding.shape[0]
                self._by_width.setdefault(width, _Rows(width)).add(info, embedding.numpy())

    def remove(self, ids: Iterable[str]) -> None:
        for entry_id in ids:
            width = self._width.pop(entry_id, None)
            if width is not None:
                self._by_width[width].remove(entry_id)

    def of_key(self, key: HardKey, embedding: torch.Tensor, count: int, same_text: str) -> list[Candidate]:
        """The entries of the same key with the most similar texts, at most ``count``, by falling similarity.

        Args:
            same_text: id of the entry with exactly this text, if there is one. It is as similar as can be, also
                where the embedding vanishes (an empty prompt).
        """
        rows = self._by_width.get(embedding.shape[0])
        found = rows.search(embedding.numpy(), count, rows.of_key(key)) if rows else []
        same = self.info(same_text)
        if same is not None and same.key == key:
            found = [Candidate(same, 1.0), *(c for c in found if c.info.id != same_text)]
        return found[:count]

    def of_other_seeds(self, key: HardKey, embedding: torch.Tensor, count: int) -> list[Candidate]:
        """The entries whose key differs in the seed alone and that name their seed, like ``of_key``."""
        rows = self._by_width.get(embedding.shape[0])
        return rows.search(embedding.numpy(), count, rows.of_other_seeds(key)) if rows else []

    def nearest(self, embedding: torch.Tensor, key: HardKey) -> Candidate | None:
        """Of the entries of any key with the most similar texts the one whose key differs in the fewest fields.

        In a graph with two samplers, each has entries with the very same text.
        """
        rows = self._by_width.get(embedding.shape[0])
        closest = rows.search(embedding.numpy(), NEAREST_TEXTS, rows.all) if rows else []
        return min(closest, key=lambda c: len(c.info.key.differs_in(key)), default=None)


class _Rows:
    """Entries with embeddings of one width, in blocks that never move, so that adding one costs one row.

    A removed entry leaves an unused row; once a quarter of the rows is unused all are laid out anew.
    """

    def __init__(self, width: int):
        self._width = width
        self._clear()

    def _clear(self) -> None:
        self.infos: list[EntryInfo | None] = []
        self._blocks: list[np.ndarray] = []
        self._row: dict[str, int] = {}
        self._of_key: dict[HardKey, set[int]] = {}
        self._faiss: Any = None

    def of(self, entry_id: str) -> EntryInfo:
        return self.infos[self._row[entry_id]]

    def add(self, info: EntryInfo, embedding: np.ndarray) -> None:
        row = len(self.infos)
        if row % BLOCK_ROWS == 0:
            self._blocks.append(np.zeros((BLOCK_ROWS, self._width), np.float32))
        self._blocks[-1][row % BLOCK_ROWS] = embedding
        self.infos.append(info)
        self._row[info.id] = row
        self._of_key.setdefault(info.key, set()).add(row)

    def remove(self, entry_id: str) -> None:
        row = self._row.pop(entry_id)
        self._of_key[self.infos[row].key].discard(row)
        self.infos[row] = None
        if len(self._row) < 0.75 * len(self.infos):
            kept = [(info, self._embedding(row)) for row, info in enumerate(self.infos) if info is not None]
            self._clear()
            for info, embedding in kept:
                self.add(info, embedding)

    def texts(self) -> list[tuple[EntryInfo, torch.Tensor]]:
        return [(self.infos[row], torch.from_numpy(self._embedding(row))) for row in self._row.values()]

    def _embedding(self, row: int) -> np.ndarray:
        return self._blocks[row // BLOCK_ROWS][row % BLOCK_ROWS]

    @property
    def all(self) -> Collection[int]:
        return self._row.values()

    def of_key(self, key: HardKey) -> Collection[int]:
        return self._of_key.get(key, ())

    def of_other_seeds(self, key: HardKey) -> Collection[int]:
        rest = key.without("seed")
        keys = [other for other in self._of_key if other != key and other.without("seed") == rest]
        return [row for other in keys for row in self._of_key[other] if self.infos[row].seed is not None]

    def search(self, target: np.ndarray, count: int, wanted: Collection[int]) -> list[Candidate]:
        """At most ``count`` of the entries in the ``wanted`` rows, by falling similarity and then by id."""
        if not wanted:
            return []
        rows = np.fromiter(wanted, np.int64, len(wanted))
        shortlist = rows if len(rows) <= count + SPARE else self._shortlist(target, count + SPARE, rows)
        precise = target.astype(np.float64)
        exact = [float(self._embedding(row).astype(np.float64) @ precise) for row in shortlist]
        found = [Candidate(self.infos[row], score) for row, score in zip(shortlist, exact, strict=True)]
        return sorted(found, key=lambda c: (-c.similarity, c.info.id))[:count]

    def _shortlist(self, target: np.ndarray, count: int, rows: np.ndarray) -> np.ndarray:
        faiss = _faiss() if len(self.infos) > EXACT_ROWS else None
        if faiss is None:
            scores = np.concatenate([block @ target for block in self._blocks])[rows]
            return rows[np.argpartition(-scores, count)[:count]]
        wanted = np.zeros(len(self.infos), bool)
        wanted[rows] = True
        bits = np.packbits(wanted, bitorder="little")
        only = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))
        return self._faiss_index(faiss).search(target[None], count, params=only)[1][0]

    def _faiss_index(self, faiss: Any) -> Any:
        if self._faiss is None:
            # A flat index in half precision. Measured with 10,000 × 4096 on one core: half precision 11 ms, full
            # precision 19 ms, 8 bits 18 ms; graphs and inverted lists would be quicker to search but slow to build.
            kind = faiss.ScalarQuantizer.QT_fp16
            self._faiss = faiss.IndexScalarQuantizer(self._width, kind, faiss.METRIC_INNER_PRODUCT)
        while self._faiss.ntotal < len(self.infos):
            block, start = divmod(self._faiss.ntotal, BLOCK_ROWS)
            self._faiss.add(self._blocks[block][start : len(self.infos) - block * BLOCK_ROWS])
        return self._faiss


@functools.cache
def _faiss() -> Any:
    """The module, or None, which is told once."""
    try:
        import faiss
    except ImportError:
        log.info("Carnator: faiss-cpu is not installed; numpy searches the store, which is slower above 10,000 entries")
        return None
    return faiss

"""Which stored requests may serve a new one: recall by text, or the one that the artist chose."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .identity import HardKey
from .options import Options
from .reasons import Code, Reason
from .recall import Candidate, Recalled
from .request import Request
from .store.folder import Store


@dataclass(frozen=True)
class Found:
    """What recall came to.

    Args:
        candidates: most similar text first.
        reason: why there is none.
        donors: how many stored requests they were chosen among.
    """

    candidates: list[Candidate]
    reason: Reason | None = None
    donors: int = 0


def find_candidates(request: Request, options: Options, store: Store) -> Found:
    """The stored requests that may serve a new one."""
    probe = options.probe
    if options.store.mode == "write":
        return Found([], Reason.of(Code.STORE_WRITE_ONLY))
    if probe.donor is not None:
        return _pinned(probe.donor, request, store)
    found = store.recall(request.key, request.embedding, probe.recall_top_k, request.entry_id)
    close = [c for c in found.same_key if c.similarity >= probe.min_text_similarity]
    return Found(close, None if close else _why_none(found, request, probe.min_text_similarity), found.donors)


def _why_none(found: Recalled, request: Request, needed: float) -> Reason:
    if found.trouble is not None:
        return Reason.of(Code.ENTRY_CORRUPT, detail=found.trouble)
    if found.same_key:
        return Reason.of(Code.TEXT_TOO_DIFFERENT, best=found.same_key[0].similarity, needed=needed)
    if found.nearest is not None:
        fields = found.nearest.info.key.differs_in(request.key)
        return Reason.of(Code.KEY_DIFFERS, fields=", ".join(fields))
    return Reason.of(Code.STORE_EMPTY)


def find_other_seeds(request: Request, options: Options, store: Store) -> list[Candidate]:
    """Of each other seed the stored request with the most similar text, if all but text and seed is equal.

    Most similar first; only entries that name their seed and are as similar as recall asks for.
    """
    probe = options.probe
    found = []
    for candidate in store.other_seeds(request.key, request.embedding, probe.recall_top_k):
        info = candidate.info
        same_text = info.id == replace(request, key=info.key).entry_id
        found.append(Candidate(info, 1.0) if same_text else candidate)
    best: dict[HardKey, Candidate] = {}
    for candidate in sorted(found, key=lambda c: -c.similarity):
        if candidate.similarity >= probe.min_text_similarity:
            best.setdefault(candidate.info.key, candidate)
    return list(best.values())


def _pinned(donor: str, request: Request, store: Store) -> Found:
    """The donor that the artist chose: whatever its text, key and gate still hold."""
    found = store.find(donor, request.embedding) if donor else None
    if found is None:
        detail = "it is not in this store" if donor else "its report names no stored request"
        return Found([], Reason.of(Code.DONOR_UNAVAILABLE, detail=detail))
    if found.info.key != request.key:
        fields = ", ".join(found.info.key.differs_in(request.key))
        return Found([], Reason.of(Code.DONOR_DIFFERS, fields=fields))
    return Found([found], donors=1)

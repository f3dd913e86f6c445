"""Which entries go when the budget is exceeded: those of least benefit; and what a purge tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .catalog import Usage
from .wording import counted, size_text

HALF_LIFE_SECONDS = 7 * 86400.0
EXPECTED_SAVING = 0.5


@dataclass(frozen=True)
class Purged:
    """What a purge deleted and what it left although it was old enough."""

    entries: int
    bytes: int
    pinned: int
    in_use: int
    consensuses: int = 0

    @property
    def things(self) -> str:
        """What it deleted."""
        files = f" and {counted(self.consensuses, 'consensus file', 'consensus files')}" if self.consensuses else ""
        return counted(self.entries, "entry", "entries") + files

    @property
    def sentence(self) -> str:
        kept = [f"{self.pinned} pinned"] * bool(self.pinned) + [f"{self.in_use} in use"] * bool(self.in_use)
        return f"{self.things} deleted, {size_text(self.bytes)}" + (f"; kept: {', '.join(kept)}" if kept else "")


def benefit(usage: Usage, now: float) -> float:
    """Seconds saved per byte, aged.

        (seconds saved by all hits + 0.5 × seconds of its dense run) / bytes × 0.5 ^ (time since last use / 7 days)

    Hits × seconds saved per hit is the sum that the catalog keeps. The second term stands for the hit that a new
    entry has not had yet: without it every newcomer would go before any entry that was ever of use.
    """
    saved = usage.seconds_saved + EXPECTED_SAVING * usage.seconds
    age = max(0.0, now - usage.last_used)
    return saved / max(1, usage.bytes) * 0.5 ** (age / HALF_LIFE_SECONDS)


def victims(entries: Iterable[Usage], budget: float, protected: Collection[str], now: float) -> list[str]:
    """Ids to delete, least benefit first, until the rest fits into ``budget`` bytes.

    Pinned and protected entries stay, even if the budget then stays exceeded.
    """
    entries = list(entries)
    total, chosen = sum(entry.bytes for entry in entries), []
    for entry in sorted(entries, key=lambda e: (benefit(e, now), e.last_used, e.id)):
        if total <= budget:
            break
        if not entry.pinned and entry.id not in protected:
            chosen.append(entry.id)
            total -= entry.bytes
    return chosen

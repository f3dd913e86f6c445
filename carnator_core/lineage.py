"""Which dense latent a latent stands for, so that the second of two stages finds the donor of the first.

When a stage was a hit its output differs from its donor's in every value, and a later stage that takes it as input
would never find an equal input latent. So a hit's output is remembered here as standing for the donor's output, and
the key of the later stage holds what its input stands for: the second stage of the very donor that the first stage
used then matches, and no other.

Only in memory: a latent that is not known stands for itself. After a restart a dense first stage gives the same
latent, and so the same digest, as before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

KEPT = 256  # outputs of hits; some hundred bytes each


class Lineage:
    """Digests of reused latents -> digests of the dense latents they stand for. May be used from several threads."""

    def __init__(self, kept: int = KEPT):
        self._kept, self._origins, self._lock = kept, OrderedDict(), threading.Lock()

    def origin(self, latent: str) -> str:
        """What a latent stands for: itself unless it came from a reused run."""
        return self._origins.get(latent, latent)

    def is_reused(self, latent: str) -> bool:
        """Whether a latent carries the small errors of a reused run: what is made from it must not become a donor."""
        return latent in self._origins

    def remember(self, latent: str, origin: str) -> None:
        """Note the output of a reused run, or of any run whose input was one (which stands for itself)."""
        with self._lock:
            self._origins[latent] = origin
            self._origins.move_to_end(latent)
            while len(self._origins) > self._kept:
                self._origins.popitem(last=False)

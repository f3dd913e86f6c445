"""How much of a run is spent in our own code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Time spent in our own code: the wrappers nest in the host and the host nests in the wrappers, alternating.

    On a GPU the work of either may still be running when the other takes over; ``wait`` lets it end and be counted
    where it belongs. What our patches add inside a forward of the host is counted as the host's.
    """

    def __init__(self) -> None:
        self._total, self._since = 0.0, 0.0
        self.wait: Callable[[], None] = lambda: None

    @contextmanager
    def own(self) -> Iterator[None]:
        self._since = self._now()
        try:
            yield
        finally:
            self._total = self.read()

    @contextmanager
    def host(self) -> Iterator[None]:
        self._total = self.read()
        try:
            yield
        finally:
            self._since = self._now()

    def read(self) -> float:
        """Seconds so far; call it in our own code."""
        return self._total + self._now() - self._since

    def _now(self) -> float:
        self.wait()
        return time.perf_counter()

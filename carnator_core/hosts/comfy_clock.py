"""How much of a run is spent in our own code."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager


class Clock:
    """Time spent in our own code: the wrappers nest in the host and the host nests in the wrappers, alternating.

    On a GPU the host's work may still be running when it returns; ``wait`` lets it end and be counted as the host's.
    """

    def __init__(self) -> None:
        self._total, self._since = 0.0, 0.0
        self.wait: Callable[[], None] = lambda: None

    @contextmanager
    def own(self):
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._total += time.perf_counter() - self._since

    @contextmanager
    def host(self):
        self._total += time.perf_counter() - self._since
        try:
            yield
        finally:
            self.wait()
            self._since = time.perf_counter()

    def read(self) -> float:
        return self._total + time.perf_counter() - self._since

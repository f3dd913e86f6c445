"""A stored trajectory that is checked and read by a thread of its own, so that no sampling step waits for a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import torch

from .entry import StoredTrajectory
from .tensor_file import EntryError


class ReadAhead:
    """Begins to check the whole file at once; what ``expect`` names is read while something else is computed.

    Methods that give out data raise EntryError. ``close`` it.
    """

    def __init__(self, trajectory: StoredTrajectory):
        self._trajectory = trajectory
        self._closing = threading.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="carnator-read")
        self._pending: dict[tuple[str, int], Future[torch.Tensor]] = {}
        self._checked = self._worker.submit(self._check)

    @property
    def residual_norm(self) -> torch.Tensor:
        return self._trajectory.residual_norm

    def _check(self) -> None:
        for _ in self._trajectory.read_all():
            if self._closing.is_set():
                return

    def check(self) -> None:
        """Return once every tensor was read and found good."""
        self._checked.result()

    def expect(self, step: int, conditional: bool) -> None:
        """Begin to read what a step will need: the guided x0, and the conditional one if asked for."""
        for kind in ("guided", "conditional") if conditional else ("guided",):
            if (kind, step) not in self._pending:
                self._pending[kind, step] = self._worker.submit(getattr(self._trajectory, kind), step)

    def guided(self, step: int) -> torch.Tensor:
        """[C, T, H, W] float16 after guidance."""
        self.expect(step, conditional=False)
        return self._pending.pop(("guided", step)).result()

    def conditional(self, step: int) -> torch.Tensor:
        """[C, T, H, W] float16 of the conditional branch, at a check step."""
        self.expect(step, conditional=True)
        return self._pending.pop(("conditional", step)).result()

    def close(self) -> None:
        """Stop reading and let go of the file."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._trajectory.close()


class LikelyDonor:
    """The one trajectory that is being read ahead before anything is decided.

    Args:
        open_file: entry id -> its trajectory. Raises EntryError.
    """

    def __init__(self, open_file: Callable[[str], StoredTrajectory]):
        self._open_file = open_file
        self._id: str | None = None
        self._file: ReadAhead | None = None

    def open(self, entry_id: str) -> ReadAhead:
        """In place of any other. Raises EntryError."""
        if self._id != entry_id:
            self.close()
            self._file, self._id = ReadAhead(self._open_file(entry_id)), entry_id
        return self._file

    def guess(self, entry_id: str) -> None:
        """Open it if it can be opened; if not, ``open`` tells why later."""
        with suppress(EntryError):
            self.open(entry_id)

    def take(self) -> None:
        """Whoever has the file closes it from now on."""
        self._id = self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self.take()

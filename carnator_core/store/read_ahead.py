"""What a request will need of a store, read by threads of their own, so that no sampling step waits for a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from ..connectivity import Connectivity, Consensus
from ..signature import EarlySignature
from .entry import StoredTrajectory, conditional_name, guided_name
from .tensor_file import EntryError, EntryGone

if TYPE_CHECKING:
    from .folder import Store

# Of a trajectory in memory: no more than a dense run of some 100 steps at 1280x704x121 keeps for its own entry.
KEPT_BYTES = 1 << 30


class ReadAhead:
    """Begins to read and check the whole file at once; what ``expect`` names is made ready while something else is
    computed.

    What the check has read of the steps that will be reused is kept, as far as there is room, so that it is read once.
    Methods that give out data raise EntryError. ``close`` it.

    Args:
        steps: those that will be reused.
    """

    def __init__(self, trajectory: StoredTrajectory, steps: Collection[int] = ()):
        self._trajectory = trajectory
        self._wanted = {name(step) for step in steps for name in (guided_name, conditional_name)}
        self._kept: dict[str, torch.Tensor] = {}  # touched by the worker alone
        self._device = torch.device("cpu")
        self._closing = threading.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="carnator-read")
        self._pending: dict[str, Future[torch.Tensor]] = {}
        self._checked = self._worker.submit(self._check)

    @property
    def residual_norm(self) -> torch.Tensor:
        return self._trajectory.residual_norm

    def _check(self) -> None:
        room = KEPT_BYTES
        for name, tensor in self._trajectory.read_all():
            if self._closing.is_set():
                return
            if name in self._wanted and tensor.nbytes <= room:
                room -= tensor.nbytes
                self._kept[name] = tensor

    def check(self) -> None:
        """Return once every tensor was read and found good."""
        self._checked.result()

    def send_to(self, device: torch.device) -> None:
        """Give out tensors on this device from now on; they too are copied while something else is computed."""
        self._device = device

    def expect(self, step: int, conditional: bool) -> None:
        """Begin to make ready what a step will need: the guided x0, and the conditional one if asked for."""
        for name in (guided_name(step), conditional_name(step)) if conditional else (guided_name(step),):
            if name not in self._pending:
                self._pending[name] = self._worker.submit(self._ready, name)

    def _ready(self, name: str) -> torch.Tensor:
        tensor = self._kept.pop(name, None)
        return (self._trajectory.read(name) if tensor is None else tensor).to(self._device)

    def guided(self, step: int) -> torch.Tensor:
        """[C, T, H, W] float16 after guidance. Each step is given out once."""
        self.expect(step, conditional=False)
        return self._pending.pop(guided_name(step)).result()

    def conditional(self, step: int) -> torch.Tensor:
        """[C, T, H, W] float16 of the conditional branch, at a check step. Each step is given out once."""
        self.expect(step, conditional=True)
        return self._pending.pop(conditional_name(step)).result()

    def close(self) -> None:
        """Stop reading and let go of the file and of what was kept."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._trajectory.close()
        self._kept.clear()
        self._pending.clear()


class LikelyDonor:
    """The one trajectory that is being read ahead before anything is decided.

    Args:
        open_file: entry id -> its trajectory. Raises EntryError.
        steps: those that will be reused.
    """

    def __init__(self, open_file: Callable[[str], StoredTrajectory], steps: Collection[int]):
        self._open_file, self._steps = open_file, steps
        self._id: str | None = None
        self._file: ReadAhead | None = None

    def open(self, entry_id: str) -> ReadAhead:
        """In place of any other. Raises EntryError."""
        if self._id != entry_id:
            self.close()
            self._file, self._id = ReadAhead(self._open_file(entry_id), self._steps), entry_id
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


class EarlyReads:
    """What a decision will ask of a store, looked up by threads of their own before it is asked for.

    Its methods are those of the store and raise what those raise; what was not expected is looked up when asked for.
    ``close`` it once everything was decided.

    Args:
        open_file, steps: see ``LikelyDonor``.
    """

    def __init__(self, store: Store, open_file: Callable[[str], StoredTrajectory], steps: Collection[int]):
        self._store = store
        self.likely = LikelyDonor(open_file, steps)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="carnator-early")
        self._answers: dict[tuple[Any, ...], Future[Any]] = {}

    def signature(self, entry_id: str) -> EarlySignature:
        """Raises EntryError, also if the entry was deleted since it was read: whoever deletes one is done with it."""
        found = self._answer(self._store.signature, entry_id)
        if not self._store.disk.is_entry(entry_id):
            raise EntryGone("it was deleted")
        return found

    def connectivity(self, entry_id: str) -> Connectivity | None:
        return self._answer(self._store.connectivity, entry_id)

    def consensus(self, consensus_id: str) -> Consensus | None:
        return self._answer(self._store.consensus, consensus_id)

    def expect(self, name: str, *arguments: str) -> None:
        """Begin to look up what the method of this name will be asked for."""
        asked = name, *arguments
        if asked not in self._answers:
            self._answers[asked] = self._worker.submit(getattr(self._store, name), *arguments)

    def _answer(self, method: Callable[..., Any], *arguments: str) -> Any:
        pending = self._answers.get((method.__name__, *arguments))
        return method(*arguments) if pending is None else pending.result()

    def close(self) -> None:
        """Forget all answers; what nobody waited for is not looked up any more."""
        self.likely.close()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._answers.clear()

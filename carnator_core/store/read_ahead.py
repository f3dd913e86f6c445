"""What a request will need of a store, read by threads of their own, so that no sampling step waits for a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import torch

from .entry import StoredTrajectory, conditional_name, guided_name
from .tensor_file import EntryError

Answer = TypeVar("Answer")

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
        self._stream: torch.cuda.Stream | None = None
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
        """Give out tensors on this device from now on, to the stream that is current here; they too are copied while
        something else is computed.
        """
        self._device = device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def expect(self, step: int, conditional: bool) -> None:
        """Begin to make ready what a step will need: the guided x0, and the conditional one if asked for."""
        for name in (guided_name(step), conditional_name(step)) if conditional else (guided_name(step),):
            self._begin(name)

    def _begin(self, name: str) -> None:
        if name not in self._pending:
            self._pending[name] = self._worker.submit(self._ready, name)

    def _ready(self, name: str) -> torch.Tensor:
        tensor = self._kept.pop(name, None)
        return _sent(self._trajectory.read(name) if tensor is None else tensor, self._device, self._stream)

    def guided(self, step: int) -> torch.Tensor:
        """[C, T, H, W] float16 after guidance. Each step is given out once."""
        return self._give_out(guided_name(step))

    def conditional(self, step: int) -> torch.Tensor:
        """[C, T, H, W] float16 of the conditional branch, at a check step. Each step is given out once."""
        return self._give_out(conditional_name(step))

    def _give_out(self, name: str) -> torch.Tensor:
        self._begin(name)
        return self._pending.pop(name).result()

    def close(self) -> None:
        """Stop reading and let go of the file and of what was kept."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._trajectory.close()
        self._kept.clear()
        self._pending.clear()


def _sent(tensor: torch.Tensor, device: torch.device, stream: torch.cuda.Stream | None) -> torch.Tensor:
    """On this device. To a GPU through pinned memory, which PyTorch keeps for the next one, and in the stream that the
    run computes in, so that what reads it there waits for it: whoever waits for the GPU waits for a copy too.
    """
    if stream is not None:
        with suppress(RuntimeError), torch.cuda.stream(stream):  # no more memory may be pinned
            return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


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

    What was not expected is looked up when it is asked for. ``close`` it once everything was decided.

    Args:
        open_file, steps: see ``LikelyDonor``.
    """

    def __init__(self, open_file: Callable[[str], StoredTrajectory], steps: Collection[int]):
        self.likely = LikelyDonor(open_file, steps)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="carnator-early")
        self._answers: dict[tuple[Any, ...], Future[Any]] = {}

    def expect(self, look_up: Callable[..., Answer], *arguments: Hashable) -> None:
        """Begin to look up what will be asked for: by a method of the store, or by anything else that reads it."""
        asked = look_up, *arguments
        if asked not in self._answers:
            self._answers[asked] = self._worker.submit(look_up, *arguments)

    def answer(self, look_up: Callable[..., Answer], *arguments: Hashable) -> Answer:
        """What ``look_up`` returns; raises what it raises."""
        pending = self._answers.get((look_up, *arguments))
        return look_up(*arguments) if pending is None else pending.result()

    def close(self) -> None:
        """Forget all answers; what nobody waited for is not looked up any more."""
        self.likely.close()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._answers.clear()

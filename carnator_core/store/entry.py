"""The file format of one donor.

An entry is a folder. ``signature.safetensors`` holds the Early Signature, the text embedding and, in its header, the
hard key and the checksums; ``trajectory.safetensors`` holds one x0 per step; ``connectivity.safetensors``, which an
entry may lack, holds which key blocks each query block attended to, one bit per pair. A picture ``preview.jpg``, for
people only, may lie beside them, and an empty file ``pinned`` keeps the entry from eviction.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ..connectivity import Connectivity
from ..identity import HardKey
from ..signature import EarlySignature, compact, relative_change
from .tensor_file import BYTES, EntryError, TensorFile, write_file

SIGNATURE_FILE = "signature.safetensors"
TRAJECTORY_FILE = "trajectory.safetensors"
CONNECTIVITY_FILE = "connectivity.safetensors"
PIN_FILE = "pinned"
PREVIEW_FILE = "preview.jpg"
MAX_PREVIEW_BYTES = 64 << 10
SEEDS = 1 << 64
LATEST = 253402300799  # the end of the year 9999 in seconds since the epoch, which dates can still name
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


def is_id(name: str) -> bool:
    """Whether a name is plain enough to be that of an entry."""
    return bool(_ID.fullmatch(name))


def checked_id(entry_id: object) -> str:
    """The id itself if it is a plain name that cannot lead out of a folder. Raises EntryError."""
    if not isinstance(entry_id, str) or not is_id(entry_id):
        raise EntryError(f"{entry_id!r} is not the name of an entry")
    return entry_id


@dataclass(frozen=True)
class EntryInfo:
    """What is listed of an entry, from the header of its signature file. ``seconds`` is its dense run."""

    id: str
    key: HardKey
    created: float
    seconds: float
    prompt: str | None
    output: str | None = None  # digest of the run's final latent; absent in entries written before it was kept
    seed: int | None = None  # number that the host was given for its noise; likewise


@dataclass(frozen=True)
class Trajectory:
    """A donor's x0 predictions in model space.

    Args:
        guided: step -> [C, T, H, W] float16, after guidance, for every step.
        conditional: step -> [C, T, H, W] float16, conditional branch, at the check steps.
        residual_norm: [steps] float32, RMS of conditional - unconditional x0 per step; zeros without guidance.
    """

    guided: dict[int, torch.Tensor]
    conditional: dict[int, torch.Tensor]
    residual_norm: torch.Tensor

    def tensors(self) -> dict[str, torch.Tensor]:
        named = {guided_name(step): compact(x0) for step, x0 in self.guided.items()}
        named |= {conditional_name(step): compact(x0) for step, x0 in self.conditional.items()}
        return named | {"residual_norm": self.residual_norm.float().cpu()}


def guided_name(step: int) -> str:
    return f"guided.{step:04d}"


def conditional_name(step: int) -> str:
    return f"conditional.{step:04d}"


@dataclass(frozen=True)
class Entry:
    """All that a dense run leaves for later requests.

    Args:
        embedding: [D] float32 text embedding for recall.
        preview: a JPEG picture of at most 64 KB; anything else is not written.
        connectivity: what the dense run attended to, if that was measured.
    """

    info: EntryInfo
    embedding: torch.Tensor
    signature: EarlySignature
    trajectory: Trajectory
    preview: bytes | None = None
    connectivity: Connectivity | None = None

    def tensors(self) -> list[torch.Tensor]:
        kept = [] if self.connectivity is None else [self.connectivity.packed]
        return [self.embedding, *self.signature.tensors().values(), *self.trajectory.tensors().values(), *kept]


class StoredTrajectory:
    """A trajectory on disk, of which one step at a time is read and checked. ``close`` it, or drop it."""

    def __init__(self, file: TensorFile, on_close: Callable[[], object]):
        self._file = file
        self.residual_norm = file.tensor("residual_norm")
        self.close = weakref.finalize(self, _close, file, on_close)

    def guided(self, step: int) -> torch.Tensor:
        """[C, T, H, W] float16 after guidance. Raises EntryError."""
        return self.read(guided_name(step))

    def conditional(self, step: int) -> torch.Tensor:
        """[C, T, H, W] float16 of the conditional branch, at a check step. Raises EntryError."""
        return self.read(conditional_name(step))

    def read(self, name: str) -> torch.Tensor:
        """A tensor by its name in the file. Raises EntryError."""
        return self._file.tensor(name)

    def read_all(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor once, with its name. Raises EntryError at the first that is bad."""
        return ((name, self._file.tensor(name)) for name in sorted(self._file.names))

    def check(self) -> None:
        """Read every tensor once. Raises EntryError."""
        for _ in self.read_all():
            pass


def _close(file: TensorFile, on_close: Callable[[], object]) -> None:
    file.close()
    on_close()


def write_entry(folder: Path, entry: Entry) -> None:
    """Write the files of an entry into an existing, empty folder and sync them. Raises OSError."""
    info = entry.info
    described = {"key": dict(info.key.fields), "created": info.created, "seconds": info.seconds, "prompt": info.prompt}
    described |= {"output": info.output, "seed": info.seed}
    change = relative_change([x0 for _, x0 in sorted(entry.trajectory.guided.items())])
    tensors = {**entry.signature.tensors(), "embedding": entry.embedding.float(), "change": change}
    write_file(folder / TRAJECTORY_FILE, entry.trajectory.tensors(), {"id": info.id})
    if entry.connectivity is not None:
        kept = entry.connectivity
        write_file(
            folder / CONNECTIVITY_FILE, {"kept": kept.packed}, {"id": info.id, "block": kept.block, "rule": kept.rule}
        )
    if entry.preview is not None and is_preview(entry.preview):
        with open(folder / PREVIEW_FILE, "xb") as file:
            file.write(entry.preview)
            file.flush()
            os.fsync(file.fileno())
    write_file(folder / SIGNATURE_FILE, tensors, {"id": info.id, **described})


def is_preview(data: bytes) -> bool:
    """Whether bytes look like a JPEG of at most 64 KB."""
    return len(data) <= MAX_PREVIEW_BYTES and data.startswith(b"\xff\xd8\xff")


def read_preview(path: Path) -> bytes | None:
    """A picture as it is shown, or None where there is no good one. Raises OSError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PREVIEW_BYTES + 1)
    except FileNotFoundError:
        return None
    return data if is_preview(data) else None


def read_info(folder: Path) -> tuple[EntryInfo, torch.Tensor]:
    """Header and text embedding [D] float32 of an entry, without its other tensors. Raises EntryError."""
    with TensorFile(folder / SIGNATURE_FILE) as file:
        embedding, header = file.tensor("embedding"), file.header
    if embedding.dtype != torch.float32 or embedding.ndim != 1:
        raise EntryError(f"{SIGNATURE_FILE}: the text embedding is no float32 vector")
    return _info(folder.name, header), embedding


def _info(entry_id: str, header: dict) -> EntryInfo:
    try:
        return EntryInfo(
            id=entry_id,
            key=HardKey.of({_text(k): _text(v) for k, v in header["key"].items()}),
            created=_seconds(header["created"]),
            seconds=_seconds(header["seconds"]),
            prompt=None if header.get("prompt") is None else _text(header["prompt"]),
            output=None if header.get("output") is None else _text(header["output"]),
            seed=None if header.get("seed") is None else _seed(header["seed"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EntryError(f"{SIGNATURE_FILE}: header is incomplete ({error})") from error


def _text(value: object) -> str:
    """Raises TypeError and ValueError for what no file or database could hold as text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()
    return value


def _seconds(value: object) -> float:
    """Raises ValueError for what is no time or duration."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= LATEST:
        raise ValueError(f"{value!r} is no number of seconds")
    return float(value)


def _seed(value: object) -> int:
    """Raises ValueError for what no host would take for one."""
    if type(value) is not int or not 0 <= value < SEEDS:
        raise ValueError(f"{value!r} is no seed")
    return value


def read_signature(folder: Path) -> tuple[EntryInfo, EarlySignature]:
    """Raises EntryError."""
    with TensorFile(folder / SIGNATURE_FILE) as file:
        info = _info(folder.name, file.header)
        signature = EarlySignature.from_tensors({name: file.tensor(name) for name in file.names})
    if signature.representation is None or signature.state is None:
        raise EntryError(f"{SIGNATURE_FILE}: a family is missing")
    if any(t.dtype != torch.float16 or t.ndim != 4 for t in signature.tensors().values()):
        raise EntryError(f"{SIGNATURE_FILE}: a family is no float16 volume")
    change = signature.change
    if change is not None and (change.dtype != torch.float32 or change.ndim != 1):
        raise EntryError(f"{SIGNATURE_FILE}: the change per step is no float32 curve")
    return info, signature


def open_trajectory(
    folder: Path,
    latent: tuple[int, ...],
    steps: int,
    checks: tuple[int, ...],
    on_close: Callable[[], object] = lambda: None,
) -> StoredTrajectory:
    """A trajectory whose header holds every step in the right shape and dtype. Raises EntryError.

    ``on_close`` is called once when the trajectory is closed or dropped, and not at all after an error here.
    """
    file = TensorFile(folder / TRAJECTORY_FILE)
    try:
        wanted = {guided_name(step) for step in range(steps)} | {conditional_name(step) for step in checks}
        if file.names != wanted | {"residual_norm"}:
            raise EntryError(f"{TRAJECTORY_FILE}: steps are missing")
        for name in sorted(wanted):
            if file.shape(name) != tuple(latent) or file.dtype(name) != torch.float16:
                found = f"{file.shape(name)} {file.dtype(name)}"
                raise EntryError(f"{TRAJECTORY_FILE}: {name} is {found}, expected {tuple(latent)} float16")
        if file.shape("residual_norm") != (steps,) or file.dtype("residual_norm") != torch.float32:
            raise EntryError(f"{TRAJECTORY_FILE}: residual norms are missing")
        return StoredTrajectory(file, on_close)
    except BaseException:
        file.close()
        raise


def read_connectivity(folder: Path) -> Connectivity | None:
    """What an entry's dense run attended to, or None if the entry does not say. Raises EntryError."""
    path = folder / CONNECTIVITY_FILE
    if not path.exists() and folder.is_dir():
        return None
    with TensorFile(path, dtypes=BYTES) as file:
        if file.names != {"kept"} or len(file.shape("kept")) != 4 or min(file.shape("kept")) < 1:
            raise EntryError(f"{CONNECTIVITY_FILE} does not hold one mask per layer and head")
        packed, block, rule = file.tensor("kept"), file.header.get("block"), file.header.get("rule")
    if type(block) is not int or block < 1 or not isinstance(rule, str):
        raise EntryError(f"{CONNECTIVITY_FILE}: header is incomplete")
    count, width = packed.shape[-2:]
    if width != -(-count // 8):
        raise EntryError(f"{CONNECTIVITY_FILE}: {count} blocks do not fit {width} bytes per row")
    if count % 8 and bool((packed[..., -1] >> count % 8).any()):
        raise EntryError(f"{CONNECTIVITY_FILE} names blocks that are not there")
    places = torch.arange(count)
    if not bool((packed[..., places, places // 8] >> (places % 8).to(torch.uint8) & 1).all()):
        raise EntryError(f"{CONNECTIVITY_FILE}: a block does not attend to itself")
    return Connectivity(packed, block, rule)


def verify_entry(folder: Path) -> EntryInfo:
    """Check everything of an entry that can be checked without a request. Raises EntryError."""
    read_info(folder)
    info, signature = read_signature(folder)
    with TensorFile(folder / TRAJECTORY_FILE) as file:
        steps = sum(name.startswith("guided.") for name in file.names)
        checks = [name.partition(".")[2] for name in file.names if name.startswith("conditional.")]
    if not all(number.isdecimal() and len(number) == 4 for number in checks):
        raise EntryError(f"{TRAJECTORY_FILE}: unexpected tensors")
    trajectory = open_trajectory(folder, tuple(signature.state.shape), steps, tuple(map(int, checks)))
    try:
        trajectory.check()
    finally:
        trajectory.close()
    read_connectivity(folder)
    return info

"""The file format of one donor.

An entry is a folder with two files. ``signature.safetensors`` holds the Early Signature, the text embedding and, in
its header, the hard key and the checksums; ``trajectory.safetensors`` holds one x0 per step. Every tensor is checked
(checksum, shape, finite) before a value of it reaches a video.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..identity import HardKey, digest
from ..signature import EarlySignature, compact

SCHEMA = 1
SIGNATURE_FILE = "signature.safetensors"
TRAJECTORY_FILE = "trajectory.safetensors"
_HEADER = "carnator"


class EntryError(Exception):
    """An entry that must not be used; the message says why."""


@dataclass(frozen=True)
class EntryInfo:
    """What recall needs to know of an entry, from the header of its signature file."""

    id: str
    key: HardKey
    created: float
    seconds: float
    embedding: torch.Tensor
    prompt: str | None
    output: str | None = None  # digest of the run's final latent; absent in entries written before it was kept


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
        named = {f"guided.{step:04d}": compact(x0) for step, x0 in self.guided.items()}
        named |= {f"conditional.{step:04d}": compact(x0) for step, x0 in self.conditional.items()}
        return named | {"residual_norm": self.residual_norm.float().cpu()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor]) -> Trajectory:
        def steps(prefix: str) -> dict[int, torch.Tensor]:
            return {int(n.split(".")[1]): t for n, t in tensors.items() if n.startswith(prefix + ".")}

        return cls(steps("guided"), steps("conditional"), tensors["residual_norm"])


def _checksum(tensor: torch.Tensor) -> str:
    """Of values, dtype and shape."""
    crc = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return f"{crc:08x} {tensor.dtype} {tuple(tensor.shape)}"


def is_finite(tensor: torch.Tensor) -> bool:
    """For a float16 or float32 tensor on the CPU. By numpy: torch would wake all its threads for every small tensor."""
    return bool(np.isfinite(tensor.numpy()).all())


def _sealed(header: dict) -> dict:
    """The header with a digest of all its other fields."""
    rest = {name: value for name, value in header.items() if name != "seal"}
    return {**rest, "seal": digest(rest)}


def _write(path: Path, tensors: dict[str, torch.Tensor], header: dict) -> None:
    from safetensors.torch import save

    checksums = {name: _checksum(t) for name, t in tensors.items()}
    header = _sealed({**header, "schema": SCHEMA, "checksums": checksums})
    with open(path, "xb") as file:
        file.write(save({n: t.contiguous() for n, t in tensors.items()}, {_HEADER: json.dumps(header)}))
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, only: tuple[str, ...] | None = None) -> tuple[dict[str, torch.Tensor], dict]:
    """All or some tensors and the header of a file, verified. Raises EntryError for anything not as it was written."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            present = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in only or present}
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise EntryError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise EntryError(f"{path.name} has another schema version")
    if header != _sealed(header):
        raise EntryError(f"{path.name}: its header was changed")
    if header.get("id") != path.parent.name:
        raise EntryError(f"{path.name} belongs to another entry")
    checksums = header.get("checksums")
    if not isinstance(checksums, dict) or set(checksums) != present:
        raise EntryError(f"{path.name} does not hold the tensors its header names")
    for name, tensor in tensors.items():
        if _checksum(tensor) != checksums[name]:
            raise EntryError(f"{path.name}: checksum of {name} is wrong")
        if tensor.dtype not in (torch.float16, torch.float32):
            raise EntryError(f"{path.name}: {name} has dtype {tensor.dtype}")
        if not is_finite(tensor):
            raise EntryError(f"{path.name}: {name} is not finite")
    return tensors, header


def write_entry(folder: Path, info: EntryInfo, signature: EarlySignature, trajectory: Trajectory) -> None:
    """Write both files of an entry into an existing, empty folder and sync them."""
    described = {"key": dict(info.key.fields), "created": info.created, "seconds": info.seconds, "prompt": info.prompt}
    described["output"] = info.output
    tensors = {**signature.tensors(), "embedding": info.embedding.float()}
    _write(folder / TRAJECTORY_FILE, trajectory.tensors(), {"id": info.id})
    _write(folder / SIGNATURE_FILE, tensors, {"id": info.id, **described})


def read_info(folder: Path) -> EntryInfo:
    """Header and text embedding of an entry, without its other tensors. Raises EntryError."""
    tensors, header = _read(folder / SIGNATURE_FILE, only=("embedding",))
    if tensors["embedding"].dtype != torch.float32 or tensors["embedding"].ndim != 1:
        raise EntryError(f"{SIGNATURE_FILE}: the text embedding is no float32 vector")
    try:
        return EntryInfo(
            id=folder.name,
            key=HardKey.of({str(k): str(v) for k, v in header["key"].items()}),
            created=float(header["created"]),
            seconds=float(header["seconds"]),
            embedding=tensors["embedding"],
            prompt=header.get("prompt"),
            output=header.get("output"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EntryError(f"{SIGNATURE_FILE}: header is incomplete ({error})") from error


def read_signature(folder: Path) -> EarlySignature:
    """Raises EntryError."""
    signature = EarlySignature.from_tensors(_read(folder / SIGNATURE_FILE)[0])
    if signature.representation is None or signature.state is None:
        raise EntryError(f"{SIGNATURE_FILE}: a family is missing")
    if any(t.dtype != torch.float16 or t.ndim != 4 for t in signature.tensors().values()):
        raise EntryError(f"{SIGNATURE_FILE}: a family is no float16 volume")
    return signature


def read_trajectory(folder: Path, latent: tuple[int, ...], steps: int, checks: tuple[int, ...]) -> Trajectory:
    """All x0 predictions of an entry. Raises EntryError if a step is missing or has another shape or dtype."""
    tensors, _ = _read(folder / TRAJECTORY_FILE)
    try:
        trajectory = Trajectory.from_tensors(tensors)
    except (KeyError, ValueError, IndexError) as error:
        raise EntryError(f"{TRAJECTORY_FILE}: unexpected tensors ({error})") from error
    if set(trajectory.guided) != set(range(steps)) or set(trajectory.conditional) != set(checks):
        raise EntryError(f"{TRAJECTORY_FILE}: steps are missing")
    for x0 in [*trajectory.guided.values(), *trajectory.conditional.values()]:
        if tuple(x0.shape) != tuple(latent) or x0.dtype != torch.float16:
            raise EntryError(f"{TRAJECTORY_FILE}: a step has shape {tuple(x0.shape)}, expected {tuple(latent)}")
    if tuple(trajectory.residual_norm.shape) != (steps,) or trajectory.residual_norm.dtype != torch.float32:
        raise EntryError(f"{TRAJECTORY_FILE}: residual norms are missing")
    return trajectory

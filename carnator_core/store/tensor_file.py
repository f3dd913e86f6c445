"""One file of a store: safetensors with a sealed header, read tensor by tensor, each checked before it is handed out.

Reading uses plain reads instead of a memory map: a mapped file that is cut short while in use would end the process.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..identity import digest

SCHEMA = 1
MAX_HEADER_BYTES = 16 << 20
_HEADER = "carnator"
_LENGTH_BYTES = 8
FLOATS = {"F16": torch.float16, "F32": torch.float32}
BYTES = {"U8": torch.uint8}
INFINITE = 0x7C00  # the bits of float16's infinity; NaNs lie above
PIECE = 1 << 16


class EntryError(Exception):
    """An entry that must not be used; the message says why."""


class EntryGone(EntryError):
    """An entry that was there and is no more: nothing is wrong with it, somebody deleted it."""


def is_finite(tensor: torch.Tensor) -> bool:
    """For a float16, float32 or integer tensor on the CPU. By numpy: torch would wake all its threads every time."""
    values = tensor.numpy()
    if values.dtype.kind != "f":
        return True
    if values.dtype == np.float16:  # numpy's own test of float16 is many times slower than a look at the bits
        bits = values.reshape(-1).view(np.uint16)
        # Piece by piece, so that the copy without signs stays in the cache.
        pieces = (bits[start : start + PIECE] for start in range(0, bits.size, PIECE))
        return all(int((piece & 0x7FFF).max()) < INFINITE for piece in pieces)
    return bool(np.isfinite(values).all())


def is_mass(tensor: torch.Tensor) -> bool:
    """Whether a float16 tensor on the CPU is finite and nowhere below zero."""
    if tensor.numel() == 0 or int(tensor.numpy().view(np.uint16).max()) < INFINITE:  # no sign bit, none too large
        return True
    return is_finite(tensor) and not bool((tensor.float() < 0).any())  # a negative zero is fine


def write_file(path: Path, tensors: dict[str, torch.Tensor], header: dict) -> None:
    """Write a new file with its seal and checksums and sync it. Raises OSError, also if the file exists."""
    from safetensors.torch import save

    checksums = {name: _checksum(t) for name, t in tensors.items()}
    header = _sealed({**header, "schema": SCHEMA, "checksums": checksums})
    with open(path, "xb") as file:
        file.write(save({n: t.contiguous() for n, t in tensors.items()}, {_HEADER: json.dumps(header)}))
        file.flush()
        os.fsync(file.fileno())


class TensorFile:
    """An open file whose header is as it was written; its tensors are read and checked one at a time.

    The file stays open, so that an entry that somebody deletes meanwhile can be read to its end where the platform
    allows that. Every method raises EntryError for anything that is not as it was written.

    Args:
        owner: id that the header must carry; by default the name of the folder, which is that of the entry.
        dtypes: the dtypes that its tensors may have, by their names in safetensors.
    """

    def __init__(self, path: Path, owner: str | None = None, dtypes: dict[str, torch.dtype] = FLOATS):
        self.name = path.name
        self._dtypes = dtypes
        try:
            self._file = open(path, "rb")  # noqa: SIM115 (closed by close)
        except FileNotFoundError as error:
            if not path.parent.is_dir():
                raise EntryGone("it was deleted") from error
            raise EntryError(f"{path.name} is missing") from error
        except OSError as error:
            raise EntryError(f"{path.name} cannot be read: {error.strerror or error}") from error
        try:
            self._places, self.header = self._read_header(path.parent.name if owner is None else owner)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> set[str]:
        return set(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name][1]

    def dtype(self, name: str) -> torch.dtype:
        return self._places[name][0]

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor on the CPU whose checksum, shape, dtype and finiteness were checked."""
        if name not in self._places:
            raise EntryError(f"{self.name}: {name} is missing")
        dtype, shape, start, size = self._places[name]
        tensor = torch.empty(shape, dtype=dtype)
        self._read_into(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()), start)
        if _checksum(tensor) != self.header["checksums"][name]:
            raise EntryError(f"{self.name}: checksum of {name} is wrong")
        if not is_finite(tensor):
            raise EntryError(f"{self.name}: {name} is not finite")
        return tensor

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bytes(self, start: int, size: int) -> bytes:
        data = bytearray(size)
        self._read_into(memoryview(data), start)
        return bytes(data)

    def _read_into(self, place: memoryview, start: int) -> None:
        try:
            self._file.seek(start)
            count = self._file.readinto(place)
        except (OSError, ValueError) as error:
            raise EntryError(f"{self.name} cannot be read: {error}") from error
        if count != len(place):
            raise EntryError(f"{self.name} was cut short")

    def _read_header(self, owner: str) -> tuple[dict[str, tuple], dict]:
        """Places of the tensors as (dtype, shape, start, bytes), and the sealed header."""
        total = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._bytes(0, _LENGTH_BYTES), "little")
        if length > min(MAX_HEADER_BYTES, total - _LENGTH_BYTES):
            raise EntryError(f"{self.name} cannot be read: its header is longer than the file")
        try:
            layout, end = json.loads(self._bytes(_LENGTH_BYTES, length)), _LENGTH_BYTES + length
            header = json.loads(layout.pop("__metadata__")[_HEADER])
            places = {name: _place(described, end, self._dtypes) for name, described in layout.items()}
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise EntryError(f"{self.name} cannot be read: {error}") from error
        for _, _, start, size in sorted(places.values(), key=lambda place: place[2:]):
            if start != end:
                raise EntryError(f"{self.name}: its tensors overlap or leave gaps")
            end += size
        if end != total:
            raise EntryError(f"{self.name} is longer or shorter than its header says")
        if not isinstance(header, dict) or header.get("schema") != SCHEMA:
            raise EntryError(f"{self.name} has another schema version")
        if header != _sealed(header):
            raise EntryError(f"{self.name}: its header was changed")
        if header.get("id") != owner:
            raise EntryError(f"{self.name} belongs to another entry")
        checksums = header.get("checksums")
        if not isinstance(checksums, dict) or set(checksums) != set(places):
            raise EntryError(f"{self.name} does not hold the tensors its header names")
        return places, header


def _place(described: Any, data_start: int, dtypes: dict) -> tuple[torch.dtype, tuple[int, ...], int, int]:
    """Of one tensor in the safetensors layout. Raises ValueError or KeyError for a layout that cannot be."""
    if described["dtype"] not in dtypes:
        raise ValueError(f"dtype {described['dtype']}")
    dtype, shape, (start, stop) = dtypes[described["dtype"]], tuple(described["shape"]), described["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
        raise ValueError("a shape or an offset is no whole number")
    size = dtype.itemsize
    for side in shape:
        size *= side
    if stop - start != size:
        raise ValueError("shape and offsets do not agree")
    return dtype, shape, data_start + start, size


def _checksum(tensor: torch.Tensor) -> str:
    """Of values, dtype and shape."""
    crc = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return f"{crc:08x} {tensor.dtype} {tuple(tensor.shape)}"


def _sealed(header: dict) -> dict:
    """The header with a digest of all its other fields."""
    rest = {name: value for name, value in header.items() if name != "seal"}
    return {**rest, "seal": digest(rest)}

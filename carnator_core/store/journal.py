"""A log of a store: a file with one JSON object per line, to which lines are only ever added.

A line is written in one go and synced, under a lock that also holds between processes. What a crash or a full disk left
half written is a damaged line: it is skipped, and the next line begins on a line of its own. No file is read beyond
its last ``max_bytes``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .disk import sync_folder
from .lock import locked

MAX_LINE_BYTES = 32 << 10


@dataclass(frozen=True)
class Line:
    """One line: where it begins in the file, and what it says, or None if it is damaged."""

    start: int
    data: dict[str, Any] | None


class Journal:
    """Safe between threads and processes. Every method raises OSError where the disk fails.

    Args:
        path: of the file; its folder is made when something is written.
        what: its name for a person, in the plural.
    """

    def __init__(self, path: Path, what: str, max_bytes: int):
        self.path, self._what, self._max_bytes = path, what, max_bytes

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in here among all that write to this log. Every change is made in here."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_suffix(".lock"), self._what):
            yield

    @property
    def bytes(self) -> int:
        """0 where there is no file."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def count(self) -> int:
        """Of lines, good or damaged; cheap."""
        return self._tail()[1].count(b"\n")

    def lines(self) -> list[Line]:
        """All lines in the order in which they were written; needs no lock."""
        start, data = self._tail()
        found = []
        for number, raw in enumerate(data.splitlines(keepends=True)):
            if raw.strip() and (number or not start):  # in the middle of a file the first line is no whole one
                found.append(Line(start, _parsed(raw)))
            start += len(raw)
        return found

    def _tail(self) -> tuple[int, bytes]:
        """What is read of the file, and where that begins."""
        try:
            with open(self.path, "rb") as file:
                start = max(0, os.fstat(file.fileno()).st_size - self._max_bytes)
                file.seek(start)
                return start, file.read(self._max_bytes)
        except FileNotFoundError:
            return 0, b""

    def append(self, *objects: dict[str, Any]) -> None:
        """Add one line per object, all or none, and sync. Raises ValueError for what is no JSON or too long."""
        data = b"".join(map(_line, objects))
        if self.bytes + len(data) >= self._max_bytes:
            raise OSError(f"{self._what} have reached {self._max_bytes / 1e6:.0f} MB")
        with open(self.path, "a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                _write(file, b"\n" * _ends_within_a_line(file, end) + data)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
        if not end:
            sync_folder(self.path.parent)

    def drop_before(self, start: int) -> None:
        """Drop what lies before the line that begins at ``start``; the rest stays as it is, byte by byte."""
        new = self.path.with_suffix(".new")
        with open(self.path, "rb") as old, open(new, "wb") as file:
            old.seek(start)
            file.write(old.read())
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)
        sync_folder(self.path.parent)


def _line(data: dict[str, Any]) -> bytes:
    line = json.dumps(data, allow_nan=False).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line of {len(line)} bytes is too long for a log")
    return line


def _parsed(raw: bytes) -> dict[str, Any] | None:
    if len(raw) > MAX_LINE_BYTES:
        return None
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _ends_within_a_line(file: BinaryIO, end: int) -> bool:
    if not end:
        return False
    file.seek(end - 1)
    return file.read(1) != b"\n"


def _write(file: BinaryIO, data: bytes) -> None:
    """All of it: an unbuffered file may take only a part at once."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]

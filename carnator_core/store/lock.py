"""A lock that holds between threads and between processes, on every platform, and ends with its process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

BUSY_SECONDS = 10


@contextmanager
def locked(place: Path, what: str) -> Iterator[None]:
    """Alone in here among all that use the same file, by SQLite as it locks the catalog.

    Args:
        place: an empty file of the lock's own, made where there is none.
        what: what it guards, in the plural, for a person.
    Raises OSError, also if others hold it for too long.
    """
    try:
        connection = sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None)
        with closing(connection):
            connection.execute("BEGIN EXCLUSIVE")
            yield
    except sqlite3.OperationalError as error:
        why = "are in use" if "locked" in str(error) else "cannot be changed"  # on a full disk, for one
        raise OSError(f"{what} {why}: {error}") from error
    except sqlite3.DatabaseError as error:
        place.unlink(missing_ok=True)  # no empty file: nobody can have locked it
        raise OSError(f"the lock of {what} was damaged: {error}") from error

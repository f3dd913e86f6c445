"""The catalog of a store: what is in it and how often it was of use, in SQLite through SQLAlchemy Core.

The entry folders are the truth and the catalog is derived from them: it may lag behind them or be lost at any instant,
and the next opening brings it up to date. Only the counts (hits, seconds saved, last use) exist nowhere else.

The file carries its schema version (``PRAGMA user_version``). There is no migration: a catalog of another version, or
one that SQLite or its own digests call damaged, is moved aside and rebuilt from the folders with counts of zero. So a
change of the tables needs a new ``CATALOG_SCHEMA`` and nothing else.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..identity import HardKey
from .entry import EntryInfo

CATALOG_SCHEMA = 2
BUSY_SECONDS = 2
LOADED_AT_ONCE = 500
FILES = ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm")


class CatalogError(OSError):
    """The catalog cannot be used at present; the message says why."""


class CatalogDamaged(CatalogError):
    """The file is no catalog of this version: move it aside and make a new one."""


@dataclass(frozen=True)
class Usage:
    """What an entry costs and what it was good for. Times are seconds since the epoch, ``seconds`` its dense run."""

    id: str
    bytes: int
    seconds: float
    hits: int
    seconds_saved: float
    last_used: float
    pinned: bool


@dataclass(frozen=True)
class Listed(Usage):
    """The same with what a list for people shows besides.

    Args:
        latent: sides of the latent as the key names them, such as "1x16x21x60x104", if it does.
    """

    created: float
    latent: str | None


@dataclass(frozen=True)
class Totals:
    """Over all entries of a store."""

    entries: int
    bytes: int
    hits: int
    seconds_saved: float


# What a list may be ordered by: columns of the catalog, and whether the largest comes first.
ORDERS = {
    "newest": (("created", True),),
    "largest": (("bytes", True),),
    "most_used": (("hits", True), ("last_used", True)),
    "least_used": (("hits", False), ("last_used", False)),
}


class Catalog:
    """One connection to the catalog in a store's folder. Calls must not overlap; several processes may have one each.

    Every method raises CatalogError, and CatalogDamaged if the file has to be replaced.

    Args:
        read_only: whether the file must be there and stays as it is. Such a connection keeps nobody from writing.
    """

    def __init__(self, folder: Path, read_only: bool = False):
        try:
            import sqlalchemy
        except ImportError as error:
            raise CatalogError("the Python package SQLAlchemy is missing; ComfyUI's requirements name it") from error
        self._sql = sqlalchemy
        self._table = _entries_table(sqlalchemy)
        self._path = Path(folder) / FILES[0]
        place = f"{self._path.absolute().as_uri()}?{_read_only_mode(folder) if read_only else 'mode=rwc'}"
        # One connection for all threads: its data_version then counts the changes of others alone.
        self._engine = sqlalchemy.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(place, uri=True, check_same_thread=False, timeout=BUSY_SECONDS),
            poolclass=sqlalchemy.pool.StaticPool,
        )
        try:
            if not read_only:
                self._prepare()
            self._check_version()
            self._file = self._identity()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        """Make the catalog where there is none."""
        with self._connected() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            connection.exec_driver_sql("PRAGMA synchronous = NORMAL")
        with self._connected() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # two processes may make the same catalog
            if not connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
                self._table.create(connection)
                connection.exec_driver_sql(f"PRAGMA user_version = {CATALOG_SCHEMA}")

    def _check_version(self) -> None:
        with self._connected() as connection:
            version = connection.exec_driver_sql("PRAGMA user_version").scalar()
            present = self._sql.inspect(connection).has_table(self._table.name)
            if version != CATALOG_SCHEMA or not present:
                raise CatalogDamaged(f"the catalog has version {version}, not {CATALOG_SCHEMA}")

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def in_place(self) -> bool:
        """False once the file was deleted or replaced under this connection."""
        return self._file is not None and self._identity() == self._file

    @property
    def revision(self) -> int:
        """Changes whenever another connection changed the catalog."""
        with self._connected() as connection:
            return connection.exec_driver_sql("PRAGMA data_version").scalar()

    def ids(self) -> set[str]:
        with self._connected() as connection:
            return set(connection.execute(self._sql.select(self._table.c.id)).scalars())

    def load(self, ids: Iterable[str]) -> Iterator[tuple[EntryInfo, torch.Tensor]]:
        """Infos and embeddings [D] float32 of those of ``ids`` that are listed, by id."""
        names, keys, c = sorted(ids), {}, self._table.c
        shown = (c.id, c.key_digest, c.key, c.embedding, c.created, c.seconds, c.prompt, c.output, c.seed)
        columns = self._sql.select(*shown)
        for start in range(0, len(names), LOADED_AT_ONCE):
            some = columns.where(c.id.in_(names[start : start + LOADED_AT_ONCE])).order_by(c.id)
            with self._connected() as connection:
                rows = connection.execute(some).all()
            yield from (_listed(row, keys) for row in rows)

    def usage(self) -> list[Usage]:
        c = self._table.c
        columns = (c.id, c.bytes, c.seconds, c.hits, c.seconds_saved, c.last_used, c.pinned)
        with self._connected() as connection:
            return [Usage(*row) for row in connection.execute(self._sql.select(*columns))]

    def page(self, order: str, offset: int, limit: int) -> list[Listed]:
        """Some of the entries in one of the ``ORDERS``."""
        c = self._table.c
        by = [c[name].desc() if largest else c[name] for name, largest in ORDERS[order]]
        return self._listing(self._sql.select(*self._shown).order_by(*by, c.id).offset(offset).limit(limit))

    def find(self, entry_id: str) -> Listed | None:
        return next(iter(self._listing(self._sql.select(*self._shown).where(self._table.c.id == entry_id))), None)

    @property
    def _shown(self) -> list[Any]:
        c = self._table.c
        return [c.id, c.bytes, c.seconds, c.hits, c.seconds_saved, c.last_used, c.pinned, c.created, c.key]

    def _listing(self, query: Any) -> list[Listed]:
        with self._connected() as connection:
            return [Listed(*row[:-1], latent=_latent(row.key)) for row in connection.execute(query)]

    def totals(self) -> Totals:
        c, sums = self._table.c, self._sql.func
        columns = [sums.count(), *(sums.coalesce(sums.sum(of), 0) for of in (c.bytes, c.hits, c.seconds_saved))]
        with self._connected() as connection:
            return Totals(*connection.execute(self._sql.select(*columns)).one())

    def enter(self, found: Iterable[tuple[EntryInfo, torch.Tensor, int, bool]]) -> None:
        """Add entries given as (info, embedding, bytes, pinned); those already listed stay as they are."""
        from sqlalchemy.dialects.sqlite import insert

        rows = [
            {
                "id": info.id,
                "key_digest": info.key.digest,
                "key": json.dumps(dict(info.key.fields)),
                "embedding": embedding.float().numpy().tobytes(),
                "created": info.created,
                "seconds": info.seconds,
                "bytes": size,
                "hits": 0,
                "seconds_saved": 0.0,
                "last_used": info.created,
                "pinned": pinned,
                "prompt": info.prompt,
                "output": info.output,
                "seed": None if info.seed is None else str(info.seed),
            }
            for info, embedding, size, pinned in found
        ]
        if rows:
            self._change(lambda connection: connection.execute(insert(self._table).on_conflict_do_nothing(), rows))

    def drop(self, ids: Iterable[str]) -> None:
        c = self._table.c
        names = [{"gone": entry_id} for entry_id in ids]
        statement = self._table.delete().where(c.id == self._sql.bindparam("gone"))
        if names:
            self._change(lambda connection: connection.execute(statement, names))

    def count_use(self, entry_id: str, hits: int, seconds_saved: float) -> None:
        """Add to the counts of an entry and mark it as used now."""
        c = self._table.c
        statement = self._table.update().where(c.id == entry_id)
        statement = statement.values(
            hits=c.hits + hits, seconds_saved=c.seconds_saved + seconds_saved, last_used=time.time()
        )
        self._change(lambda connection: connection.execute(statement))

    def set_pinned(self, entry_id: str, pinned: bool) -> None:
        statement = self._table.update().where(self._table.c.id == entry_id).values(pinned=pinned)
        self._change(lambda connection: connection.execute(statement))

    def check(self) -> str | None:
        """What SQLite's own full check of the file finds, or None."""
        with self._connected() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
        return None if found == ["ok"] else "; ".join(map(str, found))

    def close(self) -> None:
        self._engine.dispose()

    def _change(self, change: Callable[[Any], Any]) -> None:
        with self._connected() as connection:
            change(connection)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection in a transaction that is committed at the end; SQL errors become ours."""
        errors = self._sql.exc
        try:
            with self._engine.begin() as connection:
                yield connection
        except errors.OperationalError as error:  # locked, full, read-only, not there
            raise CatalogError(f"the catalog cannot be used: {error.orig}") from error
        except errors.DatabaseError as error:
            raise CatalogDamaged(f"the catalog is damaged: {error.orig}") from error
        except errors.SQLAlchemyError as error:
            raise CatalogError(f"the catalog cannot be used: {error}") from error


def _entries_table(sql: Any) -> Any:
    required = {"nullable": False}
    return sql.Table(
        "entries",
        sql.MetaData(),
        sql.Column("id", sql.String, primary_key=True),
        sql.Column("key_digest", sql.String, **required),
        sql.Column("key", sql.Text, **required),
        sql.Column("embedding", sql.LargeBinary, **required),
        sql.Column("created", sql.Float, **required),
        sql.Column("seconds", sql.Float, **required),
        sql.Column("bytes", sql.Integer, **required),
        sql.Column("hits", sql.Integer, **required),
        sql.Column("seconds_saved", sql.Float, **required),
        sql.Column("last_used", sql.Float, **required),
        sql.Column("pinned", sql.Boolean, **required),
        sql.Column("prompt", sql.Text),
        sql.Column("output", sql.String),
        sql.Column("seed", sql.String),  # its integers have a sign and 64 bits: too few
    )


def _read_only_mode(folder: Path) -> str:
    """How SQLite reads without a trace: where nobody has the file open it would make the files it shares with others,
    for which a full disk has no room, unless it is told that nobody will write meanwhile.
    """
    return "mode=ro" if (Path(folder) / FILES[1]).exists() else "mode=ro&immutable=1"


def _latent(key: str) -> str | None:
    """What a key in JSON says about the size of the latent."""
    try:
        return json.loads(key).get("video size")
    except (ValueError, AttributeError):
        return None


def _listed(row: Any, keys: dict[str, HardKey]) -> tuple[EntryInfo, torch.Tensor]:
    """One row as values; ``keys`` collects the keys by digest, of which there are few. Raises CatalogDamaged."""
    try:
        if row.key_digest not in keys:
            keys[row.key_digest] = HardKey.of(json.loads(row.key))
            if keys[row.key_digest].digest != row.key_digest:
                raise ValueError("a key does not match its digest")
        embedding = torch.from_numpy(np.frombuffer(row.embedding, np.float32).copy())
        seed = None if row.seed is None else int(row.seed)
        times = float(row.created), float(row.seconds)
        info = EntryInfo(row.id, keys[row.key_digest], *times, row.prompt, row.output, seed)
    except (ValueError, TypeError, AttributeError) as error:
        raise CatalogDamaged(f"the catalog is damaged: {error}") from error
    return info, embedding

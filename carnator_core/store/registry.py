"""The stores that this process has open: one per folder. Those of a root are found without opening any."""

from __future__ import annotations

import atexit
import math
import os
import threading
from pathlib import Path

from ..options import StoreOptions, is_store_name
from . import history
from .disk import ENTRIES
from .folder import GB, Store

_open: dict[Path, Store] = {}
_changing: dict[Path, threading.Lock] = {}


def open_store(root: Path, options: StoreOptions) -> Store:
    """The one Store of this process for a root and a name; its budget becomes that of ``options``.

    A store whose folder or catalog was deleted meanwhile is opened anew. Raises OSError.
    """
    store = _opened(root, options)
    store.options = options
    return store


def existing_store(root: Path, name: str) -> Store | None:
    """The Store of a name as it is, or None where there is no such store: nothing is made and no setting changes.

    One that no run has opened yet has no budget. Raises OSError.
    """
    if not is_store_name(name) or not (Path(root) / name / ENTRIES).is_dir():
        return None
    return _opened(root, StoreOptions(name=name, budget_gb=math.inf))


def budget_bytes(root: Path, name: str) -> float | None:
    """The budget that a run of this process has set, if one has."""
    store = _open.get((Path(root) / name).absolute())
    return None if store is None or math.isinf(store.options.budget_gb) else store.options.budget_gb * GB


def store_names(root: Path) -> list[str]:
    """Of what lies under a root and is a store, in alphabetical order. Raises OSError."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    return [name for name in names if is_store(root, name)]


def is_store(root: Path, name: str) -> bool:
    """Whether a run has left entries or decisions under a name, or may have."""
    folder = Path(root) / name
    try:
        return is_store_name(name) and ((folder / ENTRIES).is_dir() or (folder / history.FILE).is_file())
    except PermissionError:  # a folder that only somebody else may look into
        return True


def _opened(root: Path, options: StoreOptions) -> Store:
    place = (Path(root) / options.name).absolute()
    with _changing.setdefault(place, threading.Lock()):  # opening one takes its time; the others need not wait
        store = _open.get(place)
        if store is None or not store.in_place:
            if store is not None:
                store.close()
            store = _open[place] = Store(root, options)
        return store


def open_stores() -> list[Store]:
    """The stores that this process has open."""
    return list(_open.values())


@atexit.register
def close_stores() -> None:
    """Finish the pending writes of this process and let go of its stores."""
    history.finish()
    while _open:
        _open.popitem()[1].close()

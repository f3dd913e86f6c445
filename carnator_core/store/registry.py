"""The stores that this process has open: one per folder."""

from __future__ import annotations

import atexit
import threading
from pathlib import Path

from ..options import StoreOptions
from .folder import Store

_open: dict[Path, Store] = {}
_opening = threading.Lock()


def open_store(root: Path, options: StoreOptions) -> Store:
    """The one Store of this process for a root and a name; its budget becomes that of ``options``.

    A store whose folder or catalog was deleted meanwhile is opened anew. Raises OSError.
    """
    place = (Path(root) / options.name).absolute()
    with _opening:
        store = _open.get(place)
        if store is None or not store.in_place:
            if store is not None:
                store.close()
            store = _open[place] = Store(root, options)
        store.options = options
        return store


def open_stores() -> list[Store]:
    """The stores that this process has open."""
    with _opening:
        return list(_open.values())


@atexit.register
def close_stores() -> None:
    """Finish the pending writes of this process and let go of its stores."""
    with _opening:
        while _open:
            _open.popitem()[1].close()

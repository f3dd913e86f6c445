"""Folders that the process may not look into, also where tests run as root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """A folder of somebody else; the folders above it must be open to all. Skips the test on Windows."""
    if not hasattr(os, "geteuid"):
        pytest.skip("rights work otherwise here")
    mode, user = folder.stat().st_mode, os.geteuid()
    folder.chmod(0)
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        folder.chmod(mode)

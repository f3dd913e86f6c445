"""File systems that are full sooner than the real one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int = 16) -> Iterator[Path]:
    """A small file system at a folder that is made; skips the test where this user may not mount one."""
    folder.mkdir(parents=True)
    mount = shutil.which("mount")
    command = [mount, "-t", "tmpfs", "-o", f"size={megabytes}m", "carnator", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs rights that this user lacks")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(folder: Path) -> Path:
    """A file that takes all that is left of the disk of a folder."""
    path = folder / "filler"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            return path

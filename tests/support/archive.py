"""What users get: the checkout without what .comfyignore leaves out."""

from __future__ import annotations

import fnmatch
import os
import shutil
from pathlib import Path, PurePosixPath

from .paths import ROOT


def shipped_files() -> list[Path]:
    """Files of the registry archive. Patterns with a slash inside count from the root, others at every level."""
    lines = [line.strip().rstrip("/") for line in (ROOT / ".comfyignore").read_text().splitlines()]
    patterns = [line for line in lines if line and not line.startswith("#")]

    def ignored(path: PurePosixPath) -> bool:
        places = [path, *path.parents][:-1]
        return any(
            fnmatch.fnmatch(str(place) if "/" in pattern else place.name, pattern.lstrip("/"))
            for pattern in patterns
            for place in places
        )

    found = []
    for name, folders, files in os.walk(ROOT):
        folder = Path(name)
        here = PurePosixPath(folder.relative_to(ROOT).as_posix())
        unseen = ("__pycache__", "node_modules")
        folders[:] = [f for f in folders if not f.startswith(".") and f not in unseen and not ignored(here / f)]
        found += [folder / file for file in files if not file.startswith(".") and not ignored(here / file)]
    return sorted(found)


def write_archive(target: Path) -> Path:
    """Copies the shipped files into a new folder."""
    for file in shipped_files():
        copy = target / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    return target

"""Stores made without a run: entries and decisions to look at."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from PIL import Image

from carnator_core.options import StoreOptions
from carnator_core.store.entry import write_entry
from carnator_core.store.folder import Store
from carnator_core.store.history import History, Record
from support.fake_host import a_donor

PICTURE_SIZE = (96, 54)
MEMORY = ("/dev/shm",)


def store_folder(user: Path, name: str) -> Path:
    """Where a server with this user folder keeps a store."""
    return user / "__carnator" / "stores" / name


def make_store(folder: Path, entries: int, decisions: int = 0) -> None:
    """A store with entries e0 (the oldest) to e<n-1>, one for each minute, and as many decisions.

    It is made in memory and copied: thousands of syncs take their time on a disk.
    """
    with tempfile.TemporaryDirectory(dir=next(filter(os.path.isdir, MEMORY), None)) as scratch:
        _fill(Path(scratch) / folder.name, entries, decisions)
        shutil.copytree(Path(scratch) / folder.name, folder, dirs_exist_ok=True)


def _fill(folder: Path, entries: int, decisions: int) -> None:
    store, donor, now = Store(folder.parent, StoreOptions(name=folder.name)), a_donor("one"), time.time()
    for number in range(entries):
        info = replace(donor.info, id=f"e{number}", created=now - 60 * (entries - number))
        with store.disk.staging_folder() as staging:
            write_entry(staging, replace(donor, info=info, preview=picture(number)))
            store.disk.place(staging, info.id)
    assert len(store.entries()) == entries
    store.close()
    for number in range(decisions):
        hit = number % 2 == 0
        record = a_record(f"d{number}", "hit" if hit else "miss", now - 60 * (decisions - number))
        History(folder).add(record, picture(number) if hit else None)


def picture(number: int) -> bytes:
    """A JPEG in a colour of its own."""
    file = io.BytesIO()
    Image.new("HSV", PICTURE_SIZE, (37 * number % 256, 150, 190)).convert("RGB").save(file, "JPEG")
    return file.getvalue()


def a_record(name: str, decision: str, when: float, status: str | None = None) -> Record:
    hit = decision == "hit"
    lines = {
        "hit": "hit 2.1× · donor 3 min ago · region 18%",
        "miss": "miss: the nearest donor is too different in state (0.31 > 0.25)",
    }
    return Record(
        id=name,
        when=when,
        decision=decision,
        reason_code="reused" if hit else "gate_rejected",
        reason="reused" if hit else "the nearest donor is too different in state (0.31 > 0.25)",
        status=status or lines[decision],
        seconds=12.5,
        seconds_saved=14.0 if hit else 0.0,
        donor="e0",
        request_id=name,
        entry_id=None,
        region_share=0.18 if hit else None,
        decided_share=0.2 if hit else None,
        discrepancies={"representation": 0.02, "residual": 0.2, "dynamics": None, "state": 0.04 if hit else 0.31},
        thresholds={"representation": 0.04, "residual": 0.5, "dynamics": 2.0, "state": 0.25},
        settings={"sampler": "euler"},
        similarity=0.93,
        work=0.4 if hit else 1.0,
        picture=False,
    )

"""The file of labels: one line of JSON for everything that was measured, so that a long run can be cut and go on."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from scripts.testbed.console import Stop

Record = dict[str, Any]
BOUND, RUN, SETTINGS = "bound", "run", "settings"


class LabelFile:
    """Lines that were written stay; a line that a cut left half-written is forgotten. Thread-safe.

    Args:
        bound: what all labels of a file have in common (steps, sampler, ...); Stop names what differs.
        run: what a start of the program is to be remembered by (command, commit, device, ...), once it adds something.

    ``records`` are in the order of the file, ``runs`` are the starts that added them. A record's "settings", which are
    the same for nearly all, are kept once.
    """

    def __init__(self, path: Path, bound: dict[str, Any], run: dict[str, Any]):
        self.path, self.records = path, []
        self.runs: list[dict[str, Any]] = []
        self._run, self._told = run, False
        self._settings: list[dict[str, str]] = []
        self._lock = threading.Lock()
        lines = self._whole_lines() if path.exists() else []
        if lines:
            self._check(lines[0], bound)
        for line in lines[1:]:
            self._take(line)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        if not lines:
            self._write([{BOUND: bound}])

    def expect(self) -> None:
        """More labels are about to be made. Raises Stop if that is on another device than the others."""
        devices = {run.get("device") for run in [*self.runs, self._run]}
        if len(devices) > 1:
            there = self.runs[0]["device"]
            raise Stop(f"the labels in {self.path} were made on {there}; go on there or give another --labels file.")

    def add(self, records: list[Record]) -> None:
        """All of them or, after a cut, none but those whose lines are whole; on disk when this returns."""
        with self._lock:
            lines: list[Record] = []
            if not self._told:
                lines.append({RUN: self._run})
                self.runs.append(self._run)
                self._told = True
            for record in records:
                if SETTINGS in record and record[SETTINGS] not in self._settings:
                    self._settings.append(record[SETTINGS])
                    lines.append({SETTINGS: record[SETTINGS]})
                lines.append(self._packed(record))
            self._write(lines)
            self.records += records

    def close(self) -> None:
        self._file.close()

    def _packed(self, record: Record) -> Record:
        return {**record, SETTINGS: self._settings.index(record[SETTINGS])} if SETTINGS in record else record

    def _write(self, lines: list[Record]) -> None:
        self._file.write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _whole_lines(self) -> list[Record]:
        """Cuts off what follows the last line end: the next line would be glued to it."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        try:
            return [json.loads(line) for line in whole.decode().splitlines()]
        except ValueError as error:
            raise Stop(f"{self.path} is no file of labels ({error}).") from error

    def _check(self, first: Record, bound: dict[str, Any]) -> None:
        there = first.get(BOUND)
        if there is None:
            raise Stop(f"{self.path} is no file of labels (its first line does not say what they are bound to).")
        differs = sorted(name for name in {*there, *bound} if there.get(name) != bound.get(name))
        if differs:
            told = ", ".join(f"{name} {there.get(name)!r} and now {bound.get(name)!r}" for name in differs)
            raise Stop(f"the labels in {self.path} were made with {told}; give another --labels file.")

    def _take(self, line: Record) -> None:
        if RUN in line:
            self.runs.append(line[RUN])
        elif list(line) == [SETTINGS]:
            self._settings.append(line[SETTINGS])
        elif SETTINGS in line:
            self.records.append({**line, SETTINGS: self._settings[line[SETTINGS]]})
        else:
            self.records.append(line)

"""The file of one measurement, written after every row: what is cut short loses nothing, and can be gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.testbed.console import Stop


class KeptResult:
    """What was measured so far.

    Args:
        head: what the rows of one file must have in common, and nothing that differs from call to call.
        call: what is told of this call alone.
        out: the file.
        kept: a second file that the next call goes on from; None to begin anew every time.
    """

    def __init__(self, head: dict[str, Any], call: dict[str, Any], out: Path, kept: Path | None = None):
        self._out, self._kept = out, kept
        self.data: dict[str, Any] = {**head, "calls": [], "rows": []}
        if kept is not None and kept.is_file():
            found = json.loads(kept.read_text(encoding="utf-8"))
            other = sorted(name for name in head if found.get(name) != head[name])
            if other:
                raise Stop(f"{kept} was measured with another {', '.join(other)}: name another folder.")
            self.data = found
        self.data["calls"].append(call)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.data["rows"]

    def row(self, what: str) -> dict[str, Any] | None:
        """The row of this name, if it was measured by this call or an earlier one."""
        return next((row for row in self.rows if row["what"] == what), None)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, and print it as one line of JSON."""
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        self.write()

    def tell(self, **more: Any) -> None:
        """Keep something that is no row."""
        self.data.update(more)
        self.write()

    def write(self) -> None:
        text = json.dumps(self.data, indent=1) + "\n"
        for path in filter(None, (self._out, self._kept)):
            path.parent.mkdir(parents=True, exist_ok=True)
            staged = path.with_suffix(".part")
            staged.write_text(text, encoding="utf-8")
            staged.replace(path)

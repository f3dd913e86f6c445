"""What the set-up says: numbered steps with elapsed time, and one clear sentence when it cannot go on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

HEARTBEAT_SECONDS = 10.0


class Stop(Exception):
    """Ends the program with its text as the only message: something the user has to put right."""


class Steps:
    """Prints `[1/4] what ... done (6 s)`, and in between what a long step is busy with."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.number = 0
        self._started = self._last = time.monotonic()

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        self.number += 1
        self._started = self._last = time.monotonic()
        say(f"[{self.number}/{self.total}] {what} ...")
        yield self._busy_with
        say(f"[{self.number}/{self.total}] {what}: done ({time.monotonic() - self._started:.0f} s)")

    def _busy_with(self, detail: str) -> None:
        now = time.monotonic()
        if now - self._last >= HEARTBEAT_SECONDS:
            self._last = now
            say(f"      {now - self._started:4.0f} s  {detail[:90]}")


def say(text: str, end: str = "\n") -> None:
    # stderr, so that the last line of stdout stays what the caller asked for (--json)
    print(text, end=end, file=sys.stderr, flush=True)


def run_main(main: Callable[[], int]) -> None:
    """The end of every entry script: a `Stop` or Ctrl-C is a sentence and an exit code, never a traceback."""
    try:
        code = main()
    except Stop as stop:
        say(f"Stopped: {stop}")
        code = 1
    except KeyboardInterrupt:
        say("Stopped by the keyboard. The next start goes on from here.")
        code = 130
    sys.exit(code)

"""Write-behind: an entry is written while the host already decodes the video."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("carnator")

MOST_JOBS = 64  # of those that wait; on a disk that hangs the oldest are dropped


class Writer:
    """Runs one job at a time on a background thread; a second one waits until the first is done.

    So at most one entry is held in memory for writing. The threads are not daemons: the interpreter ends only after
    the last one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def start(self, job: Callable[[], str | None]) -> bool:
        """Run ``job``, which returns None or a sentence that says why it failed. Returns whether it was begun."""
        with self._lock:
            self.wait()
            thread = threading.Thread(target=self._run, args=(job,), name="carnator-store")
            try:
                thread.start()
            except RuntimeError as error:  # the interpreter is ending, or there are too many threads
                self._failed(f"not stored: {error}")
                return False
            self._thread = thread
            return True

    def wait(self) -> None:
        """Return when no job is running. A job that calls this does not wait for itself."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def take_failure(self) -> str | None:
        """Why the last failed job failed, once."""
        failure, self._failure = self._failure, None
        return failure

    def _run(self, job: Callable[[], str | None]) -> None:
        try:
            failure = job()
        except Exception as error:  # a thread has nobody to raise to
            log.exception("Carnator: writing to the store failed")
            failure = f"not stored: {error}"
        if failure is not None:
            self._failed(failure)

    def _failed(self, failure: str) -> None:
        log.warning("Carnator: %s", failure)
        self._failure = failure


class Queue:
    """Runs small jobs in order on a background thread; who adds one does not wait. A failure is a line of the log.

    Args:
        trouble: what a failure means, for a person.
    """

    def __init__(self, trouble: str):
        self._trouble = trouble
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque(maxlen=MOST_JOBS)
        self._working = False
        self._writer = Writer()

    def add(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._working:
                return
            self._working = True
        if not self._writer.start(self._work):
            self._working = False

    def wait(self) -> None:
        """Return when what was added before is done."""
        self._writer.wait()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._working = False
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception as error:  # a thread has nobody to raise to
                log.warning("Carnator: %s: %s", self._trouble, getattr(error, "strerror", None) or error)

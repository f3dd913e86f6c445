"""Shares the clusters of a stream out among servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import Any, Protocol, TypeVar

from scripts.testbed.console import say


class OfCluster(Protocol):
    """Something to do that names the cluster it belongs to."""

    @property
    def cluster(self) -> str: ...


Worker = TypeVar("Worker")
Item = TypeVar("Item", bound=OfCluster)
Result = TypeVar("Result")


def shared_out(
    workers: Sequence[Worker],
    requests: Sequence[Item],
    work: Callable[[Worker, int, Item], Result],
    seconds: float | None = None,
) -> Iterator[Result]:
    """Yields ``work(worker, number, request)`` of every request as soon as it is done.

    One thread per worker: a free one takes the next cluster and serves its requests in order. ``number`` is the
    request's place in the stream. After ``seconds`` no further request is started. What ``work`` raises is raised
    here, as soon as the other threads have ended the request they are busy with.
    """
    clusters: dict[str, list[tuple[int, Item]]] = {}
    for number, request in enumerate(requests):
        clusters.setdefault(request.cluster, []).append((number, request))
    waiting: SimpleQueue[list[tuple[int, Item]] | None] = SimpleQueue()
    for cluster in [*clusters.values(), *[None] * len(workers)]:
        waiting.put(cluster)
    done: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    stopped, started = Event(), time.monotonic()

    def serve(worker: Worker) -> None:
        try:
            while (cluster := waiting.get()) is not None:
                for number, request in cluster:
                    if stopped.is_set() or (seconds is not None and time.monotonic() - started > seconds):
                        return
                    done.put(("result", work(worker, number, request)))
        except BaseException as error:
            done.put(("error", error))
        finally:
            done.put(("end", None))

    count, serving = 0, len(workers)
    with ThreadPoolExecutor(len(workers)) as pool:
        for worker in workers:
            pool.submit(serve, worker)
        try:
            while serving:
                what, value = done.get()
                if what == "error":
                    raise value
                if what == "end":
                    serving -= 1
                    continue
                count += 1
                yield value
        finally:
            stopped.set()
    if count < len(requests):
        say(f"the time is up: {count} of {len(requests)} requests")

"""Clusters shared out among servers: all requests once, clusters whole and in order, errors and time limits."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison import merged
from benchmarks.sharing import shared_out
from benchmarks.stream_run import StreamRequest
from demo.grammar import random_scene


def requests(clusters: list[int]) -> list[StreamRequest]:
    """So many requests of each cluster, one cluster after the other."""
    import random

    one = StreamRequest("", "", "base", "", random_scene(random.Random(0)), 0, None)
    return [replace(one, id=f"{c}-{i}", cluster=str(c)) for c, size in enumerate(clusters) for i in range(size)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 4))
def test_every_request_is_done_once_and_a_cluster_stays_with_one_server_in_order(sizes: list[int], servers: int):
    stream = requests(sizes)
    done = list(shared_out(range(servers), stream, lambda worker, number, request: (worker, number, request)))
    assert sorted(number for _, number, _ in done) == list(range(len(stream)))
    assert all(stream[number] is request for _, number, request in done)
    for cluster in {request.cluster for request in stream}:
        mine = [(worker, number) for worker, number, request in done if request.cluster == cluster]
        assert len({worker for worker, _ in mine}) == 1
        assert mine == sorted(mine)
    assert merged({number: {"id": request.id} for _, number, request in done}) == [{"id": r.id} for r in stream]


def test_servers_work_at_the_same_time():
    both = threading.Barrier(2, timeout=10)  # breaks, and raises, unless two are inside at once
    assert len(list(shared_out("ab", requests([1, 1]), lambda *_: both.wait()))) == 2


def test_what_one_server_raises_ends_the_run_and_the_others_stop_after_their_request():
    started = []

    def work(worker: str, number: int, request: StreamRequest) -> int:
        started.append(number)
        if number == 2:
            raise ValueError("broken")
        time.sleep(0.01)
        return number

    with pytest.raises(ValueError, match="broken"):
        list(shared_out("ab", requests([2, 500]), work))
    assert len(started) < 100


def test_a_caller_that_stops_asking_stops_the_servers():
    started = []
    results = shared_out(
        "a", requests([200]), lambda worker, number, request: (started.append(number), time.sleep(0.01))
    )
    next(results)
    results.close()
    assert len(started) < 100


def test_after_the_time_limit_no_request_is_started(capsys: pytest.CaptureFixture[str]):
    done = list(shared_out("a", requests([3, 3]), lambda worker, number, request: time.sleep(0.05), seconds=0.02))
    assert len(done) == 1
    assert "1 of 6 requests" in capsys.readouterr().err

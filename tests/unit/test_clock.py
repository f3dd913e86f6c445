"""The share of our own code in a run, with a device that works on after a call has returned."""

import pytest

from carnator_core.hosts import comfy_clock
from carnator_core.hosts.comfy_clock import Clock


class Device:
    """Time that passes only where it is told to, and work that is waiting for the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.queued = 0.0, 0.0
        monkeypatch.setattr(comfy_clock.time, "perf_counter", lambda: self.now)

    def compute(self, seconds: float) -> None:
        self.now += seconds

    def launch(self, seconds: float) -> None:
        self.queued += seconds

    def wait(self) -> None:
        self.now, self.queued = self.now + self.queued, 0.0


def test_what_the_host_and_we_launch_counts_for_whoever_launched_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device, clock = Device(monkeypatch), Clock()
    clock.wait = device.wait
    with clock.own():
        device.compute(1)  # opening
        with clock.host():
            for _ in range(2):  # steps
                device.launch(100)  # the sampler's own, still running when our wrapper is called
                with clock.own():
                    device.compute(2)
                    device.launch(10)
                    with clock.host():
                        device.compute(1000)
                        device.launch(10000)
                    device.launch(20)
                device.compute(5)
        device.compute(3)
        assert clock.read() == 1 + 2 * (2 + 10 + 20) + 3
    assert device.now == 1 + 2 * (100 + 2 + 10 + 1000 + 10000 + 20 + 5) + 3


def test_a_step_that_fails_is_counted_up_to_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    device, clock = Device(monkeypatch), Clock()
    with clock.own():
        with pytest.raises(ValueError), clock.host():
            with pytest.raises(KeyError), clock.own():
                device.compute(2)
                raise KeyError
            device.compute(100)
            raise ValueError
        device.compute(1)
        assert clock.read() == 3

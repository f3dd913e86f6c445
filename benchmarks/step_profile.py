"""Where the time of a run goes: seconds by kind of step, and the operations of a reuse step by torch's profiler."""

from __future__ import annotations

import time
from statistics import fmean
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from carnator_core.hosts.comfy_run import ComfyRun

OPERATIONS, NAME_LENGTH = 12, 80


class TimedRun(ComfyRun):
    """A run that notes how long each of its steps took, from one evaluation to the end of it."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._seconds: dict[str, list[float]] = {}

    @property
    def step_seconds(self) -> dict[str, float]:
        """Mean by kind of step."""
        return {kind: round(fmean(seconds), 4) for kind, seconds in self._seconds.items()}

    def _evaluate_step(self, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        started = time.perf_counter()
        result = super()._evaluate_step(executor, args, kwargs)
        if self._plan is not None:
            self._seconds.setdefault(self._plan.kind.value, []).append(time.perf_counter() - started)
        return result


class ProfiledRun(TimedRun):
    """A run of which the first check and one region step are profiled; ``profiles`` says what was found."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.profiles: dict[str, dict[str, Any]] = {}

    def _evaluate_step(self, executor: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        if not self.session.reusing or self._step + 1 not in self._wanted():
            return super()._evaluate_step(executor, args, kwargs)
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as profiler:
            result = super()._evaluate_step(executor, args, kwargs)
        if self._plan is not None:
            found = {"step": self._step, "guided": self._plan.run_uncond, **_operations(profiler)}
            self.profiles[self._plan.kind.value] = found
        return result

    def _wanted(self) -> set[int]:
        """The first check, and the first region step after it: by then everything has been called once."""
        schedule = self.session.request.schedule
        first = min(schedule.checks)
        later = [step for step in schedule.reuse_steps if step > first and step not in schedule.checks]
        return {first, *later[:1]}


def _operations(profiler: profile) -> dict[str, Any]:
    """Milliseconds in all and of the most expensive operations: the kernels on a GPU, else what the CPU computes."""
    on_gpu = torch.cuda.is_available()

    def cost(event: Any) -> float:
        if not on_gpu:
            return event.self_cpu_time_total
        # renamed in torch 2.4
        return getattr(event, "self_device_time_total", None) or getattr(event, "self_cuda_time_total", 0.0)

    # On a GPU the time of a kernel is listed once more as that of the operation that started it.
    events = [event for event in profiler.key_averages() if (event.device_type.name != "CPU") == on_gpu]
    return {
        "ms": round(sum(map(cost, events)) / 1e3, 2),
        "operations": [
            {"operation": event.key[:NAME_LENGTH], "calls": event.count, "ms": round(cost(event) / 1e3, 3)}
            for event in sorted(events, key=cost, reverse=True)[:OPERATIONS]
        ],
    }

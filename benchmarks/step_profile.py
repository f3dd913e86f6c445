"""Which operations the time of a reuse step goes to, by torch's profiler."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from carnator_core.hosts.comfy_run import ComfyRun

OPERATIONS = 25


class ProfiledRun(ComfyRun):
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
            found = {"step": self._step, "guided": self._plan.run_uncond, "operations": _operations(profiler)}
            self.profiles[self._plan.kind.value] = found
        return result

    def _wanted(self) -> set[int]:
        """The first check, and the first region step after it: by then everything has been called once."""
        schedule = self.session.request.schedule
        first = min(schedule.checks)
        later = [step for step in schedule.reuse_steps if step > first and step not in schedule.checks]
        return {first, *later[:1]}


def _operations(profiler: profile) -> list[dict[str, Any]]:
    """The most expensive ones, by time on the device (on a CPU: there), without what they call.

    On a GPU the time of a kernel is listed twice: as the kernel's own and as that of the operation that started it.
    """
    events = profiler.key_averages()

    def on_device(event: Any) -> float:  # renamed in torch 2.4
        return getattr(event, "self_device_time_total", None) or getattr(event, "self_cuda_time_total", 0.0)

    def cost(event: Any) -> float:
        return on_device(event) if torch.cuda.is_available() else event.self_cpu_time_total

    return [
        {
            "operation": event.key,
            "kernel": event.device_type.name != "CPU",
            "calls": event.count,
            "device_ms": round(on_device(event) / 1e3, 3),
            "cpu_ms": round(event.self_cpu_time_total / 1e3, 3),
        }
        for event in sorted(events, key=cost, reverse=True)[:OPERATIONS]
    ]

"""Block patches of one Wan forward: capture in dense steps, region rows in reuse steps.

Patches go on a per-call copy of transformer_options, so the model itself is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..plan import StepKind, StepPlan
from ..session import Session
from .comfy_wan_block import evaluate_rows

CONDITIONAL = 0  # index of the positive prompt in cond_or_uncond


class ForwardPatches:
    """Carries out one step plan inside the diffusion model.

    Per lane (condition uuid) it keeps what the layer window added to the hidden states in the last forward over all
    tokens, [1, L, D] in the model's dtype: inside the window, rows outside the region take an equal share of it per
    block, so later blocks see keys and values close to what they would have been.
    """

    def __init__(self, session: Session, diffusion_model: torch.nn.Module):
        self._session, self._blocks = session, diffusion_model.blocks
        self._window = session.window
        self._added: dict[Any, torch.Tensor] = {}
        self._hidden: torch.Tensor | None = None
        self._plan: StepPlan | None = None
        self.idle = False

    def begin(self, plan: StepPlan) -> None:
        self._plan = plan

    def release(self) -> None:
        """Free what only a hit needs."""
        self._added.clear()

    def stand_aside(self) -> None:
        """Drop all state; every later forward is the stock one."""
        self._plan, self.idle, self._hidden = None, True, None
        self.release()

    def take_hidden(self) -> torch.Tensor | None:
        """Hidden state [D, T', h, w] captured in this step, once."""
        hidden, self._hidden = self._hidden, None
        return hidden

    def wrapper(self, executor: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """DIFFUSION_MODEL wrapper: same arguments in the same layout, with patched transformer_options."""
        plan = self._plan
        patches = None if plan is None else self._patches(plan)
        if not patches:
            return executor(*args, **kwargs)

        def patched(options: Any) -> dict:
            replace = options.get("patches_replace", {})
            dit = {**replace.get("dit", {}), **patches}
            return {**options, "patches_replace": {**replace, "dit": dit}}

        if "transformer_options" in kwargs:
            return executor(*args, **{**kwargs, "transformer_options": patched(kwargs["transformer_options"])})
        at = next((i for i, a in enumerate(args) if isinstance(a, dict) and "uuids" in a), None)
        if at is None:  # an unknown layout: the stock forward over all tokens is right for every plan
            return executor(*args, **kwargs)
        return executor(*args[:at], patched(args[at]), *args[at + 1 :], **kwargs)

    def _patches(self, plan: StepPlan) -> dict[tuple[str, int], Callable]:
        if plan.kind is StepKind.REGION:
            limited = set(self._window.blocks) | {len(self._blocks) - 1}
            return {("double_block", i): self._region_patch(i) for i in limited}
        stages: dict[int, list[Callable]] = {}
        if plan.record_window and self._window.blocks:
            entry: dict[Any, torch.Tensor] = {}
            stages.setdefault(self._window.first, []).append(self._keep_entry(entry))
            stages.setdefault(self._window.stop - 1, []).append(self._keep_added(entry))
        if plan.capture_hidden:
            stages.setdefault(self._session.request.shape.middle_block, []).append(self._keep_hidden)
        return {("double_block", i): _observed(hooks) for i, hooks in stages.items()}

    # Each hook sees (lanes, block input, block output); lanes are (uuid, index) pairs in batch order.

    @staticmethod
    def _keep_entry(entry: dict[Any, torch.Tensor]) -> Callable:
        def hook(lanes: list, before: torch.Tensor, after: torch.Tensor) -> None:
            for (uuid, _), h in zip(lanes, before.chunk(len(lanes)), strict=False):
                entry[uuid] = h

        return hook

    def _keep_added(self, entry: dict[Any, torch.Tensor]) -> Callable:
        def hook(lanes: list, before: torch.Tensor, after: torch.Tensor) -> None:
            for (uuid, _), h in zip(lanes, after.chunk(len(lanes)), strict=False):
                self._added[uuid] = h - entry.pop(uuid)

        return hook

    def _keep_hidden(self, lanes: list, before: torch.Tensor, after: torch.Tensor) -> None:
        for (_, index), h in zip(lanes, after.chunk(len(lanes)), strict=False):
            if index == CONDITIONAL:
                self._hidden = h[0].T.unflatten(1, self._session.request.shape.grid)

    def _region_patch(self, index: int) -> Callable:
        block, window = self._blocks[index], self._window
        last = index == len(self._blocks) - 1
        share = 1.0 / max(1, len(window.blocks))

        def patch(args: dict, extra: dict) -> dict:
            x, options, rows = args["img"], args["transformer_options"], self._session.rows
            updated = evaluate_rows(block, x, rows, args["vec"], args["pe"], args["txt"], options)
            lanes = options["uuids"]
            if last:
                out = x.clone()  # outside rows are never read again
            else:
                out = torch.add(x, torch.cat([self._added[uuid] for uuid in lanes]), alpha=share)
            out[:, rows] = updated
            return {"img": out}

        return patch


def _observed(hooks: list[Callable]) -> Callable:
    """A block patch that runs the stock block and shows hooks its input and output."""

    def patch(args: dict, extra: dict) -> dict:
        before = args["img"]
        out = extra["original_block"](args)
        options = args["transformer_options"]
        lanes = list(zip(options["uuids"], options["cond_or_uncond"], strict=False))
        for hook in hooks:
            hook(lanes, before, out["img"])
        return out

    return patch

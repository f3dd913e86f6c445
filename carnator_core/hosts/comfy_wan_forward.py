"""Block patches of one Wan forward: capture in dense steps, region rows and sparse attention in reuse steps.

Patches go on a per-call copy of transformer_options, so the model itself is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..attention import measure_mass
from ..plan import StepKind, StepPlan
from ..session import Session
from ..tiles import tile_order
from .comfy_self_attention import with_self_attention
from .comfy_wan_block import evaluate_rows

CONDITIONAL = 0  # index of the positive prompt in cond_or_uncond


class ForwardPatches:
    """Carries out one step plan inside the diffusion model.

    Per lane (condition uuid) and span of blocks it keeps what the span added to the hidden states in the last forward
    over all tokens, [1, L, D] in the model's dtype: inside the layer window, rows outside the region take an equal
    share of it per block, so later blocks see keys and values close to what they would have been.

    While attention is sparse the hidden states are in tile order between the first block and the last.
    """

    def __init__(self, session: Session, diffusion_model: torch.nn.Module):
        self._session, self._blocks = session, diffusion_model.blocks
        self._last = len(diffusion_model.blocks) - 1
        self._window = session.window
        self._spans = session.window.spans(session.options.reuse.window_residual)
        self._added: dict[tuple[Any, int], torch.Tensor] = {}  # (uuid, span), in row-by-row order
        self._tiled: dict[tuple[Any, int], torch.Tensor] = {}  # the same in tile order, once it was used so
        self._order: torch.Tensor | None = None  # that order
        self._tiled_freqs: tuple[torch.Tensor, torch.Tensor] | None = None  # of which table, in tile order
        self._hidden: torch.Tensor | None = None
        self._plan: StepPlan | None = None
        self._unmeasured = False  # whether measuring block mass failed
        self.idle = False

    def begin(self, plan: StepPlan) -> None:
        self._plan = plan

    def release(self) -> None:
        """Free what only a hit needs."""
        self._added.clear()
        self._tiled.clear()
        self._tiled_freqs = None

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
        if plan.sparse:
            return {("double_block", i): self._sparse_patch(i, plan) for i in range(len(self._blocks))}
        if plan.kind is StepKind.REGION:
            return {("double_block", i): self._region_patch(i) for i in self._limited}
        stages: dict[int, list[Callable]] = {}
        if plan.record_window:
            for number, span in enumerate(self._spans):
                entry: dict[Any, torch.Tensor] = {}
                stages.setdefault(span.start, []).append(self._keep_entry(entry))
                stages.setdefault(span.stop - 1, []).append(self._keep_added(entry, number))
        if plan.capture_hidden:
            stages.setdefault(self._session.request.shape.middle_block, []).append(self._keep_hidden)
        measured = range(len(self._blocks)) if plan.capture_mass else ()
        order = tile_order(self._session.request.shape.grid, self._session.block) if measured else None
        return {
            ("double_block", i): _observed(stages.get(i, []), self._mass_hook(i, order) if measured else None)
            for i in {*stages, *measured}
        }

    # Each hook sees (lanes, block input, block output); lanes are (uuid, index) pairs in batch order.

    @staticmethod
    def _keep_entry(entry: dict[Any, torch.Tensor]) -> Callable:
        def hook(lanes: list, before: torch.Tensor, after: torch.Tensor) -> None:
            for (uuid, _), h in zip(lanes, before.chunk(len(lanes)), strict=False):
                entry[uuid] = h

        return hook

    def _keep_added(self, entry: dict[Any, torch.Tensor], span: int) -> Callable:
        def hook(lanes: list, before: torch.Tensor, after: torch.Tensor) -> None:
            for (uuid, _), h in zip(lanes, after.chunk(len(lanes)), strict=False):
                self._tiled.pop((uuid, span), None)
                self._added[uuid, span] = h - entry.pop(uuid)

        return hook

    def _keep_hidden(self, lanes: list, before: torch.Tensor, after: torch.Tensor) -> None:
        for (_, index), h in zip(lanes, after.chunk(len(lanes)), strict=False):
            if index == CONDITIONAL:
                # A copy: the view would keep the states of all lanes until the step ends.
                self._hidden = h[0].clone().T.unflatten(1, self._session.request.shape.grid)

    def _mass_hook(self, layer: int, order: torch.Tensor) -> Callable:
        """Sees the queries and keys [B, L, H*D] of a layer's self-attention."""
        session = self._session

        def hook(lanes: list, q: torch.Tensor, k: torch.Tensor) -> None:
            if self._unmeasured:
                return
            try:
                tiles = order.to(q.device)
                for (_, index), query, key in zip(lanes, q.chunk(len(lanes)), k.chunk(len(lanes)), strict=False):
                    if index == CONDITIONAL:
                        heads = session.request.attention.heads
                        session.observe_mass(layer, measure_mass(query[0], key[0], heads, tiles, session.block))
            except Exception as error:  # a kernel may fail in any way; the run itself needs nothing of this
                self._unmeasured = True
                session.fail_mass(error)

        return hook

    # -- reuse steps -----------------------------------------------------------------------------------------------

    @property
    def _limited(self) -> set[int]:
        """Blocks of which a region step computes the region's rows only; nothing reads the last one's other rows."""
        return set(self._window.blocks) | {self._last}

    def _region_patch(self, layer: int) -> Callable:
        def patch(args: dict, extra: dict) -> dict:
            return {"img": self._limited_block(layer, args, self._session.rows, self._added_in_rows())}

        return patch

    def _limited_block(self, layer: int, args: dict, rows: torch.Tensor, added: dict) -> torch.Tensor:
        """Hidden states after a block that updates some rows; the others take their share of what was added before."""
        x, options = args["img"], args["transformer_options"]
        updated = evaluate_rows(self._blocks[layer], x, rows, args["vec"], args["pe"], args["txt"], options)
        number, span = next(((n, s) for n, s in enumerate(self._spans) if layer in s), (None, None))
        if layer == self._last or span is None:
            out = x.clone()
        else:
            out = torch.empty_like(x)
            for lane, uuid in enumerate(options["uuids"]):
                torch.add(x[lane : lane + 1], added[uuid, number], alpha=1.0 / len(span), out=out[lane : lane + 1])
        return out.index_copy_(1, rows, updated)

    def _sparse_patch(self, layer: int, plan: StepPlan) -> Callable:
        """A block in tile order whose self-attention follows the connectivity."""
        sparse = self._session.sparse
        limited = plan.kind is StepKind.REGION and layer in self._limited

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return sparse.attend(layer, q, k, v, of_rows=limited)

        def patch(args: dict, extra: dict) -> dict:
            x = args["img"][:, sparse.order] if layer == 0 else args["img"]
            options = with_self_attention(args["transformer_options"], attend)
            args = {**args, "img": x, "pe": self._freqs_in_tiles(args["pe"]), "transformer_options": options}
            if limited:
                out = self._limited_block(layer, args, sparse.rows, self._added_in_tiles(options["uuids"]))
            else:
                out = extra["original_block"](args)["img"]
            if layer == self._last:
                out = torch.empty_like(out).index_copy_(1, sparse.order, out)
            return {"img": out}

        return patch

    def _freqs_in_tiles(self, freqs: torch.Tensor) -> torch.Tensor:
        if self._tiled_freqs is None or self._tiled_freqs[0] is not freqs:
            self._tiled_freqs = freqs, freqs[:, self._session.sparse.order]
        return self._tiled_freqs[1]

    def _added_in_rows(self) -> dict[tuple[Any, int], torch.Tensor]:
        """Row by row, also what sparse attention had put into tile order before it failed."""
        while self._tiled:
            name, added = self._tiled.popitem()
            self._added[name] = torch.empty_like(added).index_copy_(1, self._order, added)
        return self._added

    def _added_in_tiles(self, uuids: list) -> dict[tuple[Any, int], torch.Tensor]:
        self._order = self._session.sparse.order
        for name in [name for name in self._added if name[0] in uuids]:
            self._tiled[name] = self._added.pop(name)[:, self._order]
        return self._tiled


def _observed(hooks: list[Callable], attention: Callable | None) -> Callable:
    """A block patch that runs the stock block and shows hooks its input and output, and one its queries and keys."""

    def patch(args: dict, extra: dict) -> dict:
        before, options = args["img"], args["transformer_options"]
        lanes = list(zip(options["uuids"], options["cond_or_uncond"], strict=False))
        if attention is not None:
            seen = with_self_attention(options, lambda q, k, v: attention(lanes, q, k))
            args = {**args, "transformer_options": seen}
        out = extra["original_block"](args)
        for hook in hooks:
            hook(lanes, before, out["img"])
        return out

    return patch

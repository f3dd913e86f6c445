"""One forward of the tiny model under a step plan, on two lanes, without a sampler around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

SIZE, GRID, TOKENS, BLOCK = (3, 16, 16), (3, 8, 8), 3 * 8 * 8, 8


class Forward:
    """Latents and prompts are random and always the same.

    Args:
        window: first block of the layer window and the one behind its last.
        residual: see ``ReuseOptions.window_residual``.
        keep: [layers, heads, blocks, blocks] bool in tile order, what sparse attention keeps.
    """

    def __init__(self, tiny: Any, window: tuple[int, int], residual: str = "shared", keep: torch.Tensor | None = None):
        from carnator_core.attention import SparseAttention
        from carnator_core.hosts.comfy_wan_forward import ForwardPatches
        from carnator_core.options import Options, ReuseOptions
        from carnator_core.plan import LayerWindow

        random = torch.Generator().manual_seed(4)
        self.model = tiny.model.model.diffusion_model
        self.x = torch.randn(2, 16, *SIZE, generator=random)
        self.context = torch.randn(2, 16, 4096, generator=random)
        self.rows = torch.randperm(TOKENS, generator=random)[:40].sort().values
        self.heads = self.model.blocks[0].self_attn.num_heads
        self.masses: dict[int, torch.Tensor] = {}
        session = SimpleNamespace(
            window=LayerWindow(*window),
            rows=self.rows,
            options=Options(reuse=ReuseOptions(window_residual=residual)),
            request=SimpleNamespace(
                shape=SimpleNamespace(grid=GRID, depth=len(self.model.blocks)),
                attention=SimpleNamespace(heads=self.heads),
            ),
            block=BLOCK,
            observe_mass=self.masses.__setitem__,
        )
        if keep is not None:
            session.sparse = SparseAttention(lambda layer, device: keep[layer], GRID, BLOCK, torch.device("cpu"))
            session.sparse.limit(self.rows)
        self.patches = ForwardPatches(session, self.model)

    def __call__(self, plan: Any = None, lanes: tuple[str, ...] = ("uncond", "cond"), **options: Any) -> torch.Tensor:
        at = [("uncond", "cond").index(lane) for lane in lanes]
        self.patches.begin(plan)
        options |= {"uuids": list(lanes), "cond_or_uncond": [int(lane == "uncond") for lane in lanes]}
        with torch.inference_mode():
            return self.patches.wrapper(
                self.model._forward, self.x[at], torch.full((len(at),), 900.0), self.context[at], None, None, options
            )

    def cells(self) -> torch.Tensor:
        """Latent cells of the rows, [T, H, W] bool."""
        inside = torch.zeros(GRID, dtype=torch.bool)
        inside.view(-1)[self.rows] = True
        return inside.repeat_interleave(2, 1).repeat_interleave(2, 2)

    def difference(self, found: torch.Tensor, expected: torch.Tensor) -> float:
        """Relative, over the cells of the rows."""
        cells = self.cells()
        return float((found - expected)[..., cells].norm() / expected[..., cells].norm())

"""Core's own EasyCache, but which evaluations it skips is given: with random weights its decision means nothing.

Everything else is its code: what it keeps, what it adds to the input of a skipped evaluation and what all that costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from .own_input import with_own_input


def with_replayed_easycache(model: Any, skips: Collection[int], skipped: set[int]) -> Any:
    """A clone of a MODEL with EasyCache on it.

    Args:
        skips: evaluations to skip, counted from 0; not the first two, before which it has nothing to go by.
        skipped: filled with those that were.
    """
    from comfy_extras.nodes_easycache import EasyCacheHolder, EasyCacheNode

    class Replay(EasyCacheHolder):
        _step, _sigma = -1, None

        def clone(self) -> Replay:  # made anew for every sampling
            return Replay(
                self.reuse_threshold, self.start_percent, self.end_percent, self.subsample_factor,
                self.offload_cache_diff, self.verbose, output_channels=self.output_channels,
            )  # fmt: skip

        def should_do_easycache(self, timestep: Any) -> bool:
            """Asked in every evaluation before the threshold is compared with the change, so set the threshold."""
            sigma = float(timestep[0])
            if sigma != self._sigma:
                self._step, self._sigma = self._step + 1, sigma
            self.reuse_threshold = math.inf if self._step in skips else -math.inf
            return super().should_do_easycache(timestep)

        def apply_cache_diff(self, x: Any, uuids: list) -> Any:
            skipped.add(self._step)
            return super().apply_cache_diff(x, uuids)

    model = model.clone()
    model.add_wrapper_with_key("diffusion_model", "own_input", with_own_input)  # outside EasyCache
    patched = EasyCacheNode.execute(model, 0.2, 0.0, 1.0, False).result[0]  # in force from the first step to the last
    options = patched.model_options["transformer_options"]
    options["easycache"] = Replay.clone(options["easycache"])
    return patched

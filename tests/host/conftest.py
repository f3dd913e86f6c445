"""A tiny random Wan model in this process, sampled by ComfyUI's own code with and without Carnator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

STEPS = 10
Conditioning = list[list[Any]]


@dataclass(frozen=True)
class Call:
    """One sampling call, as KSampler makes it. `replace(call, cfg=1.0)` gives a variation."""

    positive: Conditioning
    negative: Conditioning
    sampler: str = "euler"
    scheduler: str = "simple"
    steps: int = STEPS
    cfg: float = 5.0
    seed: int = 3
    size: tuple[int, int, int] = (3, 8, 8)
    batch: int = 1
    denoise: float = 1.0
    mask: torch.Tensor | None = None
    latent: torch.Tensor | None = None

    def __call__(self, model: Any) -> torch.Tensor:
        import comfy.sample

        latent = torch.zeros(self.batch, 16, *self.size) if self.latent is None else self.latent
        noise = comfy.sample.prepare_noise(latent, self.seed)
        with torch.inference_mode():  # as ComfyUI executes nodes
            return comfy.sample.sample(
                model, noise, self.steps, self.cfg, self.sampler, self.scheduler,
                self.positive, self.negative, latent.clone(), denoise=self.denoise, noise_mask=self.mask,
                disable_pbar=True, seed=self.seed,
            )  # fmt: skip

    def but(self, **changes: Any) -> Call:
        return replace(self, **changes)


class TinyHost:
    """The model of these tests and what they do with it."""

    def __init__(self, checkpoint: Path):
        self.checkpoint = checkpoint
        self.model = self.load()
        self.call = Call(self.prompt(1), self.prompt(9))

    def load(self) -> Any:
        """A MODEL of its own from the same file."""
        import comfy.sd

        return comfy.sd.load_diffusion_model(str(self.checkpoint))

    @staticmethod
    def wrapped(model: Any, kind: str, wrapper: Any, key: str = "test") -> Any:
        """A clone of a model with one more wrapper, such as another custom node would add."""
        model = model.clone()
        model.add_wrapper_with_key(kind, key, wrapper)
        return model

    def patched(self, *strengths: float, seed: int = 0) -> Any:
        """A clone with LoRA-like weight patches in this order; patch i is random with seed + i."""
        model = self.model.clone()
        for index, strength in enumerate(strengths):
            random = torch.Generator().manual_seed(seed + index)
            key = "diffusion_model.blocks.0.self_attn.q.weight"
            diff = torch.randn(256, 256, generator=random) * 0.05
            assert model.add_patches({key: ("diff", (diff,))}, strength) == [key]
        return model

    @staticmethod
    def prompt(seed: int, tokens: int = 16) -> Conditioning:
        from support.comfy_host import random_conditioning

        return random_conditioning(seed, tokens)

    def near(self, positive: Conditioning, amount: float, seed: int = 2) -> Conditioning:
        """Another wording: the same embedding with some noise."""
        text = positive[0][0]
        return [[text + amount * self.prompt(seed, text.shape[1])[0][0], {}]]

    @staticmethod
    def options(
        store: str = "read+write", min_text_similarity: float = -1.0, gate: float | None = 1e3, **reuse: Any
    ) -> Any:
        """Options under which the gate lets pass what is not a test of the gate, and no step is held."""
        from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions, StoreOptions

        return Options(
            StoreOptions(mode=store),
            ProbeOptions(min_text_similarity=min_text_similarity),
            None if gate is None else GateOptions(gate, gate, gate, gate, gate),
            ReuseOptions(**{"hold_threshold": 0.0, **reuse}),
        )

    def reuse(self, root: Path, call: Call, model: Any = None, options: Any = None) -> tuple[torch.Tensor, Any]:
        """The latent of a call through Carnator, and the ComfyRun with its report."""
        from carnator_core.hosts.comfy_run import ComfyRun

        run = ComfyRun(options or self.options(), root)
        return call(run.attach(model or self.model)), run

    def sampler_call(self, call: Call, model: Any = None) -> Any:
        """The same call as what follows a run of the Reuse Sampler gets it."""
        from carnator_core.hosts.comfy_side_run import SamplerCall

        latent = torch.zeros(1, 16, *call.size) if call.latent is None else call.latent
        return SamplerCall(
            model or self.model, call.seed, call.steps, call.cfg, call.sampler, call.scheduler, call.positive,
            call.negative, {"samples": latent}, call.denoise,
        )  # fmt: skip


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference relative to the norm of what is expected."""
    return float((found - expected).norm() / expected.norm())


@pytest.fixture(scope="session")
def far():
    """far(found, expected): norm of the difference relative to the norm of what is expected."""
    return relative


@pytest.fixture(scope="session")
def tiny(comfy: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> TinyHost:
    from safetensors.torch import save_file

    from support.tiny_models import wan_dit

    path = tmp_path_factory.mktemp("tiny") / "tiny.safetensors"
    save_file(wan_dit(width=256, layers=4), path)
    return TinyHost(path)


@pytest.fixture
def stored():
    """stored(root): ids of the entries in the default store."""

    from carnator_core.store.registry import close_stores

    def ids(root: Path) -> list[str]:
        close_stores()  # writes are pending until then
        folder = root / "default" / "entries"
        return sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []

    return ids


@pytest.fixture(scope="session")
def shelf(tiny: TinyHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store to read from: it holds the donor of the tiny model's own call."""
    root = tmp_path_factory.mktemp("shelf")
    tiny.reuse(root, tiny.call)
    return root


@pytest.fixture
def forwards(tiny):
    """forwards(change): calls ``change(n)`` before the n-th forward of the model from then on; ``count`` of all."""
    hooks, count = [], []

    def arrange(change=lambda n: None) -> list:
        count.clear()
        while hooks:
            hooks.pop().remove()

        def before(module, inputs):
            count.append(1)
            change(len(count) - 1)

        hooks.append(tiny.model.model.diffusion_model.head.register_forward_pre_hook(before))
        return count

    yield arrange
    for hook in hooks:
        hook.remove()

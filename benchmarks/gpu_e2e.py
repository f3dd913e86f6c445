"""Whole sampling runs of Wan models at full size with random weights, in ComfyUI's own sampler: speed only.

What is computed does not depend on the values of weights, so they are random. So is what attention is said to fall
on, and the evidence region is a box of a given share in place of what random predictions would give. Everything else is
the pack as it is shipped: key, store, probe, gate, region rows, layer window, guidance reuse, checks, refine.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from carnator_core import evidence
from carnator_core.connectivity import Consensus
from carnator_core.decision import Decider
from carnator_core.identity import HardKey
from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions
from carnator_core.tiles import block_for
from scripts.testbed.console import Stop, say

from .random_models import MODELS, Model, conditioning, import_comfy, random_model, random_vae

GUIDANCE = 5.0
OPEN_GATE = GateOptions(*[1e9] * 5)


@dataclass(frozen=True)
class Sweep:
    """What is measured.

    Args:
        model: name in MODELS.
        regions, densities, holds: shares and hold thresholds; every combination of them is one hit. Density 1 is
            dense attention, threshold 0 holds no step.
        easycache_skips: evaluations that EasyCache skips, counted from 0; none leaves EasyCache out.
        change: how much the donor's x0 is said to change at each step, by which held steps are chosen.
        profile: whether to profile two steps of one more hit.
    """

    model: str
    steps: int
    regions: tuple[float, ...]
    densities: tuple[float, ...] = (1.0,)
    holds: tuple[float, ...] = (0.0,)
    easycache_skips: tuple[int, ...] = ()
    change: tuple[float, ...] = ()
    profile: bool = False


def measure(comfyui: Path, sweep: Sweep) -> dict[str, Any]:
    """Stock, EasyCache, a miss and hits, in one process. Raises Stop if a miss is not stock."""
    import_comfy(comfyui)
    model = MODELS[sweep.model]
    patcher = random_model(model)
    on = torch.cuda.get_device_name() if patcher.load_device.type == "cuda" else "CPU"
    say(f"{model.name} on {on}, {sweep.steps} steps")
    with tempfile.TemporaryDirectory(prefix="e2e-") as folder:
        result = _Bench(patcher, model, sweep, Path(folder)).run()
    decode = _decode_seconds(model)
    say(f"  decoding: {decode:.3f} s")
    stock = result["rows"][0]["seconds"]
    for row in result["rows"]:
        if "seconds" in row:
            row["seconds_with_decode"] = round(row["seconds"] + decode, 3)
            row["speedup_with_decode"] = round((stock + decode) / (row["seconds"] + decode), 3)
    head = {"model": model.name, "steps": sweep.steps, "decode_seconds": round(decode, 3)}
    given = {"easycache_skips": list(sweep.easycache_skips), "change": list(sweep.change)}
    return {**head, **given, **result}


def put_consensus(store: Any, key: HardKey, consensus: Consensus) -> None:
    """Make a consensus what the hits of requests with this key attend by, in place of what was measured."""
    from carnator_core.attention import consensus_id

    name = consensus_id(key, consensus.block)
    store.wait()
    store.consensuses.path(name).unlink(missing_ok=True)
    store.consensuses.add(name, consensus.mass, consensus.block)


def random_consensus(model: Model, block: int) -> Consensus:
    """Attention that falls anywhere: [layers, heads, blocks, blocks] float16, each row sums to 1."""
    random = torch.Generator().manual_seed(5)
    blocks = -(-model.tokens // block)
    mass = torch.empty(model.layers, model.heads, blocks, blocks, dtype=torch.float16)
    for layer in mass:
        drawn = torch.rand(layer.shape, generator=random)
        layer.copy_(drawn / drawn.sum(-1, keepdim=True))
    return Consensus(mass, block, 1)


class _Bench:
    """The runs of one sweep; each is timed from the call of the sampler to its latent on the CPU."""

    def __init__(self, patcher: Any, model: Model, sweep: Sweep, folder: Path):
        self._patcher, self._model, self._sweep, self._folder = patcher, model, sweep, folder
        self._base, self._edit, self._negative = (conditioning(seed) for seed in (1, 2, 9))
        self._stock = 0.0

    def run(self) -> dict[str, Any]:
        sweep = self._sweep
        # Loading, imports and warming up count for nobody.
        self._sample(self._patcher, self._base, steps=2)
        # The kernels too: one that is used for the first time is compiled and checked.
        self._ours(self._patcher, self._base, min(sweep.densities), steps=5, folder=self._folder / "warm")
        self._stock, dense = _timed(lambda: self._sample(self._patcher, self._base))
        rows = [{"what": "stock", "seconds": round(self._stock, 3), "speedup": 1.0}]
        say(f"  {rows[0]}")
        rows += self._easycache()
        run, seconds, latent = self._ours(self._patcher, self._base, min(sweep.densities))
        if not torch.equal(latent, dense) or run.report.decision.value != "miss":
            raise Stop(f"a miss is not the stock latent: {run.report.status()}")
        rows.append(self._row("miss", run, seconds))
        if min(sweep.densities) < 1.0:
            self._store_consensus(run.session.request.key)
        hits = [self._hit(*case) for case in itertools.product(sweep.regions, sweep.densities, sweep.holds)]
        rows += hits + self._easycache_on_hits()
        return {"rows": rows, "profile": self._profile()} if sweep.profile else {"rows": rows}

    def _store_consensus(self, key: HardKey) -> None:
        from carnator_core.store.registry import open_store

        consensus = random_consensus(self._model, block_for(self._model.tokens))
        put_consensus(open_store(self._folder, Options().store), key, consensus)

    def _hit(self, region: float, density: float, hold: float) -> dict[str, Any]:
        with _box_region(region), _donor_change(self._sweep.change):
            run, seconds, latent = self._ours(self._patcher, self._edit, density, hold)
        if run.report.decision.value != "hit" or not bool(torch.isfinite(latent).all()):
            raise Stop(f"no hit at a region of {region:.0%}: {run.report.status()}")
        self._check_attention(run, density)
        what = f"hit, region {region:.0%}, density {density:g}, " + (f"hold {hold:g}" if hold else "no step held")
        return self._row(what, run, seconds) | {"density": density, "hold": hold}

    def _easycache(self) -> list[dict[str, Any]]:
        """EasyCache alone, with the skips that were asked for."""
        if not self._sweep.easycache_skips:
            return []
        model, skipped = self._with_easycache()
        seconds, latent = _timed(lambda: self._sample(model, self._base))
        self._check_skips(skipped, latent)
        row = {"what": "EasyCache, replayed skips", "seconds": round(seconds, 3)}
        row["speedup"] = round(self._stock / seconds, 3)
        say(f"  {row}")
        return [row]

    def _easycache_on_hits(self) -> list[dict[str, Any]]:
        """Carnator declines a model with EasyCache on it, which would go by unfinished values: say so, in a few steps.

        The steps that a hit holds are the same idea, chosen by the donor's own changes.
        """
        if not self._sweep.easycache_skips:
            return []
        run, *_ = self._ours(self._with_easycache()[0], self._base, 1.0, steps=4)
        if run.report.decision.value != "declined":
            raise Stop(f"EasyCache is no longer declined; measure it on top of a hit: {run.report.status()}")
        return [{"what": "EasyCache on a hit", "declined": run.report.status()}]

    def _with_easycache(self) -> tuple[Any, set[int]]:
        from .replayed_easycache import with_replayed_easycache

        skipped: set[int] = set()
        return with_replayed_easycache(self._patcher, self._sweep.easycache_skips, skipped), skipped

    def _check_skips(self, skipped: set[int], latent: torch.Tensor) -> None:
        if skipped != set(self._sweep.easycache_skips) or not bool(torch.isfinite(latent).all()):
            raise Stop(f"EasyCache skipped {sorted(skipped)}, not {sorted(self._sweep.easycache_skips)}")

    @staticmethod
    def _check_attention(run: Any, density: float) -> None:
        if density < 1.0 and (run.report.attention or "dense").startswith("dense"):
            raise Stop(f"attention was not sparse at density {density:g}: {run.report.attention}")

    def _profile(self) -> dict[str, Any]:
        """One more hit, too slow to be timed, at the first region and density."""
        from .step_profile import ProfiledRun

        region, density = self._sweep.regions[0], self._sweep.densities[0]
        with _box_region(region):
            run, *_ = self._ours(self._patcher, self._edit, density, run_class=ProfiledRun)
        return {"region": region, "density": density, "steps": run.profiles}

    def _row(self, what: str, run: Any, seconds: float) -> dict[str, Any]:
        report = run.report
        row = {
            "what": what,
            "seconds": round(seconds, 3),
            "speedup": round(self._stock / seconds, 3),
            "region": report.region_share,
            "own_share": round(report.own_seconds / seconds, 4),
            "steps": report.steps,
            "attention": report.attention,
            "predicted_work": report.predicted_work,
        }
        if torch.cuda.is_available():
            row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        say(f"  {row}")
        return row

    def _ours(
        self,
        patcher: Any,
        positive: list,
        density: float,
        hold: float = 0.0,
        steps: int | None = None,
        folder: Path | None = None,
        run_class: type | None = None,
    ) -> tuple[Any, float, torch.Tensor]:
        from carnator_core.hosts.comfy_run import ComfyRun
        from carnator_core.store.registry import open_store

        sparse = {"attention": "consensus", "attention_percent": 100 * density}
        attention = sparse if density < 1.0 else {"attention": "dense"}
        reuse = ReuseOptions(**attention, hold_threshold=hold)
        options = Options(probe=ProbeOptions(min_text_similarity=-1.0), gate=OPEN_GATE, reuse=reuse)
        folder = folder or self._folder
        run = (run_class or ComfyRun)(options, folder)
        attached = run.attach(patcher)
        seconds, latent = _timed(lambda: self._sample(attached, positive, steps))
        open_store(folder, options.store).wait()  # the writing of an entry overlaps what follows the sampler
        return run, seconds, latent

    def _sample(self, patcher: Any, positive: list, steps: int | None = None) -> torch.Tensor:
        import comfy.sample

        latent = torch.zeros(1, *self._model.latent)
        noise = comfy.sample.prepare_noise(latent, 1)
        with torch.inference_mode():
            return comfy.sample.sample(
                patcher, noise, steps or self._sweep.steps, GUIDANCE, "uni_pc", "simple", positive, self._negative,
                latent, disable_pbar=True, seed=1,
            )  # fmt: skip


def _timed(call: Any) -> tuple[float, torch.Tensor]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    latent = call()  # arrives on the CPU, so the device has finished
    return time.perf_counter() - started, latent


def _decode_seconds(model: Model) -> float:
    """The whole video once, after one frame to warm up."""
    vae = random_vae(model)
    latent = torch.randn(1, *model.latent, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        vae.decode(latent[:, :, :1])
        return _timed(lambda: vae.decode(latent))[0]


@contextmanager
def _donor_change(change: tuple[float, ...]) -> Iterator[None]:
    """This change per step in place of what random predictions gave; none leaves that."""
    measured = Decider._change_in
    if change:
        Decider._change_in = lambda decider, donor: list(change)
    try:
        yield
    finally:
        Decider._change_in = measured


@contextmanager
def _box_region(share: float) -> Iterator[None]:
    """A box in the middle of every frame, of this share of it, in place of the measured evidence region."""

    def box(difference: torch.Tensor, threshold: float) -> torch.Tensor:
        region = torch.zeros_like(difference, dtype=torch.bool)
        inside = [slice(round(n * (1 - share**0.5) / 2), round(n * (1 + share**0.5) / 2)) for n in region.shape[1:]]
        region[:, inside[0], inside[1]] = True
        return region

    measured = evidence.evidence_region
    evidence.evidence_region = box
    try:
        yield
    finally:
        evidence.evidence_region = measured

"""Whole sampling runs of Wan models at full size with random weights, in ComfyUI's own sampler: speed only.

What is computed does not depend on the values of weights, so they are random. So is what attention is said to fall
on, and the evidence region is a box of a given share in place of what random predictions would give. Everything else is
the pack as it is shipped: key, store, probe, gate, region rows, layer window, guidance reuse, checks, refine.

The measurements of the documentation, on one H200; each line is one call of less than nine minutes (with --comfyui and
--python of that machine, and --commit where there is no git), and a call that is repeated with the same --keep goes on
where it stopped:

  bench.py gpu_e2e --model 5b --steps 50 --densities 0.5 0.2 1.0 --keep /tmp/e2e-5b-50 --seconds 560
      --out benchmarks/results/h200_e2e_5b.json                                560 s for 9 of 12 hits, 150 s for more
  bench.py gpu_e2e --model 5b --steps 50 --regions 0.15 0.3 --densities 0.5 --no-easycache
      --out benchmarks/results/h200_e2e_5b_own.json                            315 s
  bench.py gpu_e2e --model 5b --steps 20 --densities 0.5 0.2 1.0 --no-easycache --keep /tmp/e2e-5b-20 --seconds 560
      --out benchmarks/results/h200_e2e_5b_20.json                             320 s; 230 s for 7 of 12 hits
  bench.py gpu_e2e --model 14b --steps 20 --regions 0.15 0.3 --densities 0.5 0.2 --no-easycache --seconds 545
      --keep /tmp/e2e-14b-20 --out benchmarks/results/h200_e2e_14b.json        500 s for 3 of 4 hits
  bench.py tables                                                              from the files, anywhere

About 75 s of each call (100 for 14B) go to the start, decoding twice and warming up.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from carnator_core.identity import tensor_digest
from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions
from carnator_core.tiles import block_for
from scripts.testbed.console import Stop, say

from .kept_result import KeptResult
from .random_models import MODELS, Model, conditioning, import_comfy, random_model, random_vae
from .stand_ins import box_region, donor_change, put_consensus, random_consensus

GUIDANCE = 5.0
OPEN_GATE = GateOptions(*[1e9] * 5)
REFERENCE_STEPS, REFERENCE_TOLERANCE = 3, 0.03
LIKELY_SHARE = 0.45  # of a stock run that the first hit is thought to take, when time is short


@dataclass(frozen=True)
class Sweep:
    """What is measured.

    Args:
        model: name in MODELS.
        regions, densities, holds: shares and hold thresholds; every combination of them is one hit, and all regions
            of one density follow each other. Density 1 is dense attention, threshold 0 holds no step.
        easycache_skips: evaluations that EasyCache skips, counted from 0; none leaves EasyCache out.
        change: how much the donor's x0 is said to change at each step, by which held steps are chosen.
        profile: whether to profile two steps of one more hit.
        seconds: after which no further run is started, or one that would take longer.
    """

    model: str
    steps: int
    regions: tuple[float, ...]
    densities: tuple[float, ...] = (1.0,)
    holds: tuple[float, ...] = (0.0,)
    easycache_skips: tuple[int, ...] = ()
    change: tuple[float, ...] = ()
    profile: bool = False
    seconds: float | None = None

    @property
    def head(self) -> dict[str, Any]:
        """What all rows of a file have in common."""
        given = {"easycache_skips": list(self.easycache_skips), "change": list(self.change)}
        return {"model": MODELS[self.model].name, "steps": self.steps, **given}

    @property
    def cases(self) -> list[tuple[float, float, float]]:
        """Region, density and hold threshold of every hit."""
        swept = itertools.product(self.densities, self.holds, self.regions)
        return [(region, density, hold) for density, hold, region in swept]


class _TimeIsUp(Exception):
    pass


def measure(comfyui: Path, sweep: Sweep, result: KeptResult, kept: Path | None = None) -> None:
    """Stock, EasyCache, a miss and hits, as far as ``result`` lacks them. Raises Stop if a miss is not stock.

    Args:
        kept: folder in which donors are kept for a later call; None forgets them.
    """
    begun = time.monotonic()
    import_comfy(comfyui)
    model = MODELS[sweep.model]
    if "decode_seconds" not in result.data:  # while the memory is free of the other model
        result.tell(decode_seconds=round(_decode_seconds(model), 3))
        say(f"  decoding: {result.data['decode_seconds']:.3f} s")
    patcher = random_model(model)
    on = torch.cuda.get_device_name() if patcher.load_device.type == "cuda" else "CPU"
    say(f"{model.name} on {on}, {sweep.steps} steps")
    with tempfile.TemporaryDirectory(prefix="e2e-") as folder:
        bench = _Bench(patcher, sweep, result, kept or Path(folder) / "kept", Path(folder) / "warm", begun)
        try:
            bench.run()
        except _TimeIsUp as up:
            say(f"  the time is up before: {up}. What is left is measured by the same command once more.")


class _Bench:
    """The runs of one sweep; each is timed from the call of the sampler to its latent on the CPU.

    Args:
        kept, warm: folders of stores, for what is measured and for warming up.
        begun: when the time began that the sweep has.
    """

    def __init__(self, patcher: Any, sweep: Sweep, result: KeptResult, kept: Path, warm: Path, begun: float):
        self._patcher, self._model, self._sweep, self._result = patcher, MODELS[sweep.model], sweep, result
        self._kept, self._warm, self._begun = kept, warm, begun
        self._base, self._edit, self._negative = (conditioning(seed) for seed in (1, 2, 9))
        self._step = 0.0  # seconds of a dense one
        self._last_hit: float | None = None

    def run(self) -> None:
        """Raises _TimeIsUp where the next run would not fit."""
        self._warm_up()
        self._refer()
        self._measure("stock", self._sweep.steps * self._step, self._stock)
        self._easycache()
        self._measure("miss", 1.05 * self._stock_seconds, self._miss)
        for case in self._sweep.cases:
            expected = LIKELY_SHARE * self._stock_seconds if self._last_hit is None else 1.15 * self._last_hit
            self._measure(_name_of(*case), expected, lambda case=case: self._hit(*case))
        if self._sweep.profile and "profile" not in self._result.data:
            self._take_time("profile", 1.5 * (self._last_hit or self._stock_seconds))
            self._result.tell(profile=self._profile())

    def _measure(self, what: str, expected: float, row: Callable[[], dict[str, Any]]) -> None:
        """Add a row unless it is there."""
        if self._result.row(what) is None:
            self._take_time(what, expected)
            self._result.add({"what": what, **row()})

    def _take_time(self, what: str, expected: float) -> None:
        limit = self._sweep.seconds
        if limit is not None and time.monotonic() - self._begun + expected > limit:
            raise _TimeIsUp(what)

    @property
    def _stock_seconds(self) -> float:
        return self._result.row("stock")["seconds"]

    def _warm_up(self) -> None:
        """Loading, imports, compiling and choosing kernels: the first run of each kind pays for them."""
        self._sample(self._patcher, self._base, steps=2)
        sparse = [density for density in self._sweep.densities if density < 1.0]
        region, densities = self._sweep.regions[0], [*sparse[:1], *({1.0} & {*self._sweep.densities})]
        self._ours(self._patcher, self._base, densities[0], steps=5, folder=self._warm)
        for density in densities:
            with box_region(region):
                self._ours(self._patcher, self._edit, density, steps=5, folder=self._warm)

    def _refer(self) -> None:
        """Rows of several calls are compared only if the device was as fast in each of them."""
        seconds, _ = _timed(lambda: self._sample(self._patcher, self._base, steps=REFERENCE_STEPS))
        self._step = seconds / REFERENCE_STEPS
        calls = self._result.data["calls"]
        calls[-1]["reference_seconds"] = round(seconds, 4)
        first = next(call["reference_seconds"] for call in calls if "reference_seconds" in call)
        if self._result.row("stock") is not None and abs(seconds / first - 1) > REFERENCE_TOLERANCE:
            calls.pop()
            raise Stop(f"{REFERENCE_STEPS} steps take {seconds:.2f} s, {first:.2f} s when stock was measured.")

    def _stock(self) -> dict[str, Any]:
        seconds, latent = _timed(lambda: self._sample(self._patcher, self._base))
        return {"latent": tensor_digest(latent), **self._timing(seconds, seconds)}

    def _miss(self) -> dict[str, Any]:
        shutil.rmtree(self._kept, ignore_errors=True)  # what a miss left that was cut short would be hit now
        run, seconds, latent = self._ours(self._patcher, self._base, min(self._sweep.densities))
        stock = self._result.row("stock")["latent"]
        if tensor_digest(latent) != stock or run.report.decision.value != "miss":
            raise Stop(f"a miss is not the stock latent: {run.report.status()}")
        if min(self._sweep.densities) < 1.0:
            from carnator_core.store.registry import open_store

            consensus = random_consensus(self._model, block_for(self._model.tokens))
            put_consensus(open_store(self._kept, Options().store), run.session.request.key, consensus)
        return self._of_run(run, seconds)

    def _hit(self, region: float, density: float, hold: float) -> dict[str, Any]:
        with box_region(region), donor_change(self._sweep.change):
            run, seconds, latent = self._ours(self._patcher, self._edit, density, hold)
        if run.report.decision.value != "hit" or not bool(torch.isfinite(latent).all()):
            raise Stop(f"no hit at a region of {region:.0%}: {run.report.status()}")
        self._check_attention(run, density)
        self._last_hit = seconds
        return {"asked_region": region, "density": density, "hold": hold, **self._of_run(run, seconds)}

    def _easycache(self) -> None:
        """EasyCache alone, with the skips that were asked for, and on top of Carnator.

        Carnator declines a model with EasyCache on it, which would go by unfinished values: so that is said, in a few
        steps. The steps that a hit holds are the same idea, chosen by the donor's own changes.
        """
        if not self._sweep.easycache_skips:
            return
        left = self._sweep.steps - len(self._sweep.easycache_skips)
        self._measure("EasyCache, replayed skips", 1.1 * left * self._step, self._easycache_alone)
        self._measure("EasyCache on a hit", 4 * self._step, self._easycache_on_a_hit)

    def _easycache_alone(self) -> dict[str, Any]:
        model, skipped = self._with_easycache()
        seconds, latent = _timed(lambda: self._sample(model, self._base))
        if skipped != set(self._sweep.easycache_skips) or not bool(torch.isfinite(latent).all()):
            raise Stop(f"EasyCache skipped {sorted(skipped)}, not {sorted(self._sweep.easycache_skips)}")
        return self._timing(seconds, self._stock_seconds)

    def _easycache_on_a_hit(self) -> dict[str, Any]:
        run, *_ = self._ours(self._with_easycache()[0], self._base, 1.0, steps=2, folder=self._warm)
        if run.report.decision.value != "declined":
            raise Stop(f"EasyCache is no longer declined; measure it on top of a hit: {run.report.status()}")
        return {"declined": run.report.status()}

    def _with_easycache(self) -> tuple[Any, set[int]]:
        from .replayed_easycache import with_replayed_easycache

        skipped: set[int] = set()
        return with_replayed_easycache(self._patcher, self._sweep.easycache_skips, skipped), skipped

    @staticmethod
    def _check_attention(run: Any, density: float) -> None:
        if density < 1.0 and (run.report.attention or "dense").startswith("dense"):
            raise Stop(f"attention was not sparse at density {density:g}: {run.report.attention}")

    def _profile(self) -> dict[str, Any]:
        """One more hit, too slow to be timed, at the first region and density."""
        from .step_profile import ProfiledRun

        region, density = self._sweep.regions[0], self._sweep.densities[0]
        with box_region(region):
            run, *_ = self._ours(self._patcher, self._edit, density, run_class=ProfiledRun)
        return {"region": region, "density": density, "steps": run.profiles}

    def _timing(self, seconds: float, stock: float) -> dict[str, Any]:
        decode = self._result.data["decode_seconds"]
        row = {"seconds": round(seconds, 3), "speedup": round(stock / seconds, 3)}
        row["seconds_with_decode"] = round(seconds + decode, 3)
        row["speedup_with_decode"] = round((stock + decode) / (seconds + decode), 3)
        if torch.cuda.is_available():
            row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        return row

    def _of_run(self, run: Any, seconds: float) -> dict[str, Any]:
        report, stock = run.report, self._result.row("stock")
        row = self._timing(seconds, stock["seconds"])
        if "peak_gb" in row:
            row["extra_gb"] = round(row["peak_gb"] - stock["peak_gb"], 3)
        return row | {
            "own_seconds": round(report.own_seconds, 3),
            "own_share": round(report.own_seconds / seconds, 4),
            "region": report.region_share,
            "steps": report.steps,
            "step_seconds": run.step_seconds,
            "attention": report.attention,
            "predicted_work": report.predicted_work,
            "work": report.work,
        }

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
        from carnator_core.store.registry import open_store

        from .step_profile import TimedRun

        sparse = {"attention": "consensus", "attention_percent": 100 * density}
        attention = sparse if density < 1.0 else {"attention": "dense"}
        reuse = ReuseOptions(**attention, hold_threshold=hold)
        options = Options(probe=ProbeOptions(min_text_similarity=-1.0), gate=OPEN_GATE, reuse=reuse)
        folder = folder or self._kept
        run = (run_class or TimedRun)(options, folder)
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


def _name_of(region: float, density: float, hold: float) -> str:
    return f"hit, region {region:.0%}, density {density:g}, " + (f"hold {hold:g}" if hold else "no step held")


def _timed(call: Any) -> tuple[float, torch.Tensor]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    latent = call()  # arrives on the CPU, so the device has finished
    return time.perf_counter() - started, latent


def _decode_seconds(model: Model) -> float:
    """The whole video once, after one frame to warm up."""
    import comfy.model_management

    vae = random_vae(model)
    latent = torch.randn(1, *model.latent, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        vae.decode(latent[:, :, :1])
        seconds, _ = _timed(lambda: vae.decode(latent))
    comfy.model_management.unload_all_models()  # or its weights would count for the runs that follow
    return seconds

"""Tables of joint reuse for the documentation: latency, gate, parts, layer window and losses, one set per sampler.

Imports nothing that exists only inside the environment: the numbers are made by ``rows`` when they are measured.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .summary import SEPARATION, auc_cells, markdown

SAMPLERS = ("euler", "uni_pc")
# Beginning of the files' names -> what the headings add. The second plan was the default of the demo workflow before
# steps were held; on six layers its layer window is that of the defaults.
PLANS = {
    "": "",
    "steps4_": ", 4 steps",
    "steps8_": ", 8 steps",
    "steps50_": ", 50 steps",
    "nohold_": ", no step held (here *default* has hold_threshold 0 and the layer window 20-83 %)",
}
# Names of rows; the same as in ``variants`` and ``controls``, which need the environment (a test compares them).
DEFAULT, NOISE_FLOOR = "default", "another seed"
PARTS = ("latent only", "attention only", "joint")
GATE_OFF, ANY_DONOR, TEXT_ALONE = "gate off", "gate and region limit off", "text similarity alone"
WINDOW = ("no layer window", "layer window", "window residual")

LEGEND = """**Columns.** *hit rate*: requests whose result need not be KSampler's; methods without donors act on every
request. *assists*: those of them without a donor; *sparse*: hits whose attention followed connectivity. *s*: mean
seconds of the sampling node (DiT) and with decoding by the VAE (e2e), on hits and over all requests, misses included.
*x*: the same as speed-up over KSampler on the same requests, median over hits. *right*: share of the prompt's
attributes that the scorer finds in the hits' videos; *kept*: of those that KSampler shows. *unsafe*: hits that lost an
attribute which KSampler shows; *at most*: one-sided 90 % Clopper-Pearson bound on that rate. *PSNR*, *SSIM*: against
KSampler's clip where nothing was computed, both decoded by the linear codec, so that a pixel depends on one latent
cell; a method without a region is read where the default settings replay. *PSNR whole*: over the whole clip. *work*:
model evaluations of a hit relative to a dense run's, in arithmetic. Every request ran once by KSampler and by
each method, each with its own store; misses were checked to be KSampler's latent bit for bit."""

SPEED = (
    ("DiT s, hits", "dit_seconds_hit"),
    ("e2e s, hits", "e2e_seconds_hit"),
    ("DiT s, all", "dit_seconds_all"),
    ("e2e s, all", "e2e_seconds_all"),
    ("DiT x, hits", "dit_speedup_hit"),
    ("e2e x, hits", "e2e_speedup_hit"),
    ("e2e x, all", "e2e_speedup_all"),
)
SPEED_OF_HITS = SPEED[:2] + SPEED[4:6]
QUALITY = (
    ("right", "attributes_right"),
    ("kept", "attributes_kept"),
    ("unsafe", "unsafe_hits"),
    ("rate", "unsafe_rate"),
    ("at most", "unsafe_upper"),
)
FIDELITY = (("PSNR", "psnr"), ("SSIM", "ssim"), ("PSNR whole", "psnr_whole"), ("work", "work"))
SPARSE = (("assists", "assist_rate"), ("sparse", "sparse_rate"))
COUNTS = (("requests", "n_requests"), ("hit rate", "hit_rate"))

Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """One comparison: the file that quality is read from and the one that speed is; often the same."""

    quality: dict[str, Any]
    speed: dict[str, Any]

    @classmethod
    def load(cls, folder: Path, what: str, sampler: str, plan: str = "") -> Measured | None:
        """Quality from the GPU's file, for it holds more requests; speed from a CPU's that had one server only."""
        middle = plan + (what if sampler == "euler" else f"{what}_{sampler}")
        found = {}
        for device in ("gpu", "cpu"):
            path = folder / f"demo_{middle}_{device}.json"
            if path.is_file():
                found[device] = json.loads(path.read_text(encoding="utf-8"))
        if not found:
            return None
        quality = found.get("gpu") or found["cpu"]
        cpu = found.get("cpu")
        return cls(quality, cpu if cpu and cpu["servers"] == 1 else quality)

    def names(self) -> list[str]:
        return [row["variant"] for row in self.quality["rows"]]

    def lines(self, names: Sequence[str], columns: Sequence, fast: Sequence, on_hits: bool = False) -> list[Row]:
        """One line per method: ``columns`` from the quality file, then ``fast`` from the speed file."""
        quality, speed = _rows(self.quality, on_hits), _rows(self.speed, on_hits)
        empty: Row = {}
        return [
            {
                "": name,
                **{title: quality[name][key] for title, key in columns},
                **{title: speed.get(name, empty).get(key) for title, key in fast},
            }
            for name in names
            if name in quality
        ]

    @property
    def stock(self) -> str:
        return self.quality["stock"]["variant"]

    def origin(self) -> str:
        if self.quality is self.speed:
            return _origin(self.quality)
        return (
            f"Quality: {_origin(self.quality)} Speed: {_origin(self.speed)} "
            f"{self.speed['stock']['n_requests']} of the requests, so that means of seconds are those of that sample."
        )


def _rows(result: dict[str, Any], on_hits: bool) -> dict[str, Row]:
    ending = "_on_default_hits" if on_hits else ""
    return {row["variant"]: row for row in [result[f"stock{ending}"], *result[f"rows{ending}"]]}


def _origin(result: dict[str, Any]) -> str:
    shared = f"; {result['servers']} servers shared the device, so each was slower than alone"
    return (
        f"`{result['command']}`, commit {result['commit'][:9]}, {result['device']}, {result['date']}"
        f"{shared if result['servers'] > 1 else ''}."
    )


def sections(folder: Path) -> list[str]:
    """Everything that was measured on the stream *report*, as Markdown."""
    parts = []
    for (plan, suffix), sampler in itertools.product(PLANS.items(), SAMPLERS):
        ablation, controls = (Measured.load(folder, what, sampler, plan) for what in ("ablation", "controls"))
        if ablation:
            parts += [_title(f"Joint reuse and its parts{suffix}", sampler, ablation), *_of_ablation(ablation)]
        if controls:
            parts += [_title(f"Controls{suffix}", sampler, controls), *_of_controls(controls)]
    pictures = [
        f"![Speed-up against attributes kept](../benchmarks/results/{picture.name})\n"
        for picture in sorted(folder.glob("demo_*_cpu.png"))
    ]
    return [f"# Comparisons on the stream report\n\n{LEGEND}\n", *pictures, *parts] if parts else []


def _title(title: str, sampler: str, measured: Measured) -> str:
    return f"## {title}, {sampler}\n\n{measured.origin()}\n"


def _of_ablation(measured: Measured) -> list[str]:
    window = [DEFAULT, *(name for name in measured.names() if name.startswith(WINDOW))]
    gate = (DEFAULT, GATE_OFF, ANY_DONOR, TEXT_ALONE, NOISE_FLOOR)
    told = {*gate[1:], *window[1:], *PARTS}
    parts = [DEFAULT, *PARTS, *(name for name in measured.names() if name not in told and name != DEFAULT), NOISE_FLOOR]
    found = [
        *_latency(measured, [measured.stock, DEFAULT, *PARTS, NOISE_FLOOR]),
        _gate(measured, gate),
        _table("Parts", measured.lines(parts, COUNTS + SPARSE + QUALITY + FIDELITY, SPEED_OF_HITS + SPEED[-1:])),
        _table("Layer window", measured.lines(window, COUNTS + QUALITY + FIDELITY, SPEED_OF_HITS + SPEED[-1:])),
        _losses(measured, [*gate[:-1], *PARTS, NOISE_FLOOR]),
    ]
    if "separation" in measured.quality:
        found.append(_table("Early states", auc_cells(measured.quality["separation"]), SEPARATION))
    return found


def _of_controls(measured: Measured) -> list[str]:
    names = measured.names()
    chosen = "\n".join(f"* {name}: {why}" for name, why in measured.quality["tuning"].items())
    return [
        *_latency(measured, [measured.stock, *names]),
        _losses(measured, names),
        f"Values, chosen before steps were held:\n\n{chosen}\n",
    ]


def _latency(measured: Measured, names: Sequence[str]) -> list[str]:
    """Over all requests, and on those that the default settings accept: there all methods serve the same."""
    accepted = measured.quality["stock_on_default_hits"]["n_requests"]
    return [
        _table("Latency and quality, all requests", measured.lines(names, COUNTS + QUALITY, SPEED)),
        _table(
            f"Latency and quality, the {accepted} requests that the default settings accept",
            measured.lines(names, COUNTS[1:] + QUALITY + FIDELITY, SPEED_OF_HITS, on_hits=True),
        ),
    ]


def _losses(measured: Measured, names: Sequence[str]) -> str:
    def cell(value: Any) -> Any:
        return f"{value['unsafe']}/{value['hits']} ({value['upper']:.1%})" if isinstance(value, dict) else value

    by_name = {line["variant"]: line for line in measured.quality["losses"]}
    lines = [{name: cell(value) for name, value in by_name[name].items()} for name in names if name in by_name]
    return _table("Losses by kind of edit", lines, "Unsafe hits of all hits, with the bound on their rate.")


def _gate(measured: Measured, names: Sequence[str]) -> str:
    lines, note = measured.lines(names, COUNTS + QUALITY, ()), ""
    matched = measured.quality.get("text_at_equal_acceptance")
    if matched:
        lines.insert(-1, {"": matched["variant"], **{title: matched[key] for title, key in COUNTS + QUALITY}})
        note = (
            f"*{matched['variant']}*: of the runs with gate and region limit off the nearest texts, as many as the "
            f"default settings accept (similarity {measured.quality['matching_text_similarity'] or 0:.4f} and above)."
        )
    return _table("Gate", lines, note)


def _table(title: str, lines: list[Row], note: str = "") -> str:
    return f"### {title}\n\n" + (f"{note}\n\n" if note else "") + f"{markdown(lines)}\n"

"""Writes the tables and pictures of the documentation from the JSON files under ``results/``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import certificate_tables, e2e_tables, plot
from .joint_tables import sections
from .summary import markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DEMO_WORLD = ROOT / "demo" / "results" / "demo_world.json"
DOCS = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
KERNELS = RESULTS / "h200_kernels.json"
DEFAULT_DENSITY = 0.5
READING = ROOT / "benchmarks" / "reading.md"
START, END = "<!-- benchmarks:start -->", "<!-- benchmarks:end -->"

INTRODUCTION = """# Benchmarks

Made by `python3 scripts/bench.py tables` from the files under `benchmarks/results/`; do not edit by hand.

**Data.** The demo world (`demo/README.md`): an 8-million-parameter Wan 2.1 trained on synthetic scenes, 256×256×17, CFG
5, 20 steps unless a heading says otherwise. Thresholds were chosen on the stream *tune* and are reported on the stream
*report*; exact repeats of an earlier request are left out. Nothing here was measured on released Wan weights.

**Columns.** *right*, *stock_right*: share of the prompt's attributes that the scorer finds in the video of the hits
and in KSampler's video for the same prompts. *unsafe*: hits that lost an attribute which stock shows. *region*: median
share of the video computed, averaged over the reuse steps. *speedup*: median over hits of KSampler's seconds over ours
for the sampling node, both in one server, in alternating order.
"""

SUMMARY_NAMES = {
    "requests": "requests",
    "hits": "hits",
    "hit_share_of_variations": "hits among variations",
    "right_on_hits": "attributes right on hits",
    "stock_right_on_hits": "the same, KSampler",
    "unsafe_hits": "unsafe hits",
    "unsafe_share": "unsafe share",
    "median_hit_speedup": "median speed-up of hits",
    "workload_speedup": "speed-up of the whole stream, misses included",
    "own_share_of_a_miss": "share of a miss's time spent inside Carnator",
}


def section(title: str, result: dict[str, Any]) -> str:
    summary = [{"": SUMMARY_NAMES[name], "value": value} for name, value in result["summary"].items()]
    origin = f"`{result['command']}`, commit {result['commit'][:9]}, {result['device']}, {result['date']}"
    if result["servers"] > 1:
        origin += f". {result['servers']} servers shared the device, so each was slower than alone"
    note = f"{result['note']}\n\n" if "note" in result else ""
    return f"## {title}\n\n{origin}.\n\n{note}{markdown(summary)}\n\n{markdown(result['by_kind'])}\n"


def reading() -> str:
    """What a person should take from the comparisons; written by hand, see the tables for the numbers."""
    return READING.read_text(encoding="utf-8")


def demo_world() -> str:
    """Dense generation of the demo model: what every other table is compared with."""
    result = json.loads(DEMO_WORLD.read_text(encoding="utf-8"))
    floor = result["noise_floor"]
    rows = [
        {"share right": "dense generation", **result["dense_accuracy"]},
        {"share right": "same prompts, other seed", **floor["other_seed_accuracy"]},
    ]
    vae = result["vae_psnr_db"]
    return (
        f"## The demo model itself\n\n`{result['command']}`, {result['device']}, {result['date']}: "
        f"{result['prompts']} held-out scenes, decoded by the VAE and read by the scorer.\n\n{markdown(rows)}\n\n"
        f"Noise floor, dense against dense with another seed: {floor['kept']:.1%} of the attributes are kept and "
        f"{floor['pairs_losing_one']:.1%} of the pairs lose at least one. VAE on held-out clips: {vae['decoder']} dB "
        f"(linear codec {vae['linear_codec']} dB); the file holds a decoder only.\n"
    )


def attention_kernels() -> str:
    """Rates of the attention kernels, one table per model size."""
    result = json.loads(KERNELS.read_text(encoding="utf-8"))
    parts = [
        "## Attention kernels\n\n"
        f"`{result['command']}`, commit {result['commit'][:9]}, {result['device']}, "
        f"torch {result['torch']}, {result['date']}. bf16, head dim 128, blocks of 128 tokens, random masks with the "
        "diagonal kept, inputs as the model hands them over. TFLOP/s count the kept blocks only; every number follows "
        "a check against float64 in the same run. *rows*: share of the queries (a region's rows against all keys).\n"
    ]
    for size in dict.fromkeys(row["size"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["size"] == size]
        lines: dict[tuple[float, str], dict[str, Any]] = {}
        for row in rows:
            if "tflops" in row:
                key = row["rows"], row["kernel"]
                line = lines.setdefault(key, {"TFLOP/s": row["kernel"], "rows": f"{row['rows']:.0%}"})
                line[f"density {round(row['density'], 1):g}"] = f"{row['tflops']:.0f}"
        names = list(dict.fromkeys(name for line in lines.values() for name in line))
        names = names[:2] + sorted(names[2:])
        table = markdown([{name: line.get(name, "–") for name in names} for line in lines.values()])
        mass = next(row for row in rows if row["kernel"] == "block mass")
        parts.append(f"### {size}\n\n{table}\n\nExact block mass of one layer: {mass['ms']:.1f} ms.\n")
    return "\n".join(parts)


def short() -> str:
    """The few numbers of the README: quality from the GPU's run, speed from the sample on a CPU."""
    quality = json.loads((RESULTS / "demo_ablation_gpu.json").read_text(encoding="utf-8"))
    speed = json.loads((RESULTS / "demo_ablation_cpu.json").read_text(encoding="utf-8"))
    timed = {row["variant"]: row for row in speed["rows"]}
    lines = [
        {
            "demo world, stream *report*, euler, 20 steps": name,
            "requests": row["n_requests"],
            "hits and assists": f"{row['hit_rate']:.0%}",
            "attributes right (KSampler)": f"{row['attributes_right']:.1%} ({row['stock_attributes']:.1%})",
            "lost an attribute": f"{row['unsafe_hits']} ({row['unsafe_rate']:.1%})",
            "work of them": f"{row['work']:.0%}",
            "speed-up of them, CPU": timed[name]["dit_speedup_hit"],
            "all requests, misses and decoding included": timed[name]["e2e_speedup_all"],
        }
        for row in quality["rows"]
        for name in [row["variant"]]
        if name in ("default", "assist")
    ]
    sample = f"Speed: {speed['stock']['n_requests']} of the requests on two CPU cores."
    return f"{markdown(lines)}\n\n{sample} {e2e_tables.in_short(RESULTS, DEFAULT_DENSITY)}"


def write_tables() -> None:
    """Rewrite docs/benchmarks.md and the table of the README."""
    results = {}
    for device in ("cpu", "gpu"):
        path = RESULTS / f"demo_report_{device}.json"
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            results[result["device"]] = result
    title = "Stream report before steps were held"
    reports = [section(f"{title}, {device}", result) for device, result in results.items()]
    joint = sections(RESULTS)
    plot.speed_by_region(e2e_tables.load(RESULTS), RESULTS)
    large = e2e_tables.sections(RESULTS)
    certificate = certificate_tables.sections(RESULTS)
    parts = [INTRODUCTION, demo_world(), *certificate, *joint, reading(), *large, attention_kernels(), *reports]
    DOCS.write_text("\n".join(parts), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(START)
    README.write_text(f"{before}{START}\n{short()}\n{END}{rest.split(END)[1]}", encoding="utf-8")

"""Tables of whole runs at full size for the documentation. Imports nothing that exists only inside the environment."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from .summary import markdown

LEGEND = """# Full size, random weights

Whole runs of uni_pc at CFG 5 in ComfyUI's sampler, text encoding left out. Weights are random and the region is a box
of the given share, so this is speed only; every miss was checked to be the stock latent. **Columns.** *seconds*: of
the sampling node, to its latent on the CPU; *with decoding*: speed-up with the whole video decoded by a VAE of the real
size; *inside Carnator*: share of the seconds in our own code (recall, gate, loading, replay) outside the host's calls;
*peak* and *extra GPU memory*: allocated, and by how much more than by the stock run."""
HELD = "hold"


def load(folder: Path) -> list[dict[str, Any]]:
    """Every result there, the runs with the most steps of a model first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("h200_e2e_*.json"))]
    return sorted(found, key=lambda result: (result["model"], -result["steps"]))


def hits(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of hits, each with the region that was asked for, which older files say in its name alone."""
    rows = [row for row in result["rows"] if row["what"].startswith("hit")]
    return [{"asked_region": float(re.search(r"region (\d+)%", row["what"])[1]) / 100, **row} for row in rows]


def is_sweep(result: dict[str, Any]) -> bool:
    """Whether hits were measured at several regions and several densities."""
    return all(len({row[name] for row in hits(result)}) > 1 for name in ("asked_region", "density"))


def sections(folder: Path) -> list[str]:
    """Everything that was measured at full size, as Markdown."""
    found = load(folder)
    pictures = [f"![Speed-up by region and density](../benchmarks/results/{p.name})\n" for p in pictures_of(folder)]
    return [f"{LEGEND}\n", *pictures, *map(_section, found)] if found else []


def pictures_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("h200_e2e_*.png"))


def _section(result: dict[str, Any]) -> str:
    """One file: where it comes from, what a sweep says at a glance, and every run."""
    parts = [f"## {result['model']}, {result['steps']} steps\n", f"{_origin(result)}\n"]
    if is_sweep(result):
        parts += ["Speed-up of hits:\n", f"{markdown(_grid(result))}\n"]
    return "\n".join([*parts, f"{markdown(_lines(result))}\n"])


def _origin(result: dict[str, Any]) -> str:
    calls = result.get("calls") or [{"command": result["command"], "date": result["date"]}]
    commands = [f"`{command}`{_times(len(list(same)))}" for command, same in groupby(c["command"] for c in calls)]
    skips = ", ".join(map(str, result.get("easycache_skips", [])))
    cached = f", and the evaluations that core's own EasyCache skips: {skips}" if skips else ""
    patterns = (
        f" What depends on values is taken from the demo model at {result['steps']} steps (`patterns_cpu.json`, "
        f"euler): which steps are held{cached}."
        if result.get("change")
        else ""
    )
    note = f" {result['note']}" if "note" in result else ""
    where = f"commit {result['commit'][:9]}, {result['device']}, torch {result['torch']}, {calls[-1]['date']}"
    return f"{' and '.join(commands)}, {where}.{patterns}{note}"


def _times(count: int) -> str:
    return f" ({count} calls)" if count > 1 else ""


def _grid(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One line per region, one column per density; of several hold thresholds the highest."""
    lines: dict[float, dict[str, Any]] = {}
    for row in sorted(hits(result), key=lambda row: (row["asked_region"], row["density"], row[HELD])):
        line = lines.setdefault(row["asked_region"], {"region": f"{row['asked_region']:.0%}"})
        line[f"density {row['density']:g}"] = f"{row['speedup']:.2f}"
    columns = sorted({name for line in lines.values() for name in line} - {"region"})
    return [{name: line.get(name, "–") for name in ("region", *columns)} for line in lines.values()]


def _lines(result: dict[str, Any]) -> list[dict[str, Any]]:
    cached = next((row["seconds"] for row in result["rows"] if row["what"].startswith("EasyCache, ")), None)
    columns = ["run", "seconds", "speed-up", "with decoding"]
    columns += ["over EasyCache"] if cached else []
    columns += ["inside Carnator", "peak GPU memory, GB"]
    columns += ["extra"] if any("extra_gb" in row for row in result["rows"]) else []
    lines = []
    for row in result["rows"]:
        told = {"run": row["what"], "seconds": "declined"}
        if "seconds" in row:
            told |= {
                "seconds": f"{row['seconds']:.1f}",
                "speed-up": row["speedup"],
                "with decoding": row["speedup_with_decode"],
                "over EasyCache": round(cached / row["seconds"], 2) if cached else None,
                "inside Carnator": f"{row['own_share']:.1%}" if "own_share" in row else None,
                "peak GPU memory, GB": row.get("peak_gb"),
                "extra": row.get("extra_gb"),
            }
        lines.append({name: told.get(name) for name in columns})
    return lines


def in_short(folder: Path, density: float) -> str:
    """One sentence for the README, of the longest runs of the first model: hits at the default density."""
    found = next(result for result in load(folder) if result["model"].startswith("Wan2.2-5B"))
    chosen = [row for row in hits(found) if row["density"] == density]
    fastest, slowest = max(row["speedup"] for row in chosen), min(row["speedup"] for row in chosen)
    regions = sorted({row["asked_region"] for row in chosen})
    low, high = (f"{100 * share:.0f}" for share in (regions[0], regions[-1]))
    where = f"of {low} and {high} %" if len(regions) == 2 else f"from {low} to {high} %"
    return (
        f"Full size, {found['model']}, random weights, {found['steps']} steps on an {found['device']}: hits take "
        f"{slowest:.1f} to {fastest:.1f} times less time than the stock sampler at regions {where} (speed "
        "only; a uni_pc run in which as many steps are held as the demo model holds with euler)."
    )

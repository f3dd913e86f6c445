"""Pictures of results: speed-up against attributes kept and against the region's share, risk against coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.testbed.console import say

from .e2e_tables import hits, is_sweep


def write_plot(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draws the rows that have hits to a PNG. Says so and goes on where matplotlib is missing."""
    figure = _figure(11, 8)
    if figure is None:
        return
    axes = figure.add_subplot()
    shown = [row for row in rows if row["attributes_kept"] is not None]
    for number, row in enumerate(shown):
        # Ten colours and five marks tell up to fifty variants apart.
        style = {
            "color": f"C{number}",
            "marker": "os^vD"[number // 10 % 5],
            "s": 20 + 120 * row["hit_rate"],
            "alpha": 0.7,
        }
        axes.scatter(row["dit_speedup_hit"], 100 * row["attributes_kept"], label=row["variant"], **style)
    if shown:
        figure.legend(loc="outside right upper", fontsize=7)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("speed-up of the sampling node on hits, median")
    axes.set_ylabel("attributes kept on hits, %")
    axes.set_title(f"{title} (size of a point: hit rate)", fontsize=10)
    figure.savefig(path, dpi=120)
    say(f"written: {path}")


def speed_by_region(results: list[dict[str, Any]], folder: Path) -> None:
    """One PNG per model that was swept: a line per density and number of steps."""
    results = [result for result in results if is_sweep(result)]
    for model in dict.fromkeys(result["model"] for result in results):
        swept = [result for result in results if result["model"] == model]
        densities = sorted({row["density"] for result in swept for row in hits(result)})
        figure = _figure(8, 5.5)
        if figure is None:
            return
        axes = figure.add_subplot()
        for result, style in zip(swept, ("-", "--", ":"), strict=False):
            for density in sorted({row["density"] for row in hits(result)}):
                rows = sorted(
                    (row["asked_region"], row["speedup"]) for row in hits(result) if row["density"] == density
                )
                attention = "dense attention" if density == 1 else f"density {density:g}"
                label = f"{result['steps']} steps, {attention}"
                axes.plot(
                    *zip(*rows, strict=True), style, color=f"C{densities.index(density)}", marker="o", label=label
                )
        axes.set_xlabel("region: share of the video that a hit computes itself")
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_ylabel("speed-up over the stock sampler")
        axes.set_ylim(bottom=1.0)
        axes.set_title(f"{model}, {swept[0]['device']}, random weights", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        path = folder / f"h200_e2e_{model.split(',')[0].split('-')[-1].lower()}.png"
        figure.savefig(path, dpi=120)
        say(f"written: {path}")


def write_risk_plot(result: dict[str, Any], title: str, path: Path) -> None:
    """Draws risk against coverage for every score, with what was certified, to a PNG; says so where it cannot."""
    figure = _figure(11, 8)
    if figure is None:
        return
    axes = figure.add_subplot()
    for line in [line for line in result["curves"] if line["points"]]:
        covered, risk = ([100 * value for value in values] for values in zip(*line["points"], strict=True))
        axes.step(covered, risk, where="post", label=line["score"], linewidth=1.2)
    for name, found, mark in (("certified", result["certified"], "o"), ("fresh clusters", result["fresh"], "s")):
        if found and found["rate"] is not None:
            rate, bound = 100 * found["rate"], 100 * found["bound"]
            axes.errorbar(100 * found["coverage"], rate, yerr=[[0], [bound - rate]], marker=mark, capsize=4,
                          color="black", label=f"{name}, with its bound")  # fmt: skip
    axes.axhline(100 * result["delta"], color="grey", linewidth=0.8, linestyle="--")
    axes.set_xlabel("coverage: accepted clusters, %")
    axes.set_ylabel("unsafe among the accepted, %")
    axes.set_ylim(0, min(100, 200 * result["delta"]))  # the first few accepted can be any share of unsafe ones
    axes.legend(fontsize=8)
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=120)
    say(f"written: {path}")


def _figure(width: float, height: float) -> Any:
    """An empty one, or None where matplotlib is missing, which is told."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say("no plot: matplotlib is not installed here (the tables do not need it)")
        return None
    return Figure(figsize=(width, height), layout="constrained")

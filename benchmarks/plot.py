"""Pictures of results: speed-up against attributes kept, and risk against coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.testbed.console import say


def write_plot(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draws the rows that have hits to a PNG. Says so and goes on where matplotlib is missing."""
    figure = _figure()
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


def write_risk_plot(result: dict[str, Any], title: str, path: Path) -> None:
    """Draws risk against coverage for every score, with what was certified, to a PNG; says so where it cannot."""
    figure = _figure()
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
    axes.set_ylim(0, min(100, 400 * result["delta"]))  # the first few accepted can be any share of unsafe ones
    axes.legend(fontsize=8)
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=120)
    say(f"written: {path}")


def _figure() -> Any:
    """An empty figure, or None, which is told, where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say("no plot: matplotlib is not installed here (the tables do not need it)")
        return None
    return Figure(figsize=(11, 8), layout="constrained")

"""Speed-up against attributes kept, one point per variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.testbed.console import say


def write_plot(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draws the rows that have hits to a PNG. Says so and goes on where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say("no plot: matplotlib is not installed here (the tables do not need it)")
        return
    figure = Figure(figsize=(11, 8), layout="constrained")
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

"""The demo's results as a table for people and one JSON object for programs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .runs import Row

FAMILIES = ("representation", "residual", "dynamics", "state")
COLUMNS = (
    "request",
    "decision",
    *FAMILIES,
    "region",
    "sampling s",
    "KSampler",
    "speed-up",
    "whole run s",
    "KSampler",
    "right",
    "KSampler",
)


def table(rows: Sequence[Row]) -> str:
    """One line per request, the reason below it. Discrepancies stand before their thresholds; * is above."""
    lines = [_cells(row) for row in rows]
    widths = [max(len(line[i]) for line in [COLUMNS, *lines]) for i in range(len(COLUMNS))]

    def join(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )

    header = join(COLUMNS)
    text = [header, "-" * len(header)]
    for row, cells in zip(rows, lines, strict=True):
        text += [join(cells), f"    “{row.request.prompt}”", f"    {row.report['reason']}"]
    return "\n".join(text)


def summary(rows: Sequence[Row], off_identical: bool) -> dict[str, Any]:
    speedups = [row.speedup for row in rows if row.decision == "hit"]
    dense = [row for row in rows if row.decision != "hit"]
    return {
        "requests": [_request(row) for row in rows],
        "off_bit_identical": off_identical,
        "miss_bit_identical": bool(dense) and all(row.identical for row in dense),
        "median_hit_speedup": round(statistics.median(speedups), 3) if speedups else None,
    }


def _request(row: Row) -> dict[str, Any]:
    discrepancies = row.report["discrepancies"] or {}
    return {
        "prompt": row.request.prompt,
        "decision": row.decision,
        "reason": row.report["reason"],
        "discrepancies": {family: discrepancies.get(family) for family in FAMILIES},
        "region_share": row.report["region_share"],
        "seconds": round(row.ours.seconds, 3),
        "stock_seconds": round(row.stock.seconds, 3),
        "speedup": round(row.speedup, 3),
        "attributes_right": sum(row.right.values()),
        "attributes_total": len(row.right),
        "stock_attributes_right": sum(row.stock_right.values()),
    }


def _cells(row: Row) -> list[str]:
    share = row.report["region_share"]
    return [
        row.request.label,
        row.decision,
        *(_discrepancy(row.report, family) for family in FAMILIES),
        "-" if share is None else f"{share:.0%}",
        f"{row.ours.seconds:.2f}",
        f"{row.stock.seconds:.2f}",
        f"{row.speedup:.2f}×" if row.decision == "hit" else "-",  # two dense runs differ by chance alone
        f"{row.ours.total_seconds:.1f}",
        f"{row.stock.total_seconds:.1f}",
        _right(row.right),
        _right(row.stock_right),
    ]


def _discrepancy(report: dict[str, Any], family: str) -> str:
    value = (report["discrepancies"] or {}).get(family)
    threshold = (report["thresholds"] or {}).get(family)
    if value is None or threshold is None:
        return "-"
    return f"{value:.3f}/{threshold:g}{'*' if value > threshold else ''}"


def _right(scores: dict[str, bool]) -> str:
    return f"{sum(scores.values())}/{len(scores)}"

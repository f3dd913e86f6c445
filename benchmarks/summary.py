"""Tables over the records of a stream run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

Record = dict[str, Any]

SEPARATION = """How well early states tell safe from unsafe reuse: AUC of each discrepancy, of the gate's score (the
largest discrepancy over its threshold) and of the text's cosine, with a 90 % bootstrap interval, over the hits with
gate and region limit off. Within one kind of edit, local against global edits no longer help:"""

# Decisions whose result need not be the stock one.
SERVED = ("hit", "assist")

LOCAL_KINDS = ("shape", "colour", "size", "motion")


def lost(record: Record) -> list[str]:
    """Attributes that stock shows and reuse does not."""
    return [name for name, right in record["stock_attributes"].items() if right and not record["attributes"][name]]


def is_unsafe(record: Record) -> bool:
    return bool(lost(record))


def share(items: Iterable[bool]) -> float:
    values = list(items)
    return sum(values) / len(values) if values else math.nan


def upper_bound(events: int, trials: int, confidence: float = 0.9) -> float:
    """One-sided Clopper-Pearson bound: the rate at which no more than so many events would be that improbable."""
    if not trials:
        return math.nan
    if events == trials:
        return 1.0
    from scipy.stats import beta  # only the environment has it

    return float(beta.ppf(confidence, events + 1, trials - events))


def right_share(records: list[Record], field: str) -> float:
    return share(right for r in records for right in r[field].values())


def row(name: str, records: list[Record]) -> dict[str, Any]:
    """One line of the table by kind of edit."""
    hits = [r for r in records if r["decision"] in SERVED]

    def middle(value: Callable[[Record], float]) -> float | None:
        return round(median(map(value, hits)), 3) if hits else None

    return {
        "kind": name,
        "requests": len(records),
        "hits": len(hits),
        "right": round(right_share(hits, "attributes"), 4) if hits else None,
        "stock_right": round(right_share(hits, "stock_attributes"), 4) if hits else None,
        "unsafe": sum(map(is_unsafe, hits)),
        "region": middle(lambda r: r["region_share"]),
        "speedup": middle(lambda r: r["stock_seconds"] / r["seconds"]),
    }


def by_kind(records: list[Record]) -> list[dict[str, Any]]:
    kinds = list(dict.fromkeys(r["kind"] for r in records))
    rows = [row(kind, [r for r in records if r["kind"] == kind]) for kind in kinds]
    rows.append(row("local edits", [r for r in records if r["kind"] in LOCAL_KINDS]))
    rows.append(row("all", records))
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """A GitHub table; floats keep three digits, missing values are a dash."""

    def cell(value: Any) -> str:
        return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)

    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(r[name]) for name in head) + " |" for r in rows]
    return "\n".join(lines)


def comparison_tables(result: dict[str, Any]) -> str:
    """What ``rows.summarise`` found, as Markdown for the screen; ``joint_tables`` has those of the documentation."""
    shown = ("variant", "n_requests", "hit_rate", "dit_speedup_hit", "e2e_speedup_hit", "e2e_speedup_all",
             "attributes_kept", "stock_attributes", "unsafe_rate", "unsafe_upper", "work", "psnr_whole", "psnr",
             "ssim")  # fmt: skip

    def table(rows: list[dict[str, Any]]) -> str:
        return markdown([{name: row[name] for name in shown} for row in rows])

    parts = ["Every request:", table(result["rows"])]
    parts += ["On the requests that the default settings accept:", table(result["rows_on_default_hits"])]
    if "separation" in result:
        parts += [SEPARATION, markdown(auc_cells(result["separation"]))]
    return "\n\n".join(parts) + "\n"


def auc_cells(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of ``separation.separation`` with each AUC and its interval as text, for ``markdown``."""

    def cell(value: Any) -> Any:
        return f"{value['auc']:.2f} ({value['low']:.2f}–{value['high']:.2f})" if isinstance(value, dict) else value

    return [{name: cell(value) for name, value in row.items()} for row in rows]

"""What the records of a comparison say: one row for each method."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from demo.grammar import ATTRIBUTES

from .separation import GATE_SCORE, TEXT, matching_similarity, overall, separation
from .summary import LOCAL_KINDS, SERVED, Record, is_unsafe, lost, right_share, upper_bound
from .variants import ANY_DONOR, DEFAULT

KSAMPLER = "KSampler"
# What the last line of ``bench.py ... --json`` holds of each row.
JSON_FIELDS = (
    "variant", "n_requests", "hit_rate", "dit_speedup_hit", "e2e_speedup_hit", "e2e_speedup_all", "attributes_kept",
    "stock_attributes", "unsafe_rate",
)  # fmt: skip


def flat(records: list[dict[str, Any]], method: str) -> list[Record]:
    """One method's runs as the records that ``summary`` reads. ``seconds`` are those of the sampling node."""

    def right(names: list[str]) -> dict[str, bool]:
        return {name: name not in names for name in ATTRIBUTES}

    shared = ("id", "kind", "stock_seconds", "decode_seconds")
    return [
        {
            **{name: record[name] for name in shared},
            **record["runs"][method],
            "attributes": right(record["runs"][method]["wrong"]),
            "stock_attributes": right(record["stock_wrong"]),
        }
        for record in records
    ]


def stock_runs(records: list[dict[str, Any]]) -> list[Record]:
    """The stock sampler as if it were a method: the line that all others are compared with."""
    runs = [{"decision": "hit", "seconds": r["stock_seconds"], "wrong": r["stock_wrong"]} for r in records]
    return flat([{**r, "runs": {KSAMPLER: run}} for r, run in zip(records, runs, strict=True)], KSAMPLER)


def row(name: str, records: list[Record]) -> dict[str, Any]:
    """One line of the table. A hit is a request whose result need not be the stock one, an assist among them,
    and ``sparse_rate`` the share of hits whose attention followed connectivity.

    Speed-ups of hits are medians, that of all is stock's seconds over the method's, misses included; seconds are means.
    ``dit`` is the sampling node alone, ``e2e`` adds decoding by the stock VAE. ``attributes_kept``: of the attributes
    that stock shows for the hits' prompts, the share that the method shows too; ``stock_attributes`` and
    ``attributes_right``: the share of the prompt's that stock and the method show. ``unsafe_upper``: see
    ``summary.upper_bound``. ``psnr`` and ``ssim``: means against stock over the hits that replay anything, where they
    do; a method without a region is read where the default settings replay. ``psnr_whole``: over the hits' whole
    videos. ``work``: the hits' model evaluations relative to a dense run's, where a method says it.
    """
    hits = [r for r in records if r["decision"] in SERVED]

    def of_hits(value: Callable[[], float]) -> float | None:
        return round(value(), 4) if hits else None

    def of_all(value: Callable[[], float]) -> float | None:
        return round(value(), 4) if records else None

    def e2e(seconds: str, of: list[Record]) -> list[float]:
        return [r[seconds] + r["decode_seconds"] for r in of]

    def faster(stock: list[float], ours: list[float]) -> float:
        return median(s / o for s, o in zip(stock, ours, strict=True))

    def mean(measure: str) -> float | None:
        values = [r[measure] for r in hits if r.get(measure) is not None]
        return round(fmean(values), 4) if values else None

    shown = sum(sum(r["stock_attributes"].values()) for r in hits)
    unsafe = sum(map(is_unsafe, hits))
    return {
        "variant": name,
        "n_requests": len(records),
        "hit_rate": of_all(lambda: len(hits) / len(records)),
        "assist_rate": of_all(lambda: sum(r["decision"] == "assist" for r in hits) / len(records)),
        "sparse_rate": of_hits(lambda: sum(is_sparse(r) for r in hits) / len(hits)),
        "dit_seconds_hit": of_hits(lambda: fmean(r["seconds"] for r in hits)),
        "e2e_seconds_hit": of_hits(lambda: fmean(e2e("seconds", hits))),
        "dit_seconds_all": of_all(lambda: fmean(r["seconds"] for r in records)),
        "e2e_seconds_all": of_all(lambda: fmean(e2e("seconds", records))),
        "dit_speedup_hit": of_hits(lambda: faster([r["stock_seconds"] for r in hits], [r["seconds"] for r in hits])),
        "e2e_speedup_hit": of_hits(lambda: faster(e2e("stock_seconds", hits), e2e("seconds", hits))),
        "e2e_speedup_all": of_all(lambda: sum(e2e("stock_seconds", records)) / sum(e2e("seconds", records))),
        "attributes_kept": of_hits(lambda: 1 - sum(len(lost(r)) for r in hits) / max(1, shown)),
        "attributes_right": of_hits(lambda: right_share(hits, "attributes")),
        "stock_attributes": of_hits(lambda: right_share(hits, "stock_attributes")),
        "unsafe_hits": unsafe,
        "unsafe_rate": of_hits(lambda: unsafe / len(hits)),
        "unsafe_upper": of_hits(lambda: upper_bound(unsafe, len(hits))),
        "work": mean("work"),
        "psnr_whole": mean("psnr_whole"),
        "psnr": mean("psnr"),
        "ssim": mean("ssim"),
    }


def is_sparse(record: Record) -> bool:
    """Whether a hit's reuse steps attended by connectivity: they cannot before any is stored."""
    return not record.get("attention", "dense").startswith("dense")


def losses(name: str, records: list[Record]) -> dict[str, Any]:
    """Per kind of edit: unsafe hits, hits, and the bound on the rate; null where nothing hit."""
    hits = [r for r in records if r["decision"] in SERVED]
    groups = {kind: [r for r in hits if r["kind"] == kind] for kind in dict.fromkeys(r["kind"] for r in records)}
    groups |= {"local edits": [r for r in hits if r["kind"] in LOCAL_KINDS], "all": hits}

    def cell(members: list[Record]) -> dict[str, Any] | None:
        unsafe = sum(map(is_unsafe, members))
        bound = upper_bound(unsafe, len(members))
        return {"unsafe": unsafe, "hits": len(members), "upper": round(bound, 4)} if members else None

    return {"variant": name, **{kind: cell(members) for kind, members in groups.items()}}


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The tables over the records of ``comparison.measure``, which hold at least one request.

    ``rows_on_default_hits`` compares all methods on the very requests that the default settings accept, and
    ``text_at_equal_acceptance`` tells of as many hits as they have, those with the nearest texts, read off the runs in
    which nothing refused a donor: only its losses mean something, its seconds do not.
    """
    runs = {name: flat(records, name) for name in records[0]["runs"] if was_itself(records, name)}
    accepted = {r["id"] for r in runs[DEFAULT] if r["decision"] == "hit"}

    def rows(of: dict[str, list[Record]]) -> list[dict[str, Any]]:
        return [row(name, found) for name, found in of.items()]

    def on_default_hits(found: list[Record]) -> list[Record]:
        return [r for r in found if r["id"] in accepted]

    stock = stock_runs(records)
    result: dict[str, Any] = {
        "rows": rows(runs),
        "rows_on_default_hits": rows({name: on_default_hits(found) for name, found in runs.items()}),
        "stock": row(KSAMPLER, stock),
        "stock_on_default_hits": row(KSAMPLER, on_default_hits(stock)),
        "losses": [losses(name, found) for name, found in runs.items()],
        "signature_auc": None,
        "text_auc": None,
    }
    if ANY_DONOR in runs:
        found = separation(runs[ANY_DONOR])
        similarities = [r["similarity"] if r["decision"] == "hit" else None for r in runs[ANY_DONOR]]
        result |= {
            "separation": found,
            "signature_auc": overall(found, GATE_SCORE),
            "text_auc": overall(found, TEXT),
            "matching_text_similarity": matching_similarity(similarities, len(accepted)),
        }
        result["text_at_equal_acceptance"] = row(
            "text similarity, as many hits", _by_text(runs[ANY_DONOR], result["matching_text_similarity"])
        )
    return result


def _by_text(records: list[Record], threshold: float | None) -> list[Record]:
    """Runs in which nothing refused a donor, as if one below this text similarity had been refused."""

    def refused(record: Record) -> bool:
        return record["decision"] == "hit" and (threshold is None or record["similarity"] < threshold)

    return [{**r, "decision": "miss"} if refused(r) else r for r in records]


def was_itself(records: list[dict[str, Any]], method: str) -> bool:
    """False for random masks that nobody asked for: its hits attended by something else."""
    runs = [r["runs"][method] for r in records]
    drawn = [run["masks_drawn"] for run in runs if "masks_drawn" in run]
    return not drawn or any(drawn) or all(run["decision"] not in SERVED for run in runs)


def last_line(result: dict[str, Any]) -> dict[str, Any]:
    """What ``--json`` ends with."""
    rows = [{name: row[name] for name in JSON_FIELDS} for row in result["rows"]]
    return {"rows": rows, "signature_auc": result["signature_auc"], "text_auc": result["text_auc"]}

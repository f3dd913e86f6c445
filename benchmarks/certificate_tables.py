"""Tables of the certificate for the documentation and the screen, from its result.

Imports nothing that exists only inside the environment: ``bench.py tables`` runs anywhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .summary import markdown

# Beginning of the files' names -> what the headings add.
NAMES = {
    "certificate": "",
    "certificate_fp32": ", float32 weights",
    "certificate_fp32_bolder": ", a bolder plan",
    "certificate_fp32_boldest": ", a plan that is too bold",
}

RULE = """*Unsafe*: an attribute is lost that KSampler's video clearly shows (the scorer gives it at least 0.9) and the
reused one does not (another value is as likely or likelier); *plain*: the same without a margin, as in the other
tables. *at most*: one-sided exact bound on the rate at 90 % confidence. Every cluster is one base request and one
variation of it on a noise seed of its own; kinds of variation have the streams' shares. The gate was open when clusters
were labelled; *labelled* are those that the rules of region and saving let through, and *coverage* is of all clusters.
Every gate here stands behind those two rules, that by text too, and a request has one stored request to choose from.
Labels come from many servers on one device at once: seconds and speed-ups here are no measure of speed."""


def sections(folder: Path) -> list[str]:
    """The certificates for the documentation, if there are any: a GPU's before a CPU's, for it has more clusters."""
    parts = []
    for name, suffix in NAMES.items():
        paths = [folder / f"{name}_{device}.json" for device in ("gpu", "cpu")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        picture = path.with_suffix(".png")
        told = [f"## Certificate of the gate{suffix}", _origin(result)]
        if parts:  # the simulation is of the procedure, not of these labels
            result["simulation"] = None
        else:
            told.append(RULE)
        parts += ["\n\n".join(told) + "\n", tables(result)]
        if picture.is_file():
            parts.append(f"![Risk against coverage](../benchmarks/results/{picture.name})\n")
    return parts


def tables(result: dict[str, Any]) -> str:
    """Everything, as Markdown; what could not be measured is left out and the sentence says why."""
    parts = [result["sentence"], "**Certification** (the paper's Table 5)", markdown(_certification(result))]
    parts += ["**Gates on the same clusters** (the paper's Table 2)", markdown(_gates(result))]
    parts += ["**By kind of edit**", markdown(_kinds(result))]
    if result["compared"]:
        parts += [
            "**Coverage at equal observed risk**, the certificate's score against text similarity, both behind the "
            "rules of region and saving; difference with its 90 % bootstrap interval over clusters",
            markdown(_compared(result["compared"])),
            "The same for the gate as it is without a certificate: its score is the largest discrepancy in units of "
            "its default threshold",
            markdown(_compared(result["compared_defaults"])),
        ]
    if result["floors"]:
        parts += [
            "**Floors**: dense runs of the same requests against KSampler's, by the same rule; *same*: bit for bit",
            markdown(_floors(result)),
        ]
    if result["simulation"]:
        parts += [
            f"**Is the stated confidence true?** {result['simulation']['repetitions']} simulated calibrations of 400 "
            "clusters each, in worlds whose risk is known, by the code that makes certificates. *false*: the true risk "
            "of what is accepted is above 5 %; that may happen in 10 % of the calibrations. *thresholds searched*: "
            "four thresholds chosen on the data that the bound is computed on.",
            markdown(_simulation(result)),
        ]
    return "\n\n".join(parts) + "\n"


def _origin(result: dict[str, Any]) -> str:
    labels = result["labels"]
    sets = ", ".join(f"{labels[name]} {name}" for name in ("development", "certification", "fresh"))
    commits = ", ".join(dict.fromkeys(run["commit"][:9] for run in labels["runs"]))
    shared = f"; {result['servers']} servers shared the device" if result["servers"] > 1 else ""
    return (
        f"`{result['command']}`, commit {result['commit'][:9]}, {result['device']}, {result['date']}{shared}. "
        f"Clusters: {sets} (labelled at commit {commits}); {result['steps']} steps, {result['sampler']}"
        f"{_widgets(result)}."
    )


def _widgets(result: dict[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in result.get("widgets", {}).items())


def _certification(result: dict[str, Any]) -> list[dict[str, Any]]:
    chosen = result["certificate"]
    rows = []
    if chosen:
        rows.append(_certified("certified score", _score(chosen), result["certified"]))
    if result["certified_text"]:
        threshold = f"similarity ≥ {result['certified_text']['least_similarity']:.4f}"
        rows.append(_certified("text similarity alone, certified alike", threshold, result["certified_text"]))
    if result["fresh"]:
        rows.append(_certified("the certified score on fresh clusters", "", result["fresh"]))
    return rows or [{"": "nothing was certified"}]


def _certified(name: str, threshold: str, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "": name,
        "accepts": threshold,
        "coverage": _percent(row["coverage"]),
        "accepted n": row["accepted"],
        "unsafe u": row["unsafe"],
        "empirical risk": _percent(row["rate"]),
        "at most": _percent(row["bound"]),
    }


def _score(certificate: dict[str, Any]) -> str:
    """For example: 0.5 log representation + 0.5 log state < -3; representation <= 0.1, state <= 0.2."""
    limit, weights = certificate["limit"], certificate["weights"]
    score = " + ".join(f"{weight:.2g} log {family}" for family, weight in weights.items())
    guards = ", ".join(f"{family} ≤ {guard:.3g}" for family, guard in certificate["guards"].items())
    return guards if limit is None else f"{score} < {limit:.3g}; {guards}"


def _gates(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "": row["gate"],
            "hit rate": _percent(row["coverage"]),
            "kept": _percent(row["kept"]),
            "unsafe": row["unsafe"],
            "rate": _percent(row["rate"]),
            "at most": _percent(row["bound"]),
            "plain": row["unsafe_plainly"],
            "lost − gained": f"{row['lost']} − {row['gained']}",
            "work": row["work"],
            "e2e s, hits": row["seconds_with_decode"],
            "e2e x, hits": row["speedup_with_decode"],
        }
        for row in result["gates"]
    ]


def _kinds(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "kind": row["kind"],
            "clusters": row["clusters"],
            "labelled": row["labelled"],
            "unsafe of them": row["unsafe_labelled"],
            "accepted": row["accepted"],
            "coverage": _percent(row["coverage"]),
            "unsafe": row["unsafe"],
            "at most": _percent(row["bound"]),
            "lost − gained": f"{row['lost']} − {row['gained']}",
        }
        for row in result["by_kind"]
    ]


def _compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per kind, one group of columns per risk."""
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["kind"], {"kind": row["kind"], "clusters": row["clusters"]})
        both = f"{row['gate']:.1%} / {row['text']:.1%}"
        line[f"risk {row['risk']:.0%}: score / text"] = both
        line[f"difference at {row['risk']:.0%}"] = f"{row['difference']:+.1%} ({row['low']:+.1%} to {row['high']:+.1%})"
    return list(lines.values())


def _floors(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "": row["floor"],
            "clusters": row["clusters"],
            "unsafe": row["unsafe"],
            "rate": _percent(row["rate"]),
            "at most": _percent(row["bound"]),
            "plain": row["unsafe_plainly"],
            "lost − gained": f"{row['lost']} − {row['gained']}",
            "same": row["same"],
        }
        for row in result["floors"]
    ]


def _simulation(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "world": row["world"],
            "procedure": row["procedure"],
            **{name: _percent(row[name]) for name in ("certified", "false", "coverage")},
        }
        for row in result["simulation"]["rows"]
    ]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.2%}"

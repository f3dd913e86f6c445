"""The certificate of the gate on the demo world, measured through real servers.

A certificate is made only of whole sets: looking at a part and then going on would be another test than the one whose
confidence is stated.
"""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carnator_core.certificate import Certificate
from carnator_core.certificate_file import written
from carnator_core.certificate_shelf import SHIPPED
from scripts.testbed.bootstrap import Install
from scripts.testbed.console import Stop, say
from scripts.testbed.environment import ROOT

from . import plot
from .arguments import DELTA
from .certificate_analysis import (
    CONFIDENCE,
    Labels,
    as_many,
    by_kind,
    certified_by,
    compared,
    curves,
    decode_seconds,
    floor_row,
    row,
)
from .certificate_simulation import most_that_may_be_false, validity
from .certificate_stages import Stages
from .certificate_tables import tables
from .certifying import Outcome, as_data, certify_labels, kept
from .clusters import CERTIFICATION, DEVELOPMENT
from .comparison import to_json
from .label_file import LabelFile
from .labelling import FLOORS
from .scoring import make_scorer
from .serving import provenance, result_file
from .shown import CLEAR

REPETITIONS = 10_000  # a standard error of 0.3 % where one in ten may be false
NAIVE = "thresholds searched"
# What ``--json`` ends with.
JSON_FIELDS = (
    "delta", "confidence", "n_accepted", "unsafe", "bound", "coverage", "text_only_coverage", "fresh_n", "fresh_unsafe",
    "simulated_false_rate", "naive_false_rate",
)  # fmt: skip


def run(install: Install, options: Namespace, device: str) -> int:
    out = result_file(options, _name(options))
    head = provenance(options, device)
    bound = {**{name: getattr(options, name) for name in ("steps", "sampler", "scoring", "fp32")}, "clear": CLEAR}
    bound |= {"widgets": options.widgets} if options.widgets else {}
    install.scratch.mkdir(exist_ok=True)
    scorer = make_scorer(options.scoring, install.comfyui, ROOT)
    path = options.labels or out.with_suffix(".labels.jsonl")
    with closing(LabelFile(path, bound, head)) as labels, Stages(install, options, scorer, labels) as stages:
        stages.label()
        outcome = certified(stages, options.delta, out.with_suffix(".certificate.json"))
        if outcome is not None:
            if outcome.certificate is not None:
                stages.serve_fresh(outcome.certificate)
            stages.measure_floors()
            result = {**head, **bound, "servers": options.servers, "threads": torch.get_num_threads()}
            result |= analysed(stages, outcome, options.delta)
            result["labels"]["runs"] = [{name: r[name] for name in ("command", "commit", "date")} for r in labels.runs]
            result["device"] = labels.runs[-1]["device"]  # a start that only looks at them may be on another one
    say(f"labels: {path}")
    if outcome is None:
        result = dict.fromkeys(JSON_FIELDS) | {"delta": options.delta, "confidence": CONFIDENCE}
    else:
        result["simulation"] = simulated()
        lines = {name: value for name, value in result.items() if name != "curves"}
        out.write_text(to_json(lines, result["curves"], "curves"), encoding="utf-8")
        print("\n" + tables(result))
        say(f"written: {out}")
        plot.write_risk_plot(result, f"certificate, {result['device']}, {options.sampler}", out.with_suffix(".png"))
        if options.ship:
            ship(outcome.certificate, options)
    if options.json:
        print(json.dumps(last_line(result)))
    return 0


def _name(options: Namespace) -> str:
    """Quick runs and those with another sampler have names that the tables of the docs leave out."""
    parts = ["certificate"]
    parts += [options.sampler] if options.sampler != "euler" else []
    parts += ["fp32"] if options.fp32 else []
    parts += ["bolder"] if options.widgets else []
    parts += ["quick"] if options.quick else []
    return "_".join(parts)


def certified(stages: Stages, delta: float, path: Path) -> Outcome | None:
    """None, which is told, while labels are missing."""
    for name in (DEVELOPMENT, CERTIFICATION):
        have, asked = len(stages.labels(name)), len(stages.clusters[name])
        if have < asked:
            say(
                f"{have} of {asked} {name} clusters are labelled: the same command goes on; nothing is concluded before"
            )
            return None
    outcome = certify_labels(Labels(stages.labels(DEVELOPMENT)), Labels(stages.labels(CERTIFICATION)), delta)
    say(outcome.sentence)
    if outcome.certificate is None:
        return outcome
    return replace(outcome, certificate=kept(outcome.certificate, path))


def analysed(stages: Stages, outcome: Outcome, delta: float) -> dict[str, Any]:
    """Everything that the tables show, as plain data."""
    labels, certificate = Labels(stages.labels(CERTIFICATION)), outcome.certificate
    decode = decode_seconds([record for name in stages.clusters for record in stages.labels(name)])
    alone, accepted = certified_by(labels.by_text, delta, CONFIDENCE), outcome.accepted
    ours = labels.by_gate if outcome.score is None else outcome.score
    gates = [
        row("text-level retrieval, no gate", labels, labels.labelled, decode),
        row("default thresholds", labels, labels.by_gate.score <= 1.0, decode),
        row("text similarity alone, certified alike", labels, alone, decode),
    ]
    if certificate is not None:
        same = as_many(labels.by_text, certificate.accepted)
        gates += [
            row("text similarity alone, as many hits", labels, same, decode),
            row("certified score", labels, accepted, decode),
        ]
    fresh = Labels([] if certificate is None else stages.fresh(certificate))
    floors = [floor_row(name, stages.floors(name), labels) for name in FLOORS]
    return {
        "delta": delta,
        "confidence": CONFIDENCE,
        "sentence": outcome.sentence,
        "labels": {name: len(stages.labels(name)) for name in stages.clusters},
        "certificate": certificate and as_data(certificate),
        "certified": gates[-1] if certificate is not None else None,
        "certified_text": _by_text(gates[2], labels.by_text.score[alone]) if alone.any() else None,
        "fresh": row("certified score, fresh clusters", fresh, fresh.labelled, decode) if len(fresh) else None,
        "gates": gates,
        "by_kind": by_kind(labels, accepted),
        "compared": compared(labels, ours),
        "compared_defaults": compared(labels, labels.by_gate),
        "curves": curves({"early states": ours, "default thresholds": labels.by_gate, "text": labels.by_text}),
        "floors": [line for line in floors if line["clusters"]],
    }


def _by_text(line: dict[str, Any], distances: np.ndarray) -> dict[str, Any]:
    return {**line, "least_similarity": round(1.0 - float(distances.max()), 4)}


def simulated() -> dict[str, Any]:
    """How often a certificate is false in worlds whose risk is known, by the code that makes them; and by a naive way.

    Raises Stop if that is more often than the stated confidence allows.
    """
    found = validity(REPETITIONS)
    rows = [{"world": world, "procedure": how, **asdict(rates)} for (world, how), rates in found.items()]
    worst = {how: max(r["false"] for r in rows if r["procedure"] == how) for how in ("certificate", NAIVE)}
    if worst["certificate"] > most_that_may_be_false(REPETITIONS):
        told = f"a simulation finds {worst['certificate']:.1%} of the certificates false"
        raise Stop(f"{told}, which is too many at {CONFIDENCE:.0%}")
    return {
        "repetitions": REPETITIONS,
        "rows": rows,
        "simulated_false_rate": worst["certificate"],
        "naive_false_rate": worst[NAIVE],
    }


def last_line(result: dict[str, Any]) -> dict[str, Any]:
    """What ``--json`` ends with; null where there is no such number."""
    found = dict.fromkeys(JSON_FIELDS) | {name: result[name] for name in ("delta", "confidence")}
    certified, text, fresh = (result.get(name) for name in ("certified", "certified_text", "fresh"))
    if certified:
        found |= {"n_accepted": certified["accepted"], "bound": result["certificate"]["bound"]}
        found |= {name: certified[name] for name in ("unsafe", "coverage")}
        found["text_only_coverage"] = text["coverage"] if text else 0.0
    if fresh:
        found |= {"fresh_n": fresh["accepted"], "fresh_unsafe": fresh["unsafe"]}
    if result.get("simulation"):
        found |= {name: result["simulation"][name] for name in ("simulated_false_rate", "naive_false_rate")}
    return found


def ship(certificate: Certificate | None, options: Namespace) -> None:
    """Write the certificate where the pack finds it. Raises Stop if there is none, or none that may be shipped."""
    if certificate is None:
        raise Stop("there is no certificate to ship.")
    if options.quick or certificate.delta != DELTA:
        raise Stop(f"only a whole measurement at a rate of {DELTA:g} is shipped.")
    SHIPPED.mkdir(exist_ok=True)
    path = SHIPPED / f"demo_{options.sampler}_{options.steps}_steps{'_fp32' * options.fp32}.json"
    path.write_bytes(written(certificate))
    say(f"shipped: {path}")

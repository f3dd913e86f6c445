"""The certificate of the gate on the demo world, measured through real servers.

A certificate is made only of whole sets: looking at a part and then going on would be another test than the one whose
confidence is stated.
"""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from carnator_core.certificate import Certificate
from carnator_core.certificate_file import written
from scripts.testbed.bootstrap import Install
from scripts.testbed.console import say
from scripts.testbed.environment import ROOT

from . import plot
from .certificate_analysis import Labels, as_many, by_kind, certified_by, compared, curves, floor_row, row
from .certificate_stages import Stages
from .certificate_tables import tables
from .certifying import Outcome, as_data, certify_labels, kept
from .clusters import CERTIFICATION, DEVELOPMENT, FRESH
from .label_file import LabelFile
from .labelling import FLOORS
from .scoring import make_scorer
from .serving import provenance, result_file
from .shown import CLEAR

SHIPPED = ROOT / "carnator_core" / "certificates"
CONFIDENCE = 0.9
# What ``--json`` ends with.
JSON_FIELDS = (
    "delta", "confidence", "n_accepted", "unsafe", "bound", "coverage", "text_only_coverage", "fresh_n", "fresh_unsafe",
    "simulated_false_rate", "naive_false_rate",
)  # fmt: skip


def run(install: Install, options: Namespace, device: str) -> int:
    out = result_file(options, _name(options))
    head = provenance(options, device)
    bound = {"steps": options.steps, "sampler": options.sampler, "scoring": options.scoring, "device": device,
             "clear": CLEAR}  # fmt: skip
    install.scratch.mkdir(exist_ok=True)
    scorer = make_scorer(options.scoring, install.comfyui, ROOT)
    path = options.labels or out.with_suffix(".labels.jsonl")
    with closing(LabelFile(path, bound, head)) as labels, Stages(install, options, scorer, labels) as stages:
        stages.label()
        outcome = _certified(stages, options.delta, out.with_suffix(".certificate.json"))
        if outcome.certificate is not None:
            stages.serve_fresh(outcome.certificate)
        stages.precision_floor()
        result = {
            **head,
            **bound,
            "scoring": options.scoring,
            "servers": options.servers,
            "threads": torch.get_num_threads(),
            **analysed(stages, outcome, options.delta),
            "simulation": simulated(options.quick),
        }
        result["labels"]["runs"] = [{n: run[n] for n in ("command", "commit", "date")} for run in labels.runs]
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n" + tables(result))
    say(f"\nlabels: {path}\nwritten: {out}")
    plot.write_risk_plot(result, f"certificate, {device}, {options.sampler}", out.with_suffix(".png"))
    if options.ship:
        _ship(outcome, options)
    if options.json:
        print(json.dumps(last_line(result)))
    return 0

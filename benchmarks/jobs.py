"""Starts a server, runs one measurement in it and writes its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from scripts.testbed.bootstrap import Install
from scripts.testbed.console import Stop, say
from scripts.testbed.environment import ROOT
from scripts.testbed.server import ComfyServer, has_accelerator

from . import full_size, kernels, report, tune
from .scoring import LatentScorer, make_scorer
from .stream_run import StreamRunner, load_stream

RESULTS = ROOT / "benchmarks" / "results"

# The gate is open and every region is allowed, so that risk and cost of each threshold can be read off the records.
TUNE_SETTINGS = {
    f"region threshold {tau:g}": {"region_threshold": tau, "max_region_percent": 100} for tau in (0.15, 0.2, 0.3)
}


def run_job(install: Install, options: Namespace) -> int:
    device = torch.cuda.get_device_name() if has_accelerator() else "CPU"
    if options.what == "kernels":
        result, name = kernels.measure(), "kernels"
    elif options.what == "full_size":
        result = full_size.measure(install.comfyui, options.model, options.steps, options.regions)
        name = f"full_size_{options.model}"
    else:
        result, name = _run_stream(install, options, device), f"demo_{options.what}"
    out = options.out or RESULTS / f"{name}_{'gpu' if has_accelerator() else 'cpu'}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**_provenance(options, device), **result}, indent=1) + "\n", encoding="utf-8")
    say(f"\nwritten: {out}")
    return 0


def _run_stream(install: Install, options: Namespace, device: str) -> dict[str, Any]:
    requests = load_stream(options.what, options.clusters, options.skip)
    scorer = make_scorer(options.scoring, install.comfyui, ROOT)
    install.scratch.mkdir(exist_ok=True)
    say(f"{len(requests)} requests of the stream {options.what}, {options.steps} steps, on {device}")
    with ExitStack() as stack:
        with ThreadPoolExecutor(options.servers) as pool:
            runners = list(pool.map(lambda _: _start(install, stack, options.steps), range(options.servers)))
            # Loading the model counts for nobody.
            list(pool.map(lambda runner: runner.stock(requests[0]), runners))
        if options.what == "tune":
            result = _tune(options, runners[0], requests, scorer)
        else:
            result = report.measure(runners, requests, scorer, options.seconds)
    return {"steps": options.steps, "scoring": options.scoring, "threads": torch.get_num_threads(), **result}


def _start(install: Install, stack: ExitStack, steps: int) -> StreamRunner:
    base = stack.enter_context(tempfile.TemporaryDirectory(dir=install.scratch, prefix="bench-"))
    server = stack.enter_context(ComfyServer(install, Path(base), cpu=not has_accelerator()))
    return StreamRunner(server, steps)


def _tune(options: Namespace, runner: StreamRunner, requests: list, scorer: LatentScorer) -> dict:
    settings = json.loads(options.settings.read_text()) if options.settings else TUNE_SETTINGS
    dense = tune.dense_pass(runner, requests)
    differences = tune.differences(runner.server, requests, dense)
    say(tune.difference_table(differences))
    found = tune.variants(runner, requests, dense, scorer, settings)
    return {"settings": settings, "differences": differences, "records": found}


def _provenance(options: Namespace, device: str) -> dict[str, Any]:
    commit = options.commit
    if commit is None:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise Stop("give --commit: this folder has no git history to name the measured version")
        commit = done.stdout.strip()
    return {
        "command": " ".join(["python3", *sys.argv]),
        "commit": commit,
        "device": device,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }

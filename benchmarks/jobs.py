"""Starts a server, runs one measurement in it and writes its JSON."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from carnator_core.options import ReuseOptions
from scripts.testbed.bootstrap import Install
from scripts.testbed.console import Stop, say
from scripts.testbed.environment import ROOT
from scripts.testbed.server import has_accelerator

from . import certificate_job, comparison, controls, demo_patterns, gpu_e2e, kernels, plot, report, rows, tune, variants
from .arguments import CERTIFICATE, COMPARISONS
from .kept_result import KeptResult
from .scoring import LatentScorer, make_scorer
from .serving import RESULTS, provenance, result_file, start_all
from .stream_run import StreamRequest, StreamRunner, load_stream
from .summary import comparison_tables

PATTERNS, PATTERN_STEPS = RESULTS / "patterns_cpu.json", [20, 50]
QUICK_EDIT = "shape"  # nearly always a hit, and one that computes a region

# The gate is open and every region is allowed, so that risk and cost of each threshold can be read off the records.
TUNE_SETTINGS = {
    f"region threshold {tau:g}": {"region_threshold": tau, "max_region_percent": 100} for tau in (0.15, 0.2, 0.3)
}


def run_job(install: Install, options: Namespace) -> int:
    device = torch.cuda.get_device_name() if has_accelerator() else "CPU"
    if options.what in COMPARISONS:
        return _run_comparison(install, options, device)
    if options.what == "gpu_e2e":
        return _run_e2e(install, options, device)
    if options.what == CERTIFICATE:
        return certificate_job.run(install, options, device)
    if options.what == "kernels":
        result, name = kernels.measure(), "kernels"
    elif options.what == "patterns":
        result, name = demo_patterns.measure(install.comfyui, PATTERN_STEPS), "patterns"
    else:
        result, name = _run_stream(install, options, device), f"demo_{options.what}"
    out = result_file(options, name)
    out.write_text(json.dumps({**provenance(options, device), **result}, indent=1) + "\n", encoding="utf-8")
    say(f"\nwritten: {out}")
    return 0


def _run_e2e(install: Install, options: Namespace, device: str) -> int:
    """Written after every row; with --keep the next call goes on from there."""
    head, sweep = provenance(options, device), _sweep(options)
    call = {name: head.pop(name) for name in ("command", "date")}
    out, kept = result_file(options, f"e2e_{options.model}_{options.steps}"), options.keep
    result = KeptResult({**head, **sweep.head}, call, out, kept and kept / "result.json")
    gpu_e2e.measure(install.comfyui, sweep, result, kept and kept / "stores")
    say(f"\nwritten: {out}")
    return 0


def _sweep(options: Namespace) -> gpu_e2e.Sweep:
    """What depends on values comes from the demo model at the same number of steps, if that was measured."""
    found = json.loads(PATTERNS.read_text(encoding="utf-8")).get(str(options.steps), {}) if PATTERNS.exists() else {}
    holds = options.holds or [ReuseOptions().hold_threshold]
    return gpu_e2e.Sweep(
        options.model,
        options.steps,
        tuple(options.regions),
        tuple(options.densities),
        tuple(holds),
        () if options.no_easycache else tuple(found.get("easycache_skips", ())),
        tuple(found.get("change", ())),
        options.profile,
        options.seconds,
    )


def _run_comparison(install: Install, options: Namespace, device: str) -> int:
    """Ablation, controls or both on the same requests; written after every one, so that nothing is lost at the end."""
    requests, names = _planned(options)
    scorer = make_scorer(options.scoring, install.comfyui, ROOT)
    asked = {name: getattr(options, name) for name in ("stream", "sampler", "steps", "scoring")}
    asked |= {"servers": options.servers, "threads": torch.get_num_threads()}
    head = {**provenance(options, device), **asked, "tuning": controls.TUNING}
    install.scratch.mkdir(exist_ok=True)
    say(f"{len(requests)} requests of the stream {options.stream}, {len(names)} variants of each, on {device}")
    tables = [_Table(what, options, head, device) for what in _compared(options)]
    records: list[dict[str, Any]] = []
    with ExitStack() as stack:
        runners = start_all(install, stack, options, requests[0])

        def make_methods() -> list[comparison.Method]:
            return [method for method in all_methods(options) if method.name in names]

        for records in comparison.measure(runners, requests, make_methods, scorer, options.seconds):
            for table in tables:
                table.keep(records)
    if not records:
        raise Stop("no request was run: give it more --seconds.")
    for table in tables:
        table.finish(records, names)
    if options.json:
        print(json.dumps(rows.last_line(tables[0].result)))
    return 0


class _Table:
    """The file of one comparison and the summary in it."""

    def __init__(self, what: str, options: Namespace, head: dict[str, Any], device: str):
        self._title, self._head = f"{what}, {device}, {options.sampler}", head
        self._names = {method.name for method in methods_of(what, options.settings)}
        first = what == options.what
        self._out = result_file(options if first else Namespace(out=None), _comparison_name(options, what))
        if options.out and not first:
            self._out = options.out.with_name(self._out.name)
        self.result: dict[str, Any] = {}
        self._summary_due = 0.0

    def keep(self, records: list[dict[str, Any]]) -> None:
        mine = self._mine(records)
        if time.monotonic() >= self._summary_due:  # the servers' threads wait: a twentieth of the time at most
            started = time.monotonic()
            self.result = rows.summarise(mine)
            self._summary_due = time.monotonic() + 20 * (time.monotonic() - started)
        self._write(mine)

    def finish(self, records: list[dict[str, Any]], names: list[str]) -> None:
        mine = self._mine(records)
        self.result = rows.summarise(mine)
        self._write(mine)
        print("\n" + comparison_tables(self.result))
        for name in (set(names) & self._names) - {row["variant"] for row in self.result["rows"]}:
            say(f"left out, for its hits used no masks that could be drawn at random: {name}")
        say(f"\nwritten: {self._out}")
        plot.write_plot(self.result["rows"], self._title, self._out.with_suffix(".png"))

    def _mine(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**r, "runs": {n: run for n, run in r["runs"].items() if n in self._names}} for r in records]

    def _write(self, records: list[dict[str, Any]]) -> None:
        staged = self._out.with_suffix(".part")
        staged.write_text(comparison.to_json(self._head | self.result, records), encoding="utf-8")
        staged.replace(self._out)


def _compared(options: Namespace) -> tuple[str, ...]:
    return COMPARISONS if options.with_controls else (options.what,)


def all_methods(options: Namespace) -> list[comparison.Method]:
    """Methods of one server, each once."""
    found = [method for what in _compared(options) for method in methods_of(what, options.settings)]
    return list({method.name: method for method in found}.values())


def methods_of(what: str, settings: Path | None = None) -> list[comparison.Method]:
    """Every table of losses has its noise floor."""
    if what == "controls":
        return controls.make_controls()
    chosen = variants.ABLATION
    if settings:
        given = json.loads(settings.read_text(encoding="utf-8"))
        chosen = [variants.Ours(variants.DEFAULT), *(variants.Ours(name, widgets) for name, widgets in given.items())]
    return [*chosen, controls.AnotherSeed(controls.NOISE_FLOOR)]


def _planned(options: Namespace) -> tuple[list[StreamRequest], list[str]]:
    """Requests of a comparison and the names of its methods; the quick one has one edit behind its base."""
    requests = load_stream(options.stream, options.clusters, options.skip)
    names = [method.name for method in all_methods(options)]
    if options.quick:
        edit = next((r for r in requests if r.kind == QUICK_EDIT), None)
        if edit is None:
            raise Stop(f"there is no edit of the {QUICK_EDIT} in these clusters.")
        requests = [r for r in requests if r.id in (edit.base, edit.id)]
    wanted = options.variants or (_quick_names(options.what) if options.quick else names)
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise Stop(f"no variant is named {unknown[0]!r}; there are: {', '.join(names)}.")
    return requests, [name for name in names if name in (variants.DEFAULT, *wanted)]


def _quick_names(what: str) -> tuple[str, ...]:
    return variants.QUICK if what == "ablation" else controls.QUICK


def _comparison_name(options: Namespace, what: str) -> str:
    """Quick runs, those on *tune* and those of some variants have names that the tables of the docs leave out."""
    parts = ["demo", what]
    parts += [options.sampler] if options.sampler != "euler" else []
    parts += [options.stream] if options.stream != "report" else []
    parts += ["quick"] if options.quick else []
    parts += ["some"] if options.variants and not options.with_controls else []
    return "_".join(parts)


def _run_stream(install: Install, options: Namespace, device: str) -> dict[str, Any]:
    requests = load_stream(options.what, options.clusters, options.skip)
    scorer = make_scorer(options.scoring, install.comfyui, ROOT)
    install.scratch.mkdir(exist_ok=True)
    say(f"{len(requests)} requests of the stream {options.what}, {options.steps} steps, on {device}")
    with ExitStack() as stack:
        runners = start_all(install, stack, options, requests[0])
        if options.what == "tune":
            result = _tune(options, runners[0], requests, scorer)
        else:
            result = report.measure(runners, requests, scorer, options.seconds)
    return {"steps": options.steps, "scoring": options.scoring, "threads": torch.get_num_threads(), **result}


def _tune(options: Namespace, runner: StreamRunner, requests: list, scorer: LatentScorer) -> dict:
    settings = json.loads(options.settings.read_text()) if options.settings else TUNE_SETTINGS
    dense = tune.dense_pass(runner, requests)
    differences = tune.differences(runner.server, requests, dense)
    say(tune.difference_table(differences))
    found = tune.variants(runner, requests, dense, scorer, settings)
    return {"settings": settings, "differences": differences, "records": found}

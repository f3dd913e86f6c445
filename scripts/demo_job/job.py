"""The demo from an empty store to the table, the videos and the contact sheet."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from scripts.testbed.bootstrap import Install
from scripts.testbed.client import RunError
from scripts.testbed.console import Stop, say
from scripts.testbed.server import ComfyServer, ServerFailed, has_accelerator

from .report import summary, table
from .runs import Row, SeriesRunner, evidence_picture, find_donor
from .series import SERIES
from .sheet import Evidence, write_sheet


def run(install: Install, steps: int, out: Path, as_json: bool) -> None:
    out.mkdir(parents=True, exist_ok=True)
    install.scratch.mkdir(exist_ok=True)
    # A fresh base directory has an empty store, so the first request is a miss.
    with tempfile.TemporaryDirectory(dir=install.scratch, prefix="demo-") as base:
        server = ComfyServer(install, Path(base), cpu=not has_accelerator())
        try:
            rows, evidence, off_identical = _run_series(server, steps, out)
        except (ServerFailed, RunError) as error:
            raise Stop(f"{error} (ComfyUI's log: {out / 'server.log'})") from error
        finally:
            if server.base.log.exists():
                shutil.copyfile(server.base.log, out / "server.log")
    sheet = out / "contact_sheet.png"
    write_sheet(sheet, rows, [find_donor(row, rows) for row in rows], evidence)
    _print(rows, summary(rows, off_identical), sheet, as_json)


def _run_series(server: ComfyServer, steps: int, out: Path) -> tuple[list[Row], list[Evidence], bool]:
    say("Starting ComfyUI ...")
    with server:
        runner = SeriesRunner(server, steps, out)
        say(f"Running {len(SERIES)} requests of {steps} steps, each with Carnator and with KSampler:")
        rows = runner.run(SERIES)
        off_identical = runner.off_is_identical(rows[0])
        return rows, [evidence_picture(row, server) for row in rows], off_identical


LEGEND = """
representation, residual, dynamics, state: how far the request is from its donor, and the limit; * = above the limit
region: part of the video that was computed; the rest is the donor's.
sampling s, whole run s: seconds of the sampling node, and with decoding and saving too; measured once.
right: attributes of the prompt that the scorer finds in the video, of six. The demo model's own mistakes count in both.
"""


def _print(rows: list[Row], result: dict[str, Any], sheet: Path, as_json: bool) -> None:
    identical = {True: "yes", False: "NO"}
    print(table(rows))
    print(LEGEND)
    hits = sum(row.decision == "hit" for row in rows)
    median = result["median_hit_speedup"]
    print(f"Median speed-up of {hits} hits (sampling node): {f'{median:.2f}×' if median else 'no hit'}")
    ours, stock = (sum(one.seconds for one in runs) for runs in zip(*((r.ours, r.stock) for r in rows), strict=True))
    print(f"Whole session, misses included: {ours:.0f} s of sampling with Carnator, {stock:.0f} s without")
    print(f"Misses bit-identical to KSampler: {identical[result['miss_bit_identical']]}")
    print(f"Switched off bit-identical to KSampler: {identical[result['off_bit_identical']]}")
    print(f"Contact sheet: {sheet}; the videos lie beside it")
    if as_json:
        print(json.dumps(result))

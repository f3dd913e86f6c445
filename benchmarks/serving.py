"""Servers for a measurement, and what its result says about where it came from."""

from __future__ import annotations

import shutil
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
from scripts.testbed.console import Stop
from scripts.testbed.environment import ROOT
from scripts.testbed.server import ComfyServer, has_accelerator

from .arguments import COMPARISONS
from .stream_run import StreamRequest, StreamRunner

RESULTS = ROOT / "benchmarks" / "results"
OWN_NODES = ("own_input", "random_masks", "saved_mask")  # modules of this package that are custom nodes of its servers


def start_all(
    install: Install,
    stack: ExitStack,
    options: Namespace,
    first: StreamRequest,
    count: int | None = None,
    arguments: tuple[str, ...] = (),
) -> list[StreamRunner]:
    """Warm servers, as many as asked for or ``count``, each with a base folder of its own."""

    def start(_: int) -> StreamRunner:
        runner = _start(install, stack, options, arguments)
        runner.warm_up(first)
        return runner

    count = count or options.servers
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def _start(install: Install, stack: ExitStack, options: Namespace, arguments: tuple[str, ...]) -> StreamRunner:
    base = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=install.scratch, prefix="bench-")))
    (base / "custom_nodes").mkdir()
    for name in OWN_NODES:
        shutil.copy(Path(__file__).with_name(f"{name}.py"), base / "custom_nodes")
    server = stack.enter_context(ComfyServer(install, base, cpu=not has_accelerator(), arguments=arguments))
    return StreamRunner(server, options.steps, options.sampler or "euler", options.what in COMPARISONS)


def provenance(options: Namespace, device: str) -> dict[str, Any]:
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


def result_file(options: Namespace, name: str) -> Path:
    out = options.out or RESULTS / f"{name}_{'gpu' if has_accelerator() else 'cpu'}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    return out

"""How long recall and opening take in a store with many entries:  python3 -m benchmarks.store_scale

Needs the packages of the test environment and some 300 MB in the temporary folder; writes
benchmarks/results/store_scale.json. Every opening is one in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from carnator_core import recall
from carnator_core.identity import HardKey
from carnator_core.options import StoreOptions
from carnator_core.signature import build_signature
from carnator_core.store.entry import Entry, EntryInfo, Trajectory, write_entry
from carnator_core.store.folder import Store

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "store_scale.json"
WIDTH = 4096  # of Wan's text embeddings
SCENES = 100
RECALLS = 100
WORDING = 0.4  # norm of what tells two wordings of a scene apart, relative to the scene


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure[0]), options.measure[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), options.entries)
        result = {
            "command": "python3 -m benchmarks.store_scale",
            "entries": options.entries,
            "width": WIDTH,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "runs": {},
        }
        for name in ("no catalog yet", "faiss", "numpy"):
            result["runs"][name] = in_a_new_process(folder, name)
            print(name, json.dumps(result["runs"][name], indent=1), flush=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def in_a_new_process(folder: str, name: str) -> dict:
    command = [sys.executable, "-m", "benchmarks.store_scale", "--measure", folder, name]
    environ = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=environ, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def embedding(number: int) -> torch.Tensor:
    """Scenes at random, and wordings around them."""
    scene = torch.randn(WIDTH, generator=torch.Generator().manual_seed(number % SCENES))
    wording = torch.randn(WIDTH, generator=torch.Generator().manual_seed(SCENES + number))
    return torch.nn.functional.normalize(scene + WORDING * wording, dim=0)


def fill(root: Path, count: int) -> None:
    """Real entries with tiny volumes, half of them of one key. Without syncing: nothing here has to last."""
    entries = root / "default" / "entries"
    entries.mkdir(parents=True)
    volume = torch.randn(2, 2, 4, 4)
    signature = build_signature(volume, volume, volume, volume)
    trajectory = Trajectory({0: volume.half()}, {}, torch.ones(1))
    sync, os.fsync = os.fsync, lambda handle: None
    try:
        for number in range(count):
            key = HardKey.of({"seed": str(number % 2 * number), "CFG": "5.0"})
            info = EntryInfo(f"{number:032x}", key, time.time(), 60.0, None)
            (entries / info.id).mkdir()
            write_entry(entries / info.id, Entry(info, embedding(number), signature, trajectory))
    finally:
        os.fsync = sync


def measure(root: Path, name: str) -> dict:
    """Seconds of one opening and milliseconds of recalls in it."""
    import sqlalchemy  # noqa: F401 (ComfyUI has imported it long before)

    if name == "numpy":
        recall.EXACT_ROWS = 10**9
    key = HardKey.of({"seed": "0", "CFG": "5.0"})
    targets = [embedding(10**6 + number) for number in range(RECALLS)]
    started, cpu = time.perf_counter(), time.process_time()
    store = Store(root, StoreOptions(budget_gb=1000.0))
    opened = time.perf_counter() - started
    store.recall(key, targets[0], 4, "")
    ready, ready_cpu = time.perf_counter() - started, time.process_time() - cpu
    same, other = [], []
    for target in targets:
        started = time.perf_counter()
        store.recall(key, target, 4, "")
        same.append(1e3 * (time.perf_counter() - started))
        started = time.perf_counter()
        store.recall(HardKey.of({"seed": "none"}), target, 4, "")
        other.append(1e3 * (time.perf_counter() - started))
    return {
        "open_s": round(opened, 3),
        "open_and_first_recall_s": round(ready, 3),
        "open_and_first_recall_cpu_s": round(ready_cpu, 3),
        "recall_ms_median": round(statistics.median(same), 2),
        "recall_ms_max": round(max(same), 2),
        "recall_of_an_unknown_key_ms_median": round(statistics.median(other), 2),
        "same_four_as_exact": share_of_exact(store, key, targets),
    }


def share_of_exact(store: Store, key: HardKey, targets: list[torch.Tensor]) -> float:
    """Share of targets whose four nearest entries are those of a full float64 search."""
    infos = [info for info in store.entries() if info.key == key]
    matrix = torch.stack([embedding(int(info.id, 16)) for info in infos]).double()
    right = 0
    for target in targets:
        best = (matrix @ target.double()).topk(4).indices.tolist()
        found = [candidate.info.id for candidate in store.recall(key, target, 4, "").same_key]
        right += found == [infos[row].id for row in best]
    return right / len(targets)


if __name__ == "__main__":
    main()

"""Measures Carnator on the demo world, in a real ComfyUI.

bench.py tune     explores thresholds on the stream tune (look, then set defaults)
bench.py report   the table of the documentation, on the stream report
bench.py ablation  what each part of a hit gives: every request by the stock sampler and with each part changed
bench.py controls  the same with what else could save time: fewer steps, EasyCache, NIRVANA's start, any donor
                  (both with --quick: two requests, a few minutes on two cores; --variants NAME ...: only these;
                  --servers N: clusters shared out over N servers on one device, for quality rather than speed)
bench.py certificate  certifies the gate on independent clusters and tries it on fresh ones (--quick: the whole path in
                  some minutes, too few to certify; a long run may be cut: the same command goes on with its labels)
bench.py patterns  which steps EasyCache skips and how fast predictions change, for gpu_e2e
bench.py kernels  attention kernels beside their peers (needs a CUDA device)
bench.py gpu_e2e  whole runs of full-size Wan models with random weights (needs a CUDA device; --model tiny does not)
bench.py tables   writes the tables and pictures of the documentation from the result files
"""

import sys

if sys.version_info < (3, 10):
    sys.exit("Carnator needs Python 3.10 or newer; this is Python " + sys.version.split()[0] + ".")

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # in place of scripts/, where demo.py would hide the package demo

from benchmarks.arguments import parse
from scripts.testbed.bootstrap import enter
from scripts.testbed.console import run_main


def main() -> int:
    options = parse(__doc__)
    if options.what == "tables":
        from benchmarks.tables import write_tables

        write_tables()
        return 0
    install = enter(options.comfyui, options.python)

    from benchmarks.jobs import run_job  # only here: torch and the rest exist inside the environment

    return run_job(install, options)


if __name__ == "__main__":
    run_main(main)

"""Measures Carnator on the demo world, in a real ComfyUI.

bench.py tune     explores thresholds on the stream tune (look, then set defaults)
bench.py report   the table of the documentation, on the stream report
bench.py kernels  attention kernels beside their peers (needs a CUDA device)
bench.py full_size  whole runs of full-size Wan models with random weights (needs a CUDA device)
bench.py tables   writes the tables of the documentation from the result files
"""

import sys

if sys.version_info < (3, 10):
    sys.exit("Carnator needs Python 3.10 or newer; this is Python " + sys.version.split()[0] + ".")

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # in place of scripts/, where demo.py would hide the package demo

from scripts.testbed.bootstrap import add_arguments, enter
from scripts.testbed.console import run_main


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "report", "kernels", "full_size", "tables"))
    parser.add_argument("--clusters", type=int, help="only N clusters of the stream")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first N clusters")
    parser.add_argument("--scoring", choices=("vae", "codec"), default="vae", help="what decodes videos for the scorer")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/demo_WHAT_DEVICE.json)")
    parser.add_argument("--seconds", type=float, help="report: start no further cluster after this time")
    parser.add_argument("--servers", type=int, default=1, help="report: servers that share the clusters")
    parser.add_argument("--settings", type=Path, help="tune: JSON of name -> sampler widgets")
    parser.add_argument("--model", choices=("5b", "14b"), default="5b", help="full_size: which model")
    parser.add_argument("--regions", type=float, nargs="+", default=[0.05, 0.15, 0.3, 0.6], help="full_size: shares")
    parser.add_argument("--commit", help="state this commit in the results (default: asks git)")
    add_arguments(parser)
    options = parser.parse_args()
    if options.what == "tables":
        from benchmarks.tables import write_tables

        write_tables()
        return 0
    install = enter(options.comfyui, options.python)

    from benchmarks.jobs import run_job  # only here: torch and the rest exist inside the environment

    return run_job(install, options)


if __name__ == "__main__":
    run_main(main)

"""Runs a series of prompts in a real ComfyUI and shows what Carnator reused, refused and saved.

Makes its environment on the first start. Every prompt also runs through KSampler, in the same server.
"""

import sys

if sys.version_info < (3, 10):
    sys.exit("Carnator needs Python 3.10 or newer; this is Python " + sys.version.split()[0] + ".")

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # in place of scripts/, where this file would hide the package demo

from scripts.testbed.bootstrap import add_arguments, enter
from scripts.testbed.console import run_main

STEPS = 20
QUICK_STEPS = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps instead of {STEPS}")
    parser.add_argument("--steps", type=int, help="any other number of steps")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder for videos and the sheet")
    add_arguments(parser)
    options = parser.parse_args()
    install = enter(options.comfyui, options.python)
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)

    from scripts.demo_job.job import run  # only here: torch and the rest exist inside the environment

    run(install, steps, options.out, options.json)
    return 0


if __name__ == "__main__":
    run_main(main)

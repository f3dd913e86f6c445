"""The command line of ``scripts/bench.py``. Imports nothing that exists only inside the environment."""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts.testbed.bootstrap import add_arguments

COMPARISONS = ("ablation", "controls")
WHAT = ("tune", "report", *COMPARISONS, "kernels", "patterns", "gpu_e2e", "tables")


def parse(description: str, arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of one measurement; ends the program with a sentence where they make no sense."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--clusters", type=int, help="only N clusters of the stream")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first N clusters")
    parser.add_argument("--scoring", choices=("vae", "codec"), default="vae", help="what decodes videos for the scorer")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/demo_WHAT_DEVICE.json)")
    parser.add_argument("--seconds", type=float, help="after this time start no further request or run")
    parser.add_argument("--servers", type=int, default=1, help="servers that share the clusters (not: tune)")
    parser.add_argument("--settings", type=Path, help="tune, ablation: JSON of name -> sampler widgets")
    whole = parser.add_argument_group("gpu_e2e")
    whole.add_argument("--model", choices=("5b", "14b", "tiny"), default="5b", help="tiny also runs on a CPU")
    whole.add_argument("--regions", type=float, nargs="+", default=[0.05, 0.15, 0.3, 0.6], help="shares")
    whole.add_argument("--densities", type=float, nargs="+", default=[1.0], help="of attention; 1 is dense")
    whole.add_argument("--holds", type=float, nargs="+", help="hold thresholds (default: the shipped one)")
    whole.add_argument("--no-easycache", action="store_true", help="leave EasyCache out")
    whole.add_argument("--profile", action="store_true", help="profile one region step and one check")
    whole.add_argument("--keep", type=Path, metavar="FOLDER", help="keep donor and rows there, and go on from them")
    parser.add_argument("--commit", help="state this commit in the results (default: asks git)")
    comparison = parser.add_argument_group("ablation and controls")
    comparison.add_argument("--stream", choices=("tune", "report"), help="which stream (default: report)")
    comparison.add_argument("--sampler", choices=("euler", "uni_pc"), help="sampler of all runs (default: euler)")
    comparison.add_argument("--quick", action="store_true", help="5 variants, 2 requests, scored through the codec")
    comparison.add_argument("--variants", nargs="+", metavar="NAME", help="only these variants, and the default")
    comparison.add_argument("--with-controls", action="store_true", help="ablation: controls on the same requests too")
    comparison.add_argument("--json", action="store_true", help="end with one line of JSON")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.what in COMPARISONS:
        options.stream, options.sampler = options.stream or "report", options.sampler or "euler"
        if options.quick:
            options.scoring = "codec"
    else:
        for name in ("stream", "sampler", "quick", "variants", "json"):
            if getattr(options, name):
                parser.error(f"--{name} belongs to {' and '.join(COMPARISONS)}")
    return options

"""The command line of ``scripts/bench.py``. Imports nothing that exists only inside the environment."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scripts.testbed.bootstrap import add_arguments

COMPARISONS = ("ablation", "controls")
CERTIFICATE = "certificate"
WHAT = ("tune", "report", *COMPARISONS, CERTIFICATE, "kernels", "patterns", "gpu_e2e", "tables")
# Options that only some measurements have.
BELONGS_TO = {
    **dict.fromkeys(("stream", "variants"), COMPARISONS),
    **dict.fromkeys(("sampler", "quick", "json"), (*COMPARISONS, CERTIFICATE)),
    **dict.fromkeys(("fresh", "development", "floors", "labels", "delta", "fp32", "ship", "widgets"), (CERTIFICATE,)),
}
# Clusters of a certificate: of the set that certifies, the fresh ones, those for development, those with floors.
FULL = {"clusters": 1000, "fresh": 500, "development": 300, "floors": 200}
QUICK = {"clusters": 4, "fresh": 1, "development": 2, "floors": 1}
DELTA = 0.05


def parse(description: str, arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of one measurement; ends the program with a sentence where they make no sense."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--clusters", type=int, help="only N clusters of the stream; certificate: N clusters (1000)")
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
    comparison = parser.add_argument_group("ablation and controls; --sampler, --quick and --json: certificate too")
    comparison.add_argument("--stream", choices=("tune", "report"), help="which stream (default: report)")
    comparison.add_argument("--sampler", choices=("euler", "uni_pc"), help="sampler of all runs (default: euler)")
    comparison.add_argument("--quick", action="store_true", help="5 variants, 2 requests, scored through the codec "
                            "(certificate: too few clusters to certify anything, but the whole path)")  # fmt: skip
    comparison.add_argument("--variants", nargs="+", metavar="NAME", help="only these variants, and the default")
    comparison.add_argument("--with-controls", action="store_true", help="ablation: controls on the same requests too")
    comparison.add_argument("--json", action="store_true", help="end with one line of JSON")
    certificate = parser.add_argument_group("certificate")
    certificate.add_argument("--fresh", type=int, help="clusters that are used for nothing else (500)")
    certificate.add_argument("--development", type=int, help="clusters for the direction and the guards (300)")
    certificate.add_argument("--floors", type=int, help="clusters with dense runs that differ by chance (200)")
    certificate.add_argument("--labels", type=Path, help="file of labels to go on with (default: beside the result)")
    certificate.add_argument("--delta", type=float, help=f"unsafe rate to certify (default: {DELTA})")
    certificate.add_argument(
        "--fp32", action="store_true", help="float32 weights, as on a CPU: it then speaks of those too"
    )
    certificate.add_argument(
        "--widgets", type=json.loads, metavar="JSON", help="of the sampling node: what the gate is worth elsewhere"
    )
    certificate.add_argument("--ship", action="store_true", help="write the certificate into the pack")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    for name, owners in BELONGS_TO.items():
        if options.what not in owners and getattr(options, name) not in (None, False):
            parser.error(f"--{name} belongs to {' and '.join(owners)}")
    if options.what in BELONGS_TO["sampler"]:
        options.sampler = options.sampler or "euler"
        if options.quick:
            options.scoring = "codec"
    if options.what in COMPARISONS:
        options.stream = options.stream or "report"
    if options.what == CERTIFICATE:
        usual = QUICK if options.quick else FULL
        for name in usual:
            if getattr(options, name) is None:
                # Floors are of the clusters, which come before them.
                setattr(options, name, min(usual[name], options.clusters) if name == "floors" else usual[name])
        options.delta = DELTA if options.delta is None else options.delta
        options.widgets = options.widgets or {}
        if not isinstance(options.widgets, dict):
            parser.error('--widgets is an object of JSON, such as {"region_threshold": 0.3}')
        if options.widgets and options.ship:
            parser.error("only a certificate of the shipped widgets is shipped")
        if not 0 < options.delta < 1:
            parser.error(f"--delta is a rate between 0 and 1, not {options.delta:g}")
        if min(options.clusters, options.development) < 1 or min(options.fresh, options.floors) < 0:
            parser.error("a certificate needs at least one cluster for development and one to certify")
        if options.floors > options.clusters:
            parser.error("--floors are taken from the --clusters, of which there are fewer")
    return options

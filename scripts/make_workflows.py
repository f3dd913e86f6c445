"""Writes the workflows for official models, their API forms for the tests, and their pictures.

The node descriptions come from a real server, so this has to run again when an input of one of our nodes is added.
A picture is the workflow as ComfyUI's editor shows it; it needs a Chromium on this machine.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import argparse
import json
import tempfile

from scripts.testbed.bootstrap import add_arguments, enter
from scripts.testbed.console import run_main, say


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-pictures", action="store_true", help="leave the pictures as they are")
    add_arguments(parser)
    options = parser.parse_args()
    install = enter(options.comfyui, options.python, tests=True)

    from scripts.testbed.server import ComfyServer
    from scripts.testbed.workflow import to_graph
    from scripts.workflow_job.builder import Workflow
    from scripts.workflow_job.graphs import WORKFLOWS

    with tempfile.TemporaryDirectory() as base, ComfyServer(install, Path(base)) as server:
        object_info = server.get("/object_info")
        for fill in WORKFLOWS:
            flow = Workflow(fill.__name__, object_info)
            fill(flow)
            path = ROOT / "workflows" / f"{flow.name}.json"
            path.write_text(json.dumps(flow.to_dict(), indent=1) + "\n", encoding="utf-8")
            api = ROOT / "tests" / "workflows" / "api" / path.name
            api.write_text(json.dumps(to_graph(flow.to_dict(), object_info), indent=1) + "\n", encoding="utf-8")
            say(f"{path.name}: {len(flow.nodes)} nodes")
            if not options.no_pictures:
                from scripts.workflow_job.picture import write_picture

                write_picture(server.address, flow.to_dict(), path.with_suffix(".jpg"))
    return 0


if __name__ == "__main__":
    run_main(main)

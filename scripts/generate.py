"""Writes the files that follow from the nodes: workflows for official models, their API forms for the tests, their
pictures, and the English texts in locales/en. With --media: the pictures of the panel, of a hit and of the way to a
first one instead; with --help-pictures: those in the help of the nodes.

The node descriptions come from a real server, so this has to run again when a node gets another input or text. A
picture is the workflow as ComfyUI's editor shows it; it needs a Chromium on this machine.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import argparse
import json
import tempfile
from typing import Any

from scripts.testbed.bootstrap import Install, add_arguments, enter
from scripts.testbed.console import run_main, say

WORKFLOW_FOLDER, API_FOLDER = ROOT / "workflows", ROOT / "tests" / "workflows" / "api"
LOCALES = ROOT / "locales" / "en"
MEDIA, HELP = ROOT / "docs" / "media", ROOT / "web" / "docs" / "pictures"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-pictures", action="store_true", help="leave the pictures as they are")
    parser.add_argument("--media", action="store_true", help="only write panel, hit and first_hit_* in docs/media")
    parser.add_argument("--help-pictures", action="store_true", help="only write web/docs/pictures")
    add_arguments(parser)
    options = parser.parse_args()
    install = enter(options.comfyui, options.python, tests=True)

    from scripts.testbed.server import ComfyServer
    from scripts.testbed.workflow import load_workflow
    from scripts.workflow_job.builder import Workflow
    from scripts.workflow_job.graphs import WORKFLOWS
    from scripts.workflow_job.locale import MAIN, node_texts

    if options.media or options.help_pictures:
        write_sessions(install, options.media, options.help_pictures)
        return 0

    with tempfile.TemporaryDirectory() as base, ComfyServer(install, Path(base)) as server:
        object_info = server.get("/object_info")
        write(LOCALES / "main.json", MAIN)
        write(LOCALES / "nodeDefs.json", node_texts(object_info))
        for fill in WORKFLOWS:
            flow = Workflow(fill.__name__, object_info)
            fill(flow)
            write(WORKFLOW_FOLDER / f"{flow.name}.json", flow.to_dict())
        for path in sorted(WORKFLOW_FOLDER.glob("*.json")):
            write(API_FOLDER / path.name, load_workflow(path, object_info))
        if not options.no_pictures:
            from scripts.workflow_job.demo_picture import write_demo_picture
            from scripts.workflow_job.picture import write_picture

            for fill in WORKFLOWS:
                path = WORKFLOW_FOLDER / f"{fill.__name__}.json"
                write_picture(server.address, json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".jpg"))
            write_demo_picture(server, WORKFLOW_FOLDER / "carnator_demo.jpg")
    return 0


def write_sessions(install: Install, media: bool, help_pictures: bool) -> None:
    """Pictures of sessions in the current front end, each on a server with an empty store."""
    from scripts.testbed.environment import Environment
    from scripts.testbed.server import ComfyServer
    from scripts.workflow_job.first_hit import write_first_hit
    from scripts.workflow_job.help_pictures import write_help_pictures
    from scripts.workflow_job.media import write_media

    arguments = ("--front-end-root", str(Environment().frontend))
    jobs = (
        (media, write_first_hit, MEDIA), (media, write_media, MEDIA), (help_pictures, write_help_pictures, HELP)
    )  # fmt: skip
    for wanted, job, folder in jobs:
        if wanted:
            with tempfile.TemporaryDirectory() as base, ComfyServer(install, Path(base), arguments=arguments) as server:
                job(server, folder)


def write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    say(f"{path.relative_to(ROOT)}")


if __name__ == "__main__":
    run_main(main)

"""What other people check node packs and workflows with: comfy-cli, comfy-lint and comfy-test, all clean."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from scripts.testbed.server import ComfyServer
from scripts.workflow_job.graphs import WORKFLOWS
from support.archive import write_archive
from support.official_workflows import LATENTS
from support.paths import ROOT, TESTS
from support.tools import Tool

NAMES = [fill.__name__ for fill in WORKFLOWS]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what users get."""
    return write_archive(tmp_path_factory.mktemp("archive") / "ComfyUI-Carnator")


def tiny_workflow(name: str, folder: Path) -> Path:
    """A shipped workflow as the editor would save it after its video was made tiny."""
    workflow = json.loads((ROOT / "workflows" / f"{name}.json").read_text())
    for node in workflow["nodes"]:
        if node["type"] in LATENTS:
            node["widgets_values"][:3] = [64, 64, 5]
    path = folder / f"{name}.json"
    path.write_text(json.dumps(workflow))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_comfy_cli_runs_each_shipped_workflow(
    official_server: ComfyServer, tool: Tool, tmp_path: Path, name: str
) -> None:
    host, port = official_server.address.split(":")
    path = tiny_workflow(name, tmp_path)
    arguments = ("run", "--workflow", str(path), "--wait", "--host", host, "--port", port)
    done = tool("comfy", "--skip-prompt", *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((official_server.base.output / "carnator").glob(f"{name}*.mp4"))


def test_comfy_lint_finds_nothing_in_the_api_forms(official_server: ComfyServer, tool: Tool) -> None:
    files = sorted(map(str, (TESTS / "workflows" / "api").glob("*.json")))
    assert len(files) == len(NAMES) + 1
    done = tool("comfy-lint", "--strict", "--server", f"http://{official_server.address}", *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_archive_is_what_the_registry_would_pack(tool: Tool, archive: Path, tmp_path: Path) -> None:
    """By comfy-cli's own reading of .comfyignore, from a copy whose files are all known to git."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".git", ".env-carnator", "__pycache__", "demo_output"))
    for command in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *command], cwd=clone, check=True)
    done = tool("comfy", "--skip-prompt", "node", "pack", folder=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    packed = {name for name in zipfile.ZipFile(clone / "node.zip").namelist() if not name.endswith("/")}
    kept = {file.relative_to(archive).as_posix() for file in archive.rglob("*") if file.is_file()}
    assert {name for name in packed if not name.startswith(".")} == kept


def test_the_registrys_own_checks_pass(tool: Tool, archive: Path) -> None:
    done = tool("comfy", "--skip-prompt", "node", "validate", folder=archive)
    assert done.returncode == 0 and "checks passed" in done.stdout + done.stderr, done.stdout + done.stderr


def test_comfy_test_lint_finds_nothing(tool: Tool, archive: Path) -> None:
    done = tool("comfy-test", "lint", "--strict", str(archive), folder=archive)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tools_do_find_what_is_wrong(tool: Tool, archive: Path, official_server: ComfyServer, tmp_path) -> None:
    """Else their silence would say nothing."""
    broken = tmp_path / "broken"
    shutil.copytree(archive, broken)
    (broken / "nodes" / "extra.py").write_text('RESULT = eval("1") # →\n', encoding="utf-8")
    done = tool("comfy", "--skip-prompt", "node", "validate", folder=broken)
    assert "S307" in done.stdout + done.stderr
    assert tool("comfy-test", "lint", "--strict", str(broken), folder=broken).returncode == 1
    graph = json.loads((TESTS / "workflows" / "api" / "wan21_t2v.json").read_text())
    graph["1"]["class_type"] = "NoSuchNode"
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    linted = tool("comfy-lint", "--server", f"http://{official_server.address}", str(tmp_path / "graph.json"))
    assert linted.returncode == 1

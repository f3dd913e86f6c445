"""What the browser tests need of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from playwright.sync_api import Page

from scripts.testbed.browser import Editor, chromium_path
from scripts.testbed.environment import Environment
from scripts.testbed.server import ComfyServer

# Fixtures of the servers with either front end, and how nodes are drawn.
CASES = [("server", "canvas"), ("server", "vue"), ("current_server", "canvas"), ("current_server", "vue")]


@dataclass(frozen=True)
class Drawn:
    """A page with the editor, and how it came to be."""

    page: Editor
    server: ComfyServer
    own: bool  # the front end is this ComfyUI's own, not a current one
    drawing: str  # of nodes: "canvas" or "vue"
    language: str

    @property
    def name(self) -> str:
        return f"{'own' if self.own else 'current'}-{self.drawing}"


def find_chromium() -> str:
    """The path of a Chromium. Without one a test is skipped, in CI it fails."""
    return chromium_path() or _do_without("no Chromium on this machine (Debian and Ubuntu: apt install chromium)")


def find_current_frontend() -> Path:
    """The folder of a front end that is newer than this ComfyUI. Without it a test is skipped, in CI it fails."""
    folder = Environment().frontend
    if (folder / "index.html").is_file():
        return folder
    return _do_without(f"there is no front end in {folder}: python3 scripts/test.py puts it there")


def _do_without(message: str) -> NoReturn:
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(message)
    pytest.skip(message)


def screenshot(page: Page, folder: Path, name: str) -> Path:
    path = folder / f"{name}.png"
    page.screenshot(path=path)
    return path

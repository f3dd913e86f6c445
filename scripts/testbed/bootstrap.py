"""Brings an entry script into the Python that has ComfyUI: made here, or the user's own install."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .console import Stop
from .environment import HOME, Environment, clean_environ

# Set for the process that runs inside the environment and for everything it starts.
COMFYUI_VARIABLE = "CARNATOR_COMFYUI"


@dataclass(frozen=True)
class Install:
    """A ComfyUI and the Python that runs it. `scratch` is where logs and throw-away base directories go."""

    comfyui: Path
    python: Path
    scratch: Path = HOME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--comfyui", metavar="PATH", type=Path, help="use this ComfyUI instead of our own")
    parser.add_argument("--python", metavar="EXE", type=Path, help="that ComfyUI's Python (default: its venv)")


def enter(comfyui: Path | None, python: Path | None, tests: bool = False) -> Install:
    """Returns only inside the right Python; outside, makes the environment and restarts the script in it."""
    inside = os.environ.get(COMFYUI_VARIABLE)
    if inside:
        return Install(Path(inside), Path(sys.executable))
    if comfyui is not None:
        install = _existing(comfyui, python)
    else:
        environment = Environment()
        environment.ensure(tests)
        install = Install(environment.comfyui, environment.python)
    _start_again(install)
    raise AssertionError("not reached")


def current_install() -> Install:
    """For code that already runs in the environment's Python, such as pytest started by hand."""
    return Install(Path(os.environ.get(COMFYUI_VARIABLE) or HOME / "ComfyUI"), Path(sys.executable))


def _existing(comfyui: Path, python: Path | None) -> Install:
    comfyui = comfyui.expanduser().resolve()
    if not (comfyui / "main.py").is_file():
        raise Stop(f"{comfyui} is not a ComfyUI folder (it has no main.py).")
    if python is None:
        # A virtual environment beside or inside the tree, or the Windows portable build.
        places = [
            "venv/bin/python",
            ".venv/bin/python",
            "venv/Scripts/python.exe",
            ".venv/Scripts/python.exe",
        ]
        candidates = [comfyui / place for place in [*places, "../python_embeded/python.exe"]]
        python = next((path for path in candidates if path.is_file()), Path(sys.executable))
    # absolute(), not resolve(): the link itself is what makes a virtual environment's Python
    python = python.expanduser().absolute()
    if not python.is_file():
        raise Stop(f"there is no Python at {python}.")
    return Install(comfyui, python)


def _start_again(install: Install) -> None:
    environ = {**clean_environ(), COMFYUI_VARIABLE: str(install.comfyui)}
    command = [str(install.python), *sys.argv]
    sys.stdout.flush()
    if os.name == "nt":  # os.execve detaches from the console there
        sys.exit(subprocess.run(command, env=environ).returncode)
    os.execve(command[0], command, environ)

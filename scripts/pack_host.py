"""Packs the test bed's ComfyUI into one archive, for measuring on a GPU machine without a network.

That machine needs Linux on x86-64 and a Python with torch and the usual scientific packages. There:

  mkdir host && tar xzf host.tgz -C host
  echo "$PWD/host/site" > "$(python3 -c 'import site; print(site.getsitepackages()[0])')/carnator_host.pth"
  python3 scripts/bench.py gpu_e2e --comfyui host/ComfyUI --python "$(which python3)" --commit HASH
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import argparse
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from importlib.metadata import version

from scripts.testbed.bootstrap import add_arguments, enter
from scripts.testbed.console import Stop, run_main, say
from scripts.testbed.environment import SHIMS, clean_environ

# What ComfyUI needs beyond torch, numpy, scipy, transformers, safetensors, aiohttp, Pillow and the like.
PACKAGES = (
    "pydantic", "pydantic-core", "pydantic-settings", "annotated-types", "python-dotenv", "typing-inspection",
    "torchsde", "trampoline", "sqlalchemy", "greenlet",
)  # fmt: skip
FRONT_END = "comfyui_frontend_package"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
# Nothing is read from or written to video files there, and the real package is larger than all the rest.
STAND_INS = {
    "av/__init__.py": "def __getattr__(name):\n    return type(name, (), {})\n",
    "av/container.py": "def __getattr__(name):\n    return type(name, (), {})\n",
    "av/subtitles/__init__.py": "",
    "av/subtitles/stream.py": "def __getattr__(name):\n    return type(name, (), {})\n",
    f"{FRONT_END}/__init__.py": "",
    f"{FRONT_END}/static/index.html": "<!doctype html>\n",
}
LEFT_OUT = {"models", "input", "output", "temp", "user", "tests", "tests-unit"}  # of the tree's top folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="where to write it, such as host.tgz")
    parser.add_argument("--for-python", default="3.12", help="version of the other machine's Python (default 3.12)")
    add_arguments(parser)
    options = parser.parse_args()
    install = enter(options.comfyui, options.python)
    with tempfile.TemporaryDirectory() as folder:
        tree, site = Path(folder) / "ComfyUI", Path(folder) / "site"
        tree.mkdir()
        for item in install.comfyui.iterdir():
            if item.is_dir() and item.name not in LEFT_OUT and not item.name.startswith("."):
                shutil.copytree(item, tree / item.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif item.is_file():
                shutil.copy(item, tree)
        (tree / "models").mkdir()
        shutil.copytree(SHIMS, site)
        unpack_wheels(site, Path(folder) / "wheels", options.for_python)
        for name, text in STAND_INS.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        pack_version(site, FRONT_END)
        with tarfile.open(options.archive, "w:gz") as archive:
            archive.add(tree, "ComfyUI")
            archive.add(site, "site")
    say(f"written: {options.archive} ({options.archive.stat().st_size / 1e6:.0f} MB)")
    return 0


def unpack_wheels(site: Path, folder: Path, python: str) -> None:
    """The versions that this environment has, for the other Python."""
    wanted = [f"{name}=={version(name)}" for name in PACKAGES]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-q", "-d", str(folder)]
    command += ["--python-version", python, "--implementation", "cp"]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    if subprocess.run([*command, *wanted], env=clean_environ()).returncode != 0:
        raise Stop("the packages could not be fetched for that Python; see pip's message above.")
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(site)


def pack_version(site: Path, name: str) -> None:
    """ComfyUI asks for the front end's version at its start."""
    info = site / f"{name}-{version(name)}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version(name)}\n")


if __name__ == "__main__":
    run_main(main)

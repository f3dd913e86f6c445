"""Makes the test environment on its first start, then runs the chosen groups of tests with pytest.

Without a group all of them run. Arguments that are not listed here go to pytest.
"""

import sys

if sys.version_info < (3, 10):
    sys.exit("Carnator needs Python 3.10 or newer; this is Python " + sys.version.split()[0] + ".")

import argparse
import importlib.util
import itertools
import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # in place of scripts/, where demo.py would hide the package demo

from scripts.testbed.bootstrap import add_arguments, enter
from scripts.testbed.console import Stop, run_main

GROUPS = ("unit", "host", "workflows", "kernels", "web")
USAGE = f"test.py [{'|'.join(GROUPS)} ...] [--comfyui PATH [--python EXE]] [pytest arguments]"
NO_TESTS = 5  # pytest's exit code
MOST_WORKERS = 4
NOT_SHARED = {"-n", "-s", "--pdb", "-x", "--collect-only", "--co"}  # asks for one process, or for a number of its own


def main() -> int:
    parser = argparse.ArgumentParser(usage=USAGE, description=__doc__)
    add_arguments(parser)
    options, rest = parser.parse_known_args()
    # Not an argparse positional: that would also swallow the value of a pytest option such as -k.
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), rest))
    groups = [word for word in words if word in GROUPS]
    paths = [word for word in words if word not in GROUPS]
    for word in paths:
        if not Path(word.split("::")[0]).exists():
            raise Stop(f"there is no test group {word!r}; the groups are {', '.join(GROUPS)}.")
    pytest_arguments = rest[len(words) :]

    enter(options.comfyui, options.python, tests=True)
    if importlib.util.find_spec("pytest") is None:
        command = f"{sys.executable} -m pip install -r scripts/requirements-test.txt"
        raise Stop(f"that ComfyUI's Python has no pytest; install the test tools first: {command}")

    if not words:
        groups = list(GROUPS)
    folders = [f"tests/{group}" for group in groups if (ROOT / "tests" / group).is_dir()]
    if not folders and not paths:
        raise Stop(f"there are no tests in {', '.join(groups)}.")
    if groups and not paths and not NOT_SHARED & set(pytest_arguments):
        pytest_arguments = ["-n", str(min(MOST_WORKERS, os.cpu_count() or 1)), "--dist", "loadfile", *pytest_arguments]
    targets = folders + [str(Path(path).absolute()) for path in paths]
    started = time.monotonic()
    # One thread: on a busy two-core machine OpenMP's spinning threads cost many times the work itself.
    environ = {"OMP_NUM_THREADS": "1", **os.environ}
    code = subprocess.run(
        [sys.executable, "-m", "pytest", *targets, *pytest_arguments], cwd=ROOT, env=environ
    ).returncode
    verdict = {0: "all passed", NO_TESTS: "no tests were found"}.get(code, "FAILED")
    seconds = time.monotonic() - started
    print(f"Carnator tests ({', '.join(groups + paths)}): {verdict} in {seconds:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    run_main(main)

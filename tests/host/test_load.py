"""Loading the pack in the real host without optional packages."""

import subprocess
import sys

from support.paths import ROOT, TESTS

SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        # importlib.util.find_spec, with which others only look, must not raise
        looked_up = sys._getframe(2).f_code.co_name == "find_spec"
        if name.split(".")[0] in ("triton", "faiss") and not looked_up:
            raise ModuleNotFoundError(name + " is not installed", name=name)

sys.meta_path.insert(0, Absent())
sys.path[:0] = [TESTS]
from pathlib import Path
from support.paths import order_sys_path
from support.comfy_host import import_comfy

order_sys_path()
import_comfy(Path(COMFYUI))
from support.pack import node_classes

print("nodes:", *sorted(node_classes()))
"""


def test_the_nodes_load_in_the_real_host_without_triton_and_faiss(install) -> None:
    code = f"TESTS, COMFYUI = {str(TESTS)!r}, {str(install.comfyui)!r}\n{SCRIPT}"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "CarnatorReuseSampler" in run.stdout.rpartition("nodes:")[2].split()

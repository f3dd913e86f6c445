"""Loading: fast, and possible without optional packages."""

import json
import subprocess
import sys

from support.paths import ROOT

SCRIPT = """
import importlib.util, json, sys, time

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("triton", "faiss", "sqlalchemy", "comfy", "comfy_api"):
            raise ImportError(name + " is not installed")

sys.meta_path.insert(0, Absent())
before = set(sys.modules)
started = time.perf_counter()
path = ROOT + "/__init__.py"
spec = importlib.util.spec_from_file_location("Pack", path, submodule_search_locations=[ROOT])
module = importlib.util.module_from_spec(spec)
sys.modules["Pack"] = module
spec.loader.exec_module(module)
seconds = time.perf_counter() - started
new = sorted({name.split(".")[0] for name in set(sys.modules) - before})
print(json.dumps({"seconds": seconds, "new": new, "names": sorted(vars(module))}))
"""

CORE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("triton", "faiss", "comfy", "comfy_api", "folder_paths", "server"):
            raise ImportError(name + " is not installed")

sys.meta_path.insert(0, Absent())
sys.path.append(ROOT)
import carnator_core.session, carnator_core.store.folder, carnator_core.recall
import carnator_core.hosts.comfy_run, carnator_core.hosts.comfy_wan_block
"""


def run(script: str) -> str:
    code = f"ROOT = {str(ROOT)!r}\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pack_is_imported_in_a_tenth_of_a_second_without_triton_and_faiss() -> None:
    found = json.loads(run(SCRIPT))
    assert found["seconds"] < 0.1
    assert {"comfy_entrypoint", "WEB_DIRECTORY"} <= set(found["names"])


def test_importing_the_pack_loads_nothing_heavy() -> None:
    assert json.loads(run(SCRIPT))["new"] == ["Pack"]


def test_the_engine_can_be_imported_without_triton_faiss_and_any_host() -> None:
    run(CORE)

"""Rules about the source itself: which part may import what, and what never ships."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.archive import shipped_files
from support.paths import ROOT

HOST_MODULES = {
    "comfy", "comfy_api", "comfy_extras", "comfy_execution", "nodes", "folder_paths", "server", "execution",
    "app", "diffusers",
}  # fmt: skip
UNSAFE_MODULES = {
    "pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "subprocess", "multiprocessing", "ctypes",
    "socket", "requests", "urllib", "http", "aiohttp",
}  # fmt: skip
SERVED_BY = {"carnator_core/hosts/comfy_routes.py": {"aiohttp"}}  # answers of ComfyUI's own server are made of it
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_ATTRIBUTES = {("os", "system"), ("os", "popen"), ("torch", "load"), ("np", "load"), ("numpy", "load")}
HEAVY_AT_IMPORT = {"torch", "numpy", "faiss", "triton", "safetensors"}


def shipped() -> list[Path]:
    """Python files of the registry archive."""
    return [path for path in shipped_files() if path.suffix == ".py"]


def core() -> list[Path]:
    """The engine without its host adapters."""
    folder = ROOT / "carnator_core"
    return [p for p in sorted(folder.rglob("*.py")) if "hosts" not in p.relative_to(folder).parts]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of absolute imports, wherever in the file they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def test_the_searches_find_files() -> None:
    assert len(core()) >= 12
    assert {"__init__.py", "nodes/reuse_sampler.py", "carnator_core/hosts/comfy_run.py"} <= set(
        map(relative, shipped())
    )
    assert not any(relative(p).startswith(("tests/", "scripts/")) for p in shipped())


def test_the_archive_holds_what_the_nodes_need_at_run_time() -> None:
    found = set(map(relative, shipped_files()))
    needed = [
        "web/*.js",
        "web/panel/*",
        "web/docs/*.md",
        "workflows/*.json",
        "workflows/*.jpg",
        "locales/*/*.json",
        "demo/models/*/*",
    ]
    for pattern in needed:
        files = set(map(relative, ROOT.glob(pattern)))
        assert files and files <= found, pattern


@pytest.mark.parametrize("path", core(), ids=relative)
def test_the_core_imports_no_host(path: Path) -> None:
    assert not HOST_MODULES & set(imported(parsed(path)))


@pytest.mark.parametrize("path", core(), ids=relative)
def test_the_core_does_not_reach_up_into_nodes_or_host_adapters(path: Path) -> None:
    depth = len(path.relative_to(ROOT / "carnator_core").parts)
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            below = (node.module or "").split(".")[0] == "kernels"  # the one package that the core builds on
            assert node.level <= depth + below, "a relative import leaves carnator_core"
            assert "hosts" not in (node.module or "").split(".")


@pytest.mark.parametrize("path", core(), ids=relative)
def test_the_core_needs_only_what_comfyui_brings_and_faiss(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"torch", "numpy", "scipy", "faiss", "safetensors", "sqlalchemy", "kernels"}
    assert set(imported(parsed(path))) <= allowed


@pytest.mark.parametrize("path", shipped(), ids=relative)
def test_shipped_code_has_no_pickle_eval_subprocess_or_network(path: Path) -> None:
    tree = parsed(path)
    found = UNSAFE_MODULES & set(imported(tree)) - SERVED_BY.get(relative(path), set())
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in UNSAFE_CALLS:
            found.add(function.id)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            pair = (function.value.id, function.attr)
            if pair in UNSAFE_ATTRIBUTES:
                found.add(".".join(pair))
    assert not found


def test_what_answers_requests_makes_none() -> None:
    for name in SERVED_BY:
        froms = [n for n in ast.walk(parsed(ROOT / name)) if isinstance(n, ast.ImportFrom) and n.module == "aiohttp"]
        assert [alias.name for n in froms for alias in n.names] == ["web"], "only the half that serves"
        assert not [n for n in ast.walk(parsed(ROOT / name)) if isinstance(n, ast.Import) and "aiohttp" in ast.dump(n)]


def test_the_entry_point_is_short_and_imports_nothing_at_the_top() -> None:
    path = ROOT / "__init__.py"
    assert len(path.read_text().splitlines()) <= 40
    assert not [n for n in parsed(path).body if isinstance(n, (ast.Import, ast.ImportFrom))]


def test_faiss_triton_and_scipy_are_imported_only_where_they_are_used() -> None:
    for path in [p for p in shipped() if "kernels" not in p.parts]:
        top = ast.Module([n for n in parsed(path).body if isinstance(n, (ast.Import, ast.ImportFrom))], [])
        assert not {"faiss", "triton", "scipy"} & set(imported(top)), relative(path)


@pytest.mark.parametrize("path", [p for p in shipped() if "demo" not in p.relative_to(ROOT).parts], ids=relative)
def test_a_shipped_file_holds_one_idea(path: Path) -> None:
    limit = 300 if path.parent.name == "nodes" else 400
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit

"""The hard key: what must leave it as it is, so that a donor stays usable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.paths import ROOT, TESTS
from support.variants import (
    Q_WEIGHT,
    Given,
    Strong,
    strong,
    with_lora,
    with_outer,
    with_setting,
    with_shift,
)


def loaded(patcher) -> Any:
    import comfy.model_management

    comfy.model_management.load_models_gpu([patcher])
    return patcher


def unloaded(patcher) -> Any:
    import comfy.model_management

    loaded(patcher)
    comfy.model_management.unload_all_models()
    return patcher


def partly_loaded(patcher) -> Any:
    """The state in which most of a model stays in RAM and its patches are applied layer by layer."""
    patcher.partially_load(patcher.load_device, extra_memory=6e6)
    assert 0 < patcher.loaded_size() < patcher.model_size() and patcher.model.model_lowvram
    return patcher


def partly_unloaded(patcher) -> Any:
    loaded(patcher).partially_unload(patcher.offload_device, 6e6)
    assert 0 < patcher.loaded_size() < patcher.model_size()
    return patcher


LOAD_STATES = {
    "loaded": loaded,
    "unloaded": unloaded,
    "partly loaded": partly_loaded,
    "partly unloaded": partly_unloaded,
}
MODELS = {"without LoRA": lambda t: t.load(), "with LoRA": lambda t: with_lora(t, strength=4.0)}


def weights(patcher) -> str:
    from carnator_core.hosts.comfy_identity import base_weights

    return base_weights(patcher)


@pytest.mark.parametrize("made", MODELS)
@pytest.mark.parametrize("state", LOAD_STATES)
def test_weights_are_the_same_in_every_state_of_loading(tiny, state: str, made: str) -> None:
    import comfy.model_management

    comfy.model_management.unload_all_models()
    patcher = MODELS[made](tiny)
    before = weights(patcher)
    try:
        assert weights(LOAD_STATES[state](patcher)) == before == weights(tiny.model)
    finally:
        patcher.detach()
        comfy.model_management.unload_all_models()


def test_a_merged_lora_leaves_the_weights_of_every_sibling_as_they_were(tiny) -> None:
    before = weights(tiny.model)
    parameter = tiny.model.model.get_parameter(Q_WEIGHT).clone()
    patched = loaded(with_lora(tiny))
    assert not torch.equal(tiny.model.model.get_parameter(Q_WEIGHT), parameter), "it was merged"
    assert weights(tiny.model) == weights(patched) == before
    unloaded(patched)
    assert weights(tiny.model) == weights(patched) == before


def branches_apart(tiny, monkeypatch) -> Given:
    monkeypatch.setattr(tiny.model.model, "memory_required", lambda *args, **kwargs: 1e30)
    return Given()


def after_another_model(tiny, monkeypatch) -> Given:
    first, second = tiny.load(), tiny.load()
    loaded(second)
    loaded(first)
    return Given(model=second)


def after_a_lora(tiny, monkeypatch) -> Given:
    tiny.call(with_lora(tiny))
    return Given()


def options_in_another_order(tiny, monkeypatch) -> Given:
    model = tiny.model.clone()
    model.model_options = dict(reversed(list(model.model_options.items())))
    return Given(model=model)


STABLE = {
    "again": lambda tiny, monkeypatch: Given(),
    "the file loaded again": lambda tiny, monkeypatch: Given(model=tiny.load()),
    "unloaded in between": lambda tiny, monkeypatch: unloaded(tiny.model) and Given(),
    "loaded after another model": after_another_model,
    "after a request with LoRA": after_a_lora,
    "branches apart": branches_apart,
    "options in another order": options_in_another_order,
}


@pytest.mark.parametrize("name", STABLE)
def test_what_does_not_change_the_video_is_a_hit(tiny, shelf: Path, monkeypatch, far, name: str) -> None:
    result, run = STABLE[name](tiny, monkeypatch).run(tiny, shelf, "read")
    assert run.report.decision.value == "hit", run.report.status()
    assert far(result, tiny.call(tiny.model)) < 2e-3


SAME_MODELS = {
    "nothing": lambda t: t.model,
    "LoRA": lambda t: with_lora(t, strength=4.0),
    "shift": lambda t: with_shift(t, 5.0),
    "option": lambda t: with_setting(t, 1.1),
    "wrapper with a closure": lambda t: with_outer(t, strong(2.0)),
    "wrapper object": lambda t: with_outer(t, Strong(2.0)),
}


@pytest.mark.parametrize("name", SAME_MODELS)
def test_the_same_thing_put_on_a_model_again_is_a_hit(tiny, far, tmp_path: Path, name: str) -> None:
    make = SAME_MODELS[name]
    Given(model=make(tiny)).run(tiny, tmp_path, "read+write")
    result, run = Given(model=make(tiny)).run(tiny, tmp_path, "read")
    assert run.report.decision.value == "hit", run.report.status()
    assert far(result, tiny.call(make(tiny))) < 2e-3


def as_if_in(folder: str, monkeypatch) -> None:
    """The host loads the files of nodes as modules that are named by their paths."""
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    monkeypatch.setitem(ModelSamplingSD3.patch.__globals__, "__name__", f"{folder}nodes_model_advanced")
    monkeypatch.setitem(strong.__globals__, "__name__", f"{folder}some_pack.nodes")
    monkeypatch.setattr(Strong, "__module__", f"{folder}some_pack.nodes")


FOLDERS = ("/home/a/ComfyUI/", "C:\\ComfyUI\\", "")


@pytest.mark.parametrize("name", SAME_MODELS)
def test_the_key_is_the_same_wherever_the_host_is_installed(tiny, monkeypatch, tmp_path: Path, name: str) -> None:
    keys = set()
    for folder in FOLDERS:
        as_if_in(folder, monkeypatch)
        _, run = Given(model=SAME_MODELS[name](tiny)).run(tiny, tmp_path, "read")
        keys.add(run.session.request.key.digest)
    assert len(keys) == 1


IN_ANOTHER_PROCESS = """
import importlib.util, sys
from pathlib import Path
tests, comfyui, checkpoint, store = sys.argv[1:]
sys.path.insert(0, tests)
from support.paths import order_sys_path
order_sys_path()
from support.comfy_host import import_comfy
import_comfy(Path(comfyui))

def load(name, file):
    spec = importlib.util.spec_from_file_location(name, tests + "/host/" + file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

tiny = load("conftest", "conftest.py").TinyHost(Path(checkpoint))
table = load("table", "test_key_stable.py")
for make in table.SAME_MODELS.values():
    _, run = table.Given(model=make(tiny)).run(tiny, Path(store), "write")
    print("KEY", run.session.request.key.digest)
"""


def test_keys_are_the_same_in_another_process(tiny, install, tmp_path: Path) -> None:
    expected = []
    for make in SAME_MODELS.values():
        _, run = Given(model=make(tiny)).run(tiny, tmp_path / "here", "write")
        expected.append(f"KEY {run.session.request.key.digest}")
    assert len(set(expected)) == len(expected)
    arguments = [str(TESTS), str(install.comfyui), str(tiny.checkpoint), str(tmp_path / "there")]
    environ = {**os.environ, "PYTHONHASHSEED": "11", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, *arguments], env=environ, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert [line for line in run.stdout.splitlines() if line.startswith("KEY")] == expected

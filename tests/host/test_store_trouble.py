"""Trouble with the store never reaches a video and never stops a run."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

FILES = ["signature.safetensors", "trajectory.safetensors"]


def quarantined(root: Path) -> list[str]:
    return sorted(item.name.rpartition("-")[0] for item in (root / "default" / "quarantine").iterdir())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["a bit of the data", "a bit of the header", "half of the file", "all of it"])
def test_a_corrupt_entry_gives_a_bit_identical_dense_run_and_is_set_aside(
    tiny, tmp_path: Path, stored, damage: str, name: str, sampler: str
) -> None:
    call = tiny.call.but(sampler=sampler)
    stock, _ = tiny.reuse(tmp_path, call)
    (entry,) = stored(tmp_path)
    path = tmp_path / "default" / "entries" / entry / name
    if damage == "a bit of the data":
        flip(path, -100)
    elif damage == "a bit of the header":
        flip(path, 20)
    elif damage == "half of the file":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(b"")
    result, run = tiny.reuse(tmp_path, call)
    assert torch.equal(result, stock)
    assert run.report.decision.value == "miss"
    assert quarantined(tmp_path) == [entry]
    assert stored(tmp_path) == [run.report.entry_id], "the dense run takes its place"


def test_an_artist_is_told_that_an_entry_was_corrupt(tiny, tmp_path: Path, stored) -> None:
    tiny.reuse(tmp_path, tiny.call)
    (entry,) = stored(tmp_path)
    flip(tmp_path / "default" / "entries" / entry / "trajectory.safetensors", -100)
    _, run = tiny.reuse(tmp_path, tiny.call)
    assert run.report.reason.code.value == "entry_corrupt"
    assert "checksum" in run.report.status()


def test_an_entry_that_vanishes_during_the_probe_gives_a_dense_run(tiny, tmp_path: Path, stored) -> None:
    stock, _ = tiny.reuse(tmp_path, tiny.call)
    entries = tmp_path / "default" / "entries"
    hook = tiny.model.model.diffusion_model.blocks[0].register_forward_pre_hook(
        lambda module, args: shutil.rmtree(entries / stored(tmp_path)[0]) if stored(tmp_path) else None
    )
    try:
        result, run = tiny.reuse(tmp_path, tiny.call)
    finally:
        hook.remove()
    assert torch.equal(result, stock)
    assert run.report.decision.value == "miss"


def test_a_store_that_cannot_be_made_gives_a_dense_run(tiny, tmp_path: Path) -> None:
    """A read-only or full disk must cost the reuse, not the video."""
    (tmp_path / "occupied").write_text("a file where the folder of all stores should be")
    stock = tiny.call(tiny.model)
    result, run = tiny.reuse(tmp_path / "occupied", tiny.call)
    assert torch.equal(result, stock)
    assert run.report.decision.value in ("miss", "declined")


def test_a_store_that_disappears_during_the_run_costs_only_the_donor(tiny, tmp_path: Path) -> None:
    stock = tiny.call(tiny.model)
    root = tmp_path / "stores"
    hook = tiny.model.model.diffusion_model.blocks[3].register_forward_pre_hook(
        lambda module, args: shutil.rmtree(root, ignore_errors=True)
    )
    try:
        result, run = tiny.reuse(root, tiny.call)
    finally:
        hook.remove()
    assert torch.equal(result, stock)
    assert run.report.entry_id is None and "not stored" in run.report.status()


def test_without_sqlalchemy_a_run_is_declined_with_a_reason(tiny, tmp_path: Path, monkeypatch) -> None:
    stock = tiny.call(tiny.model)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    result, run = tiny.reuse(tmp_path, tiny.call)
    assert torch.equal(result, stock)
    assert (run.report.decision.value, run.report.reason.code.value) == ("declined", "no_store")
    assert "SQLAlchemy is missing" in run.report.status()


@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
def test_a_file_too_large_for_memory_that_goes_bad_in_use_makes_the_rest_of_the_run_dense(
    tiny, tmp_path: Path, stored, monkeypatch, sampler: str
) -> None:
    from carnator_core.store import read_ahead

    monkeypatch.setattr(read_ahead, "KEPT_BYTES", 0)
    call = tiny.call.but(sampler=sampler)
    tiny.reuse(tmp_path, call)
    (entry,) = stored(tmp_path)
    path, forwards = tmp_path / "default" / "entries" / entry / "trajectory.safetensors", []

    def spoil(module, args) -> None:
        forwards.append(args[0].shape)
        if len(forwards) == 3:  # of the probe's forwards and the first check
            with open(path, "r+b") as file:
                file.truncate(2000)

    hook = tiny.model.model.diffusion_model.blocks[0].register_forward_pre_hook(spoil)
    near = call.but(positive=tiny.near(call.positive, 0.2))
    try:
        result, run = tiny.reuse(tmp_path, near, options=tiny.options(region_threshold=0.1, max_region_percent=100.0))
    finally:
        hook.remove()
    assert run.report.reason.code.value == "entry_corrupt", run.report.status()
    assert run.report.steps["dense"] > 3 and sum(run.report.steps.values()) == call.steps
    assert bool(torch.isfinite(result).all())
    assert quarantined(tmp_path) == [entry] and stored(tmp_path) == []


def test_a_stored_run_has_a_small_picture_of_its_result(tiny, tmp_path: Path, stored) -> None:
    from PIL import Image

    tiny.reuse(tmp_path, tiny.call)
    (entry,) = stored(tmp_path)
    path = tmp_path / "default" / "entries" / entry / "preview.jpg"
    picture = Image.open(path)
    assert picture.format == "JPEG" and picture.size == (256, 256) and path.stat().st_size <= 65536
    assert len(set(picture.get_flattened_data())) > 16, "more than one colour"


def test_a_run_without_pillow_is_stored_without_a_picture(tiny, tmp_path: Path, stored, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    tiny.reuse(tmp_path, tiny.call)
    (entry,) = stored(tmp_path)
    assert not (tmp_path / "default" / "entries" / entry / "preview.jpg").exists()

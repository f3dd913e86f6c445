"""The documentation's tables of comparisons, from records made by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import controls, joint_tables, variants
from benchmarks.jobs import methods_of
from benchmarks.joint_tables import Measured, sections
from benchmarks.rows import KSAMPLER, summarise

KINDS = ("base", "reword", "shape", "weather")


def result(what: str, device: str, servers: int, requests: int, names: list[str] | None = None) -> dict[str, Any]:
    """Stock takes 10 s; every method hits but at base requests, in 5 s on a GPU and 4 s on a CPU, and some lose one."""
    rng = random.Random(f"{what} {device}")
    seconds = 5.0 if device == "gpu" else 4.0
    records = []
    for number in range(requests):
        kind, runs = KINDS[number % len(KINDS)], {}
        for name in names or [method.name for method in methods_of(what)]:
            found = {"representation": rng.random(), "residual": 0.1, "dynamics": 1.0, "state": 0.1}
            hit = {"decision": "hit", "seconds": seconds, "wrong": rng.choice([[], ["motion"]]), "similarity": 0.9,
                   "region": 0.3, "discrepancies": found, "psnr": 30.0, "ssim": 0.9}  # fmt: skip
            runs[name] = {"decision": "miss", "seconds": 10.0, "wrong": []} if kind == "base" else hit
        records.append({"id": f"r{number}", "kind": kind, "stock_seconds": 10.0, "decode_seconds": 2.0,
                        "stock_wrong": [], "runs": runs})  # fmt: skip
    head = {"command": f"bench {what} {device}", "commit": "0123456789", "device": device.upper(), "date": "today"}
    return {**head, "servers": servers, "tuning": {"steps": "as fast"}, **summarise(records)}


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def lines_of(text: str, title: str) -> list[list[str]]:
    """Cells of the table under a heading."""
    table = text.split(f"### {title}")[1].split("###")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]


def test_names_of_rows_are_those_of_variants_and_controls() -> None:
    ablation = [method.name for method in methods_of("ablation")]
    assert joint_tables.DEFAULT == variants.DEFAULT and joint_tables.NOISE_FLOOR == controls.NOISE_FLOOR
    assert {*joint_tables.PARTS, joint_tables.GATE_OFF, joint_tables.ANY_DONOR, joint_tables.TEXT_ALONE} <= {*ablation}
    assert all(any(name.startswith(start) for name in ablation) for start in joint_tables.WINDOW)


def test_every_variant_stands_in_a_table(tmp_path: Path) -> None:
    write(tmp_path, "demo_ablation_gpu", result("ablation", "gpu", 8, 40))
    text = "\n".join(sections(tmp_path))
    told = {cells[0] for title in ("Gate", "Parts", "Layer window") for cells in lines_of(text, title)}
    assert {method.name for method in methods_of("ablation")} <= told
    assert "8 servers shared the device" in text and "### Early states" in text
    assert [cells[0] for cells in lines_of(text, "Latency and quality, all requests")[2:4]] == [KSAMPLER, "default"]


def test_quality_comes_from_the_gpu_and_speed_from_a_cpu_with_one_server(tmp_path: Path) -> None:
    write(tmp_path, "demo_controls_gpu", result("controls", "gpu", 8, 40))
    write(tmp_path, "demo_controls_cpu", result("controls", "cpu", 1, 8, ["default", "random donor"]))
    text = "\n".join(sections(tmp_path))
    assert "Quality: `bench controls gpu`" in text and "Speed: `bench controls cpu`" in text
    assert "8 of the requests" in text
    head, _, *rows = lines_of(text, "Latency and quality, all requests")
    by_name = {cells[0]: dict(zip(head, cells, strict=True)) for cells in rows}
    assert by_name["random donor"]["requests"] == "40" and by_name["random donor"]["DiT s, hits"] == "4"
    assert by_name["EasyCache 0.1"]["requests"] == "40" and by_name["EasyCache 0.1"]["DiT s, hits"] == "–"
    assert by_name[KSAMPLER]["e2e s, all"] == "12"


@pytest.mark.parametrize("servers", [1, 2])
def test_a_cpu_run_with_several_servers_gives_no_speed_beside_a_gpus(tmp_path: Path, servers: int) -> None:
    write(tmp_path, "demo_ablation_uni_pc_gpu", result("ablation", "gpu", 1, 8))
    write(tmp_path, "demo_ablation_uni_pc_cpu", result("ablation", "cpu", servers, 8))
    measured = Measured.load(tmp_path, "ablation", "uni_pc")
    assert measured.speed["device"] == ("CPU" if servers == 1 else "GPU")
    assert Measured.load(tmp_path, "ablation", "euler") is None
    assert "## Joint reuse and its parts, uni_pc" in "\n".join(sections(tmp_path))


def test_losses_show_counts_and_bound(tmp_path: Path) -> None:
    content = result("controls", "gpu", 1, 40)
    write(tmp_path, "demo_controls_gpu", content)
    head, _, *rows = lines_of("\n".join(sections(tmp_path)), "Losses by kind of edit")
    loss = content["losses"][0]["shape"]
    assert head == ["variant", *KINDS, "local edits", "all"] and rows[0][1] == "–"
    assert rows[0][3] == f"{loss['unsafe']}/10 ({loss['upper']:.1%})"


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert sections(tmp_path) == []

"""Labels survive a cut at any byte, and labels of another setting are not mixed with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.label_file import LabelFile
from scripts.testbed.console import Stop

BOUND = {"steps": 20, "sampler": "euler"}
RUN = {"command": "bench", "commit": "abc"}


def record(number: int, settings: str = "a") -> dict:
    return {"set": "fresh", "id": f"fresh-{number}", "looks": {"decoded": [0.5, 0.5]}, "settings": {"name": settings}}


def write(path: Path, groups: list[list[dict]]) -> None:
    file = LabelFile(path, BOUND, RUN)
    for group in groups:
        file.add(group)
    file.close()


def read(path: Path) -> LabelFile:
    file = LabelFile(path, BOUND, RUN)
    file.close()
    return file


def test_what_was_written_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "labels.jsonl"
    records = [record(0), record(1, "b"), {"floor": "another seed", "id": "fresh-0"}, record(2, "a")]
    write(path, [records[:1], records[1:3]])
    write(path, [records[3:]])
    found = read(path)
    assert found.records == records
    assert found.runs == [RUN] * 2  # the one that only reads is none
    assert path.read_text().count('"name"') == 2  # equal settings stand there once


@given(st.integers(0, 10_000))
def test_a_cut_costs_the_line_it_was_in_and_no_other(tmp_path_factory: pytest.TempPathFactory, position: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "labels.jsonl"
    records = [record(number, settings="ab"[number % 2]) for number in range(6)]
    write(path, [[r] for r in records])
    content = path.read_bytes()
    cut = content[: position % (len(content) + 1)]
    path.write_bytes(cut)
    kept = read(path).records
    assert kept == records[: len(kept)]
    whole = [json.loads(line) for line in cut[: cut.rfind(b"\n") + 1].splitlines()]
    assert len(kept) == sum("set" in line for line in whole)
    write(path, [records[len(kept) :]])  # the next start goes on
    assert read(path).records == records


def test_labels_of_another_setting_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    write(path, [[record(0)]])
    with pytest.raises(Stop, match="were made with steps 20 and now 50; give another --labels file"):
        LabelFile(path, {**BOUND, "steps": 50}, RUN)
    assert read(path).records == [record(0)]


def test_labels_of_another_device_can_be_read_but_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    first = LabelFile(path, BOUND, {**RUN, "device": "CPU"})
    first.expect()
    first.add([record(0)])
    other = LabelFile(path, BOUND, {**RUN, "device": "NVIDIA H200"})
    assert other.records == [record(0)]
    with pytest.raises(Stop, match="were made on CPU; go on there"):
        other.expect()
    LabelFile(path, BOUND, {**RUN, "device": "CPU"}).expect()


@pytest.mark.parametrize("content", ["no JSON\n", '{"command": "bench"}\n'])
def test_another_file_is_refused_and_left_as_it_was(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(Stop, match="is no file of labels"):
        LabelFile(path, BOUND, RUN)
    assert path.read_text() == content

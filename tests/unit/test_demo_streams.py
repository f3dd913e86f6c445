"""The request streams: fixed shares, disjoint, and as written to disk."""

import json
from collections import Counter

import pytest

from demo.grammar import ATTRIBUTES, LOCAL, Scene, parse
from demo.streams import FOLDER, STREAMS, make

ALL = {name: make(name) for name in STREAMS}


@pytest.mark.parametrize("name", STREAMS)
def test_the_files_are_what_the_code_makes(name: str) -> None:
    assert json.loads((FOLDER / f"{name}.json").read_text()) == ALL[name]


@pytest.mark.parametrize("name", STREAMS)
def test_shares(name: str) -> None:
    counts = Counter(request["kind"] for request in ALL[name])
    total = sum(counts.values()) - counts.pop("base")
    local = {kind: counts.pop(kind) for kind in LOCAL}
    assert sum(local.values()) == round(0.4 * total) and max(local.values()) - min(local.values()) <= 1
    shares = {"reword": 0.2, "background": 0.1, "weather": 0.1, "two": 0.1, "unrelated": 0.1}
    assert counts == {kind: round(share * total) for kind, share in shares.items()}


@pytest.mark.parametrize("name", STREAMS)
def test_every_variation_is_what_its_kind_says(name: str) -> None:
    by_id = {request["id"]: request for request in ALL[name]}
    assert len(by_id) == len(ALL[name])
    for request in ALL[name]:
        assert parse(request["prompt"]) == Scene(**request["scene"])
        if request["kind"] == "base":
            assert request["base"] is None
            continue
        base = by_id[request["base"]]
        assert (base["seed"], base["cluster"]) == (request["seed"], request["cluster"])
        changed = [key for key in ATTRIBUTES if base["scene"][key] != request["scene"][key]]
        expected = {"reword": 0, "two": 2, "unrelated": len(ATTRIBUTES)}
        assert len(changed) == expected.get(request["kind"], 1)
        if request["kind"] in ATTRIBUTES:
            assert changed == [request["kind"]]
        assert request["prompt"] != base["prompt"]


def test_streams_are_disjoint() -> None:
    for key in ("id", "cluster", "seed"):
        values = [{request[key] for request in ALL[name]} for name in STREAMS]
        assert len(set.union(*values)) == sum(map(len, values))

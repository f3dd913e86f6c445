"""The English texts that the editor gets: complete, and the nodes' own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.testbed.server import ComfyServer
from scripts.workflow_job.locale import MAIN, node_texts
from support.paths import ROOT

ENGLISH = ROOT / "locales" / "en"
# What the editor's translation library takes for placeholders, links and plural forms.
SYNTAX = set("{}@|")


@pytest.fixture(scope="module")
def texts() -> dict[str, Any]:
    return json.loads((ENGLISH / "nodeDefs.json").read_text(encoding="utf-8"))


def test_every_text_is_the_one_of_the_schema(pack, server: ComfyServer, texts) -> None:
    from support.pack import node_classes

    assert texts == node_texts(server.get("/object_info")), "run python3 scripts/generate.py --no-pictures"
    assert json.loads((ENGLISH / "main.json").read_text(encoding="utf-8")) == MAIN
    # Against the schemas themselves too: nothing that the server's description leaves out.
    for name, cls in node_classes().items():
        schema = cls.GET_SCHEMA()
        assert texts[name]["display_name"] == schema.display_name
        assert list(texts[name]["inputs"]) == [item.id for item in sorted(schema.inputs, key=lambda i: i.optional)]
        assert len(texts[name]["outputs"]) == len(schema.outputs)
    assert set(texts) == set(node_classes())


def test_every_text_is_there_and_plain(texts) -> None:
    def leaves(data: Any) -> list[str]:
        return [data] if not isinstance(data, dict) else [leaf for value in data.values() for leaf in leaves(value)]

    found = leaves(texts)
    assert len(found) > 100
    for text in found:
        assert isinstance(text, str) and text and not SYNTAX & set(text), text


def test_the_server_hands_them_to_the_editor(server: ComfyServer, texts) -> None:
    english = server.get("/i18n")["en"]
    assert {name: english["nodeDefs"][name] for name in texts} == texts
    assert MAIN["dataTypes"].items() <= english["dataTypes"].items()

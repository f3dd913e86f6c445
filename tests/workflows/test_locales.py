"""The texts that the editor gets: the English ones are the nodes' own, translations are complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.testbed.server import ComfyServer
from scripts.workflow_job.locale import MAIN, node_texts
from support.paths import ROOT

ENGLISH = ROOT / "locales" / "en"
TRANSLATIONS = sorted(folder for folder in (ROOT / "locales").iterdir() if folder != ENGLISH)
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


def leaves(data: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Paths of keys and the texts at their ends."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, *path, key)
    else:
        yield path, data


def test_every_text_is_there_and_plain(texts) -> None:
    found = dict(leaves(texts))
    assert len(found) > 100
    for path, text in found.items():
        assert isinstance(text, str) and text and not SYNTAX & set(text), path


@pytest.mark.parametrize("folder", TRANSLATIONS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("file", ["main.json", "nodeDefs.json"])
def test_a_translation_has_every_text_and_every_number_of_the_english_one(folder: Path, file: str) -> None:
    def read(language: Path) -> dict[tuple[str, ...], str]:
        return dict(leaves(json.loads((language / file).read_text(encoding="utf-8"))))

    def numbers(text: str) -> list[str]:
        return sorted(re.findall(r"\d+(?:\.\d+)?", text))

    english, translated = read(ENGLISH), read(folder)
    assert list(translated) == list(english)
    for path, text in translated.items():
        assert text and not SYNTAX & set(text), path
        assert numbers(text) == numbers(english[path]), path


def test_the_server_hands_them_to_the_editor(server: ComfyServer, texts) -> None:
    languages = server.get("/i18n")
    english = languages["en"]
    assert {name: english["nodeDefs"][name] for name in texts} == texts
    assert MAIN["dataTypes"].items() <= english["dataTypes"].items()
    assert {folder.name for folder in TRANSLATIONS} <= set(languages)

"""The help of the nodes: a page for each one in both languages, which say the same, with small pictures."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.paths import ROOT

PAGES = ROOT / "web" / "docs"
MAX_BYTES = 80_000
NODES: dict[str, Any] = json.loads((ROOT / "locales" / "en" / "nodeDefs.json").read_text(encoding="utf-8"))
# Inputs of the host's KSampler need no help of ours, and Apply names the widgets that it shares in groups.
STOCK = {
    "model", "seed", "steps", "cfg", "sampler_name", "scheduler", "positive", "negative", "latent_image", "denoise",
}  # fmt: skip
IMAGE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")


def english(node: str) -> str:
    return (PAGES / f"{node}.md").read_text(encoding="utf-8")


def chinese(node: str) -> str:
    """Where the editor looks first in that language."""
    return (PAGES / node / "zh.md").read_text(encoding="utf-8")


def outline(page: str) -> list[str]:
    """What a page is made of, line by line, without its words."""
    found = []
    for line in page.splitlines():
        marks = re.match(r"#+ |\d+\. |- |!|\|", line)
        if marks:
            found.append(f"| {line.count('|')}" if line.startswith("|") else marks[0])
    return found


def values(page: str) -> dict[str, Any]:
    """What no translation may change: numbers, pictures, and words as they stand on the screen."""
    return {
        "numbers": set(re.findall(r"\d+(?:\.\d+)?", page)),
        "pictures": IMAGE.findall(page),
        "code": {" ".join(span.split()) for span in re.findall(r"`[^`]+`", page)},
        "bold": page.count("**"),
    }


def test_each_node_has_a_page_in_both_languages_and_there_are_no_others() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(NODES)
    assert {page.parent.name for page in PAGES.glob("*/zh.md")} == set(NODES)


@pytest.mark.parametrize("node", NODES)
def test_both_languages_say_the_same(node: str) -> None:
    assert outline(chinese(node)) == outline(english(node))
    assert values(chinese(node)) == values(english(node))
    for line in chinese(node).splitlines()[1:]:
        assert not line or line.startswith(("!", "|---")) or re.search(r"[\u4e00-\u9fff]", line), line


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("node", NODES)
def test_a_page_begins_with_the_name_a_sentence_and_a_picture(node: str, language: str) -> None:
    texts = json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))
    parts = {"en": english, "zh": chinese}[language](node).split("\n\n")
    assert parts[0] == f"# {texts[node]['display_name']}"
    assert parts[1].rstrip().endswith((".", "。", "”。"))
    assert IMAGE.fullmatch(parts[2].strip())


@pytest.mark.parametrize("node", sorted(set(NODES) - {"CarnatorApply"}))
def test_a_page_names_every_input(node: str) -> None:
    page = english(node)
    missing = [name for name in NODES[node]["inputs"] if name not in STOCK and not re.search(rf"\b{name}\b", page)]
    assert not missing
    assert all(name in chinese(node) for name in NODES[node]["inputs"] if name not in STOCK)


def test_all_pictures_are_there_small_and_shown() -> None:
    shown = {name for node in NODES for name in IMAGE.findall(english(node))}
    there = {path.relative_to(PAGES).as_posix(): path for path in (PAGES / "pictures").iterdir()}
    assert shown == set(there)
    for name, path in there.items():
        assert 5000 < path.stat().st_size < MAX_BYTES, name
        assert path.read_bytes().startswith(b"\xff\xd8\xff"), name


def test_the_outline_tells_a_missing_row_from_a_whole_table() -> None:
    table = "# a\n| x | y |\n|---|---|\n| 1 | 2 |\n"
    assert outline(table) != outline(table.replace("| 1 | 2 |\n", ""))
    assert outline(table) != outline(table.replace("| 1 | 2 |", "| 1 |"))

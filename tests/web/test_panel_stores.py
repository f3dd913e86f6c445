"""The panel on stores that no run of this server has made, a large one among them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from carnator_core.store.history import History
from carnator_core.store.verdicts import VerdictLog
from scripts.testbed.bootstrap import Install
from scripts.testbed.browser import Editor
from scripts.testbed.server import ComfyServer
from support.browser import screenshot
from support.stores import a_record, make_store, picture, store_folder

MANY = 1000
MOST_ROWS = 40
MARKUP = "miss: <img src=x onerror='window.carnatorBroken = true'> & <b>bold</b>"

# Opens the stored entries of a store and says how many milliseconds it took until one was there.
TIME_TO_OPEN = """async (store) => {
    const panel = document.querySelector(".carnator-panel");
    const press = (action) => panel.querySelector(`[data-action="${action}"]`).click();
    press("tab decisions");
    press(`store ${store}`);
    await new Promise((resolve) => setTimeout(resolve, 500));
    const started = performance.now();
    press("tab entries");
    while (!panel.querySelector(".carnator-entry")) await new Promise(requestAnimationFrame);
    return performance.now() - started;
}"""


@pytest.fixture(scope="module")
def stores(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A server with the stores "few", of six entries, and "many"; nothing is run on it."""
    server = ComfyServer(install, tmp_path_factory.mktemp("stores"))
    make_store(store_folder(server.base.user, "few"), 6, decisions=230)
    make_store(store_folder(server.base.user, "many"), MANY)
    with server:
        yield server


def test_the_texts_are_there_in_every_language(page: Editor) -> None:
    tables = page.page.evaluate(
        """async () => {
            const found = (await (await fetch("/extensions")).json()).find((file) => file.endsWith("/panel/texts.js"));
            return (await import(found)).TABLES;
        }"""
    )
    assert set(tables) == {"en", "zh"}
    english = tables["en"]
    assert len(english) > 60

    def names(text: str) -> set[str]:
        return {part.split("}")[0] for part in text.split("{")[1:]}

    for language, table in tables.items():
        assert set(table) == set(english), language
        for key, text in table.items():
            assert text.strip() and names(text) == names(english[key]), (language, key)


def test_all_stores_are_listed_and_chosen_with_the_keyboard(page: Editor) -> None:
    page.open_panel("few")
    rows = page.panel.locator(".carnator-store")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("6 stored")
    page.page.keyboard.press("ArrowDown")
    expect(page.action("store many")).to_be_focused()
    expect(page.action("store many")).to_have_attribute("aria-checked", "true")
    page.page.keyboard.press("ArrowUp")
    expect(page.action("store few")).to_be_focused()


def test_decisions_come_by_pages(page: Editor) -> None:
    page.open_panel("few")
    page.press("tab decisions")
    cards = page.panel.locator(".carnator-decision")
    expect(cards).to_have_count(50)
    cards.first.locator("summary").click()
    for count in (100, 150, 200, 230):
        page.press("more")
        expect(cards).to_have_count(count)
    expect(cards.first.locator("details")).to_have_attribute("open", "")
    expect(page.action("more")).to_be_hidden()


def test_a_thousand_entries_open_at_once_and_only_those_in_view_are_rows(page: Editor, artifacts: Path) -> None:
    few = min(page.page.evaluate(TIME_TO_OPEN, "few") for _ in range(3))
    many = min(page.page.evaluate(TIME_TO_OPEN, "many") for _ in range(3))
    assert many < 1000, f"{many:.0f} ms"
    assert many < 5 * few + 100, f"{many:.0f} ms against {few:.0f} ms for six"
    rows = page.panel.locator(".carnator-entry")
    assert 5 < rows.count() < MOST_ROWS
    expect(rows.first).to_have_attribute("aria-setsize", str(MANY))
    seen = set()
    for part in range(1, 11):
        page.panel.locator(".carnator-list").evaluate(
            "(list, part) => list.scrollTo(0, list.scrollHeight * part)", part / 10
        )
        wanted = MANY if part == 10 else MANY * part // 10 + 2
        expect(page.panel.locator(f'[aria-posinset="{wanted}"]')).to_be_visible()
        assert rows.count() < MOST_ROWS
        seen |= set(rows.evaluate_all("(rows) => rows.map((row) => row.dataset.id)"))
    assert {"e0", "e1"} <= seen
    screenshot(page.page, artifacts, "panel_thousand_entries")


def test_the_tab_key_walks_through_the_entries_in_their_order(page: Editor) -> None:
    page.open_panel("many")
    page.press("tab entries")
    page.action("pin").first.focus()
    position = (
        "() => [document.activeElement.dataset.action, document.activeElement.closest('[aria-posinset]')?.ariaPosInSet]"
    )
    walked = []
    for _ in range(40):
        walked.append(tuple(page.page.evaluate(position)))
        page.page.keyboard.press("Tab")
        page.page.wait_for_timeout(20)  # a row that comes into view is drawn with the next frame
    assert walked == [(action, str(row)) for row in range(1, 21) for action in ("pin", "remove")]


def test_entries_are_sorted_by_the_server(page: Editor) -> None:
    page.open_panel("many")
    page.press("tab entries")
    page.panel.locator("select").select_option("least_used")
    expect(page.panel.locator(".carnator-entry").first).to_have_attribute("data-id", "e0")
    page.panel.locator("select").select_option("newest")
    expect(page.panel.locator(".carnator-entry").first).to_have_attribute("data-id", f"e{MANY - 1}")


def test_an_audited_hit_is_shown_beside_what_it_is_in_full_and_its_verdict_is_an_audit(
    page: Editor, stores: ComfyServer, artifacts: Path
) -> None:
    folder = store_folder(stores.base.user, "few")
    History(folder).add(replace(a_record("audited", "hit", time.time()), audit=True), picture(1), picture(2))
    page.open_panel("few")
    page.press("tab decisions")
    page.press("refresh")
    card = page.panel.locator('[data-id="audited"]')
    expect(card.locator("figure")).to_have_count(3)
    expect(card.locator("figcaption")).to_have_text(["This video", "Computed in full", "Donor"])
    for number, name in ((0, "picture"), (1, "dense")):
        image = card.locator("figure").nth(number).locator("img")
        expect(image).to_have_attribute("src", re.compile(f"/few/decisions/audited/{name}$"))
        image.evaluate("(image) => image.decode()")
    screenshot(page.page, artifacts, "audited")
    card.locator('[data-action="unsafe"]').click()
    expect(card).to_contain_text("You said: lost something.")
    (verdict,) = VerdictLog(folder).by_decision().values()
    assert (verdict.decision, verdict.origin, verdict.word) == ("audited", "audit", "unsafe")
    card.locator('[data-action="undo"]').click()
    expect(card.locator('[data-action="safe"]')).to_be_visible()
    expect(page.panel.locator('[data-id="d228"] figure')).to_have_count(2)


def test_texts_of_the_server_never_become_markup(page: Editor, stores: ComfyServer) -> None:
    History(store_folder(stores.base.user, "few")).add(a_record("markup", "miss", time.time(), MARKUP))
    page.open_panel("few")
    page.press("tab decisions")
    page.press("refresh")
    expect(page.panel.locator('[data-id="markup"]')).to_contain_text(MARKUP.removeprefix("miss: "))
    assert page.page.evaluate("() => window.carnatorBroken") is None


def test_the_panel_speaks_chinese_and_fits_a_light_theme(page: Editor, artifacts: Path) -> None:
    setting = "([name, value]) => window.app.extensionManager.setting.set(name, value)"
    page.open_panel("few")
    screenshot(page.page, artifacts, "panel_dark")
    page.page.evaluate(setting, ["Comfy.ColorPalette", "light"])
    page.page.wait_for_timeout(300)
    screenshot(page.page, artifacts, "panel_light")
    page.close_panel()
    page.page.evaluate(setting, ["Comfy.Locale", "zh"])
    page.open_panel("few")
    expect(page.action("tab decisions")).to_have_text("决策")
    expect(page.panel.locator(".carnator-badge").first).to_have_text("未命中")
    page.close_panel()
    page.page.evaluate(setting, ["Comfy.Locale", "en"])
    page.page.evaluate(setting, ["Comfy.ColorPalette", "dark"])

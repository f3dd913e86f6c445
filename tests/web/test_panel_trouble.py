"""The panel beside others: a second window, servers that refuse, are full or are gone, and runs it hears of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from scripts.testbed.bootstrap import Install
from scripts.testbed.browser import Editor, editor
from scripts.testbed.server import ComfyServer
from support.disks import fill_up, small_disk
from support.stores import make_store, store_folder

SETTLED_MS = 4000  # the panel asks twice about a run, the second time after what it stored is written


@pytest.fixture(scope="module")
def stores(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A server with the store "few", of six entries; nothing is run on it."""
    server = ComfyServer(install, tmp_path_factory.mktemp("stores"))
    make_store(store_folder(server.base.user, "few"), 6)
    with server:
        yield server


def test_what_another_window_has_deleted_is_told_and_the_list_is_fresh(
    page: Editor, browser: Browser, stores: ComfyServer
) -> None:
    with editor(browser, stores.address) as other:
        for window in (page, other):
            window.open_panel("few")
            window.press("tab entries")
            expect(window.panel.locator(".carnator-entry")).to_have_count(6)
        other.panel.locator('[data-id="e3"] [data-action="remove"]').click()
        other.press("confirm")
        expect(other.panel.locator(".carnator-entry")).to_have_count(5)
        expect(page.panel.locator(".carnator-entry")).to_have_count(6)
        page.panel.locator('[data-id="e3"] [data-action="pin"]').click()
        page.expect_message("not there any more")
        expect(page.panel.locator(".carnator-entry")).to_have_count(5)
        other.panel.locator('[data-id="e4"] [data-action="pin"]').click()
        page.press("refresh")
        expect(page.panel.locator('[data-id="e4"] [data-action="pin"]')).to_have_attribute("aria-pressed", "true")
        assert other.errors == []


@pytest.mark.parametrize(
    ("status", "words"), [(409, "Not done: "), (503, "Not done: "), (507, "because the disk is full")]
)
def test_each_refusal_is_a_sentence_and_the_entry_stays(page: Editor, status: int, words: str) -> None:
    """The server's own sentence is part of it."""
    page.open_panel("few")
    page.press("tab entries")
    answer = {"status": status, "json": {"error": "the sentence of the server"}}
    entries = page.panel.locator(".carnator-entry")
    expect(entries.first).to_be_visible()
    count = entries.count()
    page.page.route("**/pin", lambda route: route.fulfill(**answer))
    try:
        page.press("pin")
        page.expect_message(words)
        page.expect_message("the sentence of the server")
        expect(entries).to_have_count(count)
    finally:
        page.page.unroute("**/pin")


def test_a_full_disk_is_told_and_costs_nothing(page: Editor, stores: ComfyServer) -> None:
    with small_disk(store_folder(stores.base.user, "full"), megabytes=2) as folder:
        make_store(folder, 3, decisions=5)
        page.press("refresh")
        page.open_panel("full")
        page.press("tab decisions")
        hit = page.panel.locator('[data-id="d4"]')
        expect(hit.locator('[data-action="safe"]')).to_be_visible()
        filler = fill_up(folder)
        hit.locator('[data-action="safe"]').click()
        page.expect_message("because the disk is full")
        expect(hit.locator('[data-action="safe"]')).to_be_visible()
        filler.unlink()
        hit.locator('[data-action="safe"]').click()
        expect(hit).to_contain_text("You said: keeps my prompt.")
        page.open_panel("few")


def test_a_server_that_is_gone_is_told_and_the_panel_comes_back_with_it(page: Editor, stores: ComfyServer) -> None:
    page.open_panel("few")
    page.press("tab entries")
    rows = page.panel.locator(".carnator-entry")
    expect(rows.first).to_be_visible()
    count = rows.count()
    stores.stop()
    page.press("refresh")
    page.expect_message("The server does not answer")
    page.press("pin")
    page.expect_message("The server does not answer")
    expect(rows).to_have_count(count)
    stores.start()
    expect(page.panel.locator(".carnator-message")).to_be_empty(timeout=20_000)
    page.press("pin")
    expect(page.action("pin").first).to_have_attribute("aria-pressed", "true")


def let_settle(page: Editor, asked: list[str]) -> None:
    """Until nothing is asked any more: a busy machine may connect the page to a server that came back only now."""
    for _ in range(5):
        asked.clear()
        page.page.wait_for_timeout(SETTLED_MS)
        if not asked:
            return
    pytest.fail(f"asks while nothing happens: {asked}")


def wait_for_stores(page: Editor, asked: list[str]) -> None:
    for _ in range(100):
        if any(url.endswith("/carnator/stores") for url in asked):
            return
        page.page.wait_for_timeout(100)
    pytest.fail(f"the stores were not asked for, but {asked}")


def test_a_closed_panel_listens_to_nothing_and_asks_nothing(page: Editor, stores: ComfyServer) -> None:
    page.open_panel("few")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url) if "/carnator/" in request.url else None)
    let_settle(page, asked)
    tell = "() => window.app.api.dispatchEvent(new CustomEvent('execution_success', {detail: {}}))"
    page.page.evaluate(tell)
    wait_for_stores(page, asked)
    page.close_panel()
    page.page.wait_for_timeout(200)
    asked.clear()
    page.page.evaluate(tell)
    page.page.wait_for_timeout(SETTLED_MS)
    assert asked == []


def test_a_queue_that_grows_is_no_reason_to_ask_and_one_that_shrinks_is(page: Editor) -> None:
    page.open_panel("few")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url) if "/carnator/" in request.url else None)
    tell = """(length) => {
        const detail = { exec_info: { queue_remaining: length } };
        window.app.api.dispatchEvent(new CustomEvent("status", { detail }));
    }"""
    let_settle(page, asked)
    page.close_panel()
    page.open_panel("few")
    asked.clear()
    page.page.evaluate(tell, 0)  # the end of a run that began before the panel was opened
    wait_for_stores(page, asked)
    let_settle(page, asked)
    for length in (1, 2):
        page.page.evaluate(tell, length)
    page.page.wait_for_timeout(1000)
    assert asked == []
    page.page.evaluate(tell, 1)
    wait_for_stores(page, asked)
    page.close_panel()

"""The HTTP routes on a real server, after real runs of the demo workflow."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from carnator_core.hosts.comfy_routes import ROUTES, add_routes, is_same_origin, video_size
from carnator_core.options import StoreOptions
from carnator_core.reasons import Decision
from carnator_core.store import folder as store_folder
from carnator_core.store.folder import Store
from carnator_core.store.history import History
from scripts.graphs import DemoGraph, only_node, without_video
from scripts.testbed.client import Event
from scripts.testbed.server import ComfyServer
from support.disks import fill_up, small_disk
from support.fake_host import a_donor
from support.logs import JPEG, a_record

PROMPT = "a small red ball drifts left over a meadow in clear weather"
JSON = {"Content-Type": "application/json"}
STORE = "/carnator/stores/default"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of a refusal."""
        assert self.headers["Content-Type"].startswith("application/json") and list(self.data) == ["error"]
        return self.data["error"]


@dataclass
class World:
    """A server that has run the demo workflow three times: a miss, a hit, and one that was declined."""

    server: ComfyServer
    busy: list[Answer] = field(default_factory=list)  # to deleting the donor while it was used
    seen: list[Answer] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.server.base.user / "__carnator" / "stores"

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        sent = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        if headers is None:
            headers = {} if method == "GET" else JSON
        connection.request(method, path, sent, headers)
        answer = connection.getresponse()
        found = Answer(answer.status, dict(answer.getheaders()), answer.read())
        connection.close()
        self.seen.append(found)
        return found

    def decisions(self, store: str = "default") -> list[dict]:
        return self.ask("GET", f"/carnator/stores/{store}/decisions").data["decisions"]

    def first_entries(self) -> list[dict]:
        """Those of the default store once there are some: they are written after the run has ended."""
        for _ in range(200):
            found = self.ask("GET", f"{STORE}/entries").data["entries"]
            if found:
                break
            time.sleep(0.05)
        return found

    def run(self, graphs: DemoGraph, on_event=None, **inputs: Any) -> None:
        graph = graphs.ours(PROMPT, steps=16)
        graph[only_node(graph, "EmptyHunyuanLatentVideo")]["inputs"] |= {"width": 64, "height": 64, "length": 9}
        graph[graphs.sampler]["inputs"] |= inputs
        self.server.run(without_video(graph), on_event)

    def fill(self, name: str, count: int) -> Store:
        """A store with entries and a hit for each, as another process leaves it."""
        store = Store(self.root, StoreOptions(name=name))
        for number in range(count):
            assert store.commit(a_donor(f"e{number}", seed=number)) is None
            store.history.add(a_record(id=f"hit{number}"), JPEG)
        store.wait()
        return store


@pytest.fixture(scope="module")
def world(install, comfy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ComfyServer(install, tmp_path_factory.mktemp("routes")) as server:
        world = World(server)
        assert world.ask("GET", "/carnator/stores").data == {"stores": []} and not world.root.exists()
        graphs = DemoGraph.load(server.get("/object_info"))
        world.run(graphs)
        (donor,) = world.first_entries()

        def delete_donor(event: Event) -> None:
            if event.type == "progress" and not world.busy:
                world.busy.append(world.ask("DELETE", f"{STORE}/entries/{donor['id']}"))

        world.run(graphs, delete_donor, max_region_percent=60.0, audit_percent=100.0)
        world.run(graphs, sampler_name="ddpm")
        yield world


def test_every_run_leaves_a_record(world: World) -> None:
    declined, hit, miss = world.decisions()
    assert [run["decision"] for run in (miss, hit, declined)] == ["miss", "hit", "declined"]
    assert declined["reason_code"] == "unsupported_sampler" and declined["settings"] == {}
    assert hit["donor"] == hit["request_id"] == miss["entry_id"] == miss["request_id"] and hit["entry_id"] is None
    assert hit["seconds"] > 0 <= hit["seconds_saved"] and miss["seconds_saved"] == declined["seconds_saved"] == 0
    assert hit["settings"]["sampler"] == "euler" and hit["settings"].keys() == miss["settings"].keys()
    assert hit["thresholds"] and hit["discrepancies"]["state"] is not None and hit["similarity"] == 1.0
    assert (miss["picture"], hit["picture"], declined["picture"]) == (False, True, False)
    assert set(hit) == {
        "id", "when", "decision", "reason_code", "reason", "status", "seconds", "seconds_saved", "donor", "request_id",
        "entry_id", "region_share", "decided_share", "discrepancies", "thresholds", "settings", "similarity", "work",
        "picture", "verdict", "audit", "dense_picture", "dense_difference",
    }  # fmt: skip


def test_an_audited_hit_has_a_picture_of_its_dense_run(world: World) -> None:
    declined, hit, miss = world.decisions()
    assert (hit["audit"], hit["dense_picture"], hit["dense_difference"]["inside"]) == (True, True, None)
    assert 0 < hit["dense_difference"]["outside"] < 0.1, "its donor is its own dense run"
    assert not any(run["audit"] or run["dense_picture"] or run["dense_difference"] for run in (declined, miss))
    answer = world.ask("GET", f"{STORE}/decisions/{hit['id']}/dense")
    assert answer.status == 200 and answer.headers["Content-Type"] == "image/jpeg"
    (donor,) = world.ask("GET", f"{STORE}/entries").data["entries"]
    assert answer.body == world.ask("GET", f"{STORE}/entries/{donor['id']}/picture").body
    assert world.ask("GET", f"{STORE}/decisions/{miss['id']}/dense").status == 404


def test_the_store_and_its_entry_are_listed(world: World) -> None:
    (store,) = (s for s in world.ask("GET", "/carnator/stores").data["stores"] if s["name"] == "default")
    assert (store["entries"], store["hits"], store["decisions"], store["budget_bytes"]) == (1, 1, 3, 8e9)
    (entry,) = world.ask("GET", f"{STORE}/entries?order=largest&limit=1").data["entries"]
    assert store["bytes"] == entry["bytes"] > 10_000 and entry["size"] == "64x64x9"
    assert entry["hits"] == 1 and entry["picture"] and not entry["pinned"]


def test_pictures_are_small_jpegs_that_nobody_else_may_show(world: World) -> None:
    hit, (entry,) = world.decisions()[1], world.ask("GET", f"{STORE}/entries").data["entries"]
    for path in (f"entries/{entry['id']}/picture", *(f"decisions/{hit['id']}/{of}" for of in ("picture", "dense"))):
        answer = world.ask("GET", f"{STORE}/{path}")
        assert answer.status == 200 and answer.body.startswith(b"\xff\xd8\xff") and len(answer.body) < 65536
        assert answer.headers["Content-Type"] == "image/jpeg" and answer.headers["Cache-Control"].startswith("private")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert world.ask("GET", f"{STORE}/decisions/{world.decisions()[0]['id']}/picture").status == 404


def test_an_entry_that_a_run_reads_is_not_deleted(world: World) -> None:
    (answer,) = world.busy
    assert answer.status == 409 and "a run uses this entry" in answer.error
    assert world.ask("GET", f"{STORE}/entries").data["total"] == 1


@pytest.mark.parametrize("path", ["stores", "stores/default/entries", "stores/default/certificate"])
def test_every_route_is_there_with_the_prefix_of_the_editor_too(world: World, path: str) -> None:
    with_prefix, without = world.ask("GET", f"/api/carnator/{path}"), world.ask("GET", f"/carnator/{path}")
    assert with_prefix.status == 200 and with_prefix.data == without.data


def test_verdicts_are_given_changed_and_taken_back(world: World) -> None:
    verdict = f"{STORE}/decisions/{world.decisions()[1]['id']}/verdict"
    first = world.ask("POST", verdict, {"safe": True})
    assert first.status == 200 and first.data["verdict"] == "safe"
    assert world.ask("POST", verdict, {"safe": True}).data == first.data
    assert world.decisions()[1]["verdict"] == "safe"
    assert world.ask("POST", f"/api{verdict}", {"safe": False}).data["id"] != first.data["id"]
    assert world.decisions()[1]["verdict"] == "unsafe"
    (store,) = (s for s in world.ask("GET", "/carnator/stores").data["stores"] if s["name"] == "default")
    assert store["verdicts"] == {"safe": 0, "unsafe": 1}
    assert world.ask("GET", f"{STORE}/certificate").data["progress"]["verdicts"] == 1
    for _ in range(2):
        assert world.ask("DELETE", verdict).data == {"verdict": None}
    assert world.decisions()[1]["verdict"] is None
    miss = world.decisions()[2]["id"]
    refused = world.ask("POST", f"{STORE}/decisions/{miss}/verdict", {"safe": True})
    assert refused.status == 409 and "only a hit" in refused.error


def test_pinning_purging_and_deleting(world: World) -> None:
    world.fill("tidy", 3).close()
    store = "/carnator/stores/tidy"
    assert world.ask("POST", f"{store}/entries/e1/pin", {"pinned": True}).data["pinned"] is True
    purge = {"older_than_days": 0, "confirm": False}
    told = world.ask("POST", f"{store}/purge", purge).data
    assert (told["count"], told["pinned"], told["in_use"]) == (2, 1, 0) and told["sentence"].startswith(
        "nothing deleted"
    )
    assert world.ask("GET", f"{store}/entries").data["total"] == 3
    done = world.ask("POST", f"{store}/purge", {**purge, "confirm": True}).data
    assert (done["count"], done["bytes"]) == (2, told["bytes"]) and done["sentence"].startswith("2 entries deleted")
    assert world.ask("POST", f"{store}/entries/e1/pin", {"pinned": False}).data["pinned"] is False
    assert world.ask("DELETE", f"{store}/entries/e1").data == {"deleted": True}
    for method, path, body in (("DELETE", "", None), ("POST", "/pin", {"pinned": True}), ("GET", "/picture", None)):
        again = world.ask(method, f"{store}/entries/e1{path}", body)
        assert again.status == 404 and again.error
    assert world.ask("GET", f"{store}/entries").data == {"total": 0, "entries": []}
    assert len(world.decisions("tidy")) == 3, "what was decided stays"


BAD_CALLS = [
    ("GET", f"{STORE}/entries/a.b/picture", None),
    ("GET", f"{STORE}/entries/%2e%2e%2fx/picture", None),
    ("GET", "/carnator/stores/a%20b/entries", None),
    ("GET", "/carnator/stores/..%2f..%2fdefault/decisions", None),
    ("GET", f"{STORE}/decisions/{'a' * 65}/picture", None),
    ("GET", f"{STORE}/decisions/hit.dense/dense", None),
    ("GET", f"{STORE}/entries?offset=-1", None),
    ("GET", f"{STORE}/entries?limit=1000000", None),
    ("GET", f"{STORE}/entries?limit=%D9%A3", None),
    ("GET", f"{STORE}/entries?order=random", None),
    ("POST", f"{STORE}/entries/x/pin", {"pinned": 1}),
    ("POST", f"{STORE}/entries/x/pin", {}),
    ("POST", f"{STORE}/entries/x/pin", []),
    ("POST", f"{STORE}/entries/x/pin", b"{"),
    ("POST", f"{STORE}/entries/x/pin", b"[" * 4000),
    ("POST", f"{STORE}/entries/x/pin", b"\xff\xfe"),
    ("POST", f"{STORE}/purge", {"older_than_days": -1, "confirm": True}),
    ("POST", f"{STORE}/purge", {"older_than_days": True, "confirm": True}),
    ("POST", f"{STORE}/purge", b'{"older_than_days": NaN, "confirm": true}'),
    ("POST", f"{STORE}/purge", {"older_than_days": 0, "confirm": "yes"}),
    ("POST", f"{STORE}/decisions/x/verdict", {"safe": "yes"}),
    ("DELETE", f"{STORE}/entries/a.b", None),
    ("DELETE", f"{STORE}/decisions/a.b/verdict", None),
]


@pytest.mark.parametrize(("method", "path", "body"), BAD_CALLS)
def test_what_cannot_be_understood_is_refused(world: World, method: str, path: str, body: Any) -> None:
    answer = world.ask(method, path, body)
    assert answer.status == 400 and answer.error
    assert world.ask("GET", f"{STORE}/entries").data["total"] == 1


def test_a_large_body_is_not_even_read(world: World) -> None:
    answer = world.ask("POST", f"{STORE}/purge", b" " * 5000)
    assert answer.status == 413 and "4096" in answer.error


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "none"])
def test_a_body_that_may_be_longer_than_it_says_is_not_unpacked(world: World, encoding: str) -> None:
    packed = gzip.compress(b'{"older_than_days": 0, "confirm": true, "more": "' + b" " * 1_000_000 + b'"}')
    answer = world.ask("POST", f"{STORE}/purge", packed, {**JSON, "Content-Encoding": encoding})
    assert answer.status == 415 and answer.error == "the body must not be compressed"
    assert world.ask("GET", f"{STORE}/entries").data["total"] == 1


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in ROUTES if "{store}" in path])
def test_an_unknown_store_or_id_is_not_found(world: World, method: str, path: str) -> None:
    body = {"pinned": True, "older_than_days": 0, "confirm": True, "safe": True}
    for store in ("unknown", "default") if "{id}" in path else ("unknown",):
        answer = world.ask(method, path.format(store=store, id="unknown"), body if method == "POST" else None)
        assert answer.status == 404 and answer.error
    assert not (world.root / "unknown").exists()


CHANGES = [(method, path) for method, path, _ in ROUTES if method != "GET"]


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_foreign_form_could_send_changes_nothing(world: World, method: str, path: str, kind: str | None) -> None:
    body = {"pinned": True, "older_than_days": 0, "confirm": True, "safe": True}
    headers = {} if kind is None else {"Content-Type": kind}
    answer = world.ask(method, path.format(store="default", id="x"), body, headers)
    assert answer.status == 415 and "application/json" in answer.error
    assert world.ask("GET", f"{STORE}/entries").data["total"] == 1


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_what_a_foreign_page_sends_changes_nothing(world: World, method: str, path: str) -> None:
    body = {"pinned": True, "older_than_days": 0, "confirm": True, "safe": True}
    path = path.format(store="default", id="x")
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "carnator.example", "Origin": "http://other.example"},
        {"Host": "carnator.example", "Origin": "null"},
        {"Origin": "http://other.example"},  # ComfyUI itself sees to that one, without a word
    ):
        assert world.ask(method, path, body, {**JSON, **headers}).status == 403
    assert world.ask("GET", f"{STORE}/entries").data["total"] == 1


def test_the_own_page_and_programs_may_change_things(world: World) -> None:
    (entry,) = world.ask("GET", f"{STORE}/entries").data["entries"]
    for headers in ({}, {"Origin": f"http://{world.server.address}"}, {"Sec-Fetch-Site": "same-origin"}):
        answer = world.ask("POST", f"{STORE}/entries/{entry['id']}/pin", {"pinned": False}, {**JSON, **headers})
        assert answer.status == 200


def test_two_clients_at_once_leave_one_verdict(world: World) -> None:
    world.fill("shared", 2).close()
    statuses: list[int] = []

    def click(client: int) -> None:
        for number in range(8):
            path = "/carnator/stores/shared/decisions/hit1/verdict"
            statuses.append(world.ask("POST", path, {"safe": (client + number) % 2 == 0}).status)
            statuses.append(
                world.ask("POST", "/carnator/stores/shared/entries/e0/pin", {"pinned": bool(client)}).status
            )
            statuses.append(world.ask("GET", "/carnator/stores").status)

    clients = [threading.Thread(target=click, args=(number,)) for number in (0, 1)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert set(statuses) == {200}
    (store,) = (s for s in world.ask("GET", "/carnator/stores").data["stores"] if s["name"] == "shared")
    assert sum(store["verdicts"].values()) == 1
    assert world.decisions("shared")[0]["verdict"] in ("safe", "unsafe")


def test_a_store_whose_folder_somebody_deleted_is_no_more(world: World) -> None:
    world.fill("doomed", 1).close()
    assert world.ask("POST", "/carnator/stores/doomed/entries/e0/pin", {"pinned": True}).status == 200
    shutil.rmtree(world.root / "doomed")
    for method, path, body in (
        ("GET", "entries", None), ("DELETE", "entries/e0", None), ("POST", "decisions/hit0/verdict", {"safe": True}),
    ):  # fmt: skip
        assert world.ask(method, f"/carnator/stores/doomed/{path}", body).status == 404
    assert "doomed" not in [store["name"] for store in world.ask("GET", "/carnator/stores").data["stores"]]
    assert not (world.root / "doomed").exists()


def test_a_full_disk_is_a_sentence_and_nothing_is_lost(world: World, monkeypatch) -> None:
    monkeypatch.setattr(store_folder, "MIN_FREE_BYTES", 0)
    with small_disk(world.root / "full", megabytes=2) as folder:
        world.fill("full", 2).close()
        verdict = "/carnator/stores/full/decisions/hit0/verdict"
        assert world.ask("POST", verdict, {"safe": True}).status == 200
        filler = fill_up(folder)
        assert world.ask("GET", "/carnator/stores/full/entries").data["total"] == 2, "looking needs no room"
        refused = world.ask("POST", verdict, {"safe": False})
        assert refused.status == 507 and refused.error.endswith("disk is full")
        assert world.decisions("full")[1]["verdict"] == "safe"
        filler.unlink()
        assert world.ask("POST", verdict, {"safe": False}).status == 200
        assert world.decisions("full")[1]["verdict"] == "unsafe"
        assert (
            world.ask("POST", "/carnator/stores/full/purge", {"older_than_days": 0, "confirm": True}).data["count"] == 2
        )
        assert world.ask("GET", "/carnator/stores/full/decisions").data["total"] == 2


def test_after_a_restart_everything_is_still_there_for_several_users_too(world: World) -> None:
    before = world.decisions(), world.ask("GET", f"{STORE}/entries").data
    world.server.stop()
    world.server.arguments = ("--multi-user",)
    world.server.start()
    assert (world.decisions(), world.ask("GET", f"{STORE}/entries").data) == before
    (store,) = (s for s in world.ask("GET", "/carnator/stores").data["stores"] if s["name"] == "default")
    assert (store["entries"], store["decisions"], store["budget_bytes"]) == (1, 3, None)
    headers = {**JSON, "Comfy-User": "somebody"}
    path = f"{STORE}/decisions/{before[0][1]['id']}/verdict"
    assert world.ask("POST", path, {"safe": True}, headers).status == 200


def test_no_answer_named_a_prompt_or_a_place_and_the_server_log_has_no_error(world: World) -> None:
    text = b"\n".join(answer.body for answer in world.seen if answer.body[:1] in b"{[").decode()
    assert len(world.seen) > 100 and str(world.server.base.path) not in text
    assert not re.search(r"(?<!\w)/\w|[A-Za-z]:\\\\", text), "no place on the disk"
    assert not any(word in text for word in ("meadow", "red ball"))
    assert "Error handling request" not in world.server.log_text()


# -- without a server --------------------------------------------------------------------------------------------------


def test_a_second_copy_of_the_pack_adds_no_route(caplog) -> None:
    from aiohttp import web

    class Server:
        routes = web.RouteTableDef()

    add_routes(Server)
    first = list(Server.routes)
    with caplog.at_level(logging.WARNING):
        add_routes(Server)
    assert list(Server.routes) == first and len(first) == len(ROUTES) and "two copies" in caplog.text
    web.Application().add_routes(Server.routes)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Host": "a:8188", "Origin": "http://a:8188"}, True),
        ({"Host": "A:8188", "Origin": "http://a:8188"}, True),
        ({"Host": "a", "Origin": "http://a:80"}, True),
        ({"Host": "a:443", "Origin": "https://a"}, True),
        ({"Host": "[::1]:8188", "Origin": "http://[::1]:8188"}, True),
        ({"Host": "a:8188", "Origin": "http://a:8189"}, False),
        ({"Host": "a:8188", "Origin": "http://b:8188"}, False),
        ({"Host": "a:8188", "Origin": "http://a:8188.b"}, False),
        ({"Host": "a:8188", "Origin": "null"}, False),
        ({"Host": "", "Origin": ""}, False),
        ({"Host": "a", "Origin": "http://b", "Sec-Fetch-Site": "same-origin"}, True),  # behind a proxy
        ({"Host": "a", "Origin": "http://a", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Host": "a", "Sec-Fetch-Site": "none"}, True),
    ],
)
def test_where_a_request_may_come_from(headers: dict[str, str], allowed: bool) -> None:
    assert is_same_origin(headers) == allowed


@pytest.mark.parametrize(
    ("latent", "size"),
    [
        ("1x16x21x60x104", "832x480x81"),
        ("1x48x31x44x80", "1280x704x121"),
        ("1x16x1x32x32", "256x256x1"),
        ("1x4x1x32x32", None),
        ("16x21x60x104", None),
        ("none", None),
    ],
)
def test_the_size_of_a_video_from_that_of_its_latent(latent: str, size: str | None) -> None:
    assert video_size(latent) == size


def test_every_sampling_through_apply_is_noted(tiny, tmp_path: Path) -> None:
    from carnator_core.handle import ReportHandle
    from carnator_core.hosts.comfy_apply import AppliedModel

    handle = ReportHandle()
    model = AppliedModel(tiny.options(), tmp_path, handle).attach(tiny.model)
    for sampler in ("euler", "euler", "ddpm"):
        tiny.call.but(sampler=sampler)(model)
    records = History(tmp_path / "default").read()
    assert [record.decision for record in records] == ["miss", "hit", "declined"]
    assert handle.outcome.report["decision_id"] == records[-1].id and records[1].picture


def test_nothing_is_noted_of_a_node_that_is_off_and_noting_costs_no_time(tiny, tmp_path: Path) -> None:
    from carnator_core.hosts.comfy_apply import outcome_of
    from carnator_core.hosts.comfy_history import note_outcome

    tiny.reuse(tmp_path, tiny.call)
    result, run = tiny.reuse(tmp_path, tiny.call)
    outcome = outcome_of(run, tiny.model, result)
    history = History(tmp_path / "default")
    (record,) = history.read()
    assert record.decision == "hit" and outcome.report["decision_id"] == record.id and history.picture(record.id)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        note_outcome(run, outcome, tiny.model, result)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.02 and len(history.read()) == 6
    run.report.decision = Decision.OFF
    note_outcome(run, outcome, tiny.model, result)
    assert len(history.read()) == 6


def test_a_history_that_cannot_be_written_costs_one_line_and_no_run(tiny, tmp_path: Path, caplog) -> None:
    from carnator_core.hosts.comfy_apply import outcome_of
    from carnator_core.store.history import finish

    result, run = tiny.reuse(tmp_path, tiny.call)
    (tmp_path / "default" / "decisions.jsonl").mkdir()
    outcome = outcome_of(run, tiny.model, result)
    finish()
    assert outcome.report["decision"] == "miss" and caplog.text.count("the history was not written") == 1

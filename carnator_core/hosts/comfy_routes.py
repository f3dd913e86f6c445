"""What the user interface reads and changes over HTTP: the routes below ``/carnator/``, described in docs/http.md.

GET changes nothing. What changes something comes as JSON and from the server's own pages or from a program. All work on
a disk is done on threads of our own, never on the server's event loop.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ..options import is_store_name
from ..store.catalog import ORDERS
from ..store.entry import is_id
from ..store.stores import NotThere, Refused, Stores
from .comfy_paths import store_root

log = logging.getLogger("carnator")

MAX_BODY_BYTES = 4096
MAX_LIMIT = 200
MAX_DAYS = 36500.0
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
HOUR, FOR_EVER = "private, max-age=3600", "private, max-age=31536000, immutable"
PICTURE = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}


class BadRequest(Exception):
    """What was asked for cannot be understood or is not allowed."""

    def __init__(self, sentence: str, status: int = 400):
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Call:
    """One request: names from its path, the query, and the JSON object of its body."""

    path: dict[str, str]
    query: dict[str, str]
    body: dict[str, Any]

    @property
    def store(self) -> str:
        if not is_store_name(self.path["store"]):
            raise BadRequest("a store name is 1 to 64 ASCII letters, digits, '-' and '_'")
        return self.path["store"]

    @property
    def id(self) -> str:
        if not is_id(self.path["id"]):
            raise BadRequest("an id is 1 to 64 ASCII letters, digits, '-' and '_'")
        return self.path["id"]

    def count(self, name: str, default: int, most: int) -> int:
        """A whole number of the query between 0 and ``most``."""
        text = self.query.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) <= most):
            raise BadRequest(f"{name} must be a whole number from 0 to {most}")
        return int(text)

    @property
    def page(self) -> tuple[int, int]:
        return self.count("offset", 0, 10**9 - 1), self.count("limit", 50, MAX_LIMIT)

    @property
    def order(self) -> str:
        order = self.query.get("order", "newest")
        if order not in ORDERS:
            raise BadRequest(f"order must be one of {', '.join(ORDERS)}")
        return order

    def flag(self, name: str) -> bool:
        if not isinstance(self.body.get(name), bool):
            raise BadRequest(f"{name} must be true or false")
        return self.body[name]

    @property
    def days(self) -> float:
        value = self.body.get("older_than_days")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_DAYS:
            raise BadRequest(f"older_than_days must be a number from 0 to {MAX_DAYS:g}")
        return value


@dataclass(frozen=True)
class Picture:
    """A JPEG to be sent, and how long a browser may keep it."""

    jpeg: bytes
    kept: str


STORE = "/carnator/stores/{store}"
ENTRY, DECISION = f"{STORE}/entries/{{id}}", f"{STORE}/decisions/{{id}}"
ROUTES: list[tuple[str, str, Callable[[Stores, Call], Any]]] = [
    ("GET", "/carnator/stores", lambda stores, call: stores.all()),
    ("GET", f"{STORE}/entries", lambda stores, call: stores.entries(call.store, call.order, *call.page)),
    ("GET", f"{STORE}/decisions", lambda stores, call: stores.decisions(call.store, *call.page)),
    ("GET", f"{STORE}/certificate", lambda stores, call: stores.certificate(call.store)),
    ("POST", f"{STORE}/purge", lambda stores, call: stores.purge(call.store, call.days, call.flag("confirm"))),
    ("GET", f"{ENTRY}/picture", lambda stores, call: Picture(stores.entry_picture(call.store, call.id), HOUR)),
    ("POST", f"{ENTRY}/pin", lambda stores, call: stores.pin(call.store, call.id, call.flag("pinned"))),
    ("DELETE", ENTRY, lambda stores, call: stores.delete(call.store, call.id)),
    (
        "GET",
        f"{DECISION}/picture",
        lambda stores, call: Picture(stores.hit_picture(call.store, call.id), FOR_EVER),
    ),
    (
        "GET",
        f"{DECISION}/dense",
        lambda stores, call: Picture(stores.dense_picture(call.store, call.id), FOR_EVER),
    ),
    ("POST", f"{DECISION}/verdict", lambda stores, call: stores.judge(call.store, call.id, call.flag("safe"))),
    ("DELETE", f"{DECISION}/verdict", lambda stores, call: stores.withdraw(call.store, call.id)),
]


def add_routes(server: Any) -> None:
    """Put all routes on a PromptServer, once: a second copy of the pack adds nothing."""
    if any(getattr(route, "path", "").startswith("/carnator/") for route in server.routes):
        log.warning("Carnator: there are two copies of this pack; the one that was loaded first answers the interface")
        return
    threads = ThreadPoolExecutor(2, thread_name_prefix="carnator-http")
    for method, path, work in ROUTES:
        server.routes.route(method, path)(_handler(threads, work))


def _handler(threads: ThreadPoolExecutor, work: Callable[[Stores, Call], Any]) -> Callable:
    async def answer(request: web.Request) -> web.Response:
        try:
            call = await _call_of(request)
            stores = Stores(store_root(), video_size)
            found = await asyncio.get_running_loop().run_in_executor(threads, work, stores, call)
        except BadRequest as error:
            return _refusal(error.status, str(error))
        except NotThere as error:
            return _refusal(404, str(error))
        except Refused as error:
            return _refusal(409, str(error))
        except OSError as error:
            return _refusal(507 if _is_full(error) else 503, f"the store cannot be used: {error.strerror or error}")
        if isinstance(found, Picture):
            headers = {**PICTURE, "Cache-Control": found.kept}
            return web.Response(body=found.jpeg, content_type="image/jpeg", headers=headers)
        return web.json_response(found, headers={"Cache-Control": "no-store"})

    return answer


def _refusal(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status, headers={"Cache-Control": "no-store"})


def _is_full(error: OSError) -> bool:
    return error.errno in FULL or "disk is full" in str(error)  # as SQLite says it


async def _call_of(request: web.Request) -> Call:
    """Raises BadRequest."""
    body: Any = {}
    if request.method != "GET":
        if request.content_type != "application/json":
            raise BadRequest("the content type must be application/json", 415)
        if not is_same_origin(request.headers):
            raise BadRequest("only this server's own pages may do that", 403)
        if request.can_read_body:
            body = await _body_of(request)
    return Call(dict(request.match_info), dict(request.query), body)


async def _body_of(request: web.Request) -> dict[str, Any]:
    if request.content_length is None or request.content_length > MAX_BODY_BYTES:
        raise BadRequest(f"the body must say its length and have at most {MAX_BODY_BYTES} bytes", 413)
    if "Content-Encoding" in request.headers:  # what it says is the length before it is unpacked
        raise BadRequest("the body must not be compressed", 415)
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise BadRequest("the body is no JSON") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def is_same_origin(headers: Any) -> bool:
    """Whether a request comes from a page of this server or from no page at all.

    Browsers say so themselves in Sec-Fetch-Site, which no page can forge; older ones send an Origin, whose host and
    port must be those that the request was sent to.
    """
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None:
        return site in ("same-origin", "none")
    if origin is None:
        return True
    scheme, _, place = origin.lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme, "")
    return place != "" and place.removesuffix(port) == headers.get("Host", "").lower().removesuffix(port)


def video_size(latent: str) -> str | None:
    """Width x height x frames of a video whose latent has these sides, such as "1x16x21x60x104".

    Wan 2.1's latents have 16 channels and an eighth of each side, Wan 2.2's 5B model has 48 channels and a sixteenth;
    both keep every fourth frame after the first.
    """
    try:
        _, channels, frames, height, width = map(int, latent.split("x"))
        scale = {16: 8, 48: 16}[channels]
    except (ValueError, KeyError):
        return None
    return f"{width * scale}x{height * scale}x{(frames - 1) * 4 + 1}"

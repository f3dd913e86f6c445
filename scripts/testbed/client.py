"""Queues a prompt on a running ComfyUI over HTTP and follows it on the websocket to its end."""

from __future__ import annotations

import asyncio
import json
import struct
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Graph = dict[str, dict[str, Any]]

# Types of ComfyUI's binary messages.
PREVIEWS = (1, 2, 4)
TEXT = 3


class RunError(Exception):
    """A prompt that did not succeed."""


class InvalidGraph(RunError):
    """The server refused the prompt before running anything."""


class Interrupted(RunError):
    """Somebody pressed cancel."""


class NodeError(RunError):
    def __init__(self, node: str, node_type: str, message: str, traceback: str) -> None:
        super().__init__(f"{node_type} (node {node}): {message}")
        self.node = node
        self.node_type = node_type
        self.message = message
        self.traceback = traceback


@dataclass(frozen=True)
class Event:
    seconds: float  # since the prompt was queued
    type: str  # ComfyUI's message type; "preview" and "text" for the binary ones
    data: dict[str, Any]


@dataclass
class RunResult:
    prompt_id: str
    seconds: float
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)  # node id -> its ui output
    events: list[Event] = field(default_factory=list)

    @property
    def node_seconds(self) -> dict[str, float]:
        """How long each node ran: from its own "executing" message to the next one."""
        spans: dict[str, float] = {}
        current: tuple[str, float] | None = None
        for event in self.events:
            if event.type not in ("executing", "execution_success"):
                continue
            if current is not None:
                node, since = current
                spans[node] = spans.get(node, 0.0) + event.seconds - since
            node = event.data.get("node") if event.type == "executing" else None
            current = (node, event.seconds) if node is not None else None
        return spans

    @property
    def cached(self) -> set[str]:
        return {node for event in self.of_type("execution_cached") for node in event.data["nodes"]}

    @property
    def previews(self) -> int:
        return len(self.of_type("preview"))

    def of_type(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.type == kind]

    def progress(self, node: str) -> list[tuple[int, int]]:
        """(value, max) as shown by the node's progress bar."""
        return [
            (event.data["value"], event.data["max"])
            for event in self.of_type("progress")
            if str(event.data.get("node")) == node
        ]

    def texts(self, node: str) -> list[str]:
        """Status texts that the node showed while it ran."""
        return [event.data["text"] for event in self.of_type("text") if event.data["node"] == node]


class ComfyClient:
    def __init__(self, address: str) -> None:
        self.address = address  # "127.0.0.1:8188"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://{self.address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def interrupt(self) -> None:
        self.post("/interrupt", {})

    def run(self, graph: Graph, on_event: Callable[[Event], None] | None = None, timeout: float = 600.0) -> RunResult:
        """Runs an API-format graph. `on_event` sees each event as it comes and may call `interrupt()`."""
        return asyncio.run(asyncio.wait_for(self._run(graph, on_event), timeout))

    async def _run(self, graph: Graph, on_event: Callable[[Event], None] | None) -> RunResult:
        client_id = uuid.uuid4().hex
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://{self.address}/ws?clientId={client_id}", max_msg_size=0) as socket,
        ):
            started = time.monotonic()
            prompt_id = self._queue(graph, client_id)
            result = RunResult(prompt_id, 0.0)
            async for message in socket:
                event = _event(message, time.monotonic() - started)
                if event is None or event.data.get("prompt_id", prompt_id) != prompt_id:
                    continue
                result.events.append(event)
                if on_event is not None:
                    on_event(event)
                if event.type == "execution_success":
                    break
                _raise_failure(event)
            else:
                raise RunError("the server closed the connection before the prompt ended")
        result.seconds = result.events[-1].seconds
        result.outputs = await self._outputs(prompt_id)
        return result

    def _queue(self, graph: Graph, client_id: str) -> str:
        try:
            answer = self.post("/prompt", {"prompt": graph, "client_id": client_id})
        except urllib.error.HTTPError as error:
            raise InvalidGraph(_refusal(error.read())) from error
        if answer.get("node_errors"):  # ComfyUI runs the outputs that are valid; we want all or nothing
            self.post("/queue", {"delete": [answer["prompt_id"]]})
            raise InvalidGraph(_refusal(json.dumps(answer).encode()))
        return answer["prompt_id"]

    async def _outputs(self, prompt_id: str) -> dict[str, dict[str, Any]]:
        # The success message goes out a moment before the history is written.
        for _ in range(100):
            history = self.get(f"/history/{prompt_id}")
            if prompt_id in history:
                return history[prompt_id]["outputs"]
            await asyncio.sleep(0.05)
        raise RunError(f"the server keeps no history of prompt {prompt_id}")


def _event(message: aiohttp.WSMessage, seconds: float) -> Event | None:
    if message.type == aiohttp.WSMsgType.TEXT:
        content = json.loads(message.data)
        return Event(seconds, content["type"], content.get("data") or {})
    if message.type == aiohttp.WSMsgType.BINARY:
        kind = struct.unpack(">I", message.data[:4])[0]
        if kind in PREVIEWS:
            return Event(seconds, "preview", {"bytes": len(message.data) - 4})
        if kind == TEXT:
            size = struct.unpack(">I", message.data[4:8])[0]
            node, text = message.data[8 : 8 + size], message.data[8 + size :]
            return Event(seconds, "text", {"node": node.decode(), "text": text.decode()})
    return None


def _raise_failure(event: Event) -> None:
    if event.type == "execution_interrupted":
        raise Interrupted(f"interrupted in node {event.data.get('node_id')}")
    if event.type == "execution_error":
        data = event.data
        message = f"{data['exception_type']}: {data['exception_message'].strip()}"
        traceback = "".join(data.get("traceback") or [])
        raise NodeError(str(data["node_id"]), data["node_type"], message, traceback)


def _refusal(body: bytes) -> str:
    try:
        answer = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")[:500]
    parts = [(answer.get("error") or {}).get("message", "Some nodes are invalid")]
    for node, errors in (answer.get("node_errors") or {}).items():
        for error in errors["errors"]:
            problem = f"{error['message']} {error['details']}".rstrip()
            parts.append(f"{errors['class_type']} (node {node}): {problem}")
    return "; ".join(parts)

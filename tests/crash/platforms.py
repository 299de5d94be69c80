"""Platforms on loopback: what people see of what a gateway sends, and the keys that they know."""

import contextlib
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import SocketStream

from tests.fakes.model_server import GONE

Json = dict[str, Any]
MARK = re.compile(r"(?:begin|end)z[a-z]+[0-9]+z")


@dataclass(frozen=True)
class Sent:
    """A request; `rest` of its path is what follows the channel's name."""

    channel: str
    method: str
    rest: str
    headers: Mapping[str, str]
    body: Json


@dataclass
class Platforms:
    """`shown` are messages by (channel, id); `arrivals` are all that were to be shown, with whether
    the platform knows the request by a key or by what it edits, and the life of the gateway."""

    hit: Callable[
        [str], bool
    ]  # may kill "before" an answer, of which there is none then, or "after"
    shown: dict[tuple[str, str], str] = field(default_factory=dict)
    arrivals: list[tuple[str, bool, int]] = field(default_factory=list)
    life: int = 0
    progress: anyio.Event = field(default_factory=anyio.Event)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _known: dict[tuple[str, ...], str] = field(default_factory=dict)

    def marks(self) -> list[str]:
        """Each as often as people see it."""
        return [mark for text in self.shown.values() for mark in MARK.findall(text)]

    async def serve(self, stream: SocketStream) -> None:
        with contextlib.suppress(*GONE):
            async with stream:
                await self._answer(stream)

    async def _answer(self, stream: SocketStream) -> None:
        sent = await _read(stream.receive)
        before = len(self.arrivals)
        status, body = getattr(self, f"_{sent.channel}")(sent)
        is_message = len(self.arrivals) > before
        if is_message and self.hit("before"):
            return
        raw = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
        await stream.send(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        if is_message:
            self.hit("after")
            self.progress.set()

    def _show(self, channel: str, text: str, *key: str, edits: str | None = None) -> str:
        """The id of the message; with a `key` that is known, of the one that there is."""
        is_safe = bool(key) or edits is not None
        self.arrivals += [(mark, is_safe, self.life) for mark in MARK.findall(text)] or [
            ("", is_safe, self.life)
        ]
        if key and (channel, *key) in self._known:
            return self._known[channel, *key]
        name = edits or str(next(self._numbers))
        self.shown[channel, name] = text
        if key:
            self._known[channel, *key] = name
        return name

    def _telegram(self, sent: Sent) -> tuple[int, Json]:
        text, edits = sent.body.get("text"), sent.body.get("message_id")
        if text is None:
            return 200, {"ok": True, "result": True}
        if edits and self.shown["telegram", str(edits)] == text:
            return 400, {"ok": False, "description": "Bad Request: message is not modified: same"}
        name = self._show("telegram", text, edits=str(edits) if edits else None)
        return 200, {"ok": True, "result": {"message_id": int(name)}}

    def _slack(self, sent: Sent) -> tuple[int, Json]:
        return 200, {
            "ok": True,
            "ts": self._show("slack", sent.body["text"], edits=sent.body.get("ts")),
        }

    def _discord(self, sent: Sent) -> tuple[int, Json]:
        if sent.rest.endswith("/typing"):
            return 204, {}
        *_, token, last = sent.rest.removesuffix("/messages/@original").split("/")
        if sent.rest.endswith("@original"):
            return 200, {"id": self._show("discord", sent.body["content"], edits=f"of-{last}")}
        if sent.method == "PATCH":
            return 200, {"id": self._show("discord", sent.body["content"], edits=last)}
        key = (sent.rest, sent.body["nonce"]) if sent.body.get("enforce_nonce") else ()
        return 200, {"id": self._show("discord", sent.body["content"], *key)}

    def _whatsapp(self, sent: Sent) -> tuple[int, Json]:
        if "text" not in sent.body:
            return 200, {"success": True}
        return 200, {"messages": [{"id": self._show("whatsapp", sent.body["text"]["body"])}]}

    def _matrix(self, sent: Sent) -> tuple[int, Json]:
        if "/send/" not in sent.rest:
            return 200, {}
        edits = sent.body.get("m.relates_to", {}).get("event_id")
        content = sent.body.get("m.new_content", sent.body)
        return 200, {"event_id": self._show("matrix", content["body"], sent.rest, edits=edits)}

    def _webhook(self, sent: Sent) -> tuple[int, Json]:
        self._show("webhook", sent.body["text"], sent.headers["idempotency-key"])
        return 200, {}


async def _read(receive: Callable[[], Awaitable[bytes]]) -> Sent:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += await receive()
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): text for name, text in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += await receive()
    method, path, _ = first.split(" ")
    _, channel, rest = path.split("/", 2)
    return Sent(channel, method, rest, headers, json.loads(body) if body else {})

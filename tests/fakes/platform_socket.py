"""Platforms that speak by WebSockets, over loopback: faithful enough for their own clients."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from socket import create_server, socket

import anyio
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

Body = Mapping[str, object]
Talk = Callable[[ServerConnection], Awaitable[None]]
Answers = Callable[[ServerConnection, Request], Response | None]


@cache
def _place() -> socket:
    """Of all platforms of a process: an adapter that holds the address is compiled once."""
    return create_server(("127.0.0.1", 0))


@asynccontextmanager
async def listening(
    talk: Talk, answers: Answers = lambda line, asked: None, at: socket | None = None
) -> AsyncIterator[str]:
    """Its address, as ws://. What `answers` gives None for becomes a WebSocket."""
    place = at or create_server(("127.0.0.1", 0))
    async with serve(talk, sock=place, process_request=answers):
        yield f"ws://127.0.0.1:{place.getsockname()[1]}"


@dataclass
class Platform:
    """Keeps what it was told; `expect` waits for the next frame that nobody looked at yet."""

    told: list[dict[str, object]] = field(default_factory=list)
    closed: list[int | None] = field(default_factory=list)
    lines: list[ServerConnection] = field(default_factory=list)
    _seen: int = 0
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def expect(self) -> dict[str, object]:
        await self.until(lambda: len(self.told) > self._seen)
        self._seen += 1
        return self.told[self._seen - 1]

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._news = anyio.Event()
            await self._news.wait()

    def changed(self) -> None:
        self._news.set()

    async def hear(self, line: ServerConnection, follow: Talk) -> None:
        """Reads until the line closes; `follow` is called after each frame."""
        self.lines.append(line)
        self.changed()
        try:
            async for text in line:
                self.told.append(json.loads(text))
                self.changed()
                await follow(line)
        except ConnectionClosed:
            pass
        self.closed.append(line.close_code)
        self.changed()


@dataclass
class FakeDiscord(Platform):
    """A gateway of Discord with one session, and what its clients ask for before they connect."""

    interval_ms: int = 41_250
    answers_beats: bool = True
    events: list[dict[str, object]] = field(default_factory=list)  # all that was dispatched
    session: str = "session-1"
    url: str = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with listening(self._talk, self._answer, _place().dup()) as url:
            self.url = url
            yield url

    async def dispatch(self, kind: str, data: Body) -> None:
        event = {"op": 0, "t": kind, "s": len(self.events) + 1, "d": data}
        self.events.append(event)
        await self.say(event)

    async def say(self, frame: Body) -> None:
        await self.lines[-1].send(json.dumps(frame))

    async def close(self, code: int) -> None:
        await self.lines[-1].close(code)

    async def _talk(self, line: ServerConnection) -> None:
        hello = {"op": 10, "t": None, "s": None, "d": {"heartbeat_interval": self.interval_ms}}
        await line.send(json.dumps(hello))
        await self.hear(line, self._follow)

    async def _follow(self, line: ServerConnection) -> None:
        frame = self.told[-1]
        match frame["op"]:
            case 1 if self.answers_beats:
                await line.send(json.dumps({"op": 11, "t": None, "s": None, "d": None}))
            case 2:
                self.events.clear()
                await self.dispatch("READY", self._ready())
            case 6:
                await self._resume(frame["d"])

    async def _resume(self, told: object) -> None:
        assert isinstance(told, dict)
        if told["session_id"] != self.session:
            await self.say({"op": 9, "t": None, "s": None, "d": False})
            return
        for event in self.events[told["seq"] :]:
            await self.say(event)
        await self.dispatch("RESUMED", {})

    def _ready(self) -> Body:
        return {
            "v": 10,
            "user": _USER,
            "guilds": [],
            "session_id": self.session,
            "resume_gateway_url": self.url,
            "shard": [0, 1],
            "application": {"id": "200", "flags": 0},
        }

    def _answer(self, line: ServerConnection, asked: Request) -> Response | None:
        path = asked.path.partition("?")[0]
        if path.endswith("/users/@me"):
            return _json(_USER)
        if path.endswith("/gateway/bot"):
            starts = {"total": 1, "remaining": 1, "reset_after": 1, "max_concurrency": 1}
            return _json({"url": self.url, "shards": 1, "session_start_limit": starts})
        if path.endswith("/applications/@me"):
            return _json(_APPLICATION)
        return None


@dataclass
class FakeSlack(Platform):
    """Socket Mode: what is not acknowledged comes again on the next connection."""

    open_envelopes: dict[str, dict[str, object]] = field(default_factory=dict)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with listening(self._talk) as url:
            yield f"{url}/link/?ticket=t&app_id=a"

    async def event(self, envelope_id: str, event: Body, call: Body | None = None) -> None:
        """`call` is what the Events API would make of it."""
        envelope: dict[str, object] = {
            "type": "events_api",
            "envelope_id": envelope_id,
            "accepts_response_payload": False,
            "retry_attempt": 0,
            "payload": call or {"type": "event_callback", "event_id": envelope_id, "event": event},
        }
        self.open_envelopes[envelope_id] = envelope
        if len(self.lines) > len(self.closed):
            await self.say(envelope)

    async def disconnect(self) -> None:
        await self.say({"type": "disconnect", "reason": "refresh_requested"})

    async def say(self, frame: Body) -> None:
        await self.lines[-1].send(json.dumps(frame))

    async def _talk(self, line: ServerConnection) -> None:
        hello = {"type": "hello", "num_connections": len(self.lines) + 1, "debug_info": {}}
        await line.send(json.dumps(hello))
        for envelope in self.open_envelopes.values():
            await line.send(json.dumps({**envelope, "retry_attempt": 1}))
        await self.hear(line, self._follow)

    async def _follow(self, line: ServerConnection) -> None:
        self.open_envelopes.pop(str(self.told[-1].get("envelope_id")), None)
        self.changed()


_USER: Body = {
    "id": "100",
    "username": "exo",
    "discriminator": "0",
    "global_name": None,
    "avatar": None,
    "bot": True,
    "verified": True,
    "mfa_enabled": False,
    "flags": 0,
}

_APPLICATION: Body = {
    "id": "200",
    "name": "exo",
    "description": "",
    "icon": None,
    "owner": _USER,
    "bot_public": False,
    "bot_require_code_grant": False,
    "verify_key": "00",
    "flags": 0,
}


def _json(body: Body) -> Response:
    raw = json.dumps(body).encode()
    # Discord's clients take anything else than exactly this type for a page, not an answer.
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(raw))})
    return Response(HTTPStatus.OK, "OK", headers, raw)

"""What a platform sent goes to its adapter, scrubbed, and what the adapter read is taken in."""

import logging
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from typing import Any

import anyio
from pydantic_core import from_json, to_json

from gateway.channels.adapters import Adapter, HttpReply, Parsed, Unusable
from gateway.channels.crossing import read_each, read_incoming
from gateway.channels.encoding import marked
from gateway.channels.intake import Intake
from gateway.domain.channels import ChannelDef, ChannelMemo, TransportKind
from gateway.domain.errors import AdapterFailed, Conflict
from gateway.domain.inbox import HeardMessage

Scrub = Callable[[bytes], Awaitable[bytes]]  # puts names in place of a channel's secrets

log = logging.getLogger(__name__)

MOST_FAILURES = 5  # of one body: then nobody waits for it any longer
_REMEMBERED = 1_000  # bodies that failed
_LARGEST_KEPT = 1_048_576  # characters of a body that nobody could read
_WITHHELD = frozenset({"authorization", "cookie", "proxy-authorization"})

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Said:
    """What a platform sent: a call, an answer to our question, or a frame."""

    transport: TransportKind
    body: bytes
    headers: Headers = ()  # without those that prove who it is
    method: str | None = None
    path: str | None = None
    query: str | None = None
    status: int | None = None
    key: str = ""  # of the body that was signed, where nothing else that was tells calls apart


@dataclass(slots=True)
class WayIn:
    """Of one channel. `state` is the adapter's own text, as of the last commit."""

    channel: ChannelDef
    adapter: Adapter
    intake: Intake
    scrub: Scrub
    state: str = ""
    _failures: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def api_base(self) -> str | None:
        given = self.channel.config.get("api_base")
        return given if isinstance(given, str) else self.adapter.description.api_base

    async def take(self, said: Said, kept: ChannelMemo | None = None) -> HttpReply | None:
        """Comes back once all of it is durable, with what the adapter wants to be answered.

        Raises AdapterFailed, Busy, StoreUnavailable: then it has to be sent again. What an adapter
        cannot read again and again is kept for the operator instead.
        """
        # Of calls that come together none may undo what another one has put into the state.
        async with self._turn if self.state else nullcontext():
            return await self._take(said, kept)

    async def _take(self, said: Said, kept: ChannelMemo | None) -> HttpReply | None:
        body = await self.scrub(said.body)
        unusable: Sequence[Unusable] = ()
        try:
            parsed, unusable = await self._parse(said, body)
        except AdapterFailed as error:
            parsed = await self._give_up(said, body, error)
        is_ours = await self.intake.take(self.channel, parsed, kept, unusable)
        if parsed.state is not None:
            self.state = parsed.state
        reply = parsed.reply
        return None if reply is not None and reply.promises and not is_ours else reply

    async def take_again(self, letter: HeardMessage) -> None:
        """What could not be taken when it came, because an operator says so. Raises Conflict if it
        cannot be taken now either, Busy, StoreUnavailable."""
        try:
            again = from_json(letter.again)
        except ValueError as error:
            raise Conflict("it cannot be taken again; drop it") from error
        async with self._turn if self.state else nullcontext():
            parsed, unusable = await self._read_again(again)
            # However old it is: the operator has asked for it.
            messages = [replace(one, timestamp=None) for one in parsed.messages]
            messages += [replace(one.message, timestamp=None) for one in unusable if one.message]
            if messages and not await self.intake.take(self.channel, Parsed(tuple(messages))):
                raise Conflict("its sender may not talk here; change that, or drop it")

    async def _read_again(self, again: Mapping[str, Any]) -> tuple[Parsed, Sequence[Unusable]]:
        if "message" in again:
            message = read_incoming(to_json(again["message"]).decode())
            return Parsed((replace(message, key=again.get("key") or message.key),)), ()
        body = again["body"].encode()
        rest = {name: again[name] for name in again if name not in {"body", "headers"}}
        said = Said(body=body, headers=tuple(again.get("headers", {}).items()), **rest)
        try:
            return await self._parse(said, body)
        except AdapterFailed as error:
            raise Conflict(f"it cannot be read now either: {error}") from error

    async def _parse(
        self, said: Said, body: bytes, *, skip: bool | None = None
    ) -> tuple[Parsed, Sequence[Unusable]]:
        body, is_marked = marked(body)
        text = await self.adapter.parse(await self._event(said, body, skip))
        parsed, unusable = read_each(text, is_marked=is_marked)
        return _keyed(said.key, parsed, unusable) if said.key else (parsed, unusable)

    async def _event(self, said: Said, body: bytes, skip: bool | None) -> str:  # noqa: FBT001  # one of its members
        channel = self.channel
        head = {
            "skip": skip,
            "transport": said.transport,
            "method": said.method,
            "path": said.path,
            "query": said.query,
            "status": said.status,
            "headers": _joined(said.headers),
            "account": channel.account,
            "config": channel.config,
            "api_base": self.api_base,
            "state": self.state,
        }
        told = {name: value for name, value in head.items() if value is not None}
        scrubbed = await self.scrub(to_json(told))
        return f"{scrubbed.decode(errors='replace')[:-1]},{_body(body)}}}"

    async def _give_up(self, said: Said, body: bytes, error: AdapterFailed) -> Parsed:
        """Raises it once more, until it was raised often enough. What was polled comes again until
        its adapter says where to go on: as long as it does not, it is not given up."""
        digest = sha256(said.body).hexdigest()
        failures = self._failures.pop(digest, 0) + 1
        extra = {"channel": self.channel.name, "why": str(error), "failures": failures}
        beyond = Parsed()
        if failures >= MOST_FAILURES and said.transport == "poll":
            beyond = await self._beyond(said, body)
        if failures < MOST_FAILURES or (said.transport == "poll" and beyond.state is None):
            log.warning("an adapter failed", extra=extra)
            self._failures[digest] = failures
            if len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)
            raise error
        log.error("what no adapter could read is kept for the operator", extra=extra)
        place = (self.channel.name, self.channel.account, f"sha256:{digest}")
        text = body.decode(errors="replace")[:_LARGEST_KEPT]
        again = {**_known_of(said), "body": text} if len(text) < _LARGEST_KEPT else None
        kept = "" if again is None else (await self.scrub(to_json(again))).decode(errors="replace")
        heard = HeardMessage(*place, "unreadable", self.intake.clock.now(), text, str(error), kept)
        await self.intake.events.hear(heard, (), ())
        return beyond

    async def _beyond(self, said: Said, body: bytes) -> Parsed:
        """The state after an answer that nobody can read, if the adapter can tell it."""
        try:
            state = (await self._parse(said, body, skip=True))[0].state
        except AdapterFailed:
            state = None
        return Parsed(state=None if state == self.state else state)


def _known_of(said: Said) -> dict[str, object]:
    told = {
        "transport": said.transport,
        "headers": _joined(said.headers),
        "method": said.method,
        "path": said.path,
        "query": said.query,
        "status": said.status,
        "key": said.key or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _keyed(
    key: str, parsed: Parsed, unusable: Sequence[Unusable]
) -> tuple[Parsed, Sequence[Unusable]]:
    """Messages of one call are told apart by their order: nothing else comes from what was signed."""
    keys = (f"{key}:{place}" if place else key for place in count())
    messages = tuple(replace(one, key=next(keys)) for one in parsed.messages)
    kept = [
        one if one.message is None else replace(one, message=replace(one.message, key=next(keys)))
        for one in unusable
    ]
    return replace(parsed, messages=messages), kept


def _joined(headers: Headers) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        if name not in _WITHHELD and not name.startswith("x-forwarded-"):
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _body(body: bytes) -> str:
    """As a member of the event."""
    try:
        return f'"body":{to_json(body.decode()).decode()}'
    except UnicodeDecodeError:
        return f'"body_base64":"{b64encode(body).decode()}"'

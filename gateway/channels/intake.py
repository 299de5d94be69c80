"""Intake of channels: scrubs a platform's input, parses it with the adapter, accepts each message once."""

import hashlib
import logging
from base64 import b64encode
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any, Literal, Protocol
from weakref import WeakValueDictionary

import anyio
from pydantic_core import from_json, to_json

from gateway.channels.access import Answered, Command, Ignored, Verdict
from gateway.channels.adapter_json import (
    mark_invalid,
    read_each,
    read_incoming,
    write_context,
    write_event,
)
from gateway.channels.adapters import (
    Adapter,
    AdapterEvent,
    Attachment,
    HttpReply,
    Incoming,
    Parsed,
    ReplyContext,
    Transport,
    Unusable,
)
from gateway.channels.health import ChannelHealth
from gateway.domain.agents import Address
from gateway.domain.channels import ChannelDef, ChannelMemo, Pairing, TransportKind
from gateway.domain.errors import AdapterFailed, Conflict, NoRoute, NotOfProject
from gateway.domain.events import Recurrences
from gateway.domain.inbox import Accepted, Inbound, NewDelivery, ReceivedAs, ReceivedMessage
from gateway.domain.ports import ChannelStore, Clock

log = logging.getLogger(__name__)

TOO_LATE = (
    "Your message came in too late and was not answered. If it still matters, please send it again."
)
JOIN = Answered("(joins the room)", do="join")  # only the outbox shows the text
MOST_FILES, LONGEST_NAME = 10, 100  # listed files of a message, characters of a name
MOST_FAILURES = 5  # of one body, before it is kept for the operator
_REMEMBERED = 1_000  # bodies that failed
_LARGEST_KEPT = 1_048_576  # characters of an unreadable body
_WITHHELD = frozenset({"authorization", "cookie", "proxy-authorization"})

Counts = Counter[tuple[str, str]]  # channel, outcome or reason
Memos = tuple[ChannelMemo, ...]
Scrub = Callable[[bytes], Awaitable[bytes]]  # replaces a channel's secrets by their names
RunCommand = Callable[[Command, ChannelDef, Incoming], Awaitable[str]]


class Access(Protocol):
    async def judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        """Decides what a message becomes, without a model call. Raises StoreUnavailable; the
        message is then refused."""

    def report_request(self, asked: Pairing) -> None:
        """Logs and publishes a committed pairing request."""


@dataclass(slots=True)
class Intake:
    """Accepts the messages of webhooks, polls and sockets.

    `run_command` returns the answer of a command; it runs again after a crash before the commit of
    that answer. `counts` is by (channel, outcome), `ignored` by (channel, reason).
    """

    accept: Callable[[Inbound], Awaitable[Accepted]]
    store: ChannelStore
    clock: Clock
    nudge: Callable[[], None]  # wakes the deliveries
    access: Access
    run_command: RunCommand
    counts: Counts = field(default_factory=Counter)
    ignored: Counts = field(default_factory=Counter)
    _unrouted: Recurrences = field(default_factory=Recurrences)
    _answers: dict[tuple[str, str, str], Answered] = field(default_factory=dict)  # uncommitted
    _commanding: WeakValueDictionary[tuple[str, str, str], anyio.Lock] = field(
        default_factory=WeakValueDictionary
    )

    async def process(
        self,
        channel: ChannelDef,
        parsed: Parsed,
        kept: ChannelMemo | None = None,
        unusable: Sequence[Unusable] = (),
    ) -> bool:
        """Makes all messages of one call, answer or frame durable; only then may the caller
        acknowledge it. The adapter's state and the `kept` memo are committed with the last message.
        False if every message is ignored, so none gets an answer.

        Raises Busy or StoreUnavailable: the caller refuses the whole input, and the platform sends
        it again; accepted messages are then duplicates.
        """
        memos: Memos = () if kept is None else (kept,)
        if parsed.state is not None:
            memos += (ChannelMemo(channel.name, channel.account, "adapter", parsed.state),)
        last = len(parsed.messages) - 1
        written = is_ours = False
        for one in unusable:
            await self._keep_unusable(channel, one)
        for place, message in enumerate(parsed.messages):
            verdict = await self._judge(channel, message)
            is_ours = is_ours or not isinstance(verdict, Ignored)
            carried = memos if place == last else ()
            written = await self._process_message(channel, message, verdict, carried)
        if memos and not written:
            await self.store.write_memos(*memos)
        return is_ours

    async def _keep_unusable(self, channel: ChannelDef, one: Unusable) -> None:
        """Keeps an unusable message for the operator. A sender who may not talk is judged instead,
        so that strangers cannot fill the disk."""
        name, again = f"sha256:{hashlib.sha256(one.text.encode()).hexdigest()}", ""
        message = one.message
        if message is not None and one.is_certain:
            verdict = await self._judge(channel, message)
            if isinstance(verdict, (Ignored, Answered)):
                await self._process_message(channel, message, verdict, ())
                return
            name = message.dedupe_key
            again = f'{{"message":{one.text},"key":{to_json(message.key).decode()}}}'
        place = (channel.name, channel.account, name)
        text = message.text if message is not None else one.text
        heard = ReceivedMessage(*place, "unreadable", self.clock.now(), text, one.why, again)
        is_new = await self.store.record(heard)
        extra = {"channel": channel.name, "why": one.why, "id": name}
        log.warning("channel_message_unreadable", extra=extra)
        self._count(channel, "unreadable" if is_new else "duplicate")

    async def _process_message(
        self, channel: ChannelDef, message: Incoming, verdict: Verdict, memos: Memos
    ) -> bool:
        """Processes one judged message; True if its commit includes the memos."""
        match verdict:
            case Ignored():
                self.ignored[channel.name, verdict.why] += 1
                self._count(channel, "ignored")
                return False
            case Answered():
                return await self._note(channel, message, "told", memos, answer=verdict)
        # Only a sender who may talk gets an answer about a late message.
        said_at = _seconds(message.timestamp or "")
        if said_at is not None and self.clock.now().timestamp() - said_at > channel.max_age_s:
            return await self._note(channel, message, "expired", memos, answer=Answered(TOO_LATE))
        if message.invites:
            return await self._note(channel, message, "told", memos, answer=JOIN)
        if isinstance(verdict, Command):
            return await self._command(verdict, channel, message, memos)
        return await self._turn(channel, message, memos)

    async def _judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        if message.sender.is_self or message.sender.is_bot:
            return Ignored("bot")
        if not _content(message):
            return Ignored("empty")
        return await self.access.judge(channel, message)

    async def _turn(self, channel: ChannelDef, message: Incoming, memos: Memos) -> bool:
        inbound = Inbound(
            address_of(channel, message),
            _content(message),
            key=message.dedupe_key,
            whence=_context(message),
            memos=memos,
        )
        try:
            accepted = await self.accept(inbound)
        except Conflict:  # AlreadyReceived, or a client that speaks for others used the id before
            self._count(channel, "duplicate")
            return False
        except (NoRoute, NotOfProject) as error:
            if times := self._unrouted.worth(f"{channel.name} {error}", self.clock.now()):
                extra = {"channel": channel.name, "why": str(error), "times": times}
                log.warning("channel_message_unrouted", extra=extra)
            return await self._note(channel, message, "unrouted", memos)
        self._count(channel, "duplicate" if accepted.duplicate else "accepted")
        return True

    async def _command(
        self, command: Command, channel: ChannelDef, message: Incoming, memos: Memos
    ) -> bool:
        """Executes a command once. One person's commands run in order, so that simultaneous copies
        count as one."""
        place = (channel.name, channel.account, message.dedupe_key)
        who = (channel.name, channel.account, message.sender.id)
        # The caller may vanish, but an executed command must be recorded.
        with anyio.CancelScope(shield=True):
            async with self._commanding.setdefault(who, anyio.Lock()):
                known = await self.store.knows(*place)
                if not known:
                    answer = self._answers.get(place)
                    answer = answer or Answered(await self.run_command(command, channel, message))
                    self._answers[place] = answer
                    await self._note(channel, message, "command", memos, answer=answer)
                self._answers.pop(place, None)  # the store knows the command now
        if known:
            self._count(channel, "duplicate")
        return not known

    async def _note(
        self,
        channel: ChannelDef,
        message: Incoming,
        outcome: ReceivedAs,
        memos: Memos,
        *,
        answer: Answered | None = None,
    ) -> bool:
        """Commits a message that makes no turn, together with its answer."""
        now = self.clock.now()
        place = (channel.name, channel.account)
        asked = None if answer is None else answer.asked
        deliveries = []
        if answer is not None:
            # A chat gets at most one answer a day about late messages.
            late = (message.peer, message.thread or "", now.date().isoformat())
            parts = (*place, *(late if outcome == "expired" else (message.dedupe_key,)))
            # A repeated message gets the same id.
            name = "d_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
            to = (*place, message.peer, message.thread)
            deliveries = [NewDelivery(name, *to, answer.text, _context(message, answer.do))]
        heard = ReceivedMessage(*place, message.dedupe_key, outcome, now)
        is_new = await self.store.record(heard, deliveries, memos, asked)
        self._count(channel, outcome if is_new else "duplicate")
        if is_new and deliveries:
            if asked is not None:
                self.access.report_request(asked)
            self.nudge()
        return True

    def _count(self, channel: ChannelDef, outcome: str) -> None:
        self.counts[channel.name, outcome] += 1


def address_of(channel: ChannelDef, message: Incoming) -> Address:
    """Returns the address of a message; channel and account come from the configuration."""
    return Address(
        channel.name,
        channel.account,
        message.peer,
        guild=message.guild,
        team=message.team,
        thread=None if message.shares_room else message.thread,
        sender=message.sender.id,
        is_foreign=True,
        is_room=message.kind == "group",
    )


def _context(message: Incoming, do: Literal["send", "join"] = "send") -> str:
    is_group, what = message.kind == "group", (do, message.answer)
    context = ReplyContext(message.peer, message.thread, message.platform_id, is_group, *what)
    return write_context(context)


def _content(message: Incoming) -> str:
    """Returns the text of a message and one sentence that lists its attachments."""
    text = message.text if message.text.strip() else ""
    files = message.attachments
    if not files:
        return text
    listed = "; ".join(map(_file, files[:MOST_FILES]))
    more = f"; and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
    many = "a file that you" if len(files) == 1 else f"{len(files)} files that you"
    sentence = f"[With this message came {many} cannot see yet: {listed}{more}.]"
    return f"{text}\n\n{sentence}" if text else sentence


def _file(one: Attachment) -> str:
    about = [_plain(one.mime or ""), "" if one.size is None else _size(one.size)]
    described = ", ".join(part for part in about if part)
    name = _plain(one.name or "") or "without a name"
    return f"{name} ({described})" if described else name


def _plain(text: str) -> str:
    """Returns a sender's text without characters that could end the sentence around it."""
    shown = "".join(one if one.isprintable() and one not in "[]" else " " for one in text)
    return " ".join(shown.split())[:LONGEST_NAME]


def _size(size: int) -> str:
    size = min(size, 1 << 63)  # a float cannot hold a very large integer
    for unit, least in (("MB", 1_000_000), ("KB", 1_000)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{max(0, size)} bytes"


def _seconds(timestamp: str) -> float | None:
    """Returns a timestamp as seconds since 1970; None if it is invalid."""
    try:
        return float(timestamp)
    except ValueError:
        pass
    try:
        said_at = datetime.fromisoformat(timestamp)
        return (said_at if said_at.tzinfo else said_at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


# --------------------------------------------------------------------- what a platform sent
@dataclass(frozen=True, slots=True)
class Received:
    """The input from a platform: a call, the answer to a poll, or a frame."""

    transport: TransportKind
    body: bytes
    headers: Sequence[tuple[str, str]] = ()  # without headers that prove the caller
    method: str | None = None
    path: str | None = None
    query: str | None = None
    status: int | None = None
    key: str = ""  # digest of the signed body, if only that identifies the call


@dataclass(slots=True)
class OpenChannel:
    """A channel that is ready to receive. `state` is the adapter's own text as of the last commit."""

    settings: ChannelDef
    adapter: Adapter
    transport: Transport
    health: ChannelHealth
    intake: Intake
    scrub: Scrub
    state: str = ""
    _failures: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def api_base(self) -> str | None:
        given = self.settings.config.get("api_base")
        return given if isinstance(given, str) else self.adapter.description.api_base

    async def receive(self, got: Received, kept: ChannelMemo | None = None) -> HttpReply | None:
        """Makes all messages of the input durable and returns the adapter's answer to the call.

        Raises AdapterFailed, Busy, StoreUnavailable: the platform then has to send the input again.
        An input that fails MOST_FAILURES times is kept for the operator instead.
        """
        # Simultaneous calls must not overwrite each other's state.
        async with self._turn if self.state else nullcontext():
            body = await self.scrub(got.body)
            unusable: Sequence[Unusable] = ()
            try:
                parsed, unusable = await self._parse(got, body)
            except AdapterFailed as error:
                parsed = await self._keep_after_failures(got, body, error)
            is_ours = await self.intake.process(self.settings, parsed, kept, unusable)
            if parsed.state is not None:
                self.state = parsed.state
        reply = parsed.reply
        return None if reply is not None and reply.promises and not is_ours else reply

    async def retry_message(self, letter: ReceivedMessage) -> None:
        """Accepts a message that was unreadable before, on request of an operator. Raises Conflict
        if it is still unusable, Busy, StoreUnavailable."""
        try:
            again = from_json(letter.again)
        except ValueError as error:
            raise Conflict("the message cannot be retried; drop it") from error
        async with self._turn if self.state else nullcontext():
            # Without a timestamp the message is not too old.
            messages = [replace(one, timestamp=None) for one in await self._read_again(again)]
            if messages and not await self.intake.process(self.settings, Parsed(tuple(messages))):
                raise Conflict(
                    "its sender may not talk here; approve the sender or drop the message"
                )

    async def _read_again(self, again: Mapping[str, Any]) -> Sequence[Incoming]:
        if "message" in again:
            message = read_incoming(to_json(again["message"]).decode())
            return [replace(message, key=again.get("key") or message.key)]
        body = again["body"].encode()
        rest = {name: again[name] for name in again if name not in {"body", "headers"}}
        got = Received(body=body, headers=tuple(again.get("headers", {}).items()), **rest)
        try:
            parsed, unusable = await self._parse(got, body)
        except AdapterFailed as error:
            raise Conflict(f"the message is still unreadable: {error}") from error
        return [*parsed.messages, *(one.message for one in unusable if one.message)]

    async def _parse(
        self, got: Received, body: bytes, *, skip: bool | None = None
    ) -> tuple[Parsed, Sequence[Unusable]]:
        body, is_marked = mark_invalid(body)
        own, headers = self.settings, _join(got.headers)
        call = (self.state, got.method, got.path, got.query, got.status, skip, self.api_base)
        head = AdapterEvent(got.transport, headers, own.account, own.config, *call)
        scrubbed = (await self.scrub(write_event(head))).decode(errors="replace")
        text = await self.adapter.parse(f"{scrubbed[:-1]},{_body(body)}}}")
        parsed, unusable = read_each(text, is_marked=is_marked)
        return _number(got.key, parsed, unusable) if got.key else (parsed, unusable)

    async def _keep_after_failures(
        self, got: Received, body: bytes, error: AdapterFailed
    ) -> Parsed:
        """Raises the error until the body has failed MOST_FAILURES times, then keeps the body for the
        operator. A polled answer is given up only if its adapter returns the state after it, because
        the platform repeats the answer until the state moves on."""
        digest = hashlib.sha256(got.body).hexdigest()
        failures = self._failures.pop(digest, 0) + 1
        settings = self.settings
        extra = {"channel": settings.name, "why": str(error), "failures": failures}
        state = None
        if failures >= MOST_FAILURES and got.transport == "poll":
            state = await self._state_after(got, body)
        if failures < MOST_FAILURES or (got.transport == "poll" and state is None):
            log.warning("adapter_failed", extra=extra)
            self._failures[digest] = failures
            if len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)
            raise error
        log.error("adapter_gave_up", extra=extra)
        place = (settings.name, settings.account, f"sha256:{digest}")
        text, kept = body.decode(errors="replace")[:_LARGEST_KEPT], b""
        if len(text) < _LARGEST_KEPT:
            names = ("transport", "method", "path", "query", "status", "key")
            known = {name: getattr(got, name) for name in names if getattr(got, name) is not None}
            again = {**known, "headers": _join(got.headers), "body": text}
            kept = await self.scrub(to_json(again))
        why = (str(error), kept.decode(errors="replace"))
        heard = ReceivedMessage(*place, "unreadable", self.intake.clock.now(), text, *why)
        await self.intake.store.record(heard, (), ())
        return Parsed(state=state)

    async def _state_after(self, got: Received, body: bytes) -> str | None:
        """Returns the adapter's state after an unreadable answer; None if the adapter has none."""
        try:
            state = (await self._parse(got, body, skip=True))[0].state
        except AdapterFailed:
            return None
        return None if state == self.state else state


def _number(
    key: str, parsed: Parsed, unusable: Sequence[Unusable]
) -> tuple[Parsed, Sequence[Unusable]]:
    """Numbers the messages of a call: the key and the order are the only signed identity."""
    keys = (f"{key}:{place}" if place else key for place in count())
    messages = tuple(replace(one, key=next(keys)) for one in parsed.messages)
    kept = [
        one if one.message is None else replace(one, message=replace(one.message, key=next(keys)))
        for one in unusable
    ]
    return replace(parsed, messages=messages), kept


def _join(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        if name not in _WITHHELD and not name.startswith("x-forwarded-"):
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _body(body: bytes) -> str:
    """Returns the body as a member of the event's JSON."""
    try:
        return f'"body":{to_json(body.decode()).decode()}'
    except UnicodeDecodeError:
        return f'"body_base64":"{b64encode(body).decode()}"'

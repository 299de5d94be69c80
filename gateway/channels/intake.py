"""From what a platform sent to turns: read by the adapter, scrubbed, and taken in, each message once."""

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
JOIN = Answered("(joins the room)", do="join")  # the text stands in the outbox alone
MOST_FILES, LONGEST_NAME = 10, 100  # that are named
MOST_FAILURES = 5  # of one body: then nobody waits for it any longer
_REMEMBERED = 1_000  # bodies that failed
_LARGEST_KEPT = 1_048_576  # characters of a body that nobody could read
_WITHHELD = frozenset({"authorization", "cookie", "proxy-authorization"})

Counts = Counter[tuple[str, str]]  # by channel and another word
Memos = tuple[ChannelMemo, ...]
Scrub = Callable[[bytes], Awaitable[bytes]]  # puts names in place of a channel's secrets
RunCommand = Callable[[Command, ChannelDef, Incoming], Awaitable[str]]


class Access(Protocol):
    async def judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        """Costs no token. Raises StoreUnavailable: then the message is refused, not let in."""

    def report_request(self, asked: Pairing) -> None:
        """The request is committed, with what the person is told."""


@dataclass(slots=True)
class Intake:
    """The one way in for webhook, poll and socket.

    `run_command` gives the answer of a command; after a crash before its answer was committed it
    runs again. `counts` is by (channel, what became of a message), `ignored` by (channel, why).
    """

    accept: Callable[[Inbound], Awaitable[Accepted]]
    store: ChannelStore
    clock: Clock
    nudge: Callable[[], None]  # something is to be delivered
    access: Access
    run_command: RunCommand
    counts: Counts = field(default_factory=Counter)
    ignored: Counts = field(default_factory=Counter)
    _unrouted: Recurrences = field(default_factory=Recurrences)
    _answers: dict[tuple[str, str, str], Answered] = field(default_factory=dict)  # not committed
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
        """Comes back once everything of one call, answer or frame is durable: only then it may be
        acknowledged. False: of all its messages none is for us, and none will be answered. The
        adapter's state and what the socket `kept` go with the last message.

        Raises Busy or StoreUnavailable: then it is to be refused as a whole, and sent again; those
        that were taken already are known then.
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
        """For the operator, if its sender may talk: others could fill the disk."""
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
        """True: and the memos are written."""
        match verdict:
            case Ignored():
                self.ignored[channel.name, verdict.why] += 1
                self._count(channel, "ignored")
                return False
            case Answered():
                return await self._note(channel, message, "told", memos, answer=verdict)
        # Asked only of those who may talk: nobody else is to be told anything.
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
        except Conflict:  # AlreadyReceived, or who may speak for others used its id before
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
        """Of one person one after the other, so that copies that come together are one."""
        place = (channel.name, channel.account, message.dedupe_key)
        who = (channel.name, channel.account, message.sender.id)
        # Whoever brought it may vanish; what was carried out must be known as that.
        with anyio.CancelScope(shield=True):
            async with self._commanding.setdefault(who, anyio.Lock()):
                known = await self.store.knows(*place)
                if not known:
                    answer = self._answers.get(place)
                    answer = answer or Answered(await self.run_command(command, channel, message))
                    self._answers[place] = answer
                    await self._note(channel, message, "command", memos, answer=answer)
                self._answers.pop(place, None)  # whatever becomes of it, it is known
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
        """Commits that the message came, with its answer; no turn follows."""
        now = self.clock.now()
        place = (channel.name, channel.account)
        asked = None if answer is None else answer.asked
        deliveries = []
        if answer is not None:
            # However much comes too late after a long silence, a room is told so once a day.
            late = (message.peer, message.thread or "", now.date().isoformat())
            parts = (*place, *(late if outcome == "expired" else (message.dedupe_key,)))
            # The same for the same message, whenever it comes again.
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
    """Channel and account are the configuration's, whatever an adapter says."""
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
    """What was said, and what came with it."""
    said = message.text if message.text.strip() else ""
    files = message.attachments
    if not files:
        return said
    listed = "; ".join(map(_file, files[:MOST_FILES]))
    more = f"; and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
    many = "a file that you" if len(files) == 1 else f"{len(files)} files that you"
    told = f"[With this message came {many} cannot see yet: {listed}{more}.]"
    return f"{said}\n\n{told}" if said else told


def _file(one: Attachment) -> str:
    about = [_plain(one.mime or ""), "" if one.size is None else _size(one.size)]
    described = ", ".join(part for part in about if part)
    name = _plain(one.name or "") or "without a name"
    return f"{name} ({described})" if described else name


def _plain(text: str) -> str:
    """Names are the sender's: none may look like the end of the sentence."""
    shown = "".join(one if one.isprintable() and one not in "[]" else " " for one in text)
    return " ".join(shown.split())[:LONGEST_NAME]


def _size(size: int) -> str:
    size = min(size, 1 << 63)  # a larger one is no number that can be divided
    for unit, least in (("MB", 1_000_000), ("KB", 1_000)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{max(0, size)} bytes"


def _seconds(timestamp: str) -> float | None:
    """Since 1970; None for what cannot be read."""
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
    """What a platform sent: a call, an answer to our question, or a frame."""

    transport: TransportKind
    body: bytes
    headers: Sequence[tuple[str, str]] = ()  # without those that prove who it is
    method: str | None = None
    path: str | None = None
    query: str | None = None
    status: int | None = None
    key: str = ""  # of the body that was signed, where nothing else that was tells calls apart


@dataclass(slots=True)
class OpenChannel:
    """A channel that has all it needs. `state` is the adapter's own text, as of the last commit."""

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
        """Comes back once all of it is durable, with what the adapter wants to be answered.

        Raises AdapterFailed, Busy, StoreUnavailable: then it has to be sent again. What an adapter
        cannot read again and again is kept for the operator instead.
        """
        # Of calls that come together none may undo what another one has put into the state.
        async with self._turn if self.state else nullcontext():
            body = await self.scrub(got.body)
            unusable: Sequence[Unusable] = ()
            try:
                parsed, unusable = await self._parse(got, body)
            except AdapterFailed as error:
                parsed = await self._give_up(got, body, error)
            is_ours = await self.intake.process(self.settings, parsed, kept, unusable)
            if parsed.state is not None:
                self.state = parsed.state
        reply = parsed.reply
        return None if reply is not None and reply.promises and not is_ours else reply

    async def retry_message(self, letter: ReceivedMessage) -> None:
        """What could not be taken when it came, because an operator says so. Raises Conflict if it
        cannot be taken now either, Busy, StoreUnavailable."""
        try:
            again = from_json(letter.again)
        except ValueError as error:
            raise Conflict("it cannot be taken again; drop it") from error
        async with self._turn if self.state else nullcontext():
            # However old it is: the operator has asked for it.
            messages = [replace(one, timestamp=None) for one in await self._read_again(again)]
            if messages and not await self.intake.process(self.settings, Parsed(tuple(messages))):
                raise Conflict("its sender may not talk here; change that, or drop it")

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
            raise Conflict(f"it cannot be read now either: {error}") from error
        return [*parsed.messages, *(one.message for one in unusable if one.message)]

    async def _parse(
        self, got: Received, body: bytes, *, skip: bool | None = None
    ) -> tuple[Parsed, Sequence[Unusable]]:
        body, is_marked = mark_invalid(body)
        settings = self.settings
        head = AdapterEvent(
            got.transport,
            _joined(got.headers),
            settings.account,
            settings.config,
            self.state,
            method=got.method,
            path=got.path,
            query=got.query,
            status=got.status,
            skip=skip,
            api_base=self.api_base,
        )
        scrubbed = (await self.scrub(write_event(head))).decode(errors="replace")
        text = await self.adapter.parse(f"{scrubbed[:-1]},{_body(body)}}}")
        parsed, unusable = read_each(text, is_marked=is_marked)
        return _keyed(got.key, parsed, unusable) if got.key else (parsed, unusable)

    async def _give_up(self, got: Received, body: bytes, error: AdapterFailed) -> Parsed:
        """Raises it once more, until it was raised often enough. What was polled comes again until
        its adapter says where to go on: as long as it does not, it is not given up."""
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
            again = {**known, "headers": _joined(got.headers), "body": text}
            kept = await self.scrub(to_json(again))
        why = (str(error), kept.decode(errors="replace"))
        heard = ReceivedMessage(*place, "unreadable", self.intake.clock.now(), text, *why)
        await self.intake.store.record(heard, (), ())
        return Parsed(state=state)

    async def _state_after(self, got: Received, body: bytes) -> str | None:
        """The state after an answer that nobody can read, if the adapter can tell it."""
        try:
            state = (await self._parse(got, body, skip=True))[0].state
        except AdapterFailed:
            return None
        return None if state == self.state else state


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


def _joined(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
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

"""What adapters have read becomes turns, answers without a turn, or nothing: each message once."""

import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol
from weakref import WeakValueDictionary

import anyio
from pydantic_core import to_json

from gateway.channels.adapters import Attachment, Incoming, Parsed, Unusable, Whence
from gateway.channels.crossing import write_whence
from gateway.channels.doorkeeping import Command, Ignored, Told, Verdict
from gateway.domain.agents import Address
from gateway.domain.channels import ChannelDef, ChannelMemo, Pairing
from gateway.domain.errors import Conflict, NoRoute, NotOfProject
from gateway.domain.inbox import Accepted, HeardAs, HeardMessage, Inbound, NewDelivery
from gateway.domain.ports import ChannelStore, Clock

log = logging.getLogger(__name__)

TOO_LATE = (
    "Your message came in too late and was not answered. If it still matters, please send it again."
)

JOIN = Told("(joins the room)", do="join")  # the text stands in the outbox alone
MOST_FILES, LONGEST_NAME = 10, 100  # that are named

Memos = tuple[ChannelMemo, ...]


class Doorkeeper(Protocol):
    async def judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        """Costs no token. Raises StoreUnavailable: then the message is refused, not let in."""

    def asked(self, asked: Pairing) -> None:
        """It is committed, with what the person is told."""


class Commands(Protocol):
    async def run(self, command: Command, channel: ChannelDef, message: Incoming) -> str:
        """Carries it out and gives the answer. Run again after a crash before its answer was
        committed. Raises StoreUnavailable."""
        ...


@dataclass(slots=True)
class Intake:
    """The one way in for webhook, poll and socket. Without a doorkeeper nobody may talk.

    `counts` is by (channel, what became of a message), `ignored` by (channel, why).
    """

    accept: Callable[[Inbound], Awaitable[Accepted]]
    events: ChannelStore
    memos: ChannelStore
    clock: Clock
    nudge: Callable[[], None]  # something is to be delivered
    doorkeeper: Doorkeeper | None = None
    commands: Commands | None = None
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    ignored: Counter[tuple[str, str]] = field(default_factory=Counter)
    _answers: dict[tuple[str, str, str], Told] = field(default_factory=dict)  # not committed yet
    _commanding: WeakValueDictionary[tuple[str, str, str], anyio.Lock] = field(
        default_factory=WeakValueDictionary
    )

    async def take(
        self,
        channel: ChannelDef,
        parsed: Parsed,
        kept: ChannelMemo | None = None,
        unusable: Sequence[Unusable] = (),
    ) -> bool:
        """Comes back once everything of one call, answer or frame is durable: only then it may be
        acknowledged. False: of all its messages none is for us, and none will be answered. The adapter's state and what the socket `kept` go with the last message.

        Raises Busy or StoreUnavailable: then it is to be refused as a whole, and sent again; those
        that were taken already are known then.
        """
        memos: Memos = () if kept is None else (kept,)
        if parsed.state is not None:
            memos += (ChannelMemo(channel.name, channel.account, "adapter", parsed.state),)
        last = len(parsed.messages) - 1
        written = is_ours = False
        for one in unusable:
            await self._keep(channel, one)
        for place, message in enumerate(parsed.messages):
            verdict = await self._judge(channel, message)
            is_ours = is_ours or not isinstance(verdict, Ignored)
            written = await self._one(channel, message, verdict, memos if place == last else ())
        if memos and not written:
            await self.memos.write_memos(*memos)
        return is_ours

    async def _keep(self, channel: ChannelDef, one: Unusable) -> None:
        """For the operator, if its sender may talk: others could fill the disk."""
        message = one.message
        if message is not None and one.is_certain:
            verdict = await self._judge(channel, message)
            if isinstance(verdict, (Ignored, Told)):
                await self._one(channel, message, verdict, ())
                return
        name = f"sha256:{hashlib.sha256(one.text.encode()).hexdigest()}"
        again = ""
        if message is not None and one.is_certain:
            name = message.dedupe_key
            again = f'{{"message":{one.text},"key":{to_json(message.key).decode()}}}'
        place = (channel.name, channel.account, name)
        text = message.text if message is not None else one.text
        heard = HeardMessage(*place, "unreadable", self.clock.now(), text, one.why, again)
        is_new = await self.events.hear(heard)
        extra = {"channel": channel.name, "why": one.why, "id": name}
        log.warning("a message cannot be taken and is kept for the operator", extra=extra)
        self._count(channel, "unreadable" if is_new else "duplicate")

    async def _one(
        self, channel: ChannelDef, message: Incoming, verdict: Verdict, memos: Memos
    ) -> bool:
        """True: and the memos are written."""
        match verdict:
            case Ignored():
                self.ignored[channel.name, verdict.why] += 1
                self._count(channel, "ignored")
                return False
            case Told():
                return await self._hear(channel, message, "told", memos, told=verdict)
        # Asked only of those who may talk: nobody else is to be told anything.
        if self._is_too_old(channel, message):
            return await self._hear(channel, message, "expired", memos, told=Told(TOO_LATE))
        if message.invites:
            return await self._hear(channel, message, "told", memos, told=JOIN)
        if isinstance(verdict, Command) and self.commands is not None:
            return await self._command(self.commands, verdict, channel, message, memos)
        return await self._turn(channel, message, memos)

    async def _judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        if message.sender.is_self or message.sender.is_bot:
            return Ignored("bot")
        if not _content(message):
            return Ignored("empty")
        if self.doorkeeper is None:
            return Ignored("nobody may talk")
        return await self.doorkeeper.judge(channel, message)

    async def _turn(self, channel: ChannelDef, message: Incoming, memos: Memos) -> bool:
        inbound = Inbound(
            address_of(channel, message),
            _content(message),
            key=message.dedupe_key,
            whence=write_whence(whence_of(message)),
            memos=memos,
        )
        try:
            accepted = await self.accept(inbound)
        except Conflict:  # AlreadyHeard, or who may speak for others used its id before
            self._count(channel, "duplicate")
            return False
        except (NoRoute, NotOfProject) as error:
            where = {"channel": channel.name, "why": str(error)}
            log.warning("no agent answers a message of a channel", extra=where)
            return await self._hear(channel, message, "unrouted", memos)
        self._count(channel, "duplicate" if accepted.duplicate else "accepted")
        return True

    async def _command(
        self,
        commands: Commands,
        command: Command,
        channel: ChannelDef,
        message: Incoming,
        memos: Memos,
    ) -> bool:
        """Of one person one after the other, so that copies that come together are one."""
        place = (channel.name, channel.account, message.dedupe_key)
        who = (channel.name, channel.account, message.sender.id)
        # Whoever brought it may vanish; what was carried out must be known as that.
        with anyio.CancelScope(shield=True):
            async with self._commanding.setdefault(who, anyio.Lock()):
                known = await self.events.knows(*place)
                if not known:
                    answer = self._answers.get(place)
                    answer = answer or Told(await commands.run(command, channel, message))
                    self._answers[place] = answer
                    await self._hear(channel, message, "command", memos, told=answer)
                self._answers.pop(place, None)  # whatever becomes of it, it is known
        if known:
            self._count(channel, "duplicate")
        return not known

    async def _hear(
        self,
        channel: ChannelDef,
        message: Incoming,
        outcome: HeardAs,
        memos: Memos,
        *,
        told: Told | None = None,
    ) -> bool:
        now = self.clock.now()
        place = (channel.name, channel.account)
        # However much comes too late after a long silence, a room is told so once a day.
        late = (message.peer, message.thread or "", now.date().isoformat())
        name = _name(*place, *(late if outcome == "expired" else (message.dedupe_key,)))
        deliveries = [] if told is None else [_answer(name, channel, message, told)]
        asked = None if told is None else told.asked
        heard = HeardMessage(*place, message.dedupe_key, outcome, now)
        is_new = await self.events.hear(heard, deliveries, memos, asked)
        self._count(channel, outcome if is_new else "duplicate")
        if is_new and deliveries:
            self._follow_up(asked)
        return True

    def _follow_up(self, asked: Pairing | None) -> None:
        if asked is not None and self.doorkeeper is not None:
            self.doorkeeper.asked(asked)
        self.nudge()

    def _is_too_old(self, channel: ChannelDef, message: Incoming) -> bool:
        said_at = _seconds(message.timestamp or "")
        return said_at is not None and self.clock.now().timestamp() - said_at > channel.max_age_s

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


def whence_of(message: Incoming) -> Whence:
    return Whence(
        message.peer,
        message.thread,
        reply_to=message.platform_id,
        is_group=message.kind == "group",
        answer=message.answer,
    )


def _content(message: Incoming) -> str:
    """What was said, and what came with it."""
    said = message.text if message.text.strip() else ""
    return "\n\n".join(part for part in (said, _files(message.attachments)) if part)


def _files(attachments: Sequence[Attachment]) -> str:
    if not attachments:
        return ""
    count = len(attachments)
    listed = "; ".join(map(_file, attachments[:MOST_FILES]))
    more = f"; and {count - MOST_FILES} more" if count > MOST_FILES else ""
    files = "a file that you" if count == 1 else f"{count} files that you"
    return f"[With this message came {files} cannot see yet: {listed}{more}.]"


def _file(one: Attachment) -> str:
    told = [_plain(one.mime or ""), "" if one.size is None else _size(one.size)]
    about = ", ".join(part for part in told if part)
    name = _plain(one.name or "") or "without a name"
    return f"{name} ({about})" if about else name


def _plain(text: str) -> str:
    """Names are the sender's: none may look like the end of the sentence."""
    shown = "".join(one if one.isprintable() and one not in "[]" else " " for one in text)
    return " ".join(shown.split())[:LONGEST_NAME]


def _size(count: int) -> str:
    count = min(count, 1 << 63)  # a larger one is no number that can be divided
    for unit, least in (("MB", 1_000_000), ("KB", 1_000)):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{max(0, count)} bytes"


def _answer(name: str, channel: ChannelDef, message: Incoming, told: Told) -> NewDelivery:
    whence = write_whence(replace(whence_of(message), do=told.do))
    whither = (channel.name, channel.account, message.peer, message.thread)
    return NewDelivery(name, *whither, told.text, whence)


def _name(*parts: str) -> str:
    """The id of a delivery: the same for the same message, whenever it comes again."""
    return "d_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


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

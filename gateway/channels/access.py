"""Access control: decides who may talk and who may give commands, before any write or model call.

In a direct chat a stranger gets a pairing code, which an operator or an owner approves.
"""

import logging
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import Literal

from gateway.channels.adapters import Incoming, Sender
from gateway.channels.health import Publish
from gateway.domain.channels import ChannelDef, Pairing, PairingState
from gateway.domain.errors import Busy, Conflict, GatewayError, NotFound
from gateway.domain.events import AuditEvent, AuditKind
from gateway.domain.ports import Audit, ChannelStore, Clock, Ids
from gateway.domain.text import printable

log = logging.getLogger(__name__)

NAMES = (
    *("new", "stop", "status", "usage", "model", "context", "memory", "queue", "pair"),
    *("whoami", "help", "reset"),
)
MOST_NOTED = 1_000  # closed rooms that are logged
NOT_KNOWN = (
    "I do not know you yet, so I have not read your message. If you belong here, ask my owner to "
    "run `exogate pair approve {code}`, or to send me `/pair approve {code}`. The code is valid for "
    "an hour."
)
ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # without characters that look alike
CODE_LENGTH = 8
LIFE = timedelta(hours=1)
MOST_WRONG, WITHIN_S, LOCKED_S = 5, 60.0, 300.0
MOST_KNOWN = 4096  # people in memory
LONGEST_NAME = 100
MOST_LISTED = 100
_COMMAND = re.compile(r"/([A-Za-z]+)(?:@[\w.-]+)?(?:\s+(.*))?", re.DOTALL)

Place = tuple[str, str]  # channel and account
Person = tuple[str, str, str]  # channel, account and person


@dataclass(frozen=True, slots=True)
class TurnForAgent:
    """The message starts a turn of the agent."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """The message is dropped without an answer; `why` is counted."""

    why: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The peer gets a fixed text, once, without a model call. The pairing request `asked` is
    committed with the text."""

    text: str
    asked: Pairing | None = None
    do: Literal["send", "join"] = "send"


@dataclass(frozen=True, slots=True)
class Command:
    """The sender gave a command and may give it; `name` has no slash."""

    name: str
    argument: str


Verdict = TurnForAgent | Ignored | Answered | Command


class PairingNotFound(NotFound):
    def __init__(self) -> None:
        GatewayError.__init__(
            self, "no pairing request has that code; a code is valid once, for one hour"
        )


@dataclass(slots=True)
class _Guesses:
    """The wrong codes entered for one account by its owners, or by operators. Each account has its
    own lock."""

    wrong: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WRONG))
    locked_until: float = 0.0


@dataclass(slots=True)
class AccessControl:
    """Judges messages and implements Approvals; `at` limits a decision to one account of a channel.
    Pairing applies only in direct chats, so an approval never opens a room."""

    store: ChannelStore
    audit: Audit
    clock: Clock
    ids: Ids
    publish: Publish = lambda _type, _payload: None
    # Paired people; None means only that the person is not blocked.
    _known: dict[Person, Pairing | None] = field(default_factory=dict)
    _revoked: int = 0  # number of revocations; an earlier read may be outdated
    _guesses: defaultdict[Place | None, _Guesses] = field(
        default_factory=lambda: defaultdict(_Guesses)
    )
    _noted: set[tuple[str, str]] = field(default_factory=set)

    # ------------------------------------------------------------------------------- verdicts
    async def judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        """Decides what a message becomes, without a model call. Raises StoreUnavailable; the
        message is then refused."""
        if message.kind == "group":
            return self._judge_in_room(channel, message)
        is_listed = message.sender.id in channel.allow_from
        if channel.dm_policy == "disabled":
            return Ignored("direct_chats_disabled")
        if channel.dm_policy == "allowlist" and not is_listed:
            return Ignored("not_listed")
        return await self._judge_direct(channel, message, is_listed=is_listed)

    async def _judge_direct(
        self, channel: ChannelDef, message: Incoming, *, is_listed: bool
    ) -> Verdict:
        is_open = channel.dm_policy == "open"
        who = (channel.name, channel.account, message.sender.id)
        command, is_welcome = command_in(message.text), is_listed or is_open
        if is_welcome and await self.is_blocked(*who):
            return Ignored("blocked")
        if is_welcome and command is None:
            return TurnForAgent()
        known = await self.find(*who)
        if is_listed or (known is not None and known.state == "paired"):
            return _allowed(command, known)
        return TurnForAgent() if is_open else await self._judge_stranger(channel, message, known)

    async def _judge_stranger(
        self, channel: ChannelDef, message: Incoming, known: Pairing | None
    ) -> Verdict:
        """Answers a stranger once; a person who waits or was denied gets no further answer."""
        asked = None if known else await self.ask(channel.name, channel.account, message.sender)
        if asked is None:
            return Ignored("not_paired")
        pairing, code = asked
        return Answered(NOT_KNOWN.format(code=code), pairing)

    def _judge_in_room(self, channel: ChannelDef, message: Incoming) -> Verdict:
        rule = channel.groups.get(message.peer, channel.groups.get("*"))
        room, person = (channel.name, message.peer), message.sender.id
        if rule is None:
            # One line a room gives the operator the id that opens it.
            if room not in self._noted and len(self._noted) < MOST_NOTED:
                self._noted.add(room)
                log.info("room_closed", extra={"channel": channel.name, "room": message.peer})
            return Ignored("room_closed")
        if rule.allow_from and person not in rule.allow_from:
            return Ignored("not_listed")
        own = rule.require_mention
        if (channel.require_mention if own is None else own) and not message.mentions_me:
            return Ignored("not_mentioned")
        if person in channel.allow_from | rule.allow_from:
            return _allowed(command_in(message.text), None)
        return TurnForAgent()

    async def find(self, channel: str, account: str, person: str) -> Pairing | None:
        """Returns the person's pairing; None also if a request has expired. Raises
        StoreUnavailable."""
        who = (channel, account, person)
        if (known := self._known.get(who)) is not None:
            return known
        revoked = self._revoked
        found = await self.store.find_pairing(*who)
        if found is None or self._has_expired(found):
            return None
        if found.state == "paired":
            self._remember(who, found, revoked)
        return found

    async def is_blocked(self, channel: str, account: str, person: str) -> bool:
        """True if the person is denied. Most answers come from memory. Raises StoreUnavailable."""
        who = (channel, account, person)
        if who in self._known:
            return False
        revoked = self._revoked
        found = await self.store.find_pairing(*who)
        if found is not None and found.state == "denied":
            return True
        self._remember(who, None, revoked)
        return False

    def _remember(self, who: Person, known: Pairing | None, revoked: int) -> None:
        if revoked == self._revoked:
            self._known[who] = known
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def forget_all(self) -> None:
        """Drops the memory of pairings, because another node may have changed them."""
        self._known.clear()
        self._revoked += 1

    def _forget(self, who: Person) -> None:
        self._known.pop(who, None)
        self._revoked += 1

    # ------------------------------------------------------------------------------- requests
    async def ask(self, channel: str, account: str, sender: Sender) -> tuple[Pairing, str] | None:
        """Returns the pairing request to commit and the code for the person; None if the person or
        the channel has too many requests, so a persistent stranger costs no commit. Raises
        StoreUnavailable."""
        code, now = _new_code(self.ids), self.clock.now()
        name = sender.name and printable(sender.name[:LONGEST_NAME])
        who, until = (channel, account, sender.id), now + LIFE
        asked = Pairing(*who, name, "asked", _digest(code), now, until)
        if not await self.store.may_ask(asked):
            return None
        half = CODE_LENGTH // 2
        return asked, f"{code[:half]}-{code[half:]}"

    def report_request(self, asked: Pairing) -> None:
        """Logs and publishes a committed pairing request."""
        log.info("pairing_requested", extra={"channel": asked.channel, "person": asked.person})
        self.publish("pair.asked", _payload(asked))

    async def list_pairings(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        found = await self.store.list_pairings(channel=channel, limit=limit)
        return [one for one in found if not self._has_expired(one)]

    # ------------------------------------------------------------------------------ decisions
    async def approve(
        self, code: str, *, by: str, is_owner: bool = False, at: Place | None = None
    ) -> Pairing:
        paired = await self._decide(code, "paired", at, is_owner=is_owner)
        payload = {**_payload(paired), "owner": paired.is_owner}
        self._note("pair.approved", by, payload)
        self.publish("pair.approved", payload)
        return paired

    async def deny(self, code: str, *, by: str, at: Place | None = None) -> Pairing:
        denied = await self._decide(code, "denied", at)
        self._forget((denied.channel, denied.account, denied.person))
        self._note("pair.denied", by, _payload(denied))
        return denied

    async def revoke(self, channel: str, account: str, person: str, *, by: str) -> None:
        who = (channel, account, person)
        if await self._remove_paired(who, by):
            return
        found = await self.store.find_pairing(*who)
        if found is not None and found.state == "denied":
            raise Conflict(f"{_named(who)} is blocked; unblock the person")
        raise NotFound(_named(who))

    async def turn_away(
        self, channel: str, account: str, person: str, *, by: str
    ) -> Pairing | None:
        """Implements Approvals."""
        who = (channel, account, person)
        if await self._remove_paired(who, by):
            return None
        found = await self.store.find_pairing(*who)
        if found is None:
            raise NotFound(_named(who))
        return found if found.state == "denied" else await self.block(*who, by=by)

    async def block(self, channel: str, account: str, person: str, *, by: str) -> Pairing:
        blocked = await self.store.block(channel, account, person, now=self.clock.now())
        self._forget((channel, account, person))
        self._note("pair.blocked", by, _payload(blocked))
        return blocked

    async def unblock(self, channel: str, account: str, person: str, *, by: str) -> None:
        who = (channel, account, person)
        if not await self._remove(who, "denied"):
            raise NotFound(f"blocked {_named(who)}")
        self._note("pair.unblocked", by, _person(who))

    async def _remove_paired(self, who: Person, by: str) -> bool:
        if is_gone := await self._remove(who, "paired"):
            self._note("pair.denied", by, {**_person(who), "revoked": True})
        return is_gone

    async def _remove(self, who: Person, state: PairingState) -> bool:
        is_gone = await self.store.remove_pairing(*who, state=state)
        self._forget(who)
        return is_gone

    def _has_expired(self, one: Pairing) -> bool:
        return one.state == "asked" and one.expires_at <= self.clock.now()

    async def _decide(
        self, code: str, state: PairingState, at: Place | None, *, is_owner: bool = False
    ) -> Pairing:
        guesses = self._guesses[at]
        rest_s = guesses.locked_until - self.clock.monotonic()
        if rest_s > 0:
            why = f"too many wrong codes; try again in {rest_s:.0f} s"
            raise Busy(why, retry_after_s=rest_s)
        digest, now = _digest(code), self.clock.now()
        decided = None
        if at is None or await self._waits_at(at, digest):
            decided = await self.store.decide_pairing(digest, state, is_owner=is_owner, now=now)
        if decided is None:
            self._count_wrong(guesses)
            raise PairingNotFound
        return decided

    async def _waits_at(self, at: Place, digest: str) -> bool:
        waiting = await self.store.list_pairings(channel=at[0], limit=MOST_LISTED)
        return any((one.channel, one.account, one.code_digest) == (*at, digest) for one in waiting)

    def _count_wrong(self, guesses: _Guesses) -> None:
        now = self.clock.monotonic()
        guesses.wrong.append(now)
        if len(guesses.wrong) == MOST_WRONG and now - guesses.wrong[0] <= WITHIN_S:
            guesses.locked_until = now + LOCKED_S
            guesses.wrong.clear()
            log.warning("pairing_codes_locked")

    def _note(self, kind: AuditKind, by: str, payload: Mapping[str, object]) -> None:
        """Logs and audits a committed decision; it must not fail."""
        log.info("pairing_decided", extra={"deed": kind, "by": by})
        self.audit.append_soon(AuditEvent(self.clock.now(), kind, by, payload))


def command_in(text: str) -> Command | None:
    """Returns the command in a text; None for plain text, which includes unknown /words."""
    # Strips only the blanks that adapters also skip when they mark forwarded text.
    match = _COMMAND.fullmatch(text.strip(" \t\r\n"))
    if match is None or match[1].lower() not in NAMES:
        return None
    return Command(match[1].lower(), (match[2] or "").strip())


def _allowed(command: Command | None, known: Pairing | None) -> Verdict:
    """Returns a command that the person may give, else a turn. Only owners may give `/pair`."""
    if command is None or (command.name == "pair" and not (known and known.is_owner)):
        return TurnForAgent()
    return command


def _new_code(ids: Ids) -> str:
    """Returns a code of 40 random bits out of an id, which has 80."""
    number = int.from_bytes(sha256(ids.new().encode()).digest())
    size = len(ALPHABET)
    return "".join(ALPHABET[number // size**place % size] for place in range(CODE_LENGTH))


def _digest(code: str) -> str:
    """Returns the digest of a code; case, blanks and dashes do not matter."""
    plain = "".join(code.upper().replace("-", "").split())
    return sha256(plain[: 2 * CODE_LENGTH].encode("utf-8", "replace")).hexdigest()


def _payload(one: Pairing) -> dict[str, object]:
    return {**_person((one.channel, one.account, one.person)), "name": one.name}


def _person(who: Person) -> dict[str, object]:
    return dict(zip(("channel", "account", "person"), who, strict=True))


def _named(who: Person) -> str:
    channel, account, person = (one[:64] for one in who)
    return f"person {person!r} of {channel}:{account}"

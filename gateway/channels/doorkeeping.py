"""Who may talk, and who may give commands: judged before anything is written or paid for."""

import logging
import re
from dataclasses import dataclass, field
from typing import Literal

from gateway.channels.adapters import Incoming
from gateway.channels.pairing import PairingBook
from gateway.domain.channels import ChannelDef, DmPolicy, GroupRule, Pairing

log = logging.getLogger(__name__)

NAMES = (
    *("new", "stop", "status", "usage", "model", "context", "memory", "queue", "pair"),
    *("whoami", "help", "reset"),
)
MOST_NOTED = 1_000  # closed rooms that were logged
NOT_KNOWN = (
    "I do not know you yet, so I have not read your message. If you belong here, ask my owner to "
    "run `exogate pair approve {code}`, or to send me `/pair approve {code}`. The code is valid for "
    "an hour."
)
_COMMAND = re.compile(r"/([A-Za-z]+)(?:@[\w.-]+)?(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Turn:
    """The message is for the agent."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing is written and nobody is told; `why` is counted."""

    why: str


@dataclass(frozen=True, slots=True)
class Told:
    """The peer is answered with a text, once; no model is asked. Who `asked` to talk waits from that
    commit on."""

    text: str
    asked: Pairing | None = None
    do: Literal["send", "join"] = "send"


@dataclass(frozen=True, slots=True)
class Command:
    """The peer gave a command and may: `name` without its slash."""

    name: str
    argument: str


Verdict = Turn | Ignored | Told | Command


@dataclass(slots=True)
class Doorman:
    """Implements Doorkeeper. Pairing is looked at in direct chats alone."""

    book: PairingBook
    _noted: set[tuple[str, str]] = field(default_factory=set)

    async def judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        if message.kind == "group":
            return self._in_room(channel, message)
        return await self._in_direct_chat(channel, message)

    def _in_room(self, channel: ChannelDef, message: Incoming) -> Verdict:
        rule = channel.groups.get(message.peer, channel.groups.get("*"))
        person = message.sender.id
        if rule is None:
            self._note_closed(channel.name, message.peer)
            return Ignored("room_closed")
        if rule.allow_from and person not in rule.allow_from:
            return Ignored("not_listed")
        if _wants_mention(channel, rule) and not message.mentions_me:
            return Ignored("not_mentioned")
        if person in channel.allow_from | rule.allow_from:
            return _allowed(command_in(message.text), None)
        return Turn()

    async def _in_direct_chat(self, channel: ChannelDef, message: Incoming) -> Verdict:
        policy, is_listed = channel.dm_policy, message.sender.id in channel.allow_from
        if (closed := _closed(policy, is_listed=is_listed)) is not None:
            return closed
        who = (channel.name, channel.account, message.sender.id)
        command, is_welcome = command_in(message.text), is_listed or policy == "open"
        if is_welcome and await self.book.is_blocked(*who):
            return Ignored("blocked")
        if is_welcome and command is None:
            return Turn()
        known = await self.book.find(*who)
        if is_listed or (known is not None and known.state == "paired"):
            return _allowed(command, known)
        return await self._stranger(channel, message, known)

    async def _stranger(
        self, channel: ChannelDef, message: Incoming, known: Pairing | None
    ) -> Verdict:
        """Whoever waits, or was denied, is told nothing more."""
        if channel.dm_policy == "open":
            return Turn()
        place = (channel.name, channel.account)
        asked = None if known else await self.book.ask(*place, message.sender)
        if asked is None:
            return Ignored("not_paired")
        pairing, code = asked
        return Told(NOT_KNOWN.format(code=code), pairing)

    def asked(self, asked: Pairing) -> None:
        self.book.asked(asked)

    def _note_closed(self, channel: str, room: str) -> None:
        """Once a room: whoever wants to open it needs its id."""
        if (channel, room) not in self._noted and len(self._noted) < MOST_NOTED:
            self._noted.add((channel, room))
            log.info("a room is closed", extra={"channel": channel, "room": room})


def command_in(text: str) -> Command | None:
    """A word with a slash that is no command is plain text."""
    # Of blanks those that adapters look behind, too, where somebody else's words are handed on.
    match = _COMMAND.fullmatch(text.strip(" \t\r\n"))
    if match is None or match[1].lower() not in NAMES:
        return None
    return Command(match[1].lower(), (match[2] or "").strip())


def _wants_mention(channel: ChannelDef, rule: GroupRule) -> bool:
    own = rule.require_mention
    return channel.require_mention if own is None else own


def _closed(policy: DmPolicy, *, is_listed: bool) -> Ignored | None:
    if policy == "disabled":
        return Ignored("direct_chats_disabled")
    return Ignored("not_listed") if policy == "allowlist" and not is_listed else None


def _allowed(command: Command | None, known: Pairing | None) -> Verdict:
    """Who may talk is for owners alone to decide."""
    if command is None or (command.name == "pair" and not (known and known.is_owner)):
        return Turn()
    return command

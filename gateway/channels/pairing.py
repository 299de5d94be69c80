"""The book of who may talk in direct chats: asked for by a code, approved by an operator."""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256

from gateway.channels.adapters import Sender
from gateway.channels.progress import printable
from gateway.domain.channels import Pairing, PairingState
from gateway.domain.errors import Busy, Conflict, GatewayError, NotFound
from gateway.domain.events import Deed, DeedKind
from gateway.domain.ports import Audit, ChannelStore, Clock, Ids

log = logging.getLogger(__name__)

ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # without what looks alike
CODE_LENGTH = 8
LIFE = timedelta(hours=1)
MOST_WRONG, WITHIN_S, LOCKED_S = 5, 60.0, 300.0
MOST_KNOWN = 4096  # people
LONGEST_NAME = 100
MOST_LISTED = 100

Place = tuple[str, str]  # channel and account
Tell = Callable[[str, Mapping[str, object]], None]  # an event and its payload


@dataclass(slots=True)
class _Guesses:
    """Of the owners of one account, or of operators: nobody's wrong codes lock anybody else out."""

    wrong: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WRONG))
    locked_until: float = 0.0


class NobodyWaits(NotFound):
    def __init__(self) -> None:
        GatewayError.__init__(
            self, "no pairing request has that code: a code works once, for an hour"
        )


@dataclass(slots=True)
class PairingBook:
    """Implements Approvals; `at` limits a decision to a channel's account."""

    store: ChannelStore
    audit: Audit
    clock: Clock
    ids: Ids
    tell: Tell = lambda _type, _payload: None
    _paired: dict[tuple[str, str, str], Pairing] = field(default_factory=dict)
    _free: dict[tuple[str, str, str], None] = field(default_factory=dict)  # not blocked
    _revoked: int = 0  # so often; what was read before may hold no more
    _guesses: defaultdict[Place | None, _Guesses] = field(
        default_factory=lambda: defaultdict(_Guesses)
    )

    async def find(self, channel: str, account: str, person: str) -> Pairing | None:
        """As it holds now: an expired request is none. Raises StoreUnavailable."""
        who = (channel, account, person)
        if (known := self._paired.get(who)) is not None:
            return known
        revoked = self._revoked
        found = await self.store.find_pairing(*who)
        if found is None or self._has_expired(found):
            return None
        if found.state == "paired" and revoked == self._revoked:
            self._paired[who] = found
            if len(self._paired) > MOST_KNOWN:
                del self._paired[next(iter(self._paired))]
        return found

    async def ask(self, channel: str, account: str, sender: Sender) -> tuple[Pairing, str] | None:
        """What is to be committed with the code that the person is told; None: nothing is. A
        stranger who goes on and on, or comes to a full line, costs no commit. Raises
        StoreUnavailable."""
        code, now = _new_code(self.ids), self.clock.now()
        name = sender.name and printable(sender.name)[:LONGEST_NAME]
        who, until = (channel, account, sender.id), now + LIFE
        asked = Pairing(*who, name, "asked", _digest(code), now, until)
        if not await self.store.may_ask(asked):
            return None
        half = CODE_LENGTH // 2
        return asked, f"{code[:half]}-{code[half:]}"

    def asked(self, asked: Pairing) -> None:
        """It is committed."""
        extra = {"channel": asked.channel, "person": asked.person}
        log.info("pairing_requested", extra=extra)
        self.tell("pair.asked", _told(asked))

    async def listed(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        found = await self.store.list_pairings(channel=channel, limit=limit)
        return [one for one in found if not self._has_expired(one)]

    async def approve(
        self, code: str, *, by: str, is_owner: bool = False, at: Place | None = None
    ) -> Pairing:
        paired = await self._decide(code, "paired", at, is_owner=is_owner)
        told = {**_told(paired), "owner": paired.is_owner}
        self._note("pair.approved", by, told)
        self.tell("pair.approved", told)
        return paired

    async def deny(self, code: str, *, by: str, at: Place | None = None) -> Pairing:
        denied = await self._decide(code, "denied", at)
        self._changed((denied.channel, denied.account, denied.person))
        self._note("pair.denied", by, _told(denied))
        return denied

    async def revoke(self, channel: str, account: str, person: str, *, by: str) -> None:
        if await self._revoked_one(channel, account, person, by):
            return
        found = await self.store.find_pairing(channel, account, person)
        if found is not None and found.state == "denied":
            raise Conflict(f"{_named(channel, account, person)} is blocked: unblock lifts that")
        raise NotFound(_named(channel, account, person))

    async def turn_away(
        self, channel: str, account: str, person: str, *, by: str
    ) -> Pairing | None:
        """Implements Approvals."""
        if await self._revoked_one(channel, account, person, by):
            return None
        found = await self.store.find_pairing(channel, account, person)
        if found is None:
            raise NotFound(_named(channel, account, person))
        if found.state == "denied":
            return found
        return await self.block(channel, account, person, by=by)

    async def block(self, channel: str, account: str, person: str, *, by: str) -> Pairing:
        blocked = await self.store.block(channel, account, person, now=self.clock.now())
        self._changed((channel, account, person))
        self._note("pair.blocked", by, _told(blocked))
        return blocked

    async def unblock(self, channel: str, account: str, person: str, *, by: str) -> None:
        is_gone = await self.store.remove_pairing(channel, account, person, state="denied")
        self._changed((channel, account, person))
        if not is_gone:
            raise NotFound(f"blocked {_named(channel, account, person)}")
        told = {"channel": channel, "account": account, "person": person}
        self._note("pair.unblocked", by, told)

    async def is_blocked(self, channel: str, account: str, person: str) -> bool:
        """Asked of those as well who need no pairing; most are known by heart. Raises
        StoreUnavailable."""
        who = (channel, account, person)
        if who in self._free or who in self._paired:
            return False
        changes = self._revoked
        found = await self.store.find_pairing(*who)
        if found is not None and found.state == "denied":
            return True
        if changes == self._revoked:
            self._free[who] = None
            if len(self._free) > MOST_KNOWN:
                del self._free[next(iter(self._free))]
        return False

    async def _revoked_one(self, channel: str, account: str, person: str, by: str) -> bool:
        is_gone = await self.store.remove_pairing(channel, account, person, state="paired")
        self._changed((channel, account, person))
        if is_gone:
            told = {"channel": channel, "account": account, "person": person, "revoked": True}
            self._note("pair.denied", by, told)
        return is_gone

    def _changed(self, who: tuple[str, str, str]) -> None:
        """Nothing that is known of them by heart holds any more."""
        self._paired.pop(who, None)
        self._free.pop(who, None)
        self._revoked += 1

    def _has_expired(self, one: Pairing) -> bool:
        return one.state == "asked" and one.expires_at <= self.clock.now()

    async def _decide(
        self, code: str, state: PairingState, at: Place | None, *, is_owner: bool = False
    ) -> Pairing:
        guesses = self._guesses[at]
        self._require_unlocked(guesses)
        digest, now = _digest(code), self.clock.now()
        decided = None
        if at is None or await self._waits_at(at, digest):
            decided = await self.store.decide_pairing(digest, state, is_owner=is_owner, now=now)
        if decided is None:
            self._count_wrong(guesses)
            raise NobodyWaits
        return decided

    async def _waits_at(self, at: Place, digest: str) -> bool:
        waiting = await self.store.list_pairings(channel=at[0], limit=MOST_LISTED)
        return any((one.channel, one.account, one.code_digest) == (*at, digest) for one in waiting)

    def _require_unlocked(self, guesses: _Guesses) -> None:
        rest = guesses.locked_until - self.clock.monotonic()
        if rest > 0:
            raise Busy(
                f"too many wrong codes: none is taken for another {rest:.0f} s", retry_after_s=rest
            )

    def _count_wrong(self, guesses: _Guesses) -> None:
        now = self.clock.monotonic()
        guesses.wrong.append(now)
        if len(guesses.wrong) == MOST_WRONG and now - guesses.wrong[0] <= WITHIN_S:
            guesses.locked_until = now + LOCKED_S
            guesses.wrong.clear()
            log.warning("too many wrong pairing codes")

    def _note(self, kind: DeedKind, by: str, told: Mapping[str, object]) -> None:
        """It is decided already: that must not fail any more."""
        log.info("who may talk was decided", extra={"deed": kind, "by": by})
        self.audit.append_soon(Deed(self.clock.now(), kind, by, told))


def _new_code(ids: Ids) -> str:
    """An id is made of 80 random bits, a code needs 40."""
    number = int.from_bytes(sha256(ids.new().encode()).digest())
    return "".join(
        ALPHABET[number // len(ALPHABET) ** place % len(ALPHABET)] for place in range(CODE_LENGTH)
    )


def _digest(code: str) -> str:
    """However it was typed."""
    plain = "".join(code.upper().replace("-", "").split())
    return sha256(plain[: 2 * CODE_LENGTH].encode("utf-8", "replace")).hexdigest()


def _told(one: Pairing) -> dict[str, object]:
    return {
        "channel": one.channel,
        "account": one.account,
        "person": one.person,
        "name": one.name,
    }


def _named(channel: str, account: str, person: str) -> str:
    return f"person {person[:64]!r} of {channel[:64]}:{account[:64]}"

"""Who is asking, and what may they: bearer tokens, the local operator, scopes, failed attempts."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from anyio import CancelScope, Event

from gateway.api.errors import Forbidden, TooManyFailures, Unauthorized
from gateway.domain.agents import OWN_CHANNELS
from gateway.domain.errors import GatewayError, NotFound
from gateway.domain.events import AuditEvent, Recurrences
from gateway.domain.ids import SessionKey
from gateway.domain.ports import Audit, Clock
from gateway.domain.tokens import PREFIX, CreatedToken, digest_of, is_created, is_intact
from gateway.web.settings import TokenDef, WebSettings
from gateway.web.wire.visitors import IpAddress, Visitor, address_group

log = logging.getLogger(__name__)

SCOPES = frozenset({"chat", "read", "admin", "impersonate", "metrics"})
AGENT = "agent:"
LOOK_S = 0.5  # between two looks at the clock, while some token expires
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose requests these are. `agents`: the only ones it may reach; None: all."""

    name: str
    scopes: frozenset[str]
    agents: frozenset[str] | None = None


def principal(name: str, scopes: frozenset[str]) -> Principal:
    """Sorts `agent:<id>` out of the scopes of a token."""
    agents = frozenset(s.removeprefix(AGENT) for s in scopes if s.startswith(AGENT))
    return Principal(name, frozenset(s for s in scopes if not s.startswith(AGENT)), agents or None)


LOCAL = Principal("local", SCOPES)
OPERATOR = Principal("operator", SCOPES)


def has_scope(principal: Principal, scope: str) -> bool:
    return scope in principal.scopes or "admin" in principal.scopes


def can_use(principal: Principal, agent: str) -> bool:
    return principal.agents is None or agent in principal.agents


def can_speak_as(principal: Principal, channel: str, account: str) -> bool:
    """Whether a message of theirs may come from there."""
    own = channel in OWN_CHANNELS and account == principal.name
    return own or has_scope(principal, "impersonate")


def can_see(principal: Principal, channel: str, account: str) -> bool:
    """Whether what belongs to that account exists for them."""
    own = channel in OWN_CHANNELS and account == principal.name
    return own or has_scope(principal, "read")


def can_see_session(principal: Principal, key: SessionKey) -> bool:
    return can_see(principal, key.channel, key.account) and can_use(principal, key.agent)


def visible_key(principal: Principal, text: str) -> SessionKey:
    """A session key that the principal may see; raises BadSessionKey, NotFound."""
    key = SessionKey.parse(text)
    if not can_see_session(principal, key):
        raise NotFound(f"session {text[:200]!r}")
    return key


def require_own(principal: Principal, key: SessionKey) -> None:
    """Only the owner may change a session. Raises Forbidden."""
    if not can_speak_as(principal, key.channel, key.account):
        raise Forbidden("your token may read this, but not change it")


def own_key(principal: Principal, text: str) -> SessionKey:
    """Of a session that the principal may change; raises BadSessionKey, NotFound, Forbidden."""
    key = visible_key(principal, text)
    require_own(principal, key)
    return key


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal and what proved it; `proof` is None for the local operator without a token."""

    principal: Principal
    proof: bytes | None = field(default=None, repr=False)


class FailedAttempts:
    """Counts wrong tokens per address. An address that guesses hears late that it was wrong, so that
    it cannot guess fast; only few answers are late at a time, so that they hold no seats."""

    def __init__(
        self,
        settings: WebSettings,
        clock: Clock,
        *,
        max_peers: int = 10_000,
        audit: Audit | None = None,
    ) -> None:
        self._settings, self._max_peers = settings, max_peers
        self._clock, self._audit = clock, audit
        self._recurrences = Recurrences()
        self._failed: dict[str, tuple[int, float]] = {}  # count, start of its window
        self._slowed: dict[str, float] = {}  # until
        self._late: deque[tuple[float, str]] = deque()  # when which answers are told, in order

    def refusal(self, address: IpAddress | None) -> GatewayError:
        """What to tell whoever brought a wrong token: Unauthorized, or TooManyFailures."""
        settings, now, peer = self._settings, self._clock.monotonic(), address_group(address)
        self._note(peer)
        if self._slowed.get(peer, now) > now:
            _keep(self._slowed, peer, now + settings.auth_slowed_s, self._max_peers)
            return TooManyFailures(settings.auth_slowed_s, self._delay(peer, now))
        self._slowed.pop(peer, None)
        times, since = self._failed.pop(peer, (0, now))
        if now - since > settings.auth_window_s:
            times, since = 0, now
        if times + 1 >= settings.auth_failures:
            _keep(self._slowed, peer, now + settings.auth_slowed_s, self._max_peers)
        else:
            _keep(self._failed, peer, (times + 1, since), self._max_peers)
        return Unauthorized()

    def _delay(self, peer: str, now: float) -> float:
        late, settings = self._late, self._settings
        while late and late[0][0] <= now:
            late.popleft()
        of_peer = sum(other == peer for _, other in late)
        if len(late) >= settings.auth_delayed or of_peer >= settings.auth_delayed_per_address:
            return 0.0
        late.append((now + settings.auth_delay_s, peer))
        return settings.auth_delay_s

    def _note(self, peer: str) -> None:
        at = self._clock.now()
        times = self._recurrences.worth(peer, at)
        if times:
            log.warning("login_refused", extra={"peer": peer, "times": times})
        if times and self._audit is not None:
            self._audit.append_soon(AuditEvent(at, "login.refused", peer, {"times": times}))


def _keep(kept: dict[str, T], peer: str, value: T, limit: int) -> None:
    kept.pop(peer, None)
    kept[peer] = value
    if len(kept) > limit:
        del kept[next(iter(kept))]  # the oldest: memory is bounded whatever comes


@dataclass(frozen=True, slots=True)
class Credential:
    """What a token of somebody gives."""

    principal: Principal
    expires_at: datetime | None = None


class Identities:
    """Tokens in force, by digest: those of the settings, and those that were created since. Whoever asked to
    know is told when one is in force no more."""

    def __init__(
        self,
        settings: WebSettings,
        clock: Clock,
        audit: Audit | None = None,
        used: Callable[[bytes], None] = lambda digest: None,
    ) -> None:
        self._attempts = FailedAttempts(settings, clock, audit=audit)
        self._clock, self._used = clock, used
        self._changed: list[Callable[[], None]] = []
        self._open: dict[CancelScope, Identity] = {}
        self._known: dict[bytes, Credential] = {}
        self._created: Sequence[CreatedToken] = ()
        self._settings, self._renewed = settings, Event()
        self._take()

    def _take(self) -> None:
        settings = self._settings
        known = {
            one.digest: Credential(
                principal(one.name, settings.reach(one.name, one.scopes)), one.expires_at
            )
            for one in self._created
            if one.revoked_at is None
        }
        known |= {
            digest_of(one.secret): Credential(principal(one.name, one.scopes), one.expires_at)
            for one in settings.tokens
        }
        if settings.operator_secret is not None:
            known[digest_of(settings.operator_secret)] = Credential(OPERATOR)
        if settings.cli_secret is not None:
            known[digest_of(settings.cli_secret)] = Credential(LOCAL)
        self._known = known
        self._near_is_local = not settings.has_tokens
        # A token of the file may look like a created one, and have no checksum.
        looks = [one.secret for one in settings.tokens if is_created(one.secret)]
        self._are_checked = all(map(is_intact, looks))

    def replace(self, settings: WebSettings) -> None:
        """Puts others in the place of those of the settings."""
        self._settings = settings
        self._renew()

    def replace_created(self, tokens: Sequence[CreatedToken]) -> None:
        self._created = tokens
        self._renew()

    def _renew(self) -> None:
        self._take()
        self._close_lost()
        self._renewed.set()
        self._renewed = Event()

    async def watch(self) -> None:
        """Ends what goes on by a token that expires, until it is cancelled. Looks often, for a clock may be
        set; without such a token it waits."""
        while True:
            if (end := self._next_expiry()) is None:
                await self._renewed.wait()
                continue
            while (now := self._clock.now()) < end:
                await self._clock.sleep(min(LOOK_S, (end - now).total_seconds()))
                end = self._next_expiry() or now
            self._close_lost()

    def _next_expiry(self) -> datetime | None:
        """The first of those to come."""
        now = self._clock.now()
        ends = (one.expires_at for one in self._known.values())
        return min((end for end in ends if end is not None and end > now), default=None)

    def _close_lost(self) -> None:
        """Ends what goes on by a token that is no longer in force."""
        for changed in self._changed:
            changed()
        for scope, identity in tuple(self._open.items()):
            if not self.is_valid(identity):
                scope.cancel()

    def on_change(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)

    @contextmanager
    def lasting(self, identity: Identity) -> Iterator[CancelScope]:
        """What is done inside is cancelled when the identity is lost."""
        with CancelScope() as scope:
            self._open[scope] = identity
            try:
                yield scope
            finally:
                del self._open[scope]

    @property
    def of_file(self) -> Sequence[TokenDef]:
        """The tokens of the settings."""
        return self._settings.tokens

    def identify(self, visitor: Visitor, *, allow_any_key: bool = False) -> Identity | None:
        """By its header, or as the local operator; None if it brought nothing. `allow_any_key`: its kind
        cannot but send a key, so where being near is enough, one that cannot be right is as none.

        Raises Unauthorized for a wrong token, TooManyFailures.
        """
        is_local = self._near_is_local and visitor.is_local
        if visitor.authorization is None:
            return Identity(LOCAL) if is_local else None
        scheme, _, token = visitor.authorization.partition(" ")
        is_bearer = scheme.lower() == "bearer" and "authorization" not in visitor.repeated
        token = token.strip() if is_bearer else ""
        may_be_any = allow_any_key and is_local
        if may_be_any and self._says_nothing(token):
            return Identity(LOCAL)
        return self.authenticate(token, visitor)

    def _says_nothing(self, token: str) -> bool:
        """Whether a key is none of ours, nor was ever one, nor is one that is mistyped."""
        return bool(token) and not token.startswith(PREFIX) and self._found(token) is None

    def authenticate(self, token: str, visitor: Visitor) -> Identity:
        """A valid token is let in, also from an address where somebody guesses.

        Raises Unauthorized, TooManyFailures.
        """
        found = self._found(token)
        if found is None:
            raise self._attempts.refusal(visitor.client)
        digest, owner = found
        self._used(digest)
        return Identity(owner, digest)

    def is_valid(self, identity: Identity) -> bool:
        """Whether it would be given again now."""
        if identity.proof is None:
            return self._near_is_local
        return self._principal(identity.proof) == identity.principal

    def _found(self, token: str) -> tuple[bytes, Principal] | None:
        """Time tells nothing of a token that is looked up by its digest."""
        if self._are_checked and is_created(token) and not is_intact(token):
            return None  # mistyped
        digest = digest_of(token)
        owner = self._principal(digest)
        return None if owner is None else (digest, owner)

    def _principal(self, digest: bytes) -> Principal | None:
        known = self._known.get(digest)
        if known is None:
            return None
        is_over = known.expires_at is not None and known.expires_at <= self._clock.now()
        return None if is_over else known.principal

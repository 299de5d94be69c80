"""Authentication and authorisation: bearer tokens, the local operator, scopes, failed attempts."""

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
from gateway.web.wire.connections import IpAddress, Visitor, address_group

log = logging.getLogger(__name__)

SCOPES = frozenset({"chat", "read", "admin", "impersonate", "metrics"})
AGENT = "agent:"
CHECK_EXPIRY_S = 0.5  # while some token has an end
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of requests, with its scopes and the agents that it can reach; None means all."""

    name: str
    scopes: frozenset[str]
    agents: frozenset[str] | None = None


def principal(name: str, scopes: frozenset[str]) -> Principal:
    """Builds a principal from the scopes of a token, `agent:<id>` among them."""
    agents = frozenset(s.removeprefix(AGENT) for s in scopes if s.startswith(AGENT))
    return Principal(name, frozenset(s for s in scopes if not s.startswith(AGENT)), agents or None)


LOCAL = Principal("local", SCOPES)
OPERATOR = Principal("operator", SCOPES)


def has_scope(principal: Principal, scope: str) -> bool:
    return scope in principal.scopes or "admin" in principal.scopes


def can_use(principal: Principal, agent: str) -> bool:
    return principal.agents is None or agent in principal.agents


def can_speak_as(principal: Principal, channel: str, account: str) -> bool:
    """True if the principal may send messages as this account."""
    own = channel in OWN_CHANNELS and account == principal.name
    return own or has_scope(principal, "impersonate")


def can_see(principal: Principal, channel: str, account: str) -> bool:
    """True if the principal may read what belongs to this account."""
    own = channel in OWN_CHANNELS and account == principal.name
    return own or has_scope(principal, "read")


def can_see_session(principal: Principal, key: SessionKey) -> bool:
    return can_see(principal, key.channel, key.account) and can_use(principal, key.agent)


def visible_key(principal: Principal, text: str) -> SessionKey:
    """Parses the key of a session that the principal can see. Raises BadSessionKey, NotFound."""
    key = SessionKey.parse(text)
    if not can_see_session(principal, key):
        raise NotFound(f"session {text[:200]!r}")
    return key


def require_own(principal: Principal, key: SessionKey) -> None:
    """Raises Forbidden unless the principal may change the session."""
    if not can_speak_as(principal, key.channel, key.account):
        raise Forbidden("your token may read this session, but not change it")


def own_key(principal: Principal, text: str) -> SessionKey:
    """Parses the key of a session that the principal may change. Raises BadSessionKey, NotFound, Forbidden."""
    key = visible_key(principal, text)
    require_own(principal, key)
    return key


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal and the digest of the token that proved it; None for the local operator without a token."""

    principal: Principal
    proof: bytes | None = field(default=None, repr=False)


class FailedAttempts:
    """Counts wrong tokens by address. Refusals to an address that guesses are delayed, so that it cannot guess fast.
    Only a few refusals are delayed at a time, so that they occupy few connections."""

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
        self._slowed: dict[str, float] = {}  # with the time of the end
        self._late: deque[tuple[float, str]] = deque()  # delayed refusals: time, address

    def refusal(self, address: IpAddress | None) -> GatewayError:
        """Returns the refusal of a wrong token: Unauthorized or TooManyFailures."""
        settings, now, peer = self._settings, self._clock.monotonic(), address_group(address)
        self._note(peer)
        if self._slowed.get(peer, now) > now:
            self._keep(self._slowed, peer, now + settings.auth_slowed_s)
            return TooManyFailures(settings.auth_slowed_s, self._delay(peer, now))
        self._slowed.pop(peer, None)
        times, since = self._failed.pop(peer, (0, now))
        if now - since > settings.auth_window_s:
            times, since = 0, now
        if times + 1 >= settings.auth_failures:
            self._keep(self._slowed, peer, now + settings.auth_slowed_s)
        else:
            self._keep(self._failed, peer, (times + 1, since))
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

    def _keep(self, kept: dict[str, T], peer: str, value: T) -> None:
        kept.pop(peer, None)
        kept[peer] = value
        if len(kept) > self._max_peers:
            del kept[next(iter(kept))]  # the oldest, so that memory is bounded


@dataclass(frozen=True, slots=True)
class Credential:
    """The principal of a token, and its end."""

    principal: Principal
    expires_at: datetime | None = None


class Identities:
    """The valid tokens by digest, from the settings and from the store. Calls the callbacks of `on_change` and
    cancels running requests when a token ends."""

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
        self._index()

    def _index(self) -> None:
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
        # A token of the file may look like a created token and have no checksum.
        similar = [one.secret for one in settings.tokens if is_created(one.secret)]
        self._are_checked = all(map(is_intact, similar))

    def replace(self, settings: WebSettings) -> None:
        """Replaces the tokens of the settings."""
        self._settings = settings
        self._renew()

    def replace_created(self, tokens: Sequence[CreatedToken]) -> None:
        """Replaces the tokens of the store."""
        self._created = tokens
        self._renew()

    def _renew(self) -> None:
        self._index()
        self._end_lost()
        self._renewed.set()
        self._renewed = Event()

    async def watch(self) -> None:
        """Ends the sockets and requests of tokens that expire, until it is cancelled. Checks the clock often, as it
        may be set; waits while no token has an end."""
        while True:
            if (end := self._next_expiry()) is None:
                await self._renewed.wait()
                continue
            while (now := self._clock.now()) < end:
                await self._clock.sleep(min(CHECK_EXPIRY_S, (end - now).total_seconds()))
                end = self._next_expiry() or now
            self._end_lost()

    def _next_expiry(self) -> datetime | None:
        now = self._clock.now()
        ends = (one.expires_at for one in self._known.values())
        return min((end for end in ends if end is not None and end > now), default=None)

    def _end_lost(self) -> None:
        """Ends the sockets and requests of tokens that are no longer valid."""
        for changed in self._changed:
            changed()
        for scope, identity in tuple(self._open.items()):
            if not self.is_valid(identity):
                scope.cancel()

    def on_change(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)

    @contextmanager
    def cancel_when_lost(self, identity: Identity) -> Iterator[CancelScope]:
        """Cancels the block when the identity is no longer valid."""
        with CancelScope() as scope:
            self._open[scope] = identity
            try:
                yield scope
            finally:
                del self._open[scope]

    @property
    def file_tokens(self) -> Sequence[TokenDef]:
        return self._settings.tokens

    def identify(self, visitor: Visitor, *, allow_any_key: bool = False) -> Identity | None:
        """Returns the identity by the header, or the local operator; None if there is neither.

        Clients of some kinds always send a key. With `allow_any_key`, a key that cannot be a token counts as none
        where local clients need no token. Raises Unauthorized for a wrong token, TooManyFailures.
        """
        is_local = self._near_is_local and visitor.is_local
        if visitor.authorization is None:
            return Identity(LOCAL) if is_local else None
        scheme, _, token = visitor.authorization.partition(" ")
        is_bearer = scheme.lower() == "bearer" and "authorization" not in visitor.repeated
        token = token.strip() if is_bearer else ""
        if allow_any_key and is_local and self._is_other_key(token):
            return Identity(LOCAL)
        return self.authenticate(token, visitor)

    def _is_other_key(self, token: str) -> bool:
        """True for a key that cannot be a token of this gateway."""
        return bool(token) and not token.startswith(PREFIX) and self._find(token) is None

    def authenticate(self, token: str, visitor: Visitor) -> Identity:
        """Returns the identity of a valid token, also for an address that guesses.

        Raises Unauthorized, TooManyFailures.
        """
        found = self._find(token)
        if found is None:
            raise self._attempts.refusal(visitor.client)
        assert found.proof is not None
        self._used(found.proof)
        return found

    def is_valid(self, identity: Identity) -> bool:
        """True if the identity would be granted now."""
        if identity.proof is None:
            return self._near_is_local
        return self._principal(identity.proof) == identity.principal

    def _find(self, token: str) -> Identity | None:
        """Looks a token up by its digest, so that the time of the search reveals nothing of the token."""
        if self._are_checked and is_created(token) and not is_intact(token):
            return None  # mistyped
        digest = digest_of(token)
        owner = self._principal(digest)
        return None if owner is None else Identity(owner, digest)

    def _principal(self, digest: bytes) -> Principal | None:
        known = self._known.get(digest)
        if known is None:
            return None
        is_over = known.expires_at is not None and known.expires_at <= self._clock.now()
        return None if is_over else known.principal

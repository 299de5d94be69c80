"""Who is asking, and what may they: bearer tokens, the local operator, scopes, failed attempts."""

import hmac
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

from gateway.api.errors import Forbidden, TooManyFailures, Unauthorized
from gateway.domain.agents import OWN_CHANNELS
from gateway.domain.errors import GatewayError, NotFound
from gateway.domain.events import Deed, Recurrences
from gateway.domain.ids import SessionKey
from gateway.domain.ports import Audit, Clock
from gateway.web.settings import WebSettings
from gateway.web.wire.visitors import IpAddress, Visitor, place_of

SCOPES = frozenset({"chat", "read", "admin", "impersonate", "metrics"})
_AGENT = "agent:"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose requests these are. `agents`: the only ones it may reach; None: all."""

    name: str
    scopes: frozenset[str]
    agents: frozenset[str] | None = None


def principal(name: str, scopes: frozenset[str]) -> Principal:
    """Sorts `agent:<id>` out of the scopes of a token."""
    agents = frozenset(s.removeprefix(_AGENT) for s in scopes if s.startswith(_AGENT))
    return Principal(name, frozenset(s for s in scopes if not s.startswith(_AGENT)), agents or None)


LOCAL = Principal("local", SCOPES)
OPERATOR = Principal("operator", SCOPES)


def may(principal: Principal, scope: str) -> bool:
    return scope in principal.scopes or "admin" in principal.scopes


def may_use(principal: Principal, agent: str) -> bool:
    return principal.agents is None or agent in principal.agents


def speaks_as(principal: Principal, channel: str, account: str) -> bool:
    """Whether a message of theirs may come from there."""
    own = channel in OWN_CHANNELS and account == principal.name
    return own or may(principal, "impersonate")


def sees(principal: Principal, channel: str, account: str) -> bool:
    """Whether what belongs to that account exists for them."""
    own = channel in OWN_CHANNELS and account == principal.name
    return own or may(principal, "read")


def sees_session(principal: Principal, key: SessionKey) -> bool:
    return sees(principal, key.channel, key.account) and may_use(principal, key.agent)


def visible_key(principal: Principal, text: str) -> SessionKey:
    """A session key that the principal may see; raises BadSessionKey, NotFound."""
    key = SessionKey.parse(text)
    if not sees_session(principal, key):
        raise NotFound(f"session {text[:200]!r}")
    return key


def require_own(principal: Principal, key: SessionKey) -> None:
    """Only the owner may change a session. Raises Forbidden."""
    if not speaks_as(principal, key.channel, key.account):
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
        settings, now, peer = self._settings, self._clock.monotonic(), place_of(address)
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
        if times and self._audit is not None:
            self._audit.append_soon(Deed(at, "login.refused", peer, {"times": times}))


def _keep(kept: dict[str, T], peer: str, value: T, limit: int) -> None:
    kept.pop(peer, None)
    kept[peer] = value
    if len(kept) > limit:
        del kept[next(iter(kept))]  # the oldest: memory is bounded whatever comes


class Identities:
    """Tokens in force. `replace` puts others in force at once and tells whoever asked to know."""

    def __init__(self, settings: WebSettings, clock: Clock, audit: Audit | None = None) -> None:
        self._attempts = FailedAttempts(settings, clock, audit=audit)
        self._changed: list[Callable[[], None]] = []
        self._known: tuple[tuple[bytes, Principal], ...] = ()
        self._near_is_local = False
        self._take(settings)

    def _take(self, settings: WebSettings) -> None:
        known = [
            (_proof(token.secret), principal(token.name, token.scopes)) for token in settings.tokens
        ]
        if settings.operator_secret is not None:
            known.append((_proof(settings.operator_secret), OPERATOR))
        if settings.cli_secret is not None:
            known.append((_proof(settings.cli_secret), LOCAL))
        self._known = tuple(known)
        self._near_is_local = not settings.has_tokens

    def replace(self, settings: WebSettings) -> None:
        self._take(settings)
        for changed in self._changed:
            changed()

    def on_change(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)

    def of_visitor(self, visitor: Visitor, *, sends_any: bool = False) -> Identity | None:
        """By its header, or as the local operator; None if it brought nothing. `sends_any`: its kind
        cannot but send a key, so where being near is enough, one that cannot be right is as none.

        Raises Unauthorized for a wrong token, TooManyFailures.
        """
        is_local = self._near_is_local and visitor.is_near
        if visitor.authorization is None:
            return Identity(LOCAL) if is_local else None
        scheme, _, token = visitor.authorization.partition(" ")
        is_bearer = scheme.lower() == "bearer" and "authorization" not in visitor.repeated
        token = token.strip() if is_bearer else ""
        if sends_any and is_local and token and self._principal(_proof(token)) is None:
            return Identity(LOCAL)
        return self.of_token(token, visitor)

    def of_token(self, token: str, visitor: Visitor) -> Identity:
        """A valid token is let in, also from an address where somebody guesses.

        Raises Unauthorized, TooManyFailures.
        """
        proof = _proof(token)
        found = self._principal(proof)
        if found is None:
            raise self._attempts.refusal(visitor.client)
        return Identity(found, proof)

    def holds(self, identity: Identity) -> bool:
        """Whether it would be given again now."""
        if identity.proof is None:
            return self._near_is_local
        return self._principal(identity.proof) == identity.principal

    def _principal(self, proof: bytes) -> Principal | None:
        found = None
        for known, owner in self._known:  # all of them, so that time tells nothing
            if hmac.compare_digest(known, proof):
                found = owner
        return found


def _proof(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()

"""Who is asking, and what may they: bearer tokens, the local operator, scopes, failed attempts."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv6Address, ip_network
from typing import TypeVar

from gateway.domain.accounts import Audit
from gateway.domain.audit import Deed, Recurrences
from gateway.domain.bindings import OWN_CHANNELS
from gateway.domain.ids import SessionKey
from gateway.domain.ports import Clock
from gateway.web.refusals import TooManyFailures, Unauthorized
from gateway.web.settings import WebSettings
from gateway.web.visitors import IpAddress, Visitor

SCOPES = frozenset({"chat", "read", "admin", "impersonate", "metrics"})
CHAT = ("chat",)
READS = ("chat", "read")  # with `chat` only what is one's own
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


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal and what proved it; `proof` is None for the local operator without a token."""

    principal: Principal
    proof: bytes | None = field(default=None, repr=False)


class FailedAttempts:
    """Counts wrong tokens per address, and shuts out the address that guesses; no other."""

    def __init__(
        self,
        settings: WebSettings,
        clock: Clock,
        *,
        max_peers: int = 10_000,
        audit: Audit | None = None,
    ) -> None:
        self._limit, self._window_s = settings.auth_failures, settings.auth_window_s
        self._lockout_s, self._max_peers = settings.auth_lockout_s, max_peers
        self._clock, self._audit = clock, audit
        self._recurrences = Recurrences()
        self._failed: dict[str, tuple[int, float]] = {}  # count, start of its window
        self._shut: dict[str, float] = {}  # until

    def refuse_if_shut(self, address: IpAddress | None) -> None:
        """Raises TooManyFailures."""
        if not self._shut:
            return
        peer = _peer(address)
        left = self._shut.get(peer, 0.0) - self._clock.monotonic()
        if left > 0:
            raise TooManyFailures(left)
        self._shut.pop(peer, None)

    def count(self, address: IpAddress | None) -> None:
        self._note(_peer(address))
        peer, now = _peer(address), self._clock.monotonic()
        times, since = self._failed.pop(peer, (0, now))
        if now - since > self._window_s:
            times, since = 0, now
        if times + 1 >= self._limit:
            _keep(self._shut, peer, now + self._lockout_s, self._max_peers)
        else:
            _keep(self._failed, peer, (times + 1, since), self._max_peers)

    def _note(self, peer: str) -> None:
        at = self._clock.now()
        times = self._recurrences.worth(peer, at)
        if times and self._audit is not None:
            self._audit.append_soon(Deed(at, "login.refused", peer, {"times": times}))


def _keep(kept: dict[str, T], peer: str, value: T, limit: int) -> None:
    kept[peer] = value
    if len(kept) > limit:
        del kept[next(iter(kept))]  # the oldest: memory is bounded whatever comes


def _peer(address: IpAddress | None) -> str:
    """One visitor holds a whole /64 of IPv6."""
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return str(address)


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
        """Our own command line is known even at an address where somebody guessed.

        Raises Unauthorized, TooManyFailures.
        """
        proof = _proof(token)
        found = self._principal(proof)
        if found is not LOCAL:  # no token of `[[tokens]]` can have that name
            self._attempts.refuse_if_shut(visitor.client)
        if found is None:
            self._attempts.count(visitor.client)
            raise Unauthorized
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

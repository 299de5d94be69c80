"""token.*: tokens created while the gateway runs, valid at once until they expire or are revoked."""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import anyio

from gateway.api import spending as api
from gateway.api.declarations import build
from gateway.api.errors import Forbidden, wrong
from gateway.budgets import LiveBudgets
from gateway.domain.budgets import OPERATORS, Limit, TokenBudget, in_unit
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Clock, Ledger, TokenStore
from gateway.domain.text import choose, moment_in
from gateway.domain.tokens import HINT, CreatedToken, digest_of, is_token_name, new_secret
from gateway.web.identity import AGENT, SCOPES, Identities, Principal, principal
from gateway.web.rpc import Call
from gateway.web.settings import TokenDef

log = logging.getLogger(__name__)

LINGERS = timedelta(days=1)  # the limits of a revoked token stay for its accepted runs
NOTED_S = 60.0  # between two notes of the latest use of a token


@dataclass(slots=True)
class TokenRegistry:
    """The created tokens of the store. It passes them to authentication and their limits to the budgets."""

    store: TokenStore
    ledger: Ledger
    limits: LiveBudgets
    clock: Clock
    tokens: Sequence[CreatedToken] = ()
    publish: Callable[[], object] = lambda: None  # makes other gateways read the store
    _identities: list[Identities] = field(default_factory=list)
    _version: int = 0
    _noted: dict[bytes, float] = field(default_factory=dict)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    def attach(self, identities: Identities) -> None:
        """Keeps these identities up to date with the tokens."""
        self._identities.append(identities)
        identities.replace_created(self.tokens)

    async def load(self) -> None:
        """Reads the tokens. Raises StoreUnavailable."""
        async with self._turn:  # an earlier read must not replace a later one
            self.tokens = await self.store.tokens()
            self.limits.of_created(self._budgets())
            for identities in self._identities:
                identities.replace_created(self.tokens)

    def _budgets(self) -> Mapping[str, TokenBudget]:
        since = self.clock.now() - LINGERS
        lingering = [one for one in self.tokens if one.revoked_at and one.revoked_at > since]
        in_force = [one for one in self.tokens if one.revoked_at is None]
        found = {one.name: one.budget for one in (*lingering, *in_force)}
        return {name: budget for name, budget in found.items() if budget is not None}

    async def refresh(self) -> None:
        """Reads the tokens and raises that another gateway has changed in the shared store."""
        version = await self.store.version()
        if version != self._version:
            await self.load()
            await self.ledger.load_raises(self.clock.now())
            self._version = version

    def note_use(self, digest: bytes) -> None:
        now = self.clock.monotonic()
        if now - self._noted.get(digest, -NOTED_S) < NOTED_S:
            return
        self._noted[digest] = now
        if any(one.digest == digest for one in self.tokens):
            self.store.note_use(digest, self.clock.now())


@dataclass(frozen=True, slots=True)
class TokenMethods:
    keys: TokenRegistry
    identities: Identities
    agents: Collection[str]

    async def token_create(self, call: Call, params: api.CreateToken) -> api.TokenCreated:
        keys, clock, by = self.keys, self.keys.clock, call.principal
        scopes = self._scopes(by, params)
        self._require_free(params.name)
        secret, now = new_secret(os.urandom(32)), clock.now()
        expires_at = None if params.expires is None else _expiry(params.expires, now)
        token = CreatedToken(
            digest=digest_of(secret),
            name=params.name,
            hint=secret[:HINT],
            scopes=scopes,
            created_at=now,
            created_by=by.name,
            budget=None if params.budget is None else _budget(params.budget),
            expires_at=expires_at,
        )
        detail = {
            "name": token.name,
            "scopes": sorted(scopes),
            "expires_at": expires_at and expires_at.isoformat(),
            "budget": _limits(token.budget),
            "inherits": params.inherit,
        }
        event = AuditEvent(now, "token.created", by.name, detail)
        await keys.store.create(token, event, inherits=params.inherit)
        keys.publish()
        log.info("token_created", extra={"principal": token.name, "by": by.name})
        await keys.load()
        return build(api.TokenCreated, _row(token, now), token=secret)

    async def token_list(self, call: Call, _: api.ListTokens) -> api.TokenList:
        await self.keys.load()
        now = self.keys.clock.now()
        rows = [_row(one, now) for one in self.keys.tokens]
        of_file = [_file_row(one, now, self.keys.limits) for one in self.identities.file_tokens]
        return api.TokenList(tokens=[*of_file, *rows])

    async def token_revoke(self, call: Call, params: api.RevokeToken) -> api.TokenRevoked:
        name, now = params.name, self.keys.clock.now()
        is_created = any(one.name == name and one.revoked_at is None for one in self.keys.tokens)
        if not is_created and name in self._file_names:
            raise Conflict(
                f"the token {name!r} is in the configuration file: remove its [[tokens]]"
            )
        event = AuditEvent(now, "token.revoked", call.principal.name, {"name": name})
        await self.keys.store.revoke(name, event)
        self.keys.publish()
        log.info("token_revoked", extra={"principal": name, "by": call.principal.name})
        await self.keys.load()
        return api.TokenRevoked(name=name, state="revoked", revoked_at=now)

    @property
    def _file_names(self) -> frozenset[str]:
        return frozenset(one.name for one in self.identities.file_tokens)

    def _require_free(self, name: str) -> None:
        if not is_token_name(name):
            raise wrong("name", "write 1 to 64 letters, digits, dots, hyphens and underscores")
        if name in OPERATORS:
            raise Conflict(f"{name!r} is the name of the local operator: choose another name")
        if name in self._file_names:
            raise Conflict(f"the configuration file has a token {name!r}: choose another name")

    def _scopes(self, by: Principal, params: api.CreateToken) -> frozenset[str]:
        """Returns the scopes of a new token. It reaches at most the agents of its creator."""
        given = frozenset([*(params.scopes or ("chat",)), *map(AGENT.__add__, params.agents or ())])
        wanted = principal(params.name, given)
        if unknown := sorted(wanted.scopes - SCOPES):
            one = unknown[0]
            raise wrong(
                "scopes", f"no scope {one[:64]!r}; {choose(one, (*sorted(SCOPES), 'agent:ID'))}"
            )
        if not wanted.scopes:
            raise wrong("scopes", "name at least one scope besides agent:ID")
        agents = wanted.agents or frozenset()
        if missing := sorted(agents - {*self.agents}):
            raise NotFound(f"agent {missing[0][:64]!r}")
        if by.agents is not None and not (agents and agents <= by.agents):
            raise Forbidden("your token reaches only some agents: name some of them with --agent")
        return given


def _expiry(text: str, now: datetime) -> datetime:
    """Raises InvalidParams."""
    try:
        found = moment_in(text, now)
    except ValueError as error:
        raise wrong("expires", str(error)) from None
    if found <= now:
        raise wrong("expires", "the time is in the past")
    return found


def _budget(given: int | api.TokenLimits) -> TokenBudget:
    if isinstance(given, int):
        return TokenBudget(daily=Limit(given))
    return TokenBudget(Limit(given.session), Limit(given.daily), Limit(given.monthly))


def _limits(budget: TokenBudget | None) -> dict[str, object] | None:
    """Returns the limits that are set."""
    if budget is None:
        return None
    limits = {name: getattr(budget, name) for name in ("session", "daily", "monthly")}
    found: dict[str, object] = {}
    for name, limit in limits.items():
        bounds = {unit: in_unit(unit, bound) for unit, bound in limit.bounds()}
        if bounds:
            found[name] = bounds["tokens"] if bounds.keys() == {"tokens"} else bounds
    return found


def _row(token: CreatedToken, now: datetime) -> api.TokenRow:
    rights = _rights(token.name, token.scopes, token.budget)
    return build(api.TokenRow, rights, token, source="created", state=token.state(now))


def _file_row(token: TokenDef, now: datetime, limits: LiveBudgets) -> api.TokenRow:
    is_over = token.expires_at is not None and token.expires_at <= now
    rights = _rights(token.name, token.scopes, limits.now.tokens.get(token.name))
    unknown = dict.fromkeys(("hint", "created_at", "created_by", "revoked_at", "last_used_at"))
    state = "expired" if is_over else "active"
    return build(api.TokenRow, rights, unknown, token, source="file", state=state)


def _rights(name: str, scopes: frozenset[str], budget: TokenBudget | None) -> dict[str, object]:
    who = principal(name, scopes)
    agents, own = sorted(who.agents or ()), sorted(who.scopes)
    return {"name": name, "scopes": own, "agents": agents, "budget": _limits(budget)}

"""memory.*: what is known about people, since when, from whom, and how it is forgotten."""

from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from gateway.api.errors import InvalidParams
from gateway.domain.agents import OWN_CHANNELS
from gateway.domain.errors import NotFound
from gateway.domain.facts import (
    LONGEST_OBJECT,
    SUBJECT,
    Claim,
    EntityType,
    Erasure,
    Fact,
    FactQuery,
    Provenance,
    Recalled,
    RecallKind,
    SourceReader,
    Whose,
    in_order,
    scope_of,
    tombstone_of,
    whose,
)
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.ports import Clock, FactStore, Ids
from gateway.domain.sessions import Erased
from gateway.memory import wording as dates
from gateway.memory.recall import MOST_HOPS, neighbours
from gateway.memory.tool import Find, select
from gateway.memory.wording import is_functional, kept_under
from gateway.sessions.intake import Front
from gateway.web.identity import CHAT, READS, Principal, may, may_use, sees_session
from gateway.web.methods.chat import Text, require_own, visible_key
from gateway.web.methods.sessions import Key
from gateway.web.published.memory import (
    FactOrigin,
    Forgotten,
    FoundFact,
    FoundTurn,
    KnownFact,
    KnownFacts,
    MemoryFound,
)
from gateway.web.rpc import Call, Method
from gateway.web.shapes import fact, recalled, source

MOST_FACTS = 1_000
MOST_ADDED = 100
LONGEST_QUERY = 10_000


def _aware(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError("is before or after all years") from None


def _whole_day(at: object) -> object:
    return (dates.end_of(at) if isinstance(at, str) else None) or at


When = Annotated[datetime, AfterValidator(_aware)]  # without an offset: UTC
Moment = Annotated[datetime, BeforeValidator(_whole_day), AfterValidator(_aware)]  # a day: its end
Limit = Annotated[int, Field(ge=1, le=MOST_FACTS)]


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Person(_Params):
    agent: Text
    channel: Text = "websocket"
    account: Text | None = None
    peer: Text = "main"


class _OfSomebody(_Params):
    session_key: Key | None = None
    person: Person | None = None


class Search(_OfSomebody):
    query: Annotated[str, Field(min_length=1, max_length=LONGEST_QUERY)]
    kinds: list[RecallKind] = Field(default=["fact", "turn"], min_length=1, max_length=2)
    limit: int = Field(default=10, ge=1, le=100)


class Why(_Params):
    fact_id: Text


class History(_OfSomebody):
    subject: Text | None = None
    predicate: Text | None = None
    skip: int = Field(default=0, ge=0, le=100_000)  # of the oldest
    limit: Limit = 500


class AsOf(_OfSomebody):
    at: Moment | Literal["today", "now"]
    known_at: Moment | Literal["today", "now"] | None = None
    subject: Text | None = None
    limit: Limit = 500


class Neighbours(_OfSomebody):
    subject: Text
    hops: int = Field(default=2, ge=1, le=MOST_HOPS)
    limit: Limit = 100


class Forget(_OfSomebody):
    fact_id: Text | None = None
    dry_run: StrictBool = True


class NewFact(_Params):
    subject: Text = SUBJECT
    predicate: Text
    object: Annotated[str, Field(min_length=1, max_length=LONGEST_OBJECT)]
    entity_type: EntityType = "fact"
    functional: StrictBool = False
    confidence: float = Field(default=1.0, json_schema_extra={"minimum": 0, "maximum": 1})
    valid_from: When | None = None
    valid_to: When | None = None


class Add(_OfSomebody):
    facts: list[NewFact] = Field(min_length=1, max_length=MOST_ADDED)


@dataclass(frozen=True, slots=True)
class MemoryMethods:
    """`settled` comes back once all that was said in a session can be found; `shared`: agents whose
    facts belong to all who talk to them."""

    facts: FactStore
    find: Find
    clock: Clock
    ids: Ids
    settled: Callable[[SessionKey], Awaitable[None]]
    shared: Set[AgentId] = frozenset()
    front: Front | None = None  # erases whole conversations

    def all(self) -> Sequence[Method]:
        return (
            Method("memory.search", Search, READS, self.search),
            Method("memory.why", Why, READS, self.why),
            Method("memory.history", History, READS, self.history),
            Method("memory.as_of", AsOf, READS, self.as_of),
            Method("memory.neighbours", Neighbours, READS, self.neighbours),
            Method("memory.forget", Forget, CHAT, self.forget),
            Method("memory.add", Add, ("admin",), self.add),
        )

    async def search(self, call: Call, params: Search) -> MemoryFound:
        """Facts and messages that fit a question."""
        key, seen = await self._asked(call, params)
        kinds = params.kinds
        found = await self.find.of(params.query, key, seen, kinds=kinds, limit=params.limit)
        facts = [one for one in found if one.kind == "fact"]
        turns = [one for one in found if one.kind == "turn"]
        in_turn = [one for both in zip_longest(facts, turns) for one in both if one]
        return {"results": [await self._found(call, one) for one in in_turn[: params.limit]]}

    async def why(self, call: Call, params: Why) -> FactOrigin:
        """Where a fact was said."""
        origin = await self._origin(call.principal, params.fact_id)
        sources = origin.sources_for(_reader(call.principal))
        return {
            "fact": await self._told(call, origin.fact),
            "sources": [source(one) for one in sources],
            "hidden": len(origin.sources) - len(sources),
            "supersedes": list(origin.supersedes),
            "superseded_by": origin.fact.superseded_by,
        }

    async def history(self, call: Call, params: History) -> KnownFacts:
        """Facts in the order in which they became true."""
        _, seen = await self._asked(call, params)
        query = FactQuery(
            seen,
            subject=params.subject,
            predicate=params.predicate,
            with_history=True,
            limit=params.skip + params.limit,
        )
        found = await select(self.facts, query)
        return await self._told_all(call, found[params.skip :])

    async def as_of(self, call: Call, params: AsOf) -> KnownFacts:
        """What was true at a time, as it was known at another."""
        _, seen = await self._asked(call, params)
        now = self.clock.now()
        query = FactQuery(
            seen,
            subject=params.subject,
            at=dates.as_asked(params.at, now),
            known_at=None if params.known_at is None else dates.as_asked(params.known_at, now),
            limit=params.limit,
        )
        return await self._told_all(call, await select(self.facts, query))

    async def neighbours(self, call: Call, params: Neighbours) -> KnownFacts:
        """Facts that hang together with a name."""
        _, seen = await self._asked(call, params)
        name, hops, limit = params.subject, params.hops, params.limit
        near = await neighbours(self.facts, seen, name, hops=hops, limit=limit)
        return await self._told_all(call, near)

    async def forget(self, call: Call, params: Forget) -> Forgotten:
        """Erases facts, or all that was said in a session."""
        what = await self._doomed(call.principal, params)
        if params.session_key is not None and (gone := await self._erased(what, params)):
            return {
                "count": gone.facts,
                "messages": gone.messages,
                "dry_run": params.dry_run,
                "tombstone": gone.tombstone,
            }
        now = self.clock.now()
        count = await self.facts.erase_facts(what, dry_run=params.dry_run, now=now)
        tombstone = None if params.dry_run else tombstone_of(what, now)
        return {"count": count, "dry_run": params.dry_run, "tombstone": tombstone}

    async def _erased(self, what: Erasure, params: Forget) -> Erased | None:
        """With all that was said there; None if nothing was ever said."""
        key = what.session_key
        if self.front is None or key is None or await self.front.sessions.find_session(key) is None:
            return None
        return await self.front.erase(key, by=what.by, dry_run=params.dry_run)

    async def add(self, call: Call, params: Add) -> KnownFacts:
        """Adds facts."""
        key, now = _key(call.principal, params), self.clock.now()
        if any(one.valid_from and one.valid_from > now + timedelta(days=1) for one in params.facts):
            raise InvalidParams("valid_from is still to come: what is not true yet is no fact")
        claims = in_order([_claim(one, key, now) for one in params.facts])
        ids = [f"f_{self.ids.new()}" for _ in claims]
        scope = scope_of(key, None, is_shared=key.agent in self.shared)
        kept = await self.facts.add_facts(scope, claims, ids=ids, now=now)
        return await self._told_all(call, kept)

    async def _asked(self, call: Call, params: _OfSomebody) -> tuple[SessionKey, Whose]:
        key = _key(call.principal, params)
        await self.settled(key)
        return key, self._whose(key, params)

    def _whose(self, key: SessionKey, params: _OfSomebody) -> Whose:
        """Of a person all that they ever said; of a session on another's platform, which may be a
        room, what was said there."""
        is_shared = key.agent in self.shared
        if params.person is None and key.channel not in OWN_CHANNELS and not is_shared:
            return Whose(room=key)
        return whose(key, None, is_shared=is_shared)

    async def _origin(self, principal: Principal, fact_id: str) -> Provenance:
        origin = await self.facts.origin_of(fact_id)
        if origin is not None:
            key = origin.fact.session_key
            is_everybodys = self._is_shared(origin.fact) and may_use(principal, key.agent)
            if is_everybodys or sees_session(principal, key):
                return origin
        raise NotFound(f"fact {fact_id[:64]!r}")

    def _is_shared(self, known: Fact) -> bool:
        """All who talk to the agent know it, whoever said it."""
        agent = known.session_key.agent
        return agent in self.shared and known.scope == str(agent)

    async def _told_all(self, call: Call, found: Sequence[Fact]) -> KnownFacts:
        return {"facts": [await self._told(call, one) for one in found]}

    async def _told(self, call: Call, known: Fact) -> KnownFact:
        """Without the names of messages and sessions that are another's."""
        told, principal = fact(known), call.principal
        if may(principal, "read") or not self._is_shared(known):
            return told
        origin = await self.facts.origin_of(known.id)
        sources = origin.sources_for(_reader(principal)) if origin else ()
        own = {one.message_id for one in sources}
        told["source_message_ids"] = [one for one in told["source_message_ids"] if one in own]
        if not sees_session(principal, known.session_key):
            told["session_key"] = None
        return told

    async def _found(self, call: Call, one: Recalled) -> FoundFact | FoundTurn:
        found = recalled(one)
        if found["kind"] == "fact" and one.fact is not None:
            told = found["fact"] = await self._told(call, one.fact)
            found["session_key"] = told["session_key"]
            if found["message_id"] not in told["source_message_ids"]:
                found["message_id"] = None
        return found

    async def _doomed(self, principal: Principal, params: Forget) -> Erasure:
        if params.fact_id is not None:
            if params.session_key is not None or params.person is not None:
                raise InvalidParams("give fact_id, session_key or person")
            origin = await self._origin(principal, params.fact_id)
            if not sees_session(principal, origin.fact.session_key):
                raise NotFound(f"fact {params.fact_id[:64]!r}")  # it is for others to erase
            require_own(principal, origin.fact.session_key)
            return Erasure(fact_id=params.fact_id, by=principal.name)
        key = _key(principal, params)
        require_own(principal, key)
        # Of what all share, a person is forgotten by where they talked.
        if params.person is None or key.agent in self.shared:
            return Erasure(session_key=key, by=principal.name)
        return Erasure(scope=str(key), by=principal.name)


def _reader(principal: Principal) -> SourceReader:
    return SourceReader(principal.name, reads_all=may(principal, "read"))


def _key(principal: Principal, params: _OfSomebody) -> SessionKey:
    """Who is meant, if the principal may see them; raises InvalidParams, NotFound."""
    person = params.person
    if (person is None) == (params.session_key is None):
        raise InvalidParams("give either session_key or person")
    if person is None:
        return visible_key(principal, str(params.session_key))
    account = person.account or principal.name
    key = SessionKey(AgentId(person.agent), person.channel, account, person.peer)
    if not sees_session(principal, key):
        raise NotFound(f"person {str(key)[:200]!r}")
    return key


def _claim(new: NewFact, key: SessionKey, now: datetime) -> Claim:
    return Claim(
        subject=new.subject,
        predicate=(predicate := kept_under(new.predicate)),
        object=new.object,
        functional=is_functional(predicate, otherwise=new.functional),
        valid_from=new.valid_from or now,
        session_key=key,
        entity_type=new.entity_type,
        confidence=new.confidence,
        valid_to=new.valid_to,
    )

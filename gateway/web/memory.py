"""memory.*, settings.*: what is known about people and how it is forgotten; what they set for themselves."""

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest

from gateway.api import memory as api
from gateway.api.declarations import build
from gateway.api.errors import InvalidParams
from gateway.domain.agents import OWN_CHANNELS
from gateway.domain.errors import NotFound
from gateway.domain.facts import (
    YOU,
    Claim,
    Erasure,
    Fact,
    FactQuery,
    FactView,
    Provenance,
    Recalled,
    SourceReader,
    fact_view,
    in_order,
    scope_of,
    tombstone_of,
)
from gateway.domain.ids import AgentId, SessionKey, encode_part
from gateway.domain.ports import Clock, FactStore, Ids
from gateway.domain.sessions import Choosable, Erased, UserSettings, problem_with
from gateway.memory.recall import Recall, neighbours
from gateway.memory.tool import select
from gateway.memory.wording import as_asked, is_functional, kept_under
from gateway.sessions.intake import Front
from gateway.sessions.worker import SettingsBook
from gateway.web.identity import (
    Principal,
    can_see_session,
    can_use,
    has_scope,
    require_own,
    visible_key,
)
from gateway.web.rpc import Call


@dataclass(frozen=True, slots=True)
class MemoryMethods:
    """`settled` comes back once all that was said in a session can be found; `shared`: agents whose
    facts belong to all who talk to them."""

    facts: FactStore
    recall: Recall
    clock: Clock
    ids: Ids
    settled: Callable[[SessionKey], Awaitable[None]]
    shared: Set[AgentId] = frozenset()
    front: Front | None = None  # erases whole conversations

    async def memory_search(self, call: Call, params: api.MemorySearch) -> api.MemoryFound:
        key, seen = await self._asked(call, params)
        kinds = params.kinds
        found = await self.recall.of(params.query, key, seen, kinds=kinds, limit=params.limit)
        facts = [one for one in found if one.kind == "fact"]
        turns = [one for one in found if one.kind == "turn"]
        in_turn = [one for both in zip_longest(facts, turns) for one in both if one]
        results = [await self._found(call, one) for one in in_turn[: params.limit]]
        return api.MemoryFound(results=results)

    async def memory_why(self, call: Call, params: api.MemoryWhy) -> api.FactOrigin:
        origin = await self._origin(call.principal, params.fact_id)
        sources = origin.sources_for(_reader(call.principal))
        return api.FactOrigin(
            fact=await self._told(call, origin.fact),
            sources=tuple(sources),
            hidden=len(origin.sources) - len(sources),
            supersedes=origin.supersedes,
            superseded_by=origin.fact.superseded_by,
        )

    async def memory_history(self, call: Call, params: api.MemoryHistory) -> api.KnownFacts:
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

    async def memory_as_of(self, call: Call, params: api.MemoryAsOf) -> api.KnownFacts:
        _, seen = await self._asked(call, params)
        now = self.clock.now()
        query = FactQuery(
            seen,
            subject=params.subject,
            at=as_asked(params.at, now),
            known_at=None if params.known_at is None else as_asked(params.known_at, now),
            limit=params.limit,
        )
        return await self._told_all(call, await select(self.facts, query))

    async def memory_neighbours(self, call: Call, params: api.MemoryNeighbours) -> api.KnownFacts:
        _, seen = await self._asked(call, params)
        name, hops, limit = params.subject, params.hops, params.limit
        near = await neighbours(self.facts, seen, name, hops=hops, limit=limit)
        return await self._told_all(call, near)

    async def memory_forget(self, call: Call, params: api.MemoryForget) -> api.Forgotten:
        what = await self._doomed(call.principal, params)
        if params.session_key is not None and (gone := await self._erased(what, params)):
            return build(api.Forgotten, gone, count=gone.facts, dry_run=params.dry_run)
        now = self.clock.now()
        count = await self.facts.erase_facts(what, dry_run=params.dry_run, now=now)
        tombstone = None if params.dry_run else tombstone_of(what, now)
        return api.Forgotten(count=count, dry_run=params.dry_run, tombstone=tombstone)

    async def _erased(self, what: Erasure, params: api.MemoryForget) -> Erased | None:
        """With all that was said there; None if nothing was ever said."""
        key = what.session_key
        if self.front is None or key is None or await self.front.sessions.find_session(key) is None:
            return None
        return await self.front.erase(key, by=what.by, dry_run=params.dry_run)

    async def memory_add(self, call: Call, params: api.MemoryAdd) -> api.KnownFacts:
        key, now = _key(call.principal, params), self.clock.now()
        if any(one.valid_from and one.valid_from > now + timedelta(days=1) for one in params.facts):
            raise InvalidParams("valid_from is still to come: what is not true yet is no fact")
        claims = in_order([_claim(one, key, now) for one in params.facts])
        ids = [f"f_{self.ids.new()}" for _ in claims]
        scope = scope_of(key, None, is_shared=key.agent in self.shared)
        kept = await self.facts.add_facts(scope, claims, ids=ids, now=now)
        return await self._told_all(call, kept)

    async def _asked(self, call: Call, params: api.OfSomebody) -> tuple[SessionKey, FactView]:
        key = _key(call.principal, params)
        await self.settled(key)
        return key, self._whose(key, params)

    def _whose(self, key: SessionKey, params: api.OfSomebody) -> FactView:
        """Of a person all that they ever said; of a session on another's platform, which may be a
        room, what was said there."""
        is_shared = key.agent in self.shared
        if params.person is None and key.channel not in OWN_CHANNELS and not is_shared:
            return FactView(room=key)
        return fact_view(key, None, is_shared=is_shared)

    async def _origin(self, principal: Principal, fact_id: str) -> Provenance:
        origin = await self.facts.origin_of(fact_id)
        if origin is not None:
            key = origin.fact.session_key
            is_everybodys = self._is_shared(origin.fact) and can_use(principal, key.agent)
            if is_everybodys or can_see_session(principal, key):
                return origin
        raise NotFound(f"fact {fact_id[:64]!r}")

    def _is_shared(self, known: Fact) -> bool:
        """All who talk to the agent know it, whoever said it."""
        agent = known.session_key.agent
        return agent in self.shared and known.scope == str(agent)

    async def _told_all(self, call: Call, found: Sequence[Fact]) -> api.KnownFacts:
        return api.KnownFacts(facts=[await self._told(call, one) for one in found])

    async def _told(self, call: Call, known: Fact) -> api.KnownFact:
        """Without the names of messages and sessions that are another's."""
        principal = call.principal
        if has_scope(principal, "read") or not self._is_shared(known):
            return build(api.KnownFact, known)
        origin = await self.facts.origin_of(known.id)
        sources = origin.sources_for(_reader(principal)) if origin else ()
        own = {one.message_id for one in sources}
        is_seen = can_see_session(principal, known.session_key)
        return build(
            api.KnownFact,
            known,
            session_key=known.session_key if is_seen else None,
            source_message_ids=tuple(one for one in known.source_message_ids if one in own),
        )

    async def _found(self, call: Call, one: Recalled) -> api.Found:
        if one.fact is None:
            said_by = "assistant" if one.said_by == YOU else one.said_by
            return build(api.Found, one, said_by=said_by)
        told, message = await self._told(call, one.fact), one.message_id
        return build(
            api.Found,
            one,
            fact=told,
            said_by=None,
            session_key=told.session_key,
            message_id=message if message in told.source_message_ids else None,
        )

    async def _doomed(self, principal: Principal, params: api.MemoryForget) -> Erasure:
        if params.fact_id is not None:
            if params.session_key is not None or params.person is not None:
                raise InvalidParams("give fact_id, session_key or person")
            origin = await self._origin(principal, params.fact_id)
            if not can_see_session(principal, origin.fact.session_key):
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
    return SourceReader(principal.name, reads_all=has_scope(principal, "read"))


def _key(principal: Principal, params: api.OfSomebody) -> SessionKey:
    """Who is meant, if the principal may see them; raises InvalidParams, NotFound."""
    person = params.person
    if (person is None) == (params.session_key is None):
        raise InvalidParams("give either session_key or person")
    if person is None:
        return visible_key(principal, str(params.session_key))
    account = person.account or principal.name
    key = SessionKey(AgentId(person.agent), person.channel, account, person.peer)
    if not can_see_session(principal, key):
        raise NotFound(f"person {str(key)[:200]!r}")
    return key


def _claim(new: api.NewFact, key: SessionKey, now: datetime) -> Claim:
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


@dataclass(frozen=True, slots=True)
class SettingsMethods:
    book: SettingsBook
    choosable: Choosable  # what nobody has set is as its usual agent has it

    async def settings_get(self, call: Call, params: api.SettingsGet) -> Mapping[str, object]:
        return self._shown(await self.book.of(_user(call.principal, params.user)))

    async def settings_set(self, call: Call, params: api.SettingsSet) -> Mapping[str, object]:
        user, choosable = _user(call.principal, params.user), self.choosable
        told = (
            (f"patch.{name}", problem_with(name, one) or choosable.problem_with(name, one))
            for name, one in params.patch.items()
            if one is not None
        )
        # Everything that is wrong, or would change nothing.
        if problems := [(name, why) for name, why in told if why is not None]:
            raise InvalidParams("; ".join(f"{name}: {why}" for name, why in problems), problems)
        return self._shown(await self.book.change(user, params.patch))

    def _shown(self, settings: UserSettings) -> Mapping[str, object]:
        return settings.shown(self.choosable.usual)


def _user(principal: Principal, asked: str | None) -> str:
    """Raises NotFound for somebody else, whether there or not."""
    own = encode_part(principal.name)
    if asked in {None, own}:
        return own
    if not has_scope(principal, "admin"):
        raise NotFound(f"user {asked[:64]!r}")
    return asked

"""memory.*, settings.*: searching, adding and erasing facts and messages; the settings of users."""

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
    """`settled` waits until all messages of a session can be found. The facts of the `shared` agents belong to all
    of their users."""

    facts: FactStore
    recall: Recall
    clock: Clock
    ids: Ids
    settled: Callable[[SessionKey], Awaitable[None]]
    shared: Set[AgentId] = frozenset()
    front: Front | None = None  # needed to erase whole conversations

    async def memory_search(self, call: Call, params: api.MemorySearch) -> api.MemoryFound:
        key, seen = await self._resolve(call, params)
        kinds = params.kinds
        found = await self.recall.of(params.query, key, seen, kinds=kinds, limit=params.limit)
        facts = [one for one in found if one.kind == "fact"]
        turns = [one for one in found if one.kind == "turn"]
        mixed = [one for both in zip_longest(facts, turns) for one in both if one]
        results = [await self._found(call, one) for one in mixed[: params.limit]]
        return api.MemoryFound(results=results)

    async def memory_why(self, call: Call, params: api.MemoryWhy) -> api.FactOrigin:
        origin = await self._origin(call.principal, params.fact_id)
        sources = origin.sources_for(_reader(call.principal))
        return api.FactOrigin(
            fact=await self._known_fact(call, origin.fact),
            sources=tuple(sources),
            hidden=len(origin.sources) - len(sources),
            supersedes=origin.supersedes,
            superseded_by=origin.fact.superseded_by,
        )

    async def memory_history(self, call: Call, params: api.MemoryHistory) -> api.KnownFacts:
        _, seen = await self._resolve(call, params)
        query = FactQuery(
            seen,
            subject=params.subject,
            predicate=params.predicate,
            with_history=True,
            limit=params.skip + params.limit,
        )
        found = await select(self.facts, query)
        return await self._known_facts(call, found[params.skip :])

    async def memory_as_of(self, call: Call, params: api.MemoryAsOf) -> api.KnownFacts:
        _, seen = await self._resolve(call, params)
        now = self.clock.now()
        query = FactQuery(
            seen,
            subject=params.subject,
            at=as_asked(params.at, now),
            known_at=None if params.known_at is None else as_asked(params.known_at, now),
            limit=params.limit,
        )
        return await self._known_facts(call, await select(self.facts, query))

    async def memory_neighbours(self, call: Call, params: api.MemoryNeighbours) -> api.KnownFacts:
        _, seen = await self._resolve(call, params)
        name, hops, limit = params.subject, params.hops, params.limit
        near = await neighbours(self.facts, seen, name, hops=hops, limit=limit)
        return await self._known_facts(call, near)

    async def memory_forget(self, call: Call, params: api.MemoryForget) -> api.Forgotten:
        erasure = await self._erasure_of(call.principal, params)
        if params.session_key is not None and (
            erased := await self._erase_session(erasure, params)
        ):
            return build(api.Forgotten, erased, count=erased.facts, dry_run=params.dry_run)
        now = self.clock.now()
        count = await self.facts.erase_facts(erasure, dry_run=params.dry_run, now=now)
        tombstone = None if params.dry_run else tombstone_of(erasure, now)
        return api.Forgotten(count=count, dry_run=params.dry_run, tombstone=tombstone)

    async def _erase_session(self, erasure: Erasure, params: api.MemoryForget) -> Erased | None:
        """Erases a session with its messages and facts. Returns None if there is no such session."""
        key = erasure.session_key
        if self.front is None or key is None or await self.front.sessions.find_session(key) is None:
            return None
        return await self.front.erase(key, by=erasure.by, dry_run=params.dry_run)

    async def memory_add(self, call: Call, params: api.MemoryAdd) -> api.KnownFacts:
        key, now = _key(call.principal, params), self.clock.now()
        if any(one.valid_from and one.valid_from > now + timedelta(days=1) for one in params.facts):
            raise InvalidParams("valid_from is in the future: add a fact once it is true")
        claims = in_order([_claim(one, key, now) for one in params.facts])
        ids = [f"f_{self.ids.new()}" for _ in claims]
        scope = scope_of(key, None, is_shared=key.agent in self.shared)
        added = await self.facts.add_facts(scope, claims, ids=ids, now=now)
        return await self._known_facts(call, added)

    async def _resolve(self, call: Call, params: api.OfSomebody) -> tuple[SessionKey, FactView]:
        key = _key(call.principal, params)
        await self.settled(key)
        return key, self._view(key, params)

    def _view(self, key: SessionKey, params: api.OfSomebody) -> FactView:
        """Returns the facts to search: all of a person, or only those of the session if it is on a platform, where it
        may be a room."""
        is_shared = key.agent in self.shared
        if params.person is None and key.channel not in OWN_CHANNELS and not is_shared:
            return FactView(room=key)
        return fact_view(key, None, is_shared=is_shared)

    async def _origin(self, principal: Principal, fact_id: str) -> Provenance:
        origin = await self.facts.origin_of(fact_id)
        if origin is not None:
            key = origin.fact.session_key
            is_common = self._is_shared(origin.fact) and can_use(principal, key.agent)
            if is_common or can_see_session(principal, key):
                return origin
        raise NotFound(f"fact {fact_id[:64]!r}")

    def _is_shared(self, fact: Fact) -> bool:
        """True if all users of the agent share the fact."""
        agent = fact.session_key.agent
        return agent in self.shared and fact.scope == str(agent)

    async def _known_facts(self, call: Call, found: Sequence[Fact]) -> api.KnownFacts:
        return api.KnownFacts(facts=[await self._known_fact(call, one) for one in found])

    async def _known_fact(self, call: Call, fact: Fact) -> api.KnownFact:
        """Describes a fact, without the names of other users' messages and sessions."""
        principal = call.principal
        if has_scope(principal, "read") or not self._is_shared(fact):
            return build(api.KnownFact, fact)
        origin = await self.facts.origin_of(fact.id)
        sources = origin.sources_for(_reader(principal)) if origin else ()
        own = {one.message_id for one in sources}
        is_seen = can_see_session(principal, fact.session_key)
        return build(
            api.KnownFact,
            fact,
            session_key=fact.session_key if is_seen else None,
            source_message_ids=tuple(one for one in fact.source_message_ids if one in own),
        )

    async def _found(self, call: Call, one: Recalled) -> api.Found:
        if one.fact is None:
            said_by = "assistant" if one.said_by == YOU else one.said_by
            return build(api.Found, one, said_by=said_by)
        fact, message = await self._known_fact(call, one.fact), one.message_id
        return build(
            api.Found,
            one,
            fact=fact,
            said_by=None,
            session_key=fact.session_key,
            message_id=message if message in fact.source_message_ids else None,
        )

    async def _erasure_of(self, principal: Principal, params: api.MemoryForget) -> Erasure:
        if params.fact_id is not None:
            if params.session_key is not None or params.person is not None:
                raise InvalidParams("give one of fact_id, session_key and person")
            origin = await self._origin(principal, params.fact_id)
            if not can_see_session(principal, origin.fact.session_key):
                raise NotFound(f"fact {params.fact_id[:64]!r}")  # a shared fact of another user
            require_own(principal, origin.fact.session_key)
            return Erasure(fact_id=params.fact_id, by=principal.name)
        key = _key(principal, params)
        require_own(principal, key)
        # Shared facts have no scope of a person, so they are erased by session.
        if params.person is None or key.agent in self.shared:
            return Erasure(session_key=key, by=principal.name)
        return Erasure(scope=str(key), by=principal.name)


def _reader(principal: Principal) -> SourceReader:
    return SourceReader(principal.name, reads_all=has_scope(principal, "read"))


def _key(principal: Principal, params: api.OfSomebody) -> SessionKey:
    """Returns the key of the session or person, if the principal can see it. Raises InvalidParams, NotFound."""
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
    choosable: Choosable  # defaults of settings come from the usual agent

    async def settings_get(self, call: Call, params: api.SettingsGet) -> Mapping[str, object]:
        return self._shown(await self.book.of(_user(call.principal, params.user)))

    async def settings_set(self, call: Call, params: api.SettingsSet) -> Mapping[str, object]:
        user, choosable = _user(call.principal, params.user), self.choosable
        problems = [
            (f"patch.{name}", why)
            for name, one in params.patch.items()
            if one is not None
            and (why := problem_with(name, one) or choosable.problem_with(name, one))
        ]
        if problems:
            raise InvalidParams("; ".join(f"{name}: {why}" for name, why in problems), problems)
        return self._shown(await self.book.change(user, params.patch))

    def _shown(self, settings: UserSettings) -> Mapping[str, object]:
        return settings.shown(self.choosable.usual)


def _user(principal: Principal, requested: str | None) -> str:
    """Returns the user that is asked for. Raises NotFound for another user, existing or not."""
    own = encode_part(principal.name)
    if requested in {None, own}:
        return own
    if not has_scope(principal, "admin"):
        raise NotFound(f"user {requested[:64]!r}")
    return requested

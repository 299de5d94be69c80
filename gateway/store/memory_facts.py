"""Facts in memory."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.audit import Deed, entry_after
from gateway.domain.facts import (
    Claim,
    Erasure,
    Fact,
    FactQuery,
    Origin,
    Whose,
    tombstone_of,
)
from gateway.domain.settling import Told, by_time, form, is_wanted, predicate_form, settled
from gateway.domain.words import words_of
from gateway.store.fact_rows import ranked, require_claims, require_erasure, require_query
from gateway.store.forgetting import names_for, names_in
from gateway.store.memory_shelf import Shelf, Topic
from gateway.store.rows import require_text

_ENDING = re.compile("(?:ing|ed|ies|es|s|e|y)$")


class MemoryFacts:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def add(
        self, scope: str, claims: Sequence[Claim], *, ids: Sequence[str], now: datetime
    ) -> Sequence[Fact]:
        require_claims(scope, claims, ids)
        await self._shelf.ready()
        places = []
        told = [
            one for one in zip(claims, ids, strict=True) if not self._is_forgotten(one[0], scope)
        ]
        for claim, id_ in told:
            place = (scope, form(claim.subject), predicate_form(claim.predicate))
            topic = self._shelf.topics.setdefault(place, Topic())
            topic.told.append(Told(id_, claim, now))
            _settle(scope, topic, now)
            places.append(place)
        return [
            next(
                one.fact
                for one in self._shelf.topics[place].facts.values()
                if any(told.id == id_ for told in one.told)
            )
            for place, (_, id_) in zip(places, told, strict=True)
        ]

    def _is_forgotten(self, claim: Claim, scope: str) -> bool:
        source = claim.source
        return source is not None and self._shelf.is_forgotten(names_in(claim, scope), source.at)

    async def select(self, query: FactQuery) -> Sequence[Fact]:
        require_query(query)
        await self._shelf.ready()
        found = [
            fact
            for _, topic in self._topics(query.subject, query.predicate)
            for fact in _believed(topic, query)
            if _is_of(fact, query.whose)
        ]
        return sorted(found, key=by_time)[: max(0, query.limit)]

    async def matching(self, whose: Whose, words: Sequence[str], *, limit: int) -> Sequence[Fact]:
        require_query(FactQuery(whose))
        await self._shelf.ready()
        current = self._current(whose)
        asked = dict.fromkeys(words_of(" ".join(words)))
        hits = [[fact for fact in current if _holds(fact, word)] for word in asked]
        by_id = {fact.id: fact for fact in current}
        found = ranked([fact.id for fact in hit] for hit in hits)
        return [by_id[id_] for id_ in found[: max(0, limit)]]

    async def around(self, whose: Whose, names: Sequence[str], *, limit: int) -> Sequence[Fact]:
        require_query(FactQuery(whose))
        require_text("the query", *names)
        await self._shelf.ready()
        wanted = {form(name) for name in names}
        found = [
            fact
            for fact in self._current(whose)
            if wanted & {form(fact.subject), form(fact.object)}
        ]
        return sorted(found, key=by_time, reverse=True)[: max(0, limit)]

    async def origin(self, fact_id: str) -> Origin | None:
        require_text("the fact's id", fact_id)
        await self._shelf.ready()
        for topic in self._shelf.topics.values():
            if fact_id in topic.facts:
                one = topic.facts[fact_id]
                sources = (told.claim.source for told in one.told)
                older = (o.fact for o in topic.facts.values() if o.fact.superseded_by == fact_id)
                return Origin(
                    one.fact,
                    tuple(dict.fromkeys(source for source in sources if source)),
                    tuple(fact.id for fact in sorted(older, key=by_time)),
                )
        return None

    async def erase(self, what: Erasure, *, dry_run: bool, now: datetime) -> int:
        require_erasure(what)
        await self._shelf.ready()
        return self.count_of(what) if dry_run else self.erase_now(what, now)

    def count_of(self, what: Erasure) -> int:
        topics = self._shelf.topics.values()
        return sum(_is_erased(fact, what) for topic in topics for fact in _facts(topic))

    def erase_now(self, what: Erasure, now: datetime) -> int:
        count = self.count_of(what)
        names = names_for(what, self._told_in(what.fact_id))
        self._shelf.forgotten |= dict.fromkeys(names, now)
        for place, topic in tuple(self._shelf.topics.items()):
            gone = {fact.id for fact in _facts(topic) if _is_erased(fact, what)}
            _erase(topic, gone, what, now)
            if not topic.told:
                del self._shelf.topics[place]
        detail = {"what": what.kind, "facts": count, "tombstone": tombstone_of(what, now)}
        deed = Deed(now, "memory.erased", what.by, detail)
        entries = self._shelf.audit
        entries.append(entry_after(entries[-1] if entries else None, deed))
        return count

    def _told_in(self, fact_id: str | None) -> set[str]:
        facts = (topic.facts.get(fact_id or "") for topic in self._shelf.topics.values())
        sources = (told.claim.source for one in facts if one for told in one.told)
        return {source.message_id for source in sources if source}

    def _topics(self, subject: str | None, predicate: str | None) -> Iterator[tuple[str, Topic]]:
        for (scope, of, what), topic in self._shelf.topics.items():
            if (subject is None or form(subject) == of) and (
                predicate is None or predicate_form(predicate) == what
            ):
                yield scope, topic

    def _current(self, whose: Whose) -> list[Fact]:
        """Newest first."""
        facts = (fact for topic in self._shelf.topics.values() for fact in _facts(topic))
        current = [fact for fact in facts if fact.superseded_at is None and _is_of(fact, whose)]
        return sorted(current, key=lambda fact: (fact.learned_at, fact.id), reverse=True)


def _settle(scope: str, topic: Topic, now: datetime) -> None:
    before = {id_: one.fact for id_, one in topic.facts.items()}
    topic.facts = {one.fact.id: one for one in settled(scope, topic.told, before=before, now=now)}


def _facts(topic: Topic) -> list[Fact]:
    return [one.fact for one in topic.facts.values()]


def _believed(topic: Topic, query: FactQuery) -> list[Fact]:
    facts = _facts(topic)
    if query.known_at is not None and facts:
        then = query.known_at
        told = [one for one in topic.told if one.learned_at <= then]
        before = {fact.id: fact for fact in facts}
        facts = [one.fact for one in settled(facts[0].scope, told, before=before, now=then)]
    return [fact for fact in facts if is_wanted(fact, query)]


def _is_of(fact: Fact, whose: Whose) -> bool:
    return fact.scope == whose.scope if whose.room is None else fact.session_key == whose.room


def _holds(fact: Fact, word: str) -> bool:
    """Also another form of it."""
    held = words_of(f"{fact.subject} {fact.predicate} {fact.object}")
    return stem(word) in {stem(one) for one in held}


def stem(word: str) -> str:
    return _ENDING.sub("", word) if len(word) > 3 else word


def _is_erased(fact: Fact, what: Erasure) -> bool:
    if what.fact_id is not None:
        return fact.id == what.fact_id
    if what.scope is not None:
        return fact.scope == what.scope
    return fact.session_key == what.session_key


def _erase(topic: Topic, gone: set[str], what: Erasure, now: datetime) -> None:
    """What is left is neither believed anew nor quotes what is gone."""
    kept = [one for one in topic.facts.values() if one.fact.id not in gone]
    left: dict[str, Told] = {}
    for one in kept:
        left |= {told.id: _without_source(told, what) for told in one.told}
        if one.fact.superseded_by in gone:
            last = left[one.told[-1].id]
            ended = replace(last.claim, valid_to=one.fact.valid_to)
            left[last.id] = replace(last, claim=ended)
    topic.told = [left[one.id] for one in topic.told if one.id in left]
    if kept:
        _settle(kept[0].fact.scope, topic, now)


def _without_source(told: Told, what: Erasure) -> Told:
    source = told.claim.source
    if source is None or what.session_key is None or source.session_key != what.session_key:
        return told
    return replace(told, claim=replace(told.claim, source=None), said_at=source.at)

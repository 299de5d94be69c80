"""The model's `memory` tool: remembers, recalls, looks back and forgets, for one person only."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gateway.domain.agents import MEMORY
from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.facts import (
    SAID_BY_MODEL,
    SUBJECT,
    Claim,
    ClaimRefused,
    Erasure,
    Fact,
    FactQuery,
    FactView,
    SourceReader,
    by_time,
    fact_view,
    scope_of,
)
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Clock, FactStore, Ids, ToolScope
from gateway.memory import wording as dates
from gateway.memory.recall import MOST_HOPS, Recall, neighbours
from gateway.memory.wording import is_functional, kept_under

MOST_FOUND = 10
MOST_FACTS = 50
LONGEST_QUOTE = 300
LONGEST_SAID = 1_000
FORGOTTEN = "It was forgotten on demand: nothing is learned again from that message."
NOT_YET = "Nothing is erased yet. If the person agrees, call forget with confirm and fact_id, once for each."
HIDDEN = (
    "{count} more of its sources were said in other conversations, which must not be shown in this "
    "one. Say so if you are asked; do not guess what they were."
)
UNKNOWN = "There is no such fact of this person. Use history to find it."

OPERATIONS = ("remember", "recall", "history", "as_of", "why", "neighbours", "forget")
_TEXTS = ["query", "subject", "predicate", "object", "since", "at", "known_at", "quote", "fact_id"]
_PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "operation": {"enum": OPERATIONS},
        **dict.fromkeys(_TEXTS, {"type": "string"}),
        "functional": {"type": "boolean"},
        "hops": {"type": "integer", "minimum": 1, "maximum": MOST_HOPS},
        "confirm": {"type": "boolean"},
    },
    "required": ["operation"],
}
SPEC = ToolSpec(
    MEMORY,
    f"What you know about the person you talk with. The subject is {SUBJECT!r}, them, if none is "
    "given; days are YYYY-MM-DD. remember: predicate (one word, like dog_name), object, since, "
    "functional (one value at a time), quote (their words). recall: query. history: how it changed "
    "(subject, predicate). as_of: at, known_at. why: fact_id. neighbours: subject. "
    "forget, only if they ask: fact_id or predicate; tell them what would go, then confirm by fact_id.",
    json.dumps(_PARAMETERS, separators=(",", ":")),
    category="meta",
    may_repeat=True,
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call with the person whose memory it may read and change; the model cannot choose."""

    arguments: Mapping[str, object]
    key: SessionKey
    scope: str
    view: FactView
    reader: SourceReader
    run: ToolScope

    def text(self, name: str, default: str | None = None) -> str:
        value = self.arguments.get(name, default)
        if not isinstance(value, str) or not value.strip():
            raise ToolFailed(f"{self.arguments['operation']} needs {name}. Call it again with it.")
        return value.strip()

    def sees(self, fact: Fact) -> bool:
        seen = self.view
        return fact.session_key == seen.room if seen.room else fact.scope == seen.scope

    def owns(self, fact: Fact) -> bool:
        """True if the person may erase the fact. In a room and among shared facts only facts of this session
        count: others may be another person's."""
        is_near = self.view.room or fact.scope == str(self.key.agent)
        return fact.scope == self.scope and (not is_near or fact.session_key == self.key)


@dataclass(frozen=True, slots=True)
class MemoryTool:
    """Implements the Tool port. `shared`: agents whose facts belong to all who talk to them."""

    facts: FactStore
    recall: Recall
    clock: Clock
    ids: Ids
    shared: Set[AgentId] = frozenset()
    spec: ToolSpec = SPEC

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        key, sender = scope.session_key, scope.asked.said_by if scope.asked else None
        is_shared = key.agent in self.shared
        seen = fact_view(key, sender, is_shared=is_shared)
        theirs, reader = scope_of(key, sender, is_shared=is_shared), SourceReader.of(key, sender)
        asked = _Asked(arguments, key, theirs, seen, reader, scope)
        operation = arguments["operation"]  # the schema allows only OPERATIONS
        act: Callable[[_Asked], Awaitable[object]] = getattr(self, f"_{operation}")
        try:
            return json.dumps(await act(asked), ensure_ascii=False, separators=(",", ":"))
        except StoreUnavailable:
            raise ToolFailed("The memory is out of reach for now. Go on without it.") from None
        except ClaimRefused as error:
            raise ToolFailed(f"It is not kept: {error}.") from error

    async def _remember(self, asked: _Asked) -> object:
        predicate = kept_under(asked.text("predicate"))
        source, quote = asked.run.asked, str(asked.arguments.get("quote") or "")
        now = self.clock.now()
        if source is not None:
            said = (quote in source.quote and quote) or source.quote[:LONGEST_QUOTE]
            source = replace(source, quote=said, said_by=SAID_BY_MODEL)
        functional = is_functional(predicate, otherwise=bool(asked.arguments.get("functional")))
        since = _since(asked, now) or (source.at if source else now)
        what = (asked.text("subject", SUBJECT), predicate, asked.text("object"))
        claim = Claim(*what, functional, since, asked.key, source=source)
        kept = await self.facts.add_facts(
            asked.scope, [claim], ids=[f"f_{self.ids.new()}"], now=now
        )
        if not kept:
            raise ToolFailed(FORGOTTEN)
        return {"remembered": shown_fact(kept[0])}

    async def _recall(self, asked: _Asked) -> object:
        found = await self.recall.of(asked.text("query"), asked.key, asked.view, limit=MOST_FOUND)
        facts = [shown_fact(one.fact) for one in found if one.fact]
        turns = [(one, one.text[:LONGEST_SAID]) for one in found if not one.fact]
        said = [{"at": _day(one.at), "by": one.said_by, "text": text} for one, text in turns]
        return {"facts": facts, "said": said}

    async def _history(self, asked: _Asked) -> object:
        return {"facts": [shown_fact(fact) for fact in await self._of_subject(asked)]}

    async def _of_subject(self, asked: _Asked) -> Sequence[Fact]:
        subject, named = asked.text("subject", SUBJECT), "predicate" in asked.arguments
        predicate = asked.text("predicate") if named else None
        query = FactQuery(asked.view, subject, predicate, with_history=True, limit=MOST_FACTS)
        return await select(self.facts, query)

    async def _as_of(self, asked: _Asked) -> object:
        then, now = asked.arguments.get("known_at"), self.clock.now()
        at, known_at = _moment(asked.text("at"), now), _moment(str(then), now) if then else None
        query = FactQuery(asked.view, at=at, known_at=known_at, limit=MOST_FACTS)
        return {"facts": [shown_fact(fact) for fact in await select(self.facts, query)]}

    async def _why(self, asked: _Asked) -> object:
        origin = await self.facts.origin_of(asked.text("fact_id"))
        if origin is None or not asked.sees(origin.fact):
            raise ToolFailed(UNKNOWN)
        readable = origin.sources_for(asked.reader)
        sources = [
            {"at": _day(one.at), "said_by": one.said_by, "quote": one.quote[:LONGEST_SAID]}
            for one in readable[-MOST_FOUND:]
        ]
        shown: dict[str, object] = {"fact": shown_fact(origin.fact), "sources": sources}
        if hidden := len(origin.sources) - len(readable):
            shown |= {"hidden": hidden, "note": HIDDEN.format(count=hidden)}
        return shown

    async def _neighbours(self, asked: _Asked) -> object:
        hops = asked.arguments.get("hops", 2)
        assert isinstance(hops, int)  # the schema says so
        name = asked.text("subject")
        near = await neighbours(self.facts, asked.view, name, hops=hops, limit=MOST_FACTS)
        return {"facts": [shown_fact(fact) for fact in near]}

    async def _forget(self, asked: _Asked) -> object:
        if asked.arguments.get("fact_id") is not None:
            origin = await self.facts.origin_of(asked.text("fact_id"))
            found: Sequence[Fact] = [origin.fact] if origin else []
        else:
            asked.text("predicate")  # without it, one call would forget everything about a subject
            found = await self._of_subject(asked)
        doomed = [fact for fact in found if asked.owns(fact)]
        if not doomed:
            raise ToolFailed(UNKNOWN)
        shown = [shown_fact(fact) for fact in doomed]
        # One fact a call: a manipulated model needs a call for each, and each leaves an entry.
        if asked.arguments.get("confirm") is not True or "fact_id" not in asked.arguments:
            return {"would_erase": shown, "note": NOT_YET}
        what = Erasure(fact_id=doomed[0].id, by=str(asked.key))
        erased = await self.facts.erase_facts(what, dry_run=False, now=self.clock.now())
        return {"erased": erased}


async def select(facts: FactStore, query: FactQuery) -> Sequence[Fact]:
    """Finds facts under the given predicate and under its canonical name, which older facts may
    lack."""
    given = query.predicate
    found = [*await facts.select_facts(query)]
    if given is not None and (name := kept_under(given)) != given:
        known = {one.id for one in found}
        more = await facts.select_facts(replace(query, predicate=name))
        found += [one for one in more if one.id not in known]
    return sorted(found, key=by_time)[: query.limit]


def shown_fact(fact: Fact) -> dict[str, object]:
    """A fact as the model sees it, with its dates."""
    what = {name: getattr(fact, name) for name in ("id", "subject", "predicate", "object")}
    begun = {"since": fact.valid_from, "told": fact.learned_at}
    ended = {"until": fact.valid_to, "superseded": fact.superseded_at}
    return what | {name: _day(at) for name, at in (begun | ended).items() if at is not None}


def _day(at: datetime) -> str:
    return at.date().isoformat()


def _since(asked: _Asked, now: datetime) -> datetime | None:
    given = asked.arguments.get("since")
    since = _date(str(given)) if given else None
    if since and since > now + timedelta(days=1):
        raise ToolFailed("That is still to come. Keep it as a plan, with its date in the object.")
    return since


def _moment(text: str, now: datetime) -> datetime:
    """Parses a date; a day means its end."""
    is_now = text.strip().lower() in dates.NOW
    return now if is_now else dates.as_asked(dates.end_of(text) or _date(text), now)


def _date(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text.strip())
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ToolFailed(f"{text[:40]!r} is no date. Write it as YYYY-MM-DD.") from None

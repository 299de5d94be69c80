"""What comes to mind at a question: facts, and turns that no window shows any more."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from math import log
from typing import Literal

from gateway.domain.agents import AgentDef
from gateway.domain.facts import (
    SUBJECT,
    YOU,
    Fact,
    Facts,
    Found,
    Hits,
    Recalled,
    RecallKind,
    Turn,
    Turns,
    Whose,
    flat,
    whose,
    words_of,
)
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import PluginDef
from gateway.domain.ports import PluginSpace, PluginStore
from gateway.memory.wording import asked_of

# What a word counts for the turns beside the one that holds it: an answer stands beside its
# question, also where a short reply or a call of a tool lies in between.
_BESIDE = ((0, 1.0), (1, 1.0), (-1, 1.0), (2, 0.75), (-2, 0.75), (3, 0.5), (-3, 0.5), (4, 0.25), (-4, 0.25))  # fmt: skip
_REACH = 4
_SATURATION = 1.2
_BLOCK_BITS = 5  # a block is 32 turns: about what is said at a time
_CELL_BITS, _CELLS = 3, 16  # of 8 turns
_OWN, _BLOCK = 0.5, 0.3  # beside 1.0 for the neighbourhood; each is 1.0 for the best turn


def ranked(
    found: Found, boosts: Mapping[int, float], *, limit: int, without: Collection[int] = ()
) -> list[tuple[int, float]]:
    """The best depths with their scores; `boosts` by depth."""
    length = found.trail.length
    weighed = [(hits, _rarity(hits.total, length)) for hits in distinct(found.words).values()]
    scores = dict(boosts)
    for part, weight in zip(_parts(weighed, length), (1.0, _OWN), strict=True):
        most = max(part.values(), default=1.0)
        for depth, score in part.items():
            scores[depth] = scores.get(depth, 0.0) + weight * score / most
    blocks = _blocks(weighed, (length >> _BLOCK_BITS) + 1)
    most = max(blocks.values(), default=1.0)
    whole = (
        (score + _BLOCK * blocks.get(depth >> _BLOCK_BITS, 0.0) / most, depth)
        for depth, score in scores.items()
        if depth not in without
    )
    return [(depth, score) for score, depth in nlargest(limit, whole)]


Weighed = Sequence[tuple[Hits, float]]  # with how much a hit tells


def _parts(weighed: Weighed, length: int) -> tuple[dict[int, float], dict[int, float]]:
    """What each turn says together with those beside it, and what it says alone."""
    around: dict[int, float] = {}
    own: dict[int, float] = {}
    cells = _best_cells(weighed)
    outside = (*range(-_REACH, 0), *range(length, length + _REACH))
    for hits, rarity in weighed:
        near: dict[int, float] = {}
        depths = [depth for depth in hits.depths if depth >> _CELL_BITS in cells]
        for depth in depths:
            own[depth] = own.get(depth, 0.0) + rarity
            for offset, weight in _BESIDE:
                near[depth + offset] = near.get(depth + offset, 0.0) + weight
        for depth in outside:
            near.pop(depth, None)
        reached = len(near) * hits.total / max(1, len(depths))
        _count(around, near, _rarity(min(length, reached), length))
    return around, own


def _blocks(weighed: Weighed, many: int) -> dict[int, float]:
    blocks: dict[int, float] = {}
    for hits, _ in weighed:
        inside = Counter([depth >> _BLOCK_BITS for depth in hits.depths])
        reached = len(inside) * hits.total / len(hits.depths)
        _count(blocks, inside, _rarity(min(many, reached), many))
    return blocks


def _best_cells(weighed: Weighed) -> set[int]:
    """Where the most that counts is said side by side, and the cells next to these: only there it
    is worth looking at every turn."""
    cells: dict[int, float] = {}
    for hits, rarity in weighed:
        for cell in {depth >> _CELL_BITS for depth in hits.depths}:
            cells[cell] = cells.get(cell, 0.0) + rarity
    best = nlargest(_CELLS, ((score, cell) for cell, score in cells.items()))
    return {cell + step for _, cell in best for step in (-1, 0, 1)}


def distinct(words: Mapping[str, Hits]) -> Mapping[str, Hits]:
    """Without further forms of a word, which are said wherever it is."""
    first: dict[tuple[str, frozenset[int]], str] = {}
    for word, hits in words.items():
        first.setdefault((word[:3], hits.depths), word)
    return {word: words[word] for word in first.values()}


def _count(
    scores: dict[int, float], counts: Mapping[int, float] | Mapping[int, int], rarity: float
) -> None:
    """Saying a word again adds ever less."""
    for at, count in counts.items():
        gain = rarity * count * (_SATURATION + 1) / (count + _SATURATION)
        scores[at] = scores.get(at, 0.0) + gain


def _rarity(holding: float, of: int) -> float:
    return log(1 + (of - holding + 0.5) / (holding + 0.5))


MOST_HOPS = 3
MOST_NAMES = 50  # that one hop goes on from


async def neighbours(
    facts: Facts, whose: Whose, name: str, *, hops: int, limit: int
) -> Sequence[Fact]:
    """Current facts that so many hops lead to, the nearest first."""
    found: dict[str, Fact] = {}
    seen, edge = set[str](), [name]
    for _ in range(hops):
        seen.update(edge)
        near = await facts.around(whose, edge, limit=limit)
        found |= {fact.id: fact for fact in near if fact.id not in found}
        names = dict.fromkeys(end for fact in near for end in (fact.subject, fact.object))
        edge = [one for one in names if one not in seen][:MOST_NAMES]
        if not edge or len(found) >= limit:
            break
    return list(found.values())[:limit]


_LOOKED_AT = 1000  # characters at either end of a question
_MOST_WORDS = 24
_HITS = 64  # of a word
_READ = 2  # times as many turns are read as are wanted
_FACTS = 24
_HOPS_FROM = 3  # facts whose names lead to others
_OF_FACT, _OF_SPEAKER = 0.8, 0.5
_SOURCES = 4  # of a fact, the newest
_FADES = 0.15  # what each place further down a list of facts takes from its score
KINDS: tuple[RecallKind, ...] = ("fact", "turn")

_MINE = frozenset(words_of("i me my mine we us our ours"))
_STOP = _MINE | frozenset(
    words_of(
        "a about after all also am an and any are as at be been before being but by can could did do "
        "does doing don for from had has have having he her here hers him his how if in into is it its "
        "just ll may might more most must no nor not of off on once or out over own re shall she should "
        "so some such t s d m ve than that the their theirs them then there these they this those to "
        "too under up very was were what when where which while who whom whose why will with would you "
        "your yours tell know remember please"
    )
)
_SPEAKER = re.compile(r"\s*([^\W\d_][\w .'’-]{0,40}):\s")


@dataclass(frozen=True, slots=True)
class Shown:
    """Where the conversation goes on from, if not at HEAD, and since which message it is shown
    anyhow."""

    since: NodeId | None = None
    upto: NodeId | None = None

    @property
    def ends(self) -> Sequence[NodeId]:
        return [one for one in (self.since, self.upto) if one]

    def depths(self, found: Found) -> Collection[int]:
        """Of what is shown: on the path, one message stands right after the other."""
        ends = sorted(found.messages[one] for one in self.ends if one in found.messages)
        return range(ends[0], ends[-1] + 1) if self.since and ends else ()


_NOTHING = Shown()


class Recall:
    def __init__(self, turns: Turns, facts: Facts) -> None:
        self._turns, self._facts = turns, facts

    async def of(
        self,
        question: str,
        key: SessionKey,
        whose: Whose,
        *,
        kinds: Collection[RecallKind] = KINDS,
        limit: int = 10,
        shown: Shown = _NOTHING,
    ) -> tuple[Recalled, ...]:
        """Best first: at most `limit` facts, then at most `limit` turns."""
        words = asked_words(question)
        if not words:
            return ()
        facts = await self._known((*words, *asked_of(words)), whose)
        told = tuple(facts[:limit]) if "fact" in kinds else ()
        if "turn" not in kinds:
            return told
        asked = _Asked(frozenset(_all_words(question)), words, key)
        return (*told, *await self._said(asked, facts, shown, limit))

    async def _known(self, words: Sequence[str], whose: Whose) -> list[Recalled]:
        """Facts in which the words occur, then those one hop away from the first of them."""
        found = await self._facts.matching(whose, words, limit=_FACTS)
        names = {name: one for one in reversed(found[:_HOPS_FROM]) for name in _names(one)}
        known = {fact.id for fact in found}
        beside = await self._facts.around(whose, tuple(names), limit=_FACTS) if names else ()
        further = [fact for fact in beside if fact.id not in known]
        whys = [_shared(fact, words) for fact in found] + [_hop(fact, names) for fact in further]
        facts = enumerate(zip((*found, *further), whys, strict=True))
        return [_recalled_fact(fact, 1 / (1 + _FADES * place), why) for place, (fact, why) in facts]

    async def _said(
        self, asked: "_Asked", facts: Sequence[Recalled], shown: Shown, limit: int
    ) -> list[Recalled]:
        sources = _sources(facts)
        messages = (*sources, *shown.ends)
        found = await self._turns.find(
            asked.key, asked.words, messages=messages, upto=shown.upto, limit=_HITS
        )
        depths = found.messages
        boosts = {depths[name]: _OF_FACT * by for name, by in sources.items() if name in depths}
        if not boosts and not found.words:
            return []
        seen = shown.depths(found)
        best = dict(ranked(found, boosts, limit=_READ * limit, without=seen))
        if not best:
            return []
        turns = await self._turns.fetch(asked.key, found.trail, tuple(best))
        speakers = {one.depth: asked.named(one) for one in turns}
        score = {at: best[at] + (_OF_SPEAKER if who else 0.0) for at, who in speakers.items()}
        first = sorted(turns, key=lambda one: (-round(score[one.depth], 4), one.at, one.id))[:limit]
        told = _Told(found, boosts, speakers)
        return [told.recalled(one, round(score[one.depth], 4), asked.key) for one in first]


def asked_words(question: str) -> tuple[str, ...]:
    """Those that say what it is about."""
    words = (word for word in _all_words(question) if word not in _STOP)
    return tuple(dict.fromkeys(words))[:_MOST_WORDS]


def _all_words(question: str) -> tuple[str, ...]:
    return words_of(f"{question[:_LOOKED_AT]} {question[_LOOKED_AT:][-_LOOKED_AT:]}")


@dataclass(frozen=True, slots=True)
class _Asked:
    said: frozenset[str]
    words: Sequence[str]
    key: SessionKey

    def named(self, turn: Turn) -> str | None:
        """Who speaks, if the question is about them."""
        label = _SPEAKER.match(turn.text)
        for name in (label and label[1], turn.sender):
            if name and self.said.intersection(words_of(name)) - _STOP:
                return name
        return "the user" if turn.role == "user" and self.said & _MINE else None


@dataclass(frozen=True, slots=True)
class _Told:
    """Why turns were found."""

    found: Found
    boosts: Mapping[int, float]
    speakers: Mapping[int, str | None]  # if the question is about them

    def recalled(self, turn: Turn, score: float, key: SessionKey) -> Recalled:
        words = distinct(self.found.words).items()
        held = [word for word, hits in words if turn.depth in hits.depths]
        why = [f"says {', '.join(held)}" if held else "beside what says it"]
        if turn.depth in self.boosts:
            why.append("source of a fact")
        if self.speakers[turn.depth] is not None:
            why.append(f"said by {self.speakers[turn.depth]}")
        told = (turn.text, score, "; ".join(why), key, turn.at)
        who = YOU if turn.role == "assistant" else turn.sender or SUBJECT
        return Recalled("turn", turn.id, *told, message_id=turn.id, said_by=who)


def _names(fact: Fact) -> list[str]:
    return [name for name in (fact.object, fact.subject) if name.casefold() != SUBJECT]


def _sources(facts: Sequence[Recalled]) -> dict[str, float]:
    """Messages that said them, with the score of the best fact of each."""
    scored = [(one.fact, one.score) for one in reversed(facts) if one.fact]
    return {name: score for fact, score in scored for name in fact.source_message_ids[-_SOURCES:]}


def _shared(fact: Fact, words: Sequence[str]) -> str:
    held = set(words_of(f"{fact.subject} {fact.predicate} {fact.object}"))
    return f"says {', '.join(word for word in words if word in held) or 'another form of a word'}"


def _hop(fact: Fact, names: Mapping[str, Fact]) -> str:
    """One of the names is its subject or object, perhaps in another form."""
    ends = (fact.subject, fact.object)
    near = next((name for name in names if name in ends), fact.subject)
    return f"{near} -> {fact.predicate}"


def _recalled_fact(fact: Fact, score: float, why: str) -> Recalled:
    text = f"{fact.subject} {fact.predicate} {fact.object}"
    source = fact.source_message_ids[-1] if fact.source_message_ids else None
    at, key = fact.learned_at, fact.session_key
    return Recalled("fact", fact.id, text, round(score, 4), why, key, at, source, fact)


LEAST = 10


@dataclass(frozen=True, slots=True)
class Remembrance:
    """Implements Remember over what is known and was said."""

    recall: Recall
    facts: Facts

    async def of(
        self,
        question: str,
        key: SessionKey,
        sender: str | None,
        agent: AgentDef,
        window: Sequence[Node],
        *,
        is_all: bool = False,
    ) -> tuple[Recalled, ...]:
        theirs = whose(key, sender, is_shared=agent.context.fact_scope == "agent")
        shown = Shown(window[0].id, window[-1].id) if window else Shown()
        most = agent.context.facts
        limit = max(LEAST, most)
        kinds: Sequence[RecallKind] = ("fact",) if is_all else KINDS
        found = await self.recall.of(question, key, theirs, kinds=kinds, limit=limit, shown=shown)
        facts = [one for one in found if one.fact][:most]
        turns = [one for one in found if not one.fact]
        return (*facts, *await self._besides(theirs, facts, most), *turns)

    async def _besides(
        self, theirs: Whose, facts: Sequence[Recalled], most: int
    ) -> Sequence[Recalled]:
        """Of whoever asks, if there is room: few say outright what they ask about."""
        if len(facts) >= most:
            return ()
        known = {one.id for one in facts}
        more = await self.facts.around(theirs, (SUBJECT,), limit=most)
        return [_of_the_person(one) for one in more if one.id not in known][: most - len(facts)]


def _of_the_person(fact: Fact) -> Recalled:
    text = f"{fact.subject} {fact.predicate} {fact.object}"
    why = "about the person"
    return Recalled("fact", fact.id, text, 0.0, why, fact.session_key, fact.learned_at, fact=fact)


SPACE = "notes"
NOTE, THREAD = "note|", "thread|"  # keys: note|PATH, and thread|ID|SEGMENT
MOST_LISTED, MOST_CHARACTERS = 20, 1_000  # of each of the two

_ABOUT = "names that were chosen in conversations, not instructions;"


@dataclass(frozen=True, slots=True)
class Vault:
    """The store of one plugin, for an agent that has its tools."""

    store: PluginStore
    plugin: str
    is_shared: bool
    tools: frozenset[str]

    async def named(self, person: str, key: SessionKey, at: datetime) -> tuple[Recalled, ...]:
        """A list of each kind that the agent can read, if there is any of it."""
        space = PluginSpace(self.plugin, SPACE, None if self.is_shared else person)
        keys = await self.store.list(space, "")
        notes = [one.removeprefix(NOTE) for one in keys if one.startswith(NOTE)]
        ids = (one[len(THREAD) :].rpartition("|")[0] for one in keys if one.startswith(THREAD))
        threads = list(dict.fromkeys(ids))  # a long one has several keys

        def shown(kind: Literal["notes", "threads"], names: Sequence[str], told: str) -> Recalled:
            why = f"{len(names)} that the plugin {self.plugin} keeps for whoever asks"
            return Recalled(kind, kind, _lines(names, told), 0.0, why, key, at)

        found = []
        if notes and "vault_read" in self.tools:
            found.append(shown("notes", notes, f"Notes ({_ABOUT} vault_read reads one):"))
        if threads and "thread_read" in self.tools:
            found.append(shown("threads", threads, f"Threads ({_ABOUT} thread_read reads one):"))
        return tuple(found)


def vault_of(
    offered: Iterable[ToolSpec], plugins: Mapping[str, PluginDef], store: PluginStore
) -> Vault | None:
    """None for whoever has none of the bundled tools that read."""
    mine = [one for one in offered if one.name in {"vault_read", "thread_read"}]
    plugin = plugins.get(mine[0].family) if mine else None
    grant = plugin.store_grant(SPACE) if plugin is not None and plugin.is_bundled else None
    if plugin is None or grant is None:
        return None
    return Vault(store, plugin.name, grant.is_shared, frozenset(one.name for one in mine))


def _lines(names: Sequence[str], told: str) -> str:
    lines, room = [told], MOST_CHARACTERS
    for name in names[:MOST_LISTED]:
        line = f"- {flat(name)}"
        room -= len(line)
        if room < 0:
            break
        lines.append(line)
    rest = len(names) - len(lines) + 1
    return "\n".join([*lines, f"- and {rest} more"] if rest else lines)

"""What comes to mind at a question: facts, and turns that no window shows any more."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.facts import SUBJECT, Fact, Facts, Whose
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.recall import YOU, Found, Recalled, RecallKind, Turn, Turns
from gateway.domain.words import words_of
from gateway.memory.predicates import asked_of
from gateway.memory.ranking import distinct, ranked

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

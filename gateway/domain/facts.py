"""Facts about people: claims, the facts that follow from them, and how facts are found."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from hashlib import sha256
from operator import itemgetter
from typing import Literal, NamedTuple
from unicodedata import category, normalize

from gateway.domain.agents import OWN_CHANNELS, key_peer, of_person, peer_of, person_in
from gateway.domain.errors import GatewayError
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.messages import Role

LONGEST = 64  # characters of a word that count
MOST_GROWN = 4  # factor by which normalization may lengthen a text

# Written without spaces between words: kana, Han, Hangul, Thai, Lao, Burmese, Khmer.
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = f"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\uac00-\ud7af{_HAN}]+"
_PIECE = re.compile(f"({_UNSPACED})")
_IS_HAN = re.compile(f"[{_HAN}]")
_ASCII = re.compile(rf"([0-9a-z]{{1,{LONGEST}}})[0-9a-z]*")
_SPACED = re.compile(rf"(\S{{1,{LONGEST}}})\S*")


class _Apart(dict[int, str]):
    """Table for `str.translate` that replaces characters outside of words by a blank. Each
    character is looked up once."""

    def __missing__(self, code: int) -> str:
        one = chr(code)
        belongs = one.isalnum() or category(one)[0] == "M"
        return self.setdefault(code, one if belongs else " ")


_APART = _Apart()


def words_of(text: str) -> tuple[str, ...]:
    """Returns the words in order, casefolded and normalized. Text in scripts without spaces yields
    pairs of characters, and single Han characters."""
    if text.isascii():
        return tuple(_ASCII.findall(text.lower()))
    even = normalize("NFKC", normalize("NFKC", text).casefold())
    even = even[: MOST_GROWN * len(text) + LONGEST]  # some characters expand to sentences
    words: list[str] = []
    for piece in _PIECE.split(even.translate(_APART)):
        words += _pairs(piece) if _PIECE.match(piece) else _SPACED.findall(piece)
    return tuple(words)


def _pairs(run: str) -> list[str]:
    if len(run) == 1:
        return [run]
    pairs = [first + second for first, second in zip(run, run[1:], strict=False)]
    return pairs + _IS_HAN.findall(run)


# --- forms of a word -----------------------------------------------------------------------------
_TO_OTHERS = (
    "ational:ate tional:tion enci:ence anci:ance izer:ize logi:log bli:ble alli:al entli:ent eli:e "
    "ousli:ous ization:ize ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al "
    "iviti:ive biliti:ble"
)
_TO_SHORTER = "ical:ic ness: icate:ic iciti:ic ful: ative: alize:al"
_DROPPED = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"
_LEAST_WORD = 3  # shorter words have one form


def _rules(rules: str, least: int) -> tuple[re.Pattern[str], Mapping[str, str], int]:
    """Returns a pattern for a stem and its ending, the new endings, and the least measure of the stem."""
    endings = {old: new for old, _, new in (rule.partition(":") for rule in rules.split())}
    pattern = "|".join(endings).replace("|ion|", "|(?<=[st])ion|")
    return re.compile(f"(.+?)({pattern})", re.DOTALL), endings, least


_STEPS = (_rules(_TO_OTHERS, 1), _rules(_TO_SHORTER, 1), _rules(_DROPPED, 2))


@lru_cache(20_000)
def stem_of(word: str) -> str:
    """Returns the form under which full-text indexes find a word: without accents, and by Porter's
    rules without its ending. Like SQLite it takes each byte for a letter."""
    if not word.isascii():
        word = _without_accents(word).encode().decode("latin-1")
    if not _LEAST_WORD <= len(word) <= LONGEST:
        return word
    stem = _without_tense(_singular(word))
    for pattern, endings, least in _STEPS:
        found = pattern.fullmatch(stem)
        if found and _measure(found[1]) >= least:
            stem = found[1] + endings[found[2]]
    if stem[-1] == "e" and _measure(stem[:-1]) > _is_short(stem[:-1]):
        stem = stem[:-1]
    return stem.removesuffix("l") if stem.endswith("ll") and _measure(stem[:-1]) > 1 else stem


def _without_accents(word: str) -> str:
    return "".join(one for one in normalize("NFKD", word) if category(one)[0] != "M")


def _singular(word: str) -> str:
    if word.endswith(("sses", "ies")) and word not in {"sses", "ies"}:
        return word[:-2]
    return word[:-1] if word[-1] == "s" and word[-2] != "s" else word


def _without_tense(word: str) -> str:
    """Also writes a last `y` as `i`."""
    if word.endswith("eed") and word != "eed":
        return word[: -1 if _measure(word[:-3]) else None]
    ending = word[-2:] if word.endswith("ed") else "ing"
    stem = word.removesuffix(ending)
    word = _whole(stem) if stem != word and _has_vowel(stem) else word
    return f"{word[:-1]}i" if word[-1] == "y" and _has_vowel(word[:-1]) else word


def _whole(stem: str) -> str:
    """Returns the word to which `ed` or `ing` was added."""
    if stem.endswith(("at", "bl", "iz")) and len(stem) > len("at"):
        return f"{stem}e"
    if stem[-1] == stem[-2:-1] and stem[-1] not in "aeioulsz":
        return stem[:-1]
    return f"{stem}e" if _measure(stem) == 1 and _is_short(stem) else stem


def _has_vowel(stem: str) -> bool:
    return "y" in stem[1:] or not frozenset("aeiou").isdisjoint(stem)


def _measure(stem: str) -> int:
    """Number of times that consonants follow vowels."""
    return _shape(stem).count("vc")


def _is_short(stem: str) -> bool:
    return stem[-1:] not in "wxy" and _shape(stem).endswith("cvc")


def _shape(stem: str) -> str:
    shape = ""
    for letter in stem:
        is_vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if is_vowel else "c"
    return shape


# --- facts ---------------------------------------------------------------------------------------
EntityType = Literal["fact", "relationship", "attribute"]
SUBJECT = "user"  # the speaker, as subject of statements about themselves
SAID_BY_MODEL = "assistant"  # the model inferred the claim from the quote


@dataclass(frozen=True, slots=True)
class SaidSource:
    """The place where a fact was stated."""

    message_id: str
    session_key: SessionKey
    at: datetime
    quote: str  # occurs in the message, letter for letter
    said_by: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement before it is settled with the stored claims. `functional`: the subject has one
    object at a time, so a new object supersedes the old one."""

    subject: str
    predicate: str
    object: str
    functional: bool
    valid_from: datetime  # the stated beginning; else the time of the statement
    session_key: SessionKey
    entity_type: EntityType = "fact"
    confidence: float = 1.0
    valid_to: datetime | None = None  # the stated end
    source: SaidSource | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that follows from claims. `learned_at` and `superseded_at` say when it was believed,
    `valid_from` and `valid_to` when it was true. A fact that is not superseded is current. Only an
    explicit erasure deletes facts."""

    id: str
    scope: str
    entity_type: EntityType
    subject: str
    predicate: str
    object: str
    functional: bool
    confidence: float
    session_key: SessionKey  # where it was learned
    learned_at: datetime
    valid_from: datetime
    valid_to: datetime | None = None
    superseded_at: datetime | None = None
    superseded_by: str | None = None
    source_message_ids: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.subject} {self.predicate} {self.object}"


@dataclass(frozen=True, slots=True)
class FactView:
    """The facts that a reader may see: all facts of a scope, or only facts learned in one room."""

    scope: str | None = None
    room: SessionKey | None = None


@dataclass(frozen=True, slots=True)
class FactQuery:
    """`at` selects facts that were true then, `known_at` facts that were believed then. Without
    both it selects current facts, or all facts with `with_history`. Results are ordered by
    `valid_from`, oldest first."""

    view: FactView
    subject: str | None = None
    predicate: str | None = None
    at: datetime | None = None
    known_at: datetime | None = None
    with_history: bool = False
    limit: int = 500


@dataclass(frozen=True, slots=True)
class SourceReader:
    """The reader of sources: a principal, or the speaker in a conversation."""

    account: str | None = None  # of the principal, who owns all conversations of the account
    key: SessionKey | None = None  # the conversation in which the source would be shown
    scope: str | None = None  # the speaker's own scope, as `of_person` returns it
    in_room: bool = False  # other people read the conversation
    reads_all: bool = False

    @classmethod
    def of(cls, key: SessionKey, sender: str | None) -> "SourceReader":
        return cls(None, key, of_person(key, sender), is_room(key, sender))

    def may_read(self, source: SaidSource, scope: str) -> bool:
        """True if a source of a fact of that scope may be shown: a source in this conversation, or
        outside of rooms one of the reader's own."""
        there = source.session_key
        if self.reads_all or there == self.key:
            return True
        if self.scope is None:
            return there.channel in OWN_CHANNELS and there.account == self.account
        said_by = None if source.said_by == SAID_BY_MODEL else source.said_by
        own = (scope, of_person(there, None), of_person(there, said_by))
        return not self.in_room and self.scope in own


@dataclass(frozen=True, slots=True)
class Provenance:
    """A fact with its sources and the facts that it supersedes."""

    fact: Fact
    sources: tuple[SaidSource, ...]
    supersedes: tuple[str, ...]

    def sources_for(self, reader: SourceReader) -> tuple[SaidSource, ...]:
        return tuple(one for one in self.sources if reader.may_read(one, self.fact.scope))


@dataclass(frozen=True, slots=True)
class Erasure:
    """The subject of an erasure: one fact, all facts of a scope, or all facts learned in a
    session."""

    fact_id: str | None = None
    scope: str | None = None
    session_key: SessionKey | None = None
    by: str = "local"  # the actor, for the audit

    @property
    def kind(self) -> Literal["fact", "scope", "session"]:
        if self.fact_id is not None:
            return "fact"
        return "session" if self.scope is None else "scope"


def tombstone_of(what: Erasure, now: datetime) -> str:
    """Returns the digest that an erasure leaves; it does not reveal what was erased."""
    target = what.fact_id or what.scope or str(what.session_key)
    return sha256(f"{what.kind} {target} {now.isoformat()}".encode()).hexdigest()[:32]


def scope_of(key: SessionKey, sender: str | None, *, is_shared: bool = False) -> str:
    """Returns the scope of facts: an agent and a person, or if `is_shared` the agent and all its
    users."""
    return str(key.agent) if is_shared else of_person(key, sender)


def fact_view(key: SessionKey, sender: str | None, *, is_shared: bool = False) -> FactView:
    """Returns the view of a conversation: in a direct chat all facts of the person, in a room only
    facts learned in it."""
    if is_shared or not is_room(key, sender):
        return FactView(scope=str(key.agent) if is_shared else of_person(key, sender))
    return FactView(room=key)


def is_room(key: SessionKey, sender: str | None) -> bool:
    """True if other people read the conversation. In a direct chat the peer is the speaker."""
    if not sender or key.peer == sender:
        return False
    escaped = key_peer(peer_of(sender, is_foreign=True), is_room=False)
    return key.peer not in {person_in(key, sender), escaped}


# Characters.
LONGEST_NAME = 500  # of a subject or predicate
LONGEST_OBJECT = 4_000
LONGEST_QUOTE = 100_000

MOST_NAMED = 50  # messages

_ARTICLE = re.compile(r"^(?:the|an?) (?=\S)")
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f]+")


class ClaimRefused(GatewayError):
    """The claim makes no valid fact."""

    code = "invalid_params"


class QueryRefused(GatewayError):
    """The query would have to evaluate too many claims."""

    code = "invalid_params"


def form(text: str) -> str:
    """Returns the canonical spelling, which ignores case, extra blanks, a leading article and final
    punctuation."""
    even = normalize("NFKC", normalize("NFKC", text).casefold())
    spaced = _BLANKS.sub(" ", even).strip()
    return _ARTICLE.sub("", spaced).rstrip(" .,;:!?…。、！？") or spaced


def predicate_form(text: str) -> str:
    """Returns the canonical spelling, in which `lives_in` equals `lives in`."""
    return form(text.replace("_", " "))


def require_claim(claim: Claim) -> None:
    """Raises ClaimRefused if a part of the claim is empty, too long or out of range."""
    if not 0.0 <= claim.confidence <= 1.0:  # also if it is not a number
        raise ClaimRefused(f"confidence {claim.confidence} of a fact is not from 0 to 1")
    texts = {"subject": claim.subject, "predicate": claim.predicate, "object": claim.object}
    for name, text in texts.items():
        most = LONGEST_OBJECT if name == "object" else LONGEST_NAME
        if not form(text.replace("_", " ") if name == "predicate" else text):
            raise ClaimRefused(f"the {name} of a fact is empty: say what it is")
        if len(text) > most:
            raise ClaimRefused(
                f"the {name} of a fact has {len(text)} characters, at most {most} are kept: "
                "say it shorter"
            )
    if claim.source is not None and len(claim.source.quote) > LONGEST_QUOTE:
        raise ClaimRefused(f"the quote of a fact is longer than {LONGEST_QUOTE} characters")


@dataclass(frozen=True)
class StoredClaim:
    """A claim in the store. A fact has the id of the first of its claims that was learned."""

    id: str
    claim: Claim
    learned_at: datetime
    said_at: datetime | None = None  # time of a source that was erased

    @cached_property
    def object(self) -> str:
        return form(self.claim.object)

    @property
    def only_ends(self) -> bool:
        """True if the claim says that something ended, without naming a replacement."""
        return self.claim.valid_to is not None and self.claim.valid_to <= self.claim.valid_from

    @property
    def since(self) -> datetime:
        """The beginning of the claimed fact, at the latest its end: a statement that something
        ended says nothing about its beginning."""
        return min(self.claim.valid_from, self.claim.valid_to or self.claim.valid_from)

    @property
    def stated_at(self) -> datetime:
        source = self.claim.source
        return (source.at if source else self.said_at) or self.since

    @property
    def place(self) -> tuple[datetime, bool, datetime, datetime, str]:
        """The sort key among claims. At equal times an end comes before a beginning, and a later
        statement wins, else the claim that was learned later. `in_order` keeps two objects from
        having equal keys; the object only keeps claims of one object together."""
        has_begun = self.claim.valid_to is None or self.since < self.claim.valid_to
        return (self.since, has_begun, self.stated_at, self.learned_at, self.object)


def in_order(claims: Sequence[Claim]) -> list[Claim]:
    """Returns claims in the order in which one message or call states them. A claim that replaces
    an earlier one is dated a microsecond later, so that the later statement wins."""
    ranks: dict[tuple[object, ...], int] = {}
    begun: dict[tuple[object, ...], str] = {}
    ordered = []
    for claim in claims:
        stored = StoredClaim("", claim, claim.valid_from)
        said_in = claim.source.message_id if claim.source else claim.valid_from
        lane = "" if claim.functional else stored.object
        key = (said_in, form(claim.subject), predicate_form(claim.predicate), lane)
        last = begun.get(key)
        if last is not None and (last == stored.object) == stored.only_ends:
            ranks[key] = ranks.get(key, 0) + 1
        if not stored.only_ends:
            begun[key] = stored.object
        elif last == stored.object:
            del begun[key]
        ordered.append(_later(claim, timedelta(microseconds=ranks.get(key, 0))))
    return ordered


def _later(claim: Claim, by: timedelta) -> Claim:
    """Shifts undated times; explicit dates stay."""
    if not by:
        return claim
    source = claim.source and replace(claim.source, at=claim.source.at + by)
    undated = claim.source.at if claim.source else claim.valid_from
    since, until = (
        one + by if one == undated else one for one in (claim.valid_from, claim.valid_to)
    )
    assert since is not None
    return replace(claim, valid_from=since, valid_to=until, source=source)


@dataclass(slots=True)
class _Period:
    """A time during which one object held. `stored` is keyed by order of learning."""

    object: str
    since: datetime
    until: datetime | None = None
    stored: dict[int, StoredClaim] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettledFact:
    """A fact with its claims, in the order in which they were learned."""

    fact: Fact
    stored: tuple[StoredClaim, ...]


def settle_claims(
    scope: str, stored: Sequence[StoredClaim], *, before: Mapping[str, Fact], now: datetime
) -> Sequence[SettledFact]:
    """Returns the facts of one subject and predicate that follow from all its claims, given in the
    order of learning. `before` holds the earlier facts by id; a superseded fact keeps its time.

    Another object of a functional predicate ends the previous one; all other objects stand side by
    side. An object is functional if any claim says so.
    """
    facts: list[SettledFact] = []
    for lane, those in _lanes(stored).items():
        following: str | None = None
        for period in reversed(_periods(those)):
            claims = tuple(map(period.stored.__getitem__, sorted(period.stored)))
            first, claim, known = claims[0], claims[0].claim, before.get(claims[0].id)
            is_over = following is not None or (period.until is not None and period.until <= now)
            superseded_at = (known and known.superseded_at) or now
            messages = [one.claim.source.message_id for one in claims if one.claim.source]
            named = tuple(dict.fromkeys(messages[:MOST_NAMED]))  # the provenance has all of them
            sure = max(one.claim.confidence for one in claims)
            ended = superseded_at if is_over else None
            said = (claim.entity_type, claim.subject, claim.predicate, claim.object)
            what = (*said, not lane, sure, claim.session_key, first.learned_at)
            since, until = period.since, period.until
            fact = Fact(first.id, scope, *what, since, until, ended, following, named)
            following = fact.id
            facts.append(SettledFact(fact, claims))
    return facts


def _lanes(stored: Sequence[StoredClaim]) -> Mapping[str, list[tuple[int, StoredClaim]]]:
    """Groups numbered claims that may end each other: all functional objects ("") together, and
    each other object alone."""
    functional = {one.object for one in stored if one.claim.functional}
    lanes: dict[str, list[tuple[int, StoredClaim]]] = {}
    for number, one in enumerate(stored):
        lanes.setdefault("" if one.object in functional else one.object, []).append((number, one))
    return lanes


def by_time(fact: Fact) -> tuple[datetime, bool, str]:
    """Sort key of facts; at equal times the current fact comes last."""
    return (fact.valid_from, fact.superseded_at is None, fact.id)


def is_wanted(fact: Fact, query: FactQuery) -> bool:
    """True if the fact held at the requested time; without one, if it still holds."""
    if query.at is None:
        return query.with_history or fact.superseded_at is None
    return fact.valid_from <= query.at and (fact.valid_to is None or query.at < fact.valid_to)


def _periods(stored: Sequence[tuple[int, StoredClaim]]) -> list[_Period]:
    """Returns consecutive periods. Neighbours have different objects unless the first one ended."""
    periods: list[_Period] = []
    last: _Period | None = None  # the period that has not ended
    for at, is_end, number, one in _points(stored):
        is_other = last is not None and last.object != one.object
        if is_other and one.only_ends and not is_end:
            # The end of one object says nothing about another that holds now.
            periods.insert(0, _Period(one.object, at, at, {number: one}))
            continue
        if last is not None and is_other != is_end:  # the period ended, or another object begins
            last.until, last = at, None
        if is_end:
            continue
        if last is None:
            periods.append(last := _Period(one.object, at))
        last.stored[number] = one
    return periods


def _points(
    stored: Sequence[tuple[int, StoredClaim]],
) -> Iterator[tuple[datetime, bool, int, StoredClaim]]:
    """Yields the beginnings and ends of claims in order of time."""
    since = _sinces([one for _, one in stored])
    points = [
        (since(one), False, (since(one), *one.place[1:]), number, one) for number, one in stored
    ]
    ends = [(one.claim.valid_to, number, one) for number, one in stored]
    points += [(end, True, one.place, number, one) for end, number, one in ends if end is not None]
    for at, is_end, _, number, one in sorted(points, key=itemgetter(0, 1, 2, 3)):
        yield at, is_end, number, one


def _sinces(stored: Sequence[StoredClaim]) -> Callable[[StoredClaim], datetime]:
    """Returns a function from a claim to its beginning. A dated statement that still holds
    overrides undated claims since its date."""
    still = {(one.object, one.since) for one in stored}
    lasting = [one for one in stored if one.since < one.stated_at and one.claim.valid_to is None]
    spans = [(one.since, one.stated_at, one.object) for one in lasting]
    spans = sorted(span for span in spans if (span[2], span[1]) in still)

    def since(one: StoredClaim) -> datetime:
        if one.claim.source is None or one.claim.valid_to or one.since != one.stated_at:
            return one.since
        others = (span for span in spans if span[2] != one.object)
        return next((begin for begin, end, _ in others if begin < one.since < end), one.since)

    return since


@dataclass(frozen=True, slots=True)
class SaidMessage:
    """One message of a person; in a room `sender` differs from the session's peer."""

    message_id: NodeId
    run_id: RunId
    sender: str | None
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SaidPage:
    """The messages of people in a part of a session, and its last node; None if it is empty."""

    said: tuple[SaidMessage, ...] = ()
    upto: NodeId | None = None


RecallKind = Literal["fact", "turn"]
YOU = "you"  # names the model as speaker of a turn


@dataclass(frozen=True, slots=True)
class Recalled:
    """A search result; `why` names the words and signals that found it."""

    kind: RecallKind | Literal["notes", "threads"]  # notes, threads: a text of names
    id: str  # of the fact, or of the message
    text: str
    score: float
    why: str
    session_key: SessionKey
    at: datetime
    message_id: str | None = None
    fact: Fact | None = None
    said_by: str = SUBJECT  # of a turn: the user, another speaker's name, or `you` for the model


@dataclass(frozen=True, slots=True)
class Trail:
    """The visible part of a session: spans of `seq`, oldest first, each (first, last, depth of the
    first). Depths count along the spans, so neighbours in the conversation are neighbours in
    depth."""

    spans: tuple[tuple[int, int, int], ...] = ()
    length: int = 0

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> "Trail":
        """Builds a trail from pairs (first, last), in any order, that do not overlap."""
        depth, counted = 0, []
        for first, last in sorted(spans):
            counted.append((first, last, depth))
            depth += last - first + 1
        return cls(tuple(counted), depth)

    def depth_of(self, seq: int) -> int | None:
        """Returns None for a message that is not visible."""
        at = bisect_right(self.spans, seq, key=itemgetter(0)) - 1
        if at < 0 or seq > self.spans[at][1]:
            return None
        return self.spans[at][2] + seq - self.spans[at][0]

    def depths_of(self, seqs: Iterable[int]) -> set[int]:
        """Returns the depths of the visible messages."""
        if len(self.spans) == 1:
            first, last, before = self.spans[0]
            return {before + seq - first for seq in seqs if first <= seq <= last}
        return {depth for seq in seqs if (depth := self.depth_of(seq)) is not None}

    def count_to(self, seq: int) -> int:
        """Returns the number of visible messages up to `seq`."""
        count = 0
        for first, last, _ in self.spans:
            count += max(0, min(last, seq) - first + 1)
        return count

    def seq_at(self, depth: int) -> int:
        first, _, before = self.spans[bisect_right(self.spans, depth, key=itemgetter(2)) - 1]
        return first + depth - before


@dataclass(frozen=True, slots=True)
class Hits:
    """The depths at which a word occurs; `total` estimates all if `depths` are only the newest."""

    depths: frozenset[int]
    total: int


class PastTurn(NamedTuple):
    """A message that was found; `text` may be cut."""

    depth: int
    score: float
    id: NodeId
    role: Role
    text: str
    at: datetime
    sender: str | None = None


@dataclass(frozen=True, slots=True)
class FoundTurns:
    trail: Trail = Trail()
    words: Mapping[str, Hits] = field(default_factory=dict)
    messages: Mapping[str, int] = field(
        default_factory=dict
    )  # requested message ids and their depths
    turns: Sequence[PastTurn] = ()  # the chosen messages


# Chooses the depths of the messages to read, with their scores.
Choose = Callable[[FoundTurns], Mapping[int, float]]


OPENING, CLOSING = "<memory>", "</memory>"  # around the memory block
# Tags of blocks that only the gateway may open or close, in any sloppy spelling.
_EDGES = re.compile(r"<(?=\s?/?\s?(?:memory|system-notice|summary)\b)", re.IGNORECASE)


def memory_line(recalled: Recalled) -> str:
    """Returns one line of the memory block: `- user dog_name Luna (since 2026-03-01, told
    2026-11-18)`, or `- you said 2026-11-18: …`. No text can end the block or begin a line of its
    own."""
    if fact := recalled.fact:
        dates = f"since {_day(fact.valid_from)}, told {_day(fact.learned_at)}"
        dates = f"{dates}, until {_day(fact.valid_to)}" if fact.valid_to else dates
        predicate = "_".join(fact.predicate.split())  # one word, so that a line can be read back
        return f"- {flat(f'{fact.subject} {predicate} {fact.object}')} ({dates})"
    return f"- {flat(recalled.said_by)} said {_day(recalled.at)}: {flat(recalled.text)}"


def _day(at: datetime) -> str:
    return at.date().isoformat()


def flat(text: str) -> str:
    """Returns the text on one line, with the gateway's block tags disarmed."""
    return _EDGES.sub("‹", " ".join(text.split()))
